//! In-network aggregation, after SwitchML (Sapio et al., NSDI 2021): switches add the hosts' values and
//! multicast the sum.
//!
//! A bucket is streamed in pieces of one packet each. Message *p* uses slot *p* mod *pool*, so a rank has at
//! most *pool* pieces in flight: the result of a piece is the permission to send the next one of its slot,
//! and the slowest rank sets the pace (section 3.3). A rank without a result sends the piece again after a
//! fixed time (section 3.5). With several leaves, each adds its hosts' values, and one spine adds the leaves'
//! (section 3.7).
//!
//! It is an upper bound: switches add at any rate, pieces of any length, floating-point numbers without
//! quantisation, and hosts spend no time on the conversion.

mod pool;

use std::collections::VecDeque;

use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{HEADER_LEN, Ticks};

use crate::clock::Ps;
use crate::network::{Hosts, Network};
use crate::operations::Operations;
use crate::packet::{Packet, Stamps, Target};
use crate::schedule::CHUNK;
use crate::stages::Stages;
use crate::topology::{End, Fabric};
use crate::values;
use pool::{Pool, Progress, Values};

/// Minimum time before a piece is sent again: SwitchML's evaluation of loss uses 1 ms.
const LEAST_TIMEOUT: Ps = Ps(1_000_000_000);
/// Minimum of a rank's bytes in flight: SwitchML uses 512 slots of 256 bytes at 100 Gb/s.
const LEAST_WINDOW: u64 = 128 << 10;

/// A packet's content.
#[derive(Clone)]
pub(crate) enum Message {
    Contribution(Contribution),
    /// The mean.
    Result {
        piece: u64,
        values: Values,
    },
}

/// A child's sum of a piece: a host's values, or a leaf's sum over its hosts.
#[derive(Clone)]
pub(crate) struct Contribution {
    piece: u64,
    child: u32,
    values: Values,
}

/// The stream of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    /// Bytes of a bucket.
    pub(crate) bytes: u64,
    /// Bytes of it per packet.
    pub(crate) slot: u64,
    /// A rank's maximum of pieces in flight.
    pub(crate) pool: u64,
    /// Time before a piece is sent again.
    pub(crate) timeout: Ps,
}

impl Stream {
    /// The pool is the bandwidth-delay product (section 3.6), so an idle network has no gaps.
    pub(crate) fn new(bytes: u64, slot: u64, stages: &Stages, hops: u64) -> Self {
        let frame = slot + (FRAME_OVERHEAD + HEADER_LEN) as u64;
        // A switch receives a whole packet before it forwards it.
        let there = stages.delay + Ps(Ps::to_send(frame, stages.rate).0 * hops);
        let in_flight = u128::from(stages.rate) * u128::from(2 * there.0) / 8_000_000_000_000;
        let window = LEAST_WINDOW.max(u64::try_from(in_flight).unwrap_or(u64::MAX));
        let pool = window.div_ceil(slot).next_power_of_two();
        let pieces = bytes.div_ceil(slot);
        let pool = pool.min(pieces.next_power_of_two());
        let full = Ps::to_send(pool * frame, stages.rate) + Ps(2 * there.0);
        Self {
            bytes,
            slot,
            pool,
            timeout: LEAST_TIMEOUT.max(Ps(4 * full.0)),
        }
    }

    fn pieces(&self) -> u64 {
        self.bytes.div_ceil(self.slot)
    }

    /// Start of `piece` in the bucket, in bytes.
    fn first(&self, piece: u64) -> u64 {
        piece % self.pieces() * self.slot
    }

    /// Bytes of `piece`.
    fn len(&self, piece: u64) -> u64 {
        (self.bytes - self.first(piece)).min(self.slot)
    }
}

/// One rank's state.
struct Rank {
    /// The time at which it starts to send; never while it has no operation.
    starts: Ps,
    /// By slot of the pool: the piece in flight.
    waits: Vec<Option<u64>>,
    /// Times to send pieces again, if they are still in flight.
    timers: VecDeque<(Ps, u64)>,
    results: u64,
}

/// All ranks, and the switches between them.
pub(crate) struct Aggregation<'a> {
    stream: Stream,
    stages: Stages,
    operations: Operations<'a>,
    /// Pieces of earlier operations: numbers continue, like the versions of slots.
    before: u64,
    number: u32,
    ranks: Vec<Rank>,
    leaves: Vec<Pool>,
    root: Pool,
    /// True if buckets have values, and results are checked.
    payload: bool,
    pub(crate) worst_error: f32,
}

impl<'a> Aggregation<'a> {
    pub(crate) fn new(
        fabric: &Fabric,
        stream: Stream,
        payload: bool,
        stages: Stages,
        operations: Operations<'a>,
    ) -> Self {
        let rank = |_| Rank {
            starts: Ps::NEVER,
            waits: vec![None; stream.pool as usize],
            timers: VecDeque::new(),
            results: 0,
        };
        let leaf = |leaf| Pool::new(stream.pool, fabric.hosts_of(leaf).len() as u32);
        Self {
            stream,
            stages,
            operations,
            before: 0,
            number: 0,
            ranks: (0..fabric.hosts).map(rank).collect(),
            leaves: (0..fabric.leaves()).map(leaf).collect(),
            root: Pool::new(stream.pool, fabric.leaves()),
            payload,
            worst_error: 0.0,
        }
    }

    pub(crate) fn into_operations(self) -> Operations<'a> {
        self.operations
    }

    fn send(&mut self, net: &mut Network<Message>, host: u32, piece: u64) {
        let len = self.stream.len(piece);
        let values = self.payload.then(|| {
            let first = (self.stream.first(piece) / 4) as usize;
            let entries = first..first + (len / 4) as usize;
            entries
                .map(|entry| values::contribution(self.number, host, entry))
                .collect()
        });
        let fabric = net.fabric();
        let message = Message::Contribution(Contribution {
            piece,
            child: host - fabric.hosts_of(fabric.leaf_of(host)).start,
            values,
        });
        net.send(packet(host, len, message), Ticks::MAX);
        let rank = &mut self.ranks[host as usize];
        rank.waits[(piece % self.stream.pool) as usize] = Some(piece);
        let again = net.now() + self.stream.timeout;
        rank.timers.push_back((again, piece));
    }

    /// Sends all due packets of `host`, and schedules the next call.
    fn advance(&mut self, net: &mut Network<Message>, host: u32) {
        let now = net.now();
        let rank = &mut self.ranks[host as usize];
        if rank.starts <= now {
            rank.starts = Ps::NEVER;
            let first = self.stream.pool.min(self.stream.pieces());
            for piece in self.before..self.before + first {
                self.send(net, host, piece);
            }
        }
        let rank = loop {
            let rank = &mut self.ranks[host as usize];
            let Some(&(at, piece)) = rank.timers.front() else {
                break rank;
            };
            let waits = rank.waits[(piece % self.stream.pool) as usize] == Some(piece);
            if waits && at > now {
                break rank;
            }
            rank.timers.pop_front();
            if waits {
                self.send(net, host, piece);
            }
        };
        let timer = rank.timers.front().map_or(Ps::NEVER, |timer| timer.0);
        net.wake(host, timer.min(rank.starts));
    }

    /// Handles a host's contribution at its leaf.
    fn add_at_leaf(&mut self, net: &mut Network<Message>, leaf: u32, contribution: Contribution) {
        let Contribution {
            piece,
            child,
            values,
        } = contribution;
        let fabric = net.fabric();
        match self.leaves[leaf as usize].add(piece, child, &values) {
            Progress::Incomplete | Progress::Past => {}
            Progress::Summed(sum) if fabric.leaves() == 1 => {
                let result = self.mean(sum);
                self.forward_result(net, leaf, piece, result);
            }
            Progress::Summed(values) => {
                let message = Message::Contribution(Contribution {
                    piece,
                    child: leaf,
                    values,
                });
                self.send_on(net, fabric.root_up(leaf), piece, message);
            }
            Progress::Result(values) => {
                let host = fabric.hosts_of(leaf).start + child;
                let result = Message::Result { piece, values };
                self.send_on(net, fabric.down(host), piece, result);
            }
        }
    }

    /// Handles a leaf's contribution at the spine.
    fn add_at_root(&mut self, net: &mut Network<Message>, contribution: Contribution) {
        let Contribution {
            piece,
            child: leaf,
            values,
        } = contribution;
        let fabric = net.fabric();
        match self.root.add(piece, leaf, &values) {
            Progress::Incomplete | Progress::Past => {}
            Progress::Summed(sum) => {
                let values = self.mean(sum);
                self.root.set_result(piece, values.clone());
                let links = (0..fabric.leaves()).map(|leaf| fabric.root_down(leaf));
                let len = self.stream.len(piece);
                net.send_on(links, packet(leaf, len, Message::Result { piece, values }));
            }
            Progress::Result(values) => {
                let result = Message::Result { piece, values };
                self.send_on(net, fabric.root_down(leaf), piece, result);
            }
        }
    }

    /// Handles a result at a leaf: forwards it to its hosts if it is new.
    fn forward_result(
        &mut self,
        net: &mut Network<Message>,
        leaf: u32,
        piece: u64,
        values: Values,
    ) {
        if self.leaves[leaf as usize].set_result(piece, values.clone()) {
            let fabric = net.fabric();
            let links = fabric.hosts_of(leaf).map(|host| fabric.down(host));
            let len = self.stream.len(piece);
            net.send_on(links, packet(leaf, len, Message::Result { piece, values }));
        }
    }

    fn send_on(&self, net: &mut Network<Message>, link: u32, piece: u64, body: Message) {
        let len = self.stream.len(piece);
        net.send_on([link].into_iter(), packet(0, len, body));
    }

    fn mean(&self, sum: Values) -> Values {
        let ranks = self.ranks.len() as f32;
        sum.map(|sum| sum.iter().map(|value| value / ranks).collect())
    }
}

/// A packet with the frame length of the bounded transport.
fn packet(source: u32, len: u64, body: Message) -> Packet<Message> {
    Packet {
        source,
        target: Target::Neighbour,
        frame: (FRAME_OVERHEAD + HEADER_LEN) as u32 + len as u32,
        head: None,
        is_owed: false,
        body,
    }
}

impl Hosts for Aggregation<'_> {
    type Body = Message;

    fn receive(&mut self, net: &mut Network<Message>, host: u32, _: Stamps, body: Message) {
        let Message::Result { piece, values } = body else {
            unreachable!("switches send hosts results only");
        };
        let rank = &mut self.ranks[host as usize];
        let waits = &mut rank.waits[(piece % self.stream.pool) as usize];
        if *waits != Some(piece) {
            return;
        }
        *waits = None;
        rank.results += 1;
        let all = rank.results == self.stream.pieces();
        if let Some(values) = values {
            let first = (self.stream.first(piece) / 4) as usize;
            let ranks = self.ranks.len() as u32;
            let error = values::worst_error(self.number, ranks, first, &values);
            self.worst_error = self.worst_error.max(error);
        }
        let next = piece + self.stream.pool;
        if next < self.before + self.stream.pieces() {
            self.send(net, host, next);
        }
        if all {
            self.operations.ended(net, host);
        }
        self.advance(net, host);
    }

    fn at_switch(&mut self, net: &mut Network<Message>, end: End, body: Message) {
        match (end, body) {
            (End::LeafFromHost(leaf), Message::Contribution(contribution)) => {
                self.add_at_leaf(net, leaf, contribution);
            }
            (End::Spine(..), Message::Contribution(contribution)) => {
                self.add_at_root(net, contribution);
            }
            (End::LeafFromSpine(leaf), Message::Result { piece, values }) => {
                self.forward_result(net, leaf, piece, values);
            }
            (end, _) => unreachable!("nothing is sent to {end:?}"),
        }
    }

    fn woken(&mut self, net: &mut Network<Message>, host: u32) {
        self.advance(net, host);
    }

    fn alarmed(&mut self, net: &mut Network<Message>) {
        if self.operations.begun() > 0 {
            self.before += self.stream.pieces();
        }
        self.number = self.operations.begin(net);
        let message = self.stream.bytes.min(CHUNK);
        for host in 0..net.hosts() {
            let rank = &mut self.ranks[host as usize];
            rank.results = 0;
            let before = self.stages.before(self.number, 0, host, message);
            rank.starts = self.operations.begins(host) + before;
            self.advance(net, host);
        }
    }
}
