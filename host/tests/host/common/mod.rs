//! A network in virtual time around protocol cores, and helpers to check results.
#![allow(dead_code)] // every test file uses its own part

pub mod training;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use ultima_host::{
    Buffer, ClosedBy, Codec, Coding, Config, Core, Destination, Event, Exact, ExactOutcome, Gather,
    Incomplete, OperationId, Outcome, Piece, SlotTrimmed, Time,
};
use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{Header, Kind};

/// The fate of one copy of a packet: the extra delays of its deliveries; empty for a loss.
pub type Fate = Vec<Duration>;

/// Decides a copy's fate from its header and its receiver.
pub type Faults = Box<dyn FnMut(&Header, u16) -> Fate>;

/// All datagrams that a core can send now.
pub fn sent(core: &mut Core) -> Vec<Vec<u8>> {
    let mut buf = vec![0; core.max_datagram()];
    let mut datagrams = Vec::new();
    while let Some(transmit) = core.next_datagram(Time::ZERO, &mut buf) {
        datagrams.push(buf[..transmit.len].to_vec());
    }
    datagrams
}

/// Rank r contributes 2^r everywhere, so a sum shows its members.
pub fn powers(ranks: u16, len: usize) -> Vec<Vec<f32>> {
    (0..ranks)
        .map(|rank| vec![f32::from(1u16 << rank); len])
        .collect()
}

/// All ranks start at the same time.
pub fn at_once(ranks: u16) -> Vec<Option<Duration>> {
    vec![Some(Duration::ZERO); usize::from(ranks)]
}

/// No loss, no extra delay.
pub fn perfect() -> Faults {
    Box::new(|_, _| vec![Duration::ZERO])
}

/// Loses each copy of the data packets with probability `p`.
pub fn lossy(p: f64, seed: u64) -> Faults {
    let mut random = Random::new(seed);
    Box::new(move |_, _| {
        if random.chance(p) {
            vec![]
        } else {
            vec![Duration::ZERO]
        }
    })
}

/// Random numbers for tests.
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    /// A gradient-like bucket: mostly small, some large, signs mixed.
    pub fn bucket(&mut self, len: usize) -> Vec<f32> {
        (0..len)
            .map(|_| {
                let sum: f64 = (0..4).map(|_| self.unit() - 0.5).sum();
                sum as f32
            })
            .collect()
    }
}

struct Flight {
    at: Time,
    number: u64,
    to: u16,
    datagram: Rc<[u8]>,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Flight {}
impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Flight {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Copies of data packets in the network, without the sender's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub copies: u64,
    pub dropped: u64,
    pub duplicated: u64,
}

/// A switch on every path: it writes flags and times to a copy's header, and removes the payload of copies
/// with TRIMMED or LATE.
pub type Switch = Box<dyn FnMut(&mut Header, u16)>;

/// An attacker, which sees each datagram that a rank receives: what it sends that rank next.
pub type Attacker = Box<dyn FnMut(&[u8], u16) -> Vec<Vec<u8>>>;

/// Cores on paths with one delay. A path keeps the order unless `faults` delays copies and `fifo` is off.
pub struct Network {
    pub cores: Vec<Core>,
    pub now: Time,
    pub delay: Duration,
    pub fifo: bool,
    pub faults: Faults,
    pub switch: Option<Switch>,
    pub attacker: Option<Attacker>,
    /// Bits per second of every receiver's link, with an unlimited queue.
    pub link_rate: Option<u64>,
    pub scatter: Carried,
    pub gather: Carried,
    /// By receiver: SCATTER, GATHER and REPAIR packets in the network, now and at most.
    pub on_the_way: Vec<(u32, u32)>,
    in_flight: BinaryHeap<Reverse<Flight>>,
    /// When the last packet of a path arrives, by source and receiver.
    last_arrival: Vec<Vec<Time>>,
    /// When each receiver's link is free.
    link_free: Vec<Time>,
    reported: Vec<Vec<SlotTrimmed>>,
    /// By rank: ended exact operations.
    pub exact: Vec<Vec<(OperationId, ExactEnd)>>,
    flights: u64,
    /// Steps without progress of the time.
    steps: u32,
    stepped_at: Time,
    buf: Vec<u8>,
}

/// How an exact operation ended at one rank.
pub type ExactEnd = Result<(ExactOutcome, Vec<f32>), Incomplete>;

/// One rank's end of an operation.
#[derive(Clone, Debug)]
pub struct Done {
    pub outcome: Outcome,
    pub encoded: Vec<f32>,
    pub at: Time,
    /// Losses that switches reported to this rank until then.
    pub reported: Vec<SlotTrimmed>,
}

pub fn config(ranks: u16) -> Config {
    Config::new(7, 1, 0, ranks, 42, Duration::from_millis(20))
}

impl Network {
    /// One core per rank of `config`.
    pub fn new(config: &Config) -> Self {
        let cores: Vec<Core> = (0..config.ranks)
            .map(|rank| {
                Core::new(Config {
                    rank,
                    ..config.clone()
                })
                .expect("a good configuration")
            })
            .collect();
        let ranks = cores.len();
        Self {
            buf: vec![0; cores[0].max_datagram()],
            cores,
            now: Time::ZERO,
            delay: Duration::from_micros(50),
            fifo: true,
            faults: perfect(),
            switch: None,
            attacker: None,
            link_rate: None,
            scatter: Carried::default(),
            gather: Carried::default(),
            on_the_way: vec![(0, 0); ranks],
            in_flight: BinaryHeap::new(),
            last_arrival: vec![vec![Time::ZERO; ranks]; ranks],
            link_free: vec![Time::ZERO; ranks],
            reported: vec![vec![]; ranks],
            exact: vec![vec![]; ranks],
            flights: 0,
            steps: 0,
            stepped_at: Time::ZERO,
        }
    }

    pub fn ranks(&self) -> u16 {
        self.cores.len() as u16
    }

    /// Runs one operation on encoded buckets. Rank *i* starts `starts[i]` from now, or never.
    pub fn run(
        &mut self,
        id: OperationId,
        encoded: Vec<Vec<f32>>,
        starts: &[Option<Duration>],
    ) -> Vec<Option<Done>> {
        let begin = self.now;
        let mut waiting: Vec<(Time, u16, Vec<f32>)> = starts
            .iter()
            .zip(encoded)
            .enumerate()
            .filter_map(|(rank, (start, bucket))| Some((begin + (*start)?, rank as u16, bucket)))
            .collect();
        waiting.sort_by_key(|(at, rank, _)| Reverse((*at, *rank)));
        let mut left = waiting.len();
        let mut done: Vec<Option<Done>> = starts.iter().map(|_| None).collect();
        while left > 0 {
            let start = waiting.last().map(|w| w.0);
            let next = self
                .next_time()
                .into_iter()
                .chain(start)
                .min()
                .expect("something happens");
            self.now = self.now.max(next);
            while waiting.last().is_some_and(|w| w.0 <= self.now) {
                let (_, rank, bucket) = waiting.pop().expect("there is one");
                self.cores[usize::from(rank)]
                    .start(self.now, id, bucket)
                    .expect("starts");
                left -= self.events(rank, &mut done);
                self.transmit(rank);
            }
            self.step(|network, rank| left -= network.events(rank, &mut done));
        }
        done
    }

    /// Runs one operation for each of several buckets of a step in parallel. Rank *r* starts with the bucket
    /// at index *r* of `buckets`, encoded, and continues cyclically. Returns the outcomes by rank, in the
    /// order of their end.
    pub fn run_buckets(&mut self, buckets: &[(OperationId, Vec<f32>)]) -> Vec<Vec<Outcome>> {
        let mut ended: Vec<Vec<Outcome>> = vec![Vec::new(); usize::from(self.ranks())];
        let mut collect = |network: &mut Self, rank: u16| {
            while let Some(event) = network.cores[usize::from(rank)].poll_event() {
                if let Event::Done { outcome, .. } = event {
                    ended[usize::from(rank)].push(*outcome);
                }
            }
        };
        for rank in 0..self.ranks() {
            let round = buckets
                .iter()
                .cycle()
                .skip(usize::from(rank) % buckets.len());
            for (id, bucket) in round.take(buckets.len()) {
                self.cores[usize::from(rank)]
                    .start(self.now, *id, bucket.clone())
                    .expect("starts");
                collect(self, rank);
            }
            self.transmit(rank);
        }
        while let Some(next) = self.next_time() {
            self.now = self.now.max(next);
            self.step(&mut collect);
        }
        ended
    }

    /// Runs one exact operation. Rank *i* starts it with `values[i]`, `starts[i]` from now, or never.
    pub fn run_exact(
        &mut self,
        (id, exact, limit): (OperationId, Exact, Duration),
        values: &[Vec<f32>],
        starts: &[Option<Duration>],
    ) -> Vec<Option<ExactEnd>> {
        let begin = self.now;
        let mut waiting: Vec<(Time, u16)> = (0u16..)
            .zip(starts)
            .filter_map(|(rank, start)| Some((begin + (*start)?, rank)))
            .collect();
        let started: Vec<usize> = waiting.iter().map(|w| usize::from(w.1)).collect();
        let ended = |network: &Self, rank: usize| network.exact[rank].iter().any(|e| e.0 == id);
        while !started.iter().all(|&rank| ended(self, rank)) {
            let starts = waiting.iter().map(|w| w.0);
            let next = self.next_time().into_iter().chain(starts).min();
            self.now = self.now.max(next.expect("something happens"));
            while let Some(at) = waiting.iter().position(|w| w.0 <= self.now) {
                let rank = waiting.swap_remove(at).1;
                let values = values[usize::from(rank)].clone();
                self.cores[usize::from(rank)]
                    .start_exact(self.now, id, exact, values, limit)
                    .expect("starts");
                self.events(rank, &mut []);
                self.transmit(rank);
            }
            self.step(|network, rank| {
                network.events(rank, &mut []);
            });
        }
        let ended = self.exact.iter_mut().map(|ended| {
            let at = ended.iter().position(|(ended, _)| *ended == id)?;
            Some(ended.swap_remove(at).1)
        });
        ended.collect()
    }

    /// Runs ranks independently: `next` gets a rank's core and its ended operation, none at first, and
    /// returns the next operation and the delay of its start.
    pub fn run_ranks(
        &mut self,
        mut next: impl FnMut(&mut Core, u16, Option<Done>) -> Option<(Duration, OperationId, Vec<f32>)>,
    ) {
        let mut waiting: Vec<(Time, u16, OperationId, Vec<f32>)> = Vec::new();
        let mut running = 0;
        let mut advance = |network: &mut Self, rank: u16, done, waiting: &mut Vec<_>| {
            let core = &mut network.cores[usize::from(rank)];
            let start = next(core, rank, done);
            waiting
                .extend(start.map(|(delay, id, bucket)| (network.now + delay, rank, id, bucket)));
        };
        for rank in 0..self.ranks() {
            advance(self, rank, None, &mut waiting);
        }
        while running > 0 || !waiting.is_empty() {
            let starts = waiting.iter().map(|w| w.0);
            let next = self.next_time().into_iter().chain(starts).min();
            self.now = self.now.max(next.expect("something happens"));
            let mut ended = Vec::new();
            let mut collect = |network: &mut Self, rank: u16| {
                let mut done: Vec<Option<Done>> = vec![None; usize::from(network.ranks())];
                network.events(rank, &mut done);
                ended.extend(done.into_iter().flatten().map(|done| (rank, done)));
            };
            while let Some(at) = waiting.iter().position(|w| w.0 <= self.now) {
                let (_, rank, id, bucket) = waiting.swap_remove(at);
                self.cores[usize::from(rank)]
                    .start(self.now, id, bucket)
                    .expect("starts");
                running += 1;
                collect(self, rank);
                self.transmit(rank);
            }
            self.step(&mut collect);
            running -= ended.len();
            for (rank, done) in ended {
                advance(self, rank, Some(done), &mut waiting);
            }
        }
    }

    /// Starts an operation, or half of one, at one rank at `now`. Returns the operations that ended there.
    pub fn start_part(
        &mut self,
        now: Time,
        rank: u16,
        (id, piece): (OperationId, Piece),
        values: Vec<f32>,
    ) -> Vec<Done> {
        self.now = now;
        self.cores[usize::from(rank)]
            .start_part(now, id, piece, values)
            .expect("starts");
        self.transmit(rank);
        self.ended(rank)
    }

    /// Handles all events at `now`. Returns the operations that ended.
    pub fn advance(&mut self, now: Time) -> Vec<(u16, Done)> {
        self.now = now;
        let mut ended = Vec::new();
        self.step(|network, rank| {
            ended.extend(network.ended(rank).into_iter().map(|done| (rank, done)));
        });
        // The last contribution sent ends half an operation.
        for rank in 0..self.ranks() {
            ended.extend(self.ended(rank).into_iter().map(|done| (rank, done)));
        }
        ended
    }

    /// The time of the next event.
    pub fn next_event(&self) -> Option<Time> {
        self.next_time()
    }

    fn ended(&mut self, rank: u16) -> Vec<Done> {
        let mut done: Vec<Option<Done>> = vec![None; usize::from(self.ranks())];
        let mut ended = Vec::new();
        while self.events(rank, &mut done) > 0 {
            ended.extend(done[usize::from(rank)].take());
        }
        ended
    }

    /// Handles all events before `end`, and drops bounded operations that end.
    pub fn run_until(&mut self, end: Time) {
        while let Some(next) = self.next_time().filter(|next| *next < end) {
            self.now = self.now.max(next);
            self.step(|network, rank| {
                network.events(rank, &mut []);
            });
        }
        self.now = end;
    }

    /// Delivers all packets in flight and sends all notices.
    pub fn settle(&mut self) {
        while let Some(next) = self.next_time() {
            self.now = self.now.max(next);
            self.step(|network, rank| {
                assert!(network.cores[usize::from(rank)].poll_event().is_none());
            });
        }
    }

    /// Delivers all packets in flight and fires all timers. Drops results.
    pub fn drain(&mut self) {
        while let Some(next) = self.next_time() {
            self.now = self.now.max(next);
            self.step(
                |network, rank| {
                    while network.cores[usize::from(rank)].poll_event().is_some() {}
                },
            );
        }
    }

    /// Gives `datagram` to `rank` now.
    pub fn inject(&mut self, rank: u16, datagram: &[u8]) {
        self.cores[usize::from(rank)].handle_datagram(self.now, datagram);
    }

    fn events(&mut self, rank: u16, done: &mut [Option<Done>]) -> usize {
        let mut count = 0;
        while let Some(event) = self.cores[usize::from(rank)].poll_event() {
            match event {
                Event::SlotTrimmed(reported) => self.reported[usize::from(rank)].push(reported),
                Event::Exact { id, ended } => {
                    count += 1;
                    self.exact[usize::from(rank)].push((id, *ended));
                }
                Event::Done { outcome, result } => {
                    count += 1;
                    let ended = Some(Done {
                        outcome: *outcome,
                        encoded: result.into_vec(),
                        at: self.now,
                        reported: std::mem::take(&mut self.reported[usize::from(rank)]),
                    });
                    if let Some(done) = done.get_mut(usize::from(rank)) {
                        *done = ended;
                    }
                }
            }
        }
        count
    }

    fn next_time(&self) -> Option<Time> {
        let arrival = self.in_flight.peek().map(|Reverse(flight)| flight.at);
        let timers = self
            .cores
            .iter()
            .flat_map(|core| [core.poll_timeout(), core.poll_transmit_at()])
            .flatten();
        timers.chain(arrival).min()
    }

    fn step(&mut self, mut after: impl FnMut(&mut Self, u16)) {
        let now = self.now;
        self.steps = match self.stepped_at == now {
            true => self.steps + 1,
            false => 0,
        };
        self.stepped_at = now;
        let times = self
            .cores
            .iter()
            .map(|core| (core.poll_timeout(), core.poll_transmit_at()));
        assert!(
            self.steps < 10_000,
            "no progress at {now:?}: {:?}",
            times.collect::<Vec<_>>()
        );
        while self
            .in_flight
            .peek()
            .is_some_and(|Reverse(flight)| flight.at <= now)
        {
            let Reverse(flight) = self.in_flight.pop().expect("there is one");
            let (header, _) = Header::parse(&flight.datagram).expect("cores send headers");
            self.on_the_way[usize::from(flight.to)].0 -= u32::from(has_values(header.kind));
            self.cores[usize::from(flight.to)].handle_datagram(now, &flight.datagram);
            if let Some(mut attacker) = self.attacker.take() {
                for datagram in attacker(&flight.datagram, flight.to) {
                    self.inject(flight.to, &datagram);
                }
                self.attacker = Some(attacker);
            }
            after(self, flight.to);
            self.transmit(flight.to);
        }
        for rank in 0..self.ranks() {
            let core = &mut self.cores[usize::from(rank)];
            let due = |time: Option<Time>| time.is_some_and(|time| time <= now);
            if due(core.poll_timeout()) || due(core.poll_transmit_at()) {
                core.handle_timeout(now);
                after(self, rank);
                self.transmit(rank);
            }
        }
    }

    fn transmit(&mut self, rank: u16) {
        while let Some(transmit) =
            self.cores[usize::from(rank)].next_datagram(self.now, &mut self.buf)
        {
            let datagram: Rc<[u8]> = self.buf[..transmit.len].into();
            let (header, _) = Header::parse(&datagram).expect("cores send headers");
            match transmit.to {
                Destination::Rank(to) => self.carry(&header, rank, to, &datagram),
                Destination::Group => {
                    for to in (0..self.ranks()).filter(|&to| to != rank) {
                        self.carry(&header, rank, to, &datagram);
                    }
                }
            }
        }
    }

    fn carry(&mut self, header: &Header, from: u16, to: u16, datagram: &Rc<[u8]>) {
        let fate = (self.faults)(header, to);
        let carried = match header.kind {
            Kind::Scatter => Some(&mut self.scatter),
            Kind::Gather => Some(&mut self.gather),
            _ => None,
        };
        if let Some(carried) = carried {
            carried.copies += 1;
            carried.dropped += u64::from(fate.is_empty());
            carried.duplicated += fate.len().saturating_sub(1) as u64;
        }
        let cut = self
            .switch
            .as_mut()
            .map(|switch| pass(switch, datagram, to));
        let datagram = cut.as_ref().unwrap_or(datagram);
        for extra in fate {
            let last = &mut self.last_arrival[usize::from(from)][usize::from(to)];
            let mut at = self.now + self.delay;
            if let Some(rate) = self.link_rate {
                let free = &mut self.link_free[usize::from(to)];
                let bits = 8 * (FRAME_OVERHEAD + datagram.len()) as u64;
                at = at.max(*free) + Duration::from_nanos(bits * 1_000_000_000 / rate);
                *free = at;
            }
            // Behind the link, whose queue would restore the order.
            at = at + extra;
            if self.fifo {
                at = at.max(*last);
                *last = at;
            }
            self.flights += 1;
            let (now, most) = &mut self.on_the_way[usize::from(to)];
            *now += u32::from(has_values(header.kind));
            *most = (*most).max(*now);
            self.in_flight.push(Reverse(Flight {
                at,
                number: self.flights,
                to,
                datagram: datagram.clone(),
            }));
        }
    }

    /// Encodes, reduces and decodes one bucket per rank, all started at once.
    pub fn allreduce(&mut self, id: OperationId, buckets: &[Vec<f32>]) -> Vec<(Outcome, Vec<f32>)> {
        let config = self.cores[0].config();
        let mut codec = Codec::new(config.coding, config.seed);
        let encoded = buckets
            .iter()
            .map(|bucket| {
                let mut encoded = Buffer::default();
                codec.encode(id, bucket, &mut encoded);
                encoded.to_vec()
            })
            .collect();
        let starts = vec![Some(Duration::ZERO); buckets.len()];
        self.run(id, encoded, &starts)
            .into_iter()
            .map(|done| {
                let done = done.expect("every rank started");
                let mut bucket = vec![0.0; buckets[0].len()];
                codec.decode(id, &done.encoded, &mut bucket);
                (done.outcome, bucket)
            })
            .collect()
    }

    /// Checks, for a settled network, that senders and receivers count every packet.
    pub fn check_accounts(&mut self) {
        let now = self.now;
        let mut sum = ultima_host::Phases::default();
        for core in &mut self.cores {
            core.shut_down(now);
            let phases = core.totals().phases;
            for phase in [phases.scatter, phases.gather] {
                assert_eq!(phase.slots, phase.sent + phase.never_sent, "{phase:?}");
            }
            sum += phases;
        }
        for (phase, carried) in [(sum.scatter, self.scatter), (sum.gather, self.gather)] {
            assert_eq!(phase.copies, carried.copies);
            assert_eq!(
                phase.in_time + phase.trimmed + phase.late + phase.duplicates + phase.refused,
                carried.copies - carried.dropped + carried.duplicated,
                "{phase:?} {carried:?}"
            );
        }
    }
}

fn has_values(kind: Kind) -> bool {
    matches!(kind, Kind::Scatter | Kind::Gather | Kind::Repair)
}

/// A copy of `datagram` after a switch.
fn pass(switch: &mut Switch, datagram: &[u8], to: u16) -> Rc<[u8]> {
    let (mut header, payload) = Header::parse(datagram).expect("cores send headers");
    switch(&mut header, to);
    let cut = header.switch_flags.trimmed || header.switch_flags.late;
    let mut out = vec![0; header.len()];
    header.emit(&mut out);
    out.extend_from_slice(if cut { &[] } else { payload });
    out.into()
}

/// The exact mean, and the largest magnitude that went into any sum, for bounds on rounding.
pub fn exact_mean(buckets: &[Vec<f32>]) -> Vec<f64> {
    (0..buckets[0].len())
        .map(|at| {
            buckets
                .iter()
                .map(|bucket| f64::from(bucket[at]))
                .sum::<f64>()
                / buckets.len() as f64
        })
        .collect()
}

/// ‖a − b‖² / ‖b‖².
pub fn relative_error(a: &[f32], b: &[f64]) -> f64 {
    let square = |x: f64| x * x;
    let error: f64 = a
        .iter()
        .zip(b)
        .map(|(a, b)| square(f64::from(*a) - b))
        .sum();
    let norm: f64 = b.iter().map(|b| square(*b)).sum();
    if norm == 0.0 { error } else { error / norm }
}

pub const ID: OperationId = OperationId { step: 1, bucket: 0 };

pub const CODINGS: [Coding; 2] = [Coding::Identity, Coding::Hadamard { log2_block: 12 }];
pub const GATHERS: [Gather; 2] = [Gather::Multicast, Gather::Unicast];

/// True if `closed_by` ended every operation.
pub fn all_closed_by(results: &[(Outcome, Vec<f32>)], closed_by: ClosedBy) -> bool {
    results
        .iter()
        .all(|(outcome, _)| outcome.closed_by == closed_by)
}
