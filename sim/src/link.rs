//! One direction of a link: the queue before it, the wire, and the packets on it.

use rand_xoshiro::Xoshiro256PlusPlus;
use ultima_link::{Flows, JitterSampler, LossProcess};
use ultima_wire::Ticks;

use crate::clock::Ps;
use crate::cross::Bursts;
use crate::line::Line;
use crate::packet::{Flight, Packet};

/// A first-come, first-served queue at the link's rate, and the wire after it.
///
/// When a packet arrives, the end of all earlier transmissions is known, and therefore its own. It is queued
/// with the time of its arrival at the other end, so a link is one source of events, however many packets it
/// has.
pub(crate) struct Link {
    /// Bits per second.
    rate: u64,
    /// From a packet's last bit to its arrival.
    delay: Ps,
    /// The end of the transmission of all packets so far.
    free_at: Ps,
    /// A switch's egress port. None at a host, which sends when there is room.
    port: Option<Port>,
    loss: Option<(LossProcess, Xoshiro256PlusPlus)>,
    jitter: Option<(JitterSampler, Xoshiro256PlusPlus)>,
    /// Arrival of the last packet so far, if the wire does not lose it.
    last: Ps,
    bursts: Option<Bursts>,
    flows: Option<(Flows, Xoshiro256PlusPlus)>,
    flights: Line<Flight>,
    newest_wait: Ps,
    longest_wait: Ps,
}

/// The bounds of a switch's egress port, as waiting times at the link's rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    /// A packet with a longer wait is dropped.
    pub(crate) depth: Ps,
    /// A packet with a longer wait loses its payload.
    pub(crate) trim: Ps,
    /// A packet with a longer wait is marked.
    pub(crate) mark: Ps,
}

/// The fate of a packet at a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is in flight.
    Carried { removal: Option<Removal> },
    /// The queue was full.
    Dropped,
    /// It was transmitted, and the wire lost it.
    Lost { removal: Option<Removal> },
}

impl Fate {
    /// The cause of a payload's removal here, if it was removed.
    pub(crate) fn removal(self) -> Option<Removal> {
        match self {
            Fate::Carried { removal } | Fate::Lost { removal } => removal,
            Fate::Dropped => None,
        }
    }
}

/// The cause of a payload's removal at a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    Trimmed,
    Late,
}

impl Link {
    pub(crate) fn new(rate: u64, delay: Ps, port: Option<Port>) -> Self {
        Self {
            rate,
            delay,
            free_at: Ps::ZERO,
            port,
            loss: None,
            jitter: None,
            last: Ps::ZERO,
            bursts: None,
            flows: None,
            flights: Line::new(),
            newest_wait: Ps::ZERO,
            longest_wait: Ps::ZERO,
        }
    }

    /// Sets the loss of the wire.
    pub(crate) fn set_loss(&mut self, process: LossProcess, random: Xoshiro256PlusPlus) {
        self.loss = Some((process, random));
    }

    /// Sets the time that is added to each packet's delay. Packets do not overtake each other.
    pub(crate) fn set_jitter(&mut self, sampler: JitterSampler, random: Xoshiro256PlusPlus) {
        self.jitter = Some((sampler, random));
    }

    /// Sets the cross traffic in the queue.
    pub(crate) fn set_bursts(&mut self, bursts: Bursts) {
        self.bursts = Some(bursts);
    }

    /// Sets the background flows that share the link.
    pub(crate) fn set_flows(&mut self, flows: Flows, random: Xoshiro256PlusPlus) {
        self.flows = Some((flows, random));
    }

    /// The end of the transmission of all packets so far.
    pub(crate) fn free_at(&self) -> Ps {
        self.free_at
    }

    /// The wait of the last packet, even if it was dropped.
    pub(crate) fn newest_wait(&self) -> Ps {
        self.newest_wait
    }

    /// The longest wait so far.
    pub(crate) fn longest_wait(&self) -> Ps {
        self.longest_wait
    }

    /// Arrival of the next packet at the other end.
    pub(crate) fn next(&self) -> Ps {
        self.flights.front().map_or(Ps::NEVER, |f| f.arrives)
    }

    /// Removes the packet that arrives at the other end.
    pub(crate) fn pop(&mut self) -> Option<Flight> {
        self.flights.pop()
    }

    /// Queues `flight`.
    pub(crate) fn offer<B>(&mut self, now: Ps, mut flight: Flight, packet: &Packet<B>) -> Fate {
        if let Some(bursts) = &mut self.bursts {
            let depth = self.port.map_or(Ps::NEVER, |port| port.depth);
            self.free_at = bursts.until(now, self.free_at, depth);
        }
        let wait = self.free_at.since(now);
        self.newest_wait = wait;
        let was_trimmed = flight.stamps.has_no_payload();
        if let Some(port) = self.port {
            let bytes = frame(packet, was_trimmed);
            if wait + Ps::to_send(bytes.into(), self.rate) > port.depth {
                return Fate::Dropped;
            }
            stamp(&mut flight, packet, wait, &port);
        }
        self.longest_wait = self.longest_wait.max(wait);
        let is_trimmed = flight.stamps.has_no_payload();
        let leaves = frame(packet, is_trimmed);
        let (start, alone) = (self.free_at.max(now), Ps::to_send(leaves.into(), self.rate));
        self.free_at = match &mut self.flows {
            Some((flows, random)) => Ps(flows.transmit(start.0, alone.0, random)),
            None => start + alone,
        };
        flight.arrives = (self.free_at + self.next_delay()).max(self.last);
        let removal = (is_trimmed && !was_trimmed).then_some(match flight.stamps.flags.late {
            true => Removal::Late,
            false => Removal::Trimmed,
        });
        if let Some((loss, random)) = &mut self.loss
            && loss.loses(&[], random)
        {
            return Fate::Lost { removal };
        }
        self.last = flight.arrives;
        self.flights.push(flight);
        Fate::Carried { removal }
    }

    /// The time from the next packet's last bit to its arrival.
    fn next_delay(&mut self) -> Ps {
        match &mut self.jitter {
            None => self.delay,
            Some((sampler, random)) => {
                // Saturates at 0.
                Ps((self.delay.0 as f64 + sampler.sample(random) * 1e3) as u64)
            }
        }
    }
}

fn frame<B>(packet: &Packet<B>, is_trimmed: bool) -> u32 {
    packet.head.filter(|_| is_trimmed).unwrap_or(packet.frame)
}

/// The P4 program's egress in its order: stamps, the budget, the queue.
fn stamp<B>(flight: &mut Flight, packet: &Packet<B>, wait: Ps, port: &Port) {
    let stamps = &mut flight.stamps;
    let ticks = Ticks::from_span_ns(wait.as_ns());
    stamps.flags.hops = (stamps.flags.hops + 1).min(31);
    stamps.path_queue = stamps.path_queue.max(ticks);
    let can_be_trimmed = packet.head.is_some() && !stamps.has_no_payload();
    if stamps.budget != Ticks::MAX {
        stamps.budget = Ticks(stamps.budget.0.saturating_sub(ticks.0));
        stamps.flags.late |= stamps.budget == Ticks(0) && packet.head.is_some();
    }
    stamps.flags.congestion |= wait > port.mark;
    stamps.flags.trimmed |= can_be_trimmed && !stamps.flags.late && wait > port.trim;
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::rand_core::SeedableRng as _;
    use ultima_wire::Ticks;

    use super::*;
    use crate::packet::{PacketId, Packets, Stamps, Target};

    fn packet() -> Packet<()> {
        Packet {
            source: 0,
            target: Target::Host(1),
            frame: 1000,
            is_owed: false,
            head: Some(100),
            body: (),
        }
    }

    fn flight(budget: Ticks) -> (PacketId, Flight) {
        let id = Packets::new().insert(packet());
        let flight = Flight {
            arrives: Ps::ZERO,
            packet: id,
            stamps: Stamps::new(budget),
        };
        (id, flight)
    }

    /// 8 Gb/s: a byte takes a nanosecond.
    fn link() -> Link {
        let ns = |ns: u64| Ps(ns * 1000);
        let port = Port {
            depth: ns(5000),
            trim: ns(3000),
            mark: ns(2000),
        };
        Link::new(8_000_000_000, ns(10), Some(port))
    }

    #[test]
    fn a_queue_marks_then_trims_then_drops() {
        let mut link = link();
        let (_, flight) = flight(Ticks::MAX);
        let fates: Vec<Fate> = (0..20)
            .map(|_| link.offer(Ps::ZERO, flight, &packet()))
            .collect();
        let [whole, removal] =
            [None, Some(Removal::Trimmed)].map(|removal| Fate::Carried { removal });
        // Waits of 0 to 3 µs with payload, then 100 ns each without, until 1000 more bytes have no room.
        assert_eq!(fates[..4], [whole; 4]);
        assert_eq!(fates[4..5], [removal]);
        assert_eq!(link.longest_wait(), Ps(4_000_000));
        assert!(fates[5..].iter().all(|fate| *fate == Fate::Dropped));
        let arrived: Vec<Flight> = std::iter::from_fn(|| link.pop()).collect();
        let arrivals: Vec<u64> = arrived.iter().map(|f| f.arrives.as_ns()).collect();
        assert_eq!(arrivals, [1010, 2010, 3010, 4010, 4110]);
        let marked: Vec<bool> = arrived.iter().map(|f| f.stamps.flags.congestion).collect();
        assert_eq!(marked, [false, false, false, true, true]);
        assert_eq!(arrived[4].stamps.path_queue, Ticks(3));
        assert!(arrived.iter().all(|f| f.stamps.flags.hops == 1));
    }

    #[test]
    fn a_delayed_packet_delays_those_behind_it() {
        let mut link = link();
        let uniform = "uniform:5us".parse().expect("valid");
        let sampler = JitterSampler::new(uniform).expect("valid");
        link.set_jitter(sampler, Xoshiro256PlusPlus::seed_from_u64(1));
        let (_, flight) = flight(Ticks::MAX);
        for number in 0..1000 {
            link.offer(Ps(number * 1_000_000), flight, &packet());
        }
        let arrived: Vec<Flight> = std::iter::from_fn(|| link.pop()).collect();
        let sent = (1..).map(|number| number * 1000);
        let delays: Vec<u64> = (arrived.iter().zip(sent))
            .map(|(flight, sent)| flight.arrives.as_ns() - sent)
            .collect();
        assert!(arrived.is_sorted_by_key(|flight| flight.arrives));
        assert!(delays.iter().all(|delay| *delay <= 5010));
        // Packets alone: 1.25 µs on average, because half have none. In turn: 2.03.
        let mean = delays.iter().sum::<u64>() / 1000;
        assert!((1850..2200).contains(&mean), "{mean}");
    }

    #[test]
    fn a_budget_that_runs_out_makes_late() {
        let mut link = link();
        let (_, flight) = flight(Ticks(2));
        for _ in 0..3 {
            let whole = link.offer(Ps::ZERO, flight, &packet());
            assert_eq!(whole, Fate::Carried { removal: None });
        }
        let fourth = link.offer(Ps::ZERO, flight, &packet());
        let late = Some(Removal::Late);
        assert_eq!(fourth, Fate::Carried { removal: late });
        let arrived: Vec<Flight> = std::iter::from_fn(|| link.pop()).collect();
        let budgets: Vec<u32> = arrived.iter().map(|f| f.stamps.budget.0).collect();
        assert_eq!(budgets, [2, 2, 1, 0]);
        let flags = arrived[3].stamps.flags;
        assert!(flags.late && !flags.trimmed);
    }
}
