//! Flow control: a rank sends no more packets to another than that rank's receive buffer has room for, and than the
//! network between them takes ([`CongestionWindow`]).
//!
//! A receiver divides its buffer evenly among the other ranks: the window. SCATTER, GATHER and REPAIR carry a
//! sequence number that counts all such packets of their sender ([`Header::sequence`]). After the first packet of a
//! sender, and after each half a window of them, the receiver grants credit (CONTROL): the last sequence number that it has taken
//! from its socket, and the window. A sender has at most a window of packets outstanding at each receiver.
//! Sequence numbers, unlike counts, survive losses: whatever precedes a received packet on its path has
//! arrived or is lost. Where packets leave in runs, a grant leaves behind the next run to its source, in the same system
//! call: alone it would cost half as much as a run.
//!
//! A sender without credit asks for it, at growing intervals, so that a lost grant delays it a little and a
//! receiver that does not run gets few requests. A receiver that grants nothing for too long is
//! *stalled*: packets to it alone still wait, and packets to the group do not.
//!
//! Where the congestion window is smaller than the receiver's, grants for half of the latter come too late. So the
//! sender then also asks after each half of the former.
//!
//! Without [`Config::receive_buffer`] there is no flow control, and every rank has room.
//!
//! [`Header::sequence`]: ultima_wire::Header::sequence

use std::collections::VecDeque;
use std::time::Duration;

use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{Credit as Message, Header};

use crate::config::{Config, Gather, ReceiveBuffer};
use crate::rotation::Flow;
use crate::time::Time;

use super::Destination;
use super::window::{CongestionWindow, Covered, FIRST, SMALLEST};

/// The longest first pause before a sender asks for credit: a few times the delay until a loaded receiver runs.
const FIRST_ASK: Duration = Duration::from_millis(1);
/// A sender asks this often before it counts a receiver as stalled, at pauses that double.
const ASKS: u32 = 4;
/// The longest pause between two requests.
const LAST_ASK: Duration = Duration::from_millis(64);
/// The largest window, whatever a receiver grants: bounds the memory for outstanding packets.
const LARGEST_WINDOW: u16 = 4096;

/// Both ends of the flow control of one rank.
pub(super) struct Credit {
    rank: u16,
    /// The last sequence number.
    sequence: u32,
    /// By rank: what this rank may send to it.
    receivers: Vec<Receiver>,
    /// Sequence numbers of the last packets to the group.
    group: VecDeque<u32>,
    /// Packets to the group before those.
    group_before: u64,
    /// Packets to the group that may be sent before receivers are looked at again.
    group_room: u32,
    /// Receivers without credit that are to be asked.
    blocked: Vec<u16>,
    /// Receivers with room that are to be asked for more before it is used.
    early_requests: VecDeque<u16>,
    /// By rank: packets from it.
    sources: Vec<Source>,
    /// Packets that each source may have outstanding here.
    window: u16,
    /// Sources to grant credit to.
    owed: VecDeque<u16>,
    /// Packets to one rank that leave together. 0 if grants do not wait for them.
    run: u32,
    last_run: Run,
    /// True if another rank's messages may be replayed, but not forged.
    is_sealed: bool,
}

/// Packets to one rank that were sent one after the other.
#[derive(Clone, Copy)]
struct Run {
    to: u16,
    packets: u32,
}

/// Another rank as a receiver.
struct Receiver {
    window: u16,
    /// None by [`Config::congestion_window`], and on the same host.
    congestion: Option<CongestionWindow>,
    /// True if switches stamped the newest packet from it, and therefore most likely those to it.
    is_stamped: bool,
    /// Sequence numbers of outstanding packets to it alone, and the number of those before.
    outstanding: VecDeque<u32>,
    covered_alone: u64,
    /// Packets that were sent to it when it was last asked for credit while it had room.
    asked_at: u64,
    /// A packet whose round trip is measured, and the time of the request for it.
    measured: Option<(u32, Time)>,
    /// Number of packets to the group that arrived or are lost.
    group_taken: u64,
    blocked: Option<Blocked>,
    /// True if its rank has left the job.
    left: bool,
}

/// A receiver without credit.
struct Blocked {
    since: Time,
    ask_at: Time,
    pause: Duration,
    /// Requests sent.
    asked: u32,
}

/// Another rank as a source.
#[derive(Clone, Copy, Default)]
struct Source {
    /// The newest sequence number taken from the socket.
    taken: u32,
    /// Packets taken since the last grant.
    ungranted: u16,
    /// Packets that arrived, wrapping.
    arrived: u32,
    /// This rank's sequence number when a grant became due.
    owed: Option<u32>,
}

/// True if sequence number `a` is newer than `b`; they wrap.
fn is_newer(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// Each source's share of a buffer for `packets` packets.
fn share(packets: u32, sources: u16) -> u16 {
    (packets / u32::from(sources)).min(LARGEST_WINDOW.into()) as u16
}

/// Packets that each source may have outstanding at this rank.
pub(crate) fn window(config: &Config) -> u16 {
    let packets = config.receive_buffer.map_or(0, |buffer| buffer.packets);
    share(packets, config.ranks - 1).max(SMALLEST as u16)
}

/// The congestion window of packets to `rank`.
fn congestion(config: &Config, rank: u16) -> Option<CongestionWindow> {
    let packet = FRAME_OVERHEAD + config.header_len() + config.slot_bytes;
    let first = (FIRST / packet) as u32 / u32::from(config.ranks - 1);
    let has_one = config.congestion_window && !config.colocated.contains(&rank);
    has_one.then(|| CongestionWindow::new(first.max(SMALLEST)))
}

/// Packets to one rank that grants wait for. 0 if they do not wait.
fn run(config: &Config) -> u32 {
    // A rate delays data, and would delay grants.
    let waits = config.gather == Gather::Unicast && config.pacing.is_none();
    match config.send_run {
        run if waits && run > 1 => run.into(),
        _ => 0,
    }
}

impl Credit {
    pub(super) fn new(config: &Config) -> Self {
        let others = config.ranks - 1;
        let ranks = config.receive_buffer.map_or(0, |_| config.ranks);
        let own = config.receive_buffer.map_or(0, |buffer| buffer.packets);
        // Until a receiver grants more, it may not have sized its socket; or it has as little room as this rank.
        let first = own.min(ReceiveBuffer::unsized_socket(config).packets);
        let first = share(first, others);
        let receiver = |rank| Receiver {
            window: first,
            congestion: congestion(config, rank),
            outstanding: VecDeque::new(),
            is_stamped: false,
            covered_alone: 0,
            asked_at: 0,
            measured: None,
            group_taken: 0,
            blocked: None,
            left: false,
        };
        Self {
            rank: config.rank,
            sequence: 0,
            receivers: (0..ranks).map(receiver).collect(),
            group: VecDeque::new(),
            group_before: 0,
            group_room: 0,
            blocked: Vec::new(),
            early_requests: VecDeque::new(),
            sources: vec![Source::default(); ranks.into()],
            window: window(config),
            owed: VecDeque::new(),
            run: run(config),
            last_run: Run {
                to: config.rank,
                packets: 0,
            },
            is_sealed: config.key.is_some(),
        }
    }

    /// Notes that [`Config::gather`] changed.
    pub(super) fn gather_changed(&mut self, config: &Config) {
        self.run = run(config);
    }

    /// Notes that `rank` has left: as a receiver it is stalled.
    pub(super) fn left(&mut self, rank: u16) {
        if let Some(receiver) = self.receivers.get_mut(usize::from(rank)) {
            receiver.left = true;
            receiver.blocked = None;
            self.blocked.retain(|blocked| *blocked != rank);
        }
    }

    /// Checks that a packet may be sent to `rank` now. A receiver that has been without credit for `stall_after` is stalled.
    pub(super) fn flow(&mut self, now: Time, rank: u16, stall_after: Duration) -> Flow {
        let group_sent = self.group_sent();
        let Some(receiver) = self.receivers.get_mut(usize::from(rank)) else {
            return Flow::Open;
        };
        if receiver.left {
            return Flow::Stalled;
        }
        if receiver.has_room(group_sent) {
            if receiver.begins_step(group_sent) {
                self.early_requests.push_back(rank);
            }
            return Flow::Open;
        }
        let blocked = receiver.blocked.get_or_insert_with(|| {
            self.blocked.push(rank);
            let pause = FIRST_ASK.min(stall_after / (1 << ASKS));
            Blocked {
                since: now,
                // Without a window no grant is on its way.
                ask_at: match receiver.window {
                    0 => now,
                    _ => now + pause,
                },
                pause,
                asked: 0,
            }
        });
        // A rank that was itself stopped has not asked, and may not have read the grant that came meanwhile.
        match blocked.asked >= ASKS && now.since(blocked.since) >= stall_after {
            true => Flow::Stalled,
            false => Flow::Blocked,
        }
    }

    /// Checks that a packet may be sent to the group now. Never [`Flow::Stalled`], because stalled receivers do
    /// not count.
    pub(super) fn group_flow(&mut self, now: Time, stall_after: Duration) -> Flow {
        if self.group_room > 0 {
            return Flow::Open;
        }
        let mut room = u32::from(LARGEST_WINDOW);
        let (own, receivers) = (self.rank, 0..self.receivers.len() as u16);
        for rank in receivers.filter(|rank| *rank != own) {
            match self.flow(now, rank, stall_after) {
                Flow::Blocked => return Flow::Blocked,
                Flow::Stalled => {}
                Flow::Open => {
                    let receiver = &self.receivers[usize::from(rank)];
                    room = room.min(receiver.room(self.group_sent()) as u32);
                    room = room.min(receiver.step());
                }
            }
        }
        self.group_room = room;
        Flow::Open
    }

    fn group_sent(&self) -> u64 {
        self.group_before + self.group.len() as u64
    }

    /// Returns the sequence number of a packet that is sent now; 0 for none.
    pub(super) fn sent(&mut self, to: Destination) -> u32 {
        if self.receivers.is_empty() {
            return 0;
        }
        self.sequence = self.sequence.wrapping_add(1).max(1);
        match to {
            Destination::Rank(rank) => {
                let receiver = &mut self.receivers[usize::from(rank)];
                if receiver.outstanding.is_empty() {
                    // The request was lost, and a pause followed.
                    receiver.measured = None;
                }
                receiver.outstanding.push_back(self.sequence);
                self.group_room = 0;
                let Run { to, packets } = self.last_run;
                let packets = match to == rank && packets < self.run {
                    true => packets + 1,
                    false => 1,
                };
                self.last_run = Run { to: rank, packets };
            }
            Destination::Group => {
                self.group.push_back(self.sequence);
                self.group_room = self.group_room.saturating_sub(1);
                if self.group.len() > usize::from(LARGEST_WINDOW) {
                    self.group.pop_front();
                    self.group_before += 1;
                }
            }
        }
        self.sequence
    }

    /// Notes a received packet of the job. One that is not `proven` to be new may be a replayed one,
    /// unless its number is new.
    pub(super) fn received(&mut self, header: &Header, proven: bool) {
        let source = self.sources.get_mut(usize::from(header.source));
        let (Some(source), Some(sequence)) = (source, header.sequence()) else {
            return;
        };
        let is_first = source.taken == 0;
        if is_first || is_newer(sequence, source.taken) {
            source.taken = sequence;
            self.receivers[usize::from(header.source)].is_stamped = header.switch_flags.hops > 0;
        } else if !proven {
            return;
        }
        source.ungranted = source.ungranted.saturating_add(1);
        source.arrived = source.arrived.wrapping_add(1);
        // The first grant shows the source that there is more room than it assumes.
        if is_first || source.ungranted >= self.window.div_ceil(2) {
            self.owe(header.source);
        }
    }

    /// Notes a grant or a request of `rank`. Returns true if `rank` has room again.
    pub(super) fn heard(&mut self, now: Time, rank: u16, message: Message) -> bool {
        if self.receivers.is_empty() {
            return false;
        }
        match message {
            Message::Grant {
                taken,
                window,
                arrived,
            } => return self.granted(now, rank, taken, window, arrived),
            Message::Request { last } => {
                let taken = &mut self.sources[usize::from(rank)].taken;
                // Its sender has sent more since: it came late, or is replayed.
                if self.is_sealed && *taken != 0 && is_newer(*taken, last) {
                    return false;
                }
                // Whatever precedes the request on its path has arrived or is lost. It also corrects a forged
                // number, which no grant of this rank would be accepted with.
                *taken = last;
                self.owe(rank);
            }
        }
        false
    }

    fn owe(&mut self, rank: u16) {
        let owed = &mut self.sources[usize::from(rank)].owed;
        if owed.is_none() {
            *owed = Some(self.sequence);
            self.owed.push_back(rank);
        }
    }

    /// The next source to grant credit to: its run ends here, or it has waited as long as runs to all ranks take.
    fn take_owed(&mut self, idle: bool) -> Option<u16> {
        let owed = |rank: u16| self.sources[usize::from(rank)].owed;
        let first = *self.owed.front()?;
        let Run { to, packets } = self.last_run;
        if packets == self.run && owed(to).is_some() {
            let at = self.owed.iter().position(|rank| *rank == to)?;
            return self.owed.remove(at);
        }
        let runs_to_all = self.run * (self.sources.len() as u32 - 1);
        let waited = self.sequence.wrapping_sub(owed(first)?);
        (idle || waited >= runs_to_all).then(|| self.owed.pop_front())?
    }

    fn granted(&mut self, now: Time, rank: u16, taken: u32, window: u16, arrived: u32) -> bool {
        if is_newer(taken, self.sequence) {
            return false;
        }
        let in_group = self.group.partition_point(|sent| !is_newer(*sent, taken));
        let group_taken = self.group_before + in_group as u64;
        let group_sent = self.group_sent();
        let receiver = &mut self.receivers[usize::from(rank)];
        let before = receiver.covered();
        receiver.window = window.clamp(1, LARGEST_WINDOW);
        receiver.group_taken = receiver.group_taken.max(group_taken);
        while let Some(sent) = receiver.outstanding.front()
            && !is_newer(*sent, taken)
        {
            receiver.outstanding.pop_front();
            receiver.covered_alone += 1;
        }
        let total = receiver.covered();
        let sent = receiver.sent(group_sent);
        let answered = |(it, _): &mut (u32, Time)| !is_newer(*it, taken);
        let measured = receiver.measured.take_if(answered);
        if let Some(congestion) = &mut receiver.congestion {
            if let Some((_, asked)) = measured {
                congestion.measured(now.since(asked));
            }
            // Else it is an earlier grant, or the same once more.
            if total > before {
                congestion.granted(Covered {
                    total,
                    new: (total - before) as u32,
                    sent,
                    arrived,
                    room: receiver.window.into(),
                });
            }
        }
        let is_free = receiver.has_room(group_sent) && receiver.blocked.take().is_some();
        if is_free {
            self.blocked.retain(|blocked| *blocked != rank);
        }
        is_free
    }

    /// The next grant or request to send. `asks` says that data may wait for credit, `idle` that nothing else can be
    /// sent now.
    pub(super) fn next(&mut self, now: Time, asks: bool, idle: bool) -> Option<(u16, Message)> {
        if let Some(rank) = self.take_owed(idle) {
            let source = &mut self.sources[usize::from(rank)];
            (source.owed, source.ungranted) = (None, 0);
            let grant = Message::Grant {
                taken: source.taken,
                window: self.window,
                arrived: source.arrived,
            };
            return Some((rank, grant));
        }
        if let Some(rank) = self.early_requests.pop_front() {
            let last = self.last_sent(rank);
            let measured = &mut self.receivers[usize::from(rank)].measured;
            measured.get_or_insert((last, now));
            return Some((rank, Message::Request { last }));
        }
        for &rank in self.blocked.iter().filter(|_| asks) {
            let last = self.last_sent(rank);
            let receiver = &mut self.receivers[usize::from(rank)];
            if let Some(blocked) = &mut receiver.blocked
                && blocked.ask_at <= now
            {
                blocked.pause = (blocked.pause * 2).min(LAST_ASK);
                blocked.ask_at = now + blocked.pause;
                blocked.asked += 1;
                // Its answer would not tell the round trip (Karn's rule, RFC 6298).
                receiver.measured = None;
                return Some((rank, Message::Request { last }));
            }
        }
        None
    }

    /// The sequence number of the last packet to `rank` or the group.
    fn last_sent(&self, rank: u16) -> u32 {
        let receiver = &self.receivers[usize::from(rank)];
        match (receiver.outstanding.back(), self.group.back()) {
            (Some(alone), Some(group)) if is_newer(*group, *alone) => *group,
            (Some(last), _) | (None, Some(last)) => *last,
            // It has room for none yet: many ranks send long packets.
            (None, None) => self.sequence,
        }
    }

    /// The time at which [`Credit::next`] returns a message, if nothing else happens.
    pub(super) fn ready_at(&self, asks: bool) -> Option<Time> {
        if !self.owed.is_empty() || !self.early_requests.is_empty() {
            return Some(Time::ZERO);
        }
        let blocked = self.blocked.iter().filter(|_| asks);
        let blocked =
            blocked.filter_map(|rank| self.receivers[usize::from(*rank)].blocked.as_ref());
        blocked.map(|blocked| blocked.ask_at).min()
    }
}

impl Receiver {
    fn has_room(&self, group_sent: u64) -> bool {
        self.room(group_sent) > 0
    }

    /// Packets that may be sent to it now.
    fn room(&self, group_sent: u64) -> u64 {
        let outstanding = self.sent(group_sent) - self.covered();
        let network = self.network().unwrap_or(u32::MAX);
        u64::from(network.min(self.window.into())).saturating_sub(outstanding)
    }

    /// The congestion window. None where switches stamp packets, because they show full queues: other losses are no congestion.
    fn network(&self) -> Option<u32> {
        let congestion = self.congestion.as_ref().filter(|_| !self.is_stamped);
        congestion.map(CongestionWindow::packets)
    }

    /// Packets that were sent to it.
    fn sent(&self, group_sent: u64) -> u64 {
        self.covered_alone + self.outstanding.len() as u64 + group_sent
    }

    /// Those that arrived or are lost.
    fn covered(&self) -> u64 {
        self.covered_alone + self.group_taken
    }

    /// Packets after which it is to be asked: half of the congestion window, if that is smaller than its own.
    fn step(&self) -> u32 {
        let smaller = self.network().filter(|it| *it < self.window.into());
        smaller.map_or(u32::MAX, |packets| packets / 2)
    }

    /// True if a step of packets has been sent since it was last asked: it is to be asked again.
    fn begins_step(&mut self, group_sent: u64) -> bool {
        let sent = self.sent(group_sent);
        let begins = sent - self.asked_at >= self.step().into();
        if begins {
            self.asked_at = sent;
        }
        begins
    }
}
