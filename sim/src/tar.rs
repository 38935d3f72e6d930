//! Transpose AllReduce with the protocol core of `ultima-host`, the one that sockets drive.

mod grid;
#[cfg(test)]
mod sharing;
mod side;

use std::rc::Rc;
use std::time::Duration;

use ultima_host::trace::Sink;
use ultima_host::{
    Config, Core, Destination, Event, Layout, OperationId, Outcome, Part, Time, Transmit,
};
use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{HEADER_LEN, Header, Kind};

use crate::clock::Ps;
use crate::network::{Hosts, Network};
use crate::operations::Operations;
use crate::packet::{Group, Packet, Stamps, Target};
use crate::stages::Stages;
use crate::stages::TRAIN;
use crate::values::{self, Payload};

pub(crate) use grid::TarOnGrid;
use side::{HostLink, Side};

/// A packet's content.
#[derive(Clone)]
pub(crate) struct Datagram {
    header: Header,
    stored: Stored,
    /// Bytes of its payload.
    payload: usize,
}

/// The stored bytes of a payload: none of values without memory.
#[derive(Clone)]
enum Stored {
    /// Few enough to need no allocation: notices, grants.
    Few([u8; FEW], u8),
    Many(Rc<[u8]>),
}

/// As large as a shared slice.
const FEW: usize = 22;

impl Stored {
    fn new(bytes: &[u8]) -> Self {
        match bytes.len() {
            len @ 0..=FEW => {
                let mut few = [0; FEW];
                few[..len].copy_from_slice(bytes);
                Stored::Few(few, len as u8)
            }
            _ => Stored::Many(bytes.into()),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Stored::Few(few, len) => &few[..usize::from(*len)],
            Stored::Many(bytes) => bytes,
        }
    }
}

impl Datagram {
    /// Reads a datagram that a core wrote. A packet of values has nothing else without recycling, which is not simulated.
    fn read<V: Payload>(buf: &[u8], transmit: Transmit) -> Self {
        let (header, payload) = Header::parse(&buf[..transmit.len]).expect("cores send headers");
        let stored = match header.kind {
            Kind::Scatter | Kind::Gather | Kind::Repair if !V::HAS_VALUES => &[],
            _ => payload,
        };
        Self {
            stored: Stored::new(stored),
            payload: payload.len(),
            header,
        }
    }

    fn into_packet(self, source: u32, target: Target) -> Packet<Datagram> {
        let head = FRAME_OVERHEAD + HEADER_LEN;
        let is_data = matches!(
            self.header.kind,
            Kind::Scatter | Kind::Gather | Kind::Repair
        );
        Packet {
            source,
            target,
            frame: (head + self.payload) as u32,
            head: is_data.then_some(head as u32),
            is_owed: matches!(self.header.kind, Kind::Scatter | Kind::Gather),
            body: self,
        }
    }

    /// Delivers the datagram to a core with the stamps of the network. Bytes that are not stored have any content.
    fn deliver<V: Payload>(
        mut self,
        stamps: Stamps,
        core: &mut Core<V>,
        now: Time,
        buf: &mut Vec<u8>,
    ) {
        self.header.switch_flags = stamps.flags;
        self.header.budget = stamps.budget;
        self.header.path_queue = stamps.path_queue;
        let len = HEADER_LEN
            + if stamps.has_no_payload() {
                0
            } else {
                self.payload
            };
        if buf.len() < len {
            buf.resize(len, 0);
        }
        let datagram = &mut buf[..len];
        self.header.emit(datagram);
        if !stamps.has_no_payload() {
            let stored = self.stored.bytes();
            datagram[HEADER_LEN..][..stored.len()].copy_from_slice(stored);
        }
        core.handle_datagram(now, datagram);
    }
}

/// The messages of a stage.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Scatter = 0,
    Gather = 1,
}

struct Rank<V> {
    side: Side<V>,
    /// Its start of the current operation; never after the start.
    begins: Ps,
    /// With values: the buffer that is reused.
    values: Vec<f32>,
}

/// All ranks of a job.
pub(crate) struct Tar<'a, V> {
    ranks: Vec<Rank<V>>,
    stages: Stages,
    operations: Operations<'a>,
    /// Values of a bucket.
    len: usize,
    /// Bytes of the longest message from one rank to another in a stage.
    message: u64,
    train: Ps,
    number: u32,
    out: Vec<u8>,
    back: Vec<u8>,
    pub(crate) results: Results,
}

/// The results.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Results {
    /// Contributions and aggregates that counted.
    pub(crate) arrived: u64,
    /// Contributions and aggregates without loss.
    pub(crate) owed: u64,
    /// Rank 0's t_S in its last operation.
    pub(crate) t_s: Duration,
    pub(crate) t_b: Duration,
    /// With values: the largest distance of a result's entry from the mean over all ranks.
    pub(crate) worst_error: f32,
}

impl<'a, V: Payload> Tar<'a, V> {
    /// `config` returns each rank's configuration.
    pub(crate) fn new(
        config: &dyn Fn(u16) -> Config,
        len: usize,
        stages: Stages,
        operations: Operations<'a>,
    ) -> Self {
        let rank = |rank| Rank {
            side: Side::new(config(rank)),
            begins: Ps::NEVER,
            values: Vec::new(),
        };
        let config = config(0);
        let ranks: Vec<Rank<V>> = (0..config.ranks).map(rank).collect();
        let layout = Layout::new(len, config.ranks, config.slot_len());
        Self {
            stages,
            operations,
            len,
            message: layout.shard(config.ranks - 1).len() as u64 * 4,
            train: Ps::to_send(TRAIN, stages.rate),
            number: 0,
            out: vec![0; ranks[0].side.core.max_datagram()],
            back: Vec::new(),
            results: Results::default(),
            ranks,
        }
    }

    /// Records the events of a rank.
    pub(crate) fn trace(&mut self, rank: u16, sink: Box<dyn Sink>) {
        if let Some(rank) = self.ranks.get_mut(usize::from(rank)) {
            rank.side.core.trace(sink);
        }
    }

    pub(crate) fn into_operations(self) -> Operations<'a> {
        self.operations
    }

    fn start(&mut self, net: &mut Network<Datagram>, host: u32) {
        let now = net.now();
        let at = host as usize;
        let id = OperationId {
            step: self.number,
            bucket: 0,
        };
        let rank = &mut self.ranks[at];
        rank.begins = Ps::NEVER;
        let before = self
            .stages
            .before(self.number, Stage::Scatter as u32, host, self.message);
        rank.side.begin(net, now + before, true);
        let mut values = std::mem::take(&mut rank.values);
        values.clear();
        if V::HAS_VALUES {
            let number = self.number;
            values.extend((0..self.len).map(|entry| values::contribution(number, host, entry)));
        }
        let bucket = V::of(values, self.len);
        let core = &mut rank.side.core;
        let started = core.start_with(now.to_core(), id, Part::Whole.into(), bucket);
        started.expect("an operation starts when the one before has ended everywhere");
    }

    /// Starts the operation if it is due, takes the core's events, sends its packets, and schedules the next
    /// call.
    fn advance(&mut self, net: &mut Network<Datagram>, host: u32) {
        if self.ranks[host as usize].begins <= net.now() {
            self.start(net, host);
        }
        while let Some(event) = self.ranks[host as usize].side.core.poll_event() {
            if let Event::Done { outcome, result } = event {
                self.count(host, &outcome, result.into_vec());
                self.operations.ended(net, host);
            }
        }
        let all = Group::all(net.hosts());
        let link = HostLink {
            host,
            train: self.train,
            to: &|to| match to {
                Destination::Rank(rank) => Target::Host(rank.into()),
                Destination::Group => Target::Group(all),
            },
        };
        let before =
            |stages: &Stages| stages.before(self.number, Stage::Gather as u32, host, self.message);
        let rank = &mut self.ranks[host as usize];
        rank.side
            .transmit(net, &link, &mut self.out, || before(&self.stages));
        net.wake(host, rank.side.next(net, host).min(rank.begins));
    }

    fn count(&mut self, host: u32, outcome: &Outcome, result: Vec<f32>) {
        let ranks = self.ranks.len() as u64;
        let config = self.ranks[host as usize].side.core.config();
        let layout = Layout::new(self.len, config.ranks, config.slot_len());
        let all: u64 = (0..config.ranks).map(|o| u64::from(layout.slots(o))).sum();
        let own = u64::from(layout.slots(config.rank));
        let others = |(count, slots): (u64, &u32)| (count.saturating_sub(1)) * u64::from(*slots);
        self.results.owed += own * (ranks - 1) + (all - own);
        self.results.arrived += (0..).zip(&outcome.contributions).map(others).sum::<u64>();
        self.results.arrived += all - own - u64::from(outcome.missed_aggregates);
        let error = values::worst_error(self.number, ranks as u32, 0, &result);
        self.results.worst_error = self.results.worst_error.max(error);
        if host == 0 {
            (self.results.t_s, self.results.t_b) = (outcome.t_s, outcome.t_b);
        }
        self.ranks[host as usize].values = result;
    }
}

impl<V: Payload> Hosts for Tar<'_, V> {
    type Body = Datagram;

    fn receive(&mut self, net: &mut Network<Datagram>, host: u32, stamps: Stamps, body: Datagram) {
        let core = &mut self.ranks[host as usize].side.core;
        body.deliver(stamps, core, net.now().to_core(), &mut self.back);
        self.advance(net, host);
    }

    fn woken(&mut self, net: &mut Network<Datagram>, host: u32) {
        let core = &mut self.ranks[host as usize].side.core;
        core.handle_timeout(net.now().to_core());
        self.advance(net, host);
    }

    fn alarmed(&mut self, net: &mut Network<Datagram>) {
        self.number = self.operations.begin(net);
        for host in 0..net.hosts() {
            self.ranks[host as usize].begins = self.operations.begins(host);
            self.advance(net, host);
        }
    }
}
