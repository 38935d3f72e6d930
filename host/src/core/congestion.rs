//! What this rank sees of queues and tells the others, and what they tell of theirs: FEEDBACK, both ways.

use std::collections::VecDeque;
use std::time::Duration;

use ultima_wire::{Feedback, Header, Kind, Ticks};

use crate::config::{Config, Gather, Pacing};
use crate::pacing::Pacer;
use crate::rate::{RateControl, RatePolicy, Receivers, Scale, Seen};
use crate::time::Time;

use super::Destination;

/// The rate that this rank sends at, and what it tells others for theirs. Only with [`Config::pacing`].
pub(super) struct Congestion {
    pub(super) pacer: Pacer,
    pub(super) scale: Scale,
    control: Box<dyn RateControl>,
    receivers: Receivers,
    /// When the rate follows next what was told.
    adapt_at: Time,
    observer: Observer,
    /// A round trip longer than that is none.
    longest_round_trip: Duration,
}

/// A FEEDBACK to send beside the notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) to: Destination,
    pub(super) queues: Queues,
    /// The sender's time of the packet that it answers.
    pub(super) echoed: Ticks,
}

/// What packets to this rank met on their way: a FEEDBACK's middle fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Queues {
    pub(super) queue: Option<Ticks>,
    pub(super) marked: u8,
    pub(super) trimmed: u8,
}

impl Congestion {
    pub(super) fn new(config: &Config, pacing: Pacing) -> Self {
        let scale = Scale::new(config, &pacing);
        Self {
            pacer: Pacer::new(pacing),
            scale,
            control: pacing.policy.control(&scale),
            receivers: Receivers::new(&scale),
            adapt_at: Time::ZERO,
            observer: Observer::new(config, pacing.policy, scale),
            longest_round_trip: config.t_b,
        }
    }

    /// A packet of the job came.
    pub(super) fn received(&mut self, now: Time, header: &Header) {
        if matches!(header.kind, Kind::Scatter | Kind::Gather | Kind::Repair) {
            self.observer.packet(now, header);
        }
    }

    /// FEEDBACK came.
    pub(super) fn told(&mut self, now: Time, header: &Header, feedback: &Feedback) {
        if header.echoed == Ticks(0) {
            return self.receivers.told(now, header.source, feedback);
        }
        let clock = Ticks::from_clock_ns(now.as_nanos());
        let round_trip = Ticks(clock.0.wrapping_sub(header.echoed.0));
        if Duration::from(round_trip) <= self.longest_round_trip {
            self.receivers.echoed(now, header.source, round_trip);
        }
    }

    /// A packet of `bytes`, all its receivers' copies together, left.
    pub(super) fn sent(&mut self, now: Time, bytes: u64) {
        self.pacer.spend(now, bytes);
        if now >= self.adapt_at {
            self.adapt_at = now + self.scale.interval;
            let seen = Seen {
                stamped: self.observer.stamps,
                ..self.receivers.seen(now)
            };
            self.pacer.set_share(self.control.adapt(now, &seen));
        }
    }

    /// What there is to tell beside the notices, once; `waits` says whether an operation does, of which FEEDBACK must be.
    pub(super) fn tell(&mut self, waits: bool) -> Option<Told> {
        if !waits {
            self.observer.forget();
        }
        self.observer.tell()
    }

    /// Whether [`Congestion::tell`] has something.
    pub(super) fn has_to_tell(&self) -> bool {
        self.observer.has_to_tell()
    }

    /// What notices say.
    pub(super) fn queues(&self) -> Queues {
        self.observer.queues()
    }
}

/// What packets that come to this rank met, interval by interval.
struct Observer {
    rank: u16,
    ranks: u16,
    gather: Gather,
    policy: RatePolicy,
    /// Ranks whose packets pass no switch, and show nothing.
    beside: Vec<u16>,
    scale: Scale,
    since: Time,
    packets: u32,
    stamped: u32,
    /// Switches stamp, as far as the last packets show.
    stamps: bool,
    /// The sum over stamped packets, in ticks.
    queue: u64,
    marked: u32,
    trimmed: u32,
    /// Of an interval with full queues; with how many it was told one by one.
    report: Option<(Queues, u16)>,
    /// Sources to answer, with their times.
    echoes: VecDeque<(u16, Ticks)>,
    /// By source: no answer before that; empty before the first.
    echo_from: Vec<Time>,
}

impl Observer {
    fn new(config: &Config, policy: RatePolicy, scale: Scale) -> Self {
        Self {
            rank: config.rank,
            ranks: config.ranks,
            gather: config.gather,
            policy,
            beside: config.beside.clone(),
            scale,
            since: Time::ZERO,
            packets: 0,
            stamped: 0,
            stamps: false,
            queue: 0,
            marked: 0,
            trimmed: 0,
            report: None,
            echoes: VecDeque::new(),
            echo_from: Vec::new(),
        }
    }

    fn packet(&mut self, now: Time, header: &Header) {
        if self.beside.contains(&header.source) {
            return;
        }
        self.echo(now, header);
        if now >= self.since + self.scale.interval {
            self.end_interval(now);
        }
        let flags = header.switch_flags;
        self.packets = self.packets.saturating_add(1);
        self.marked += u32::from(flags.congestion);
        self.trimmed += u32::from(flags.trimmed && !flags.late);
        if flags.hops > 0 {
            self.stamps = true;
            self.stamped += 1;
            self.queue += u64::from(header.path_queue.0);
        }
    }

    /// One answer to each source in an interval, where round trips are what rates follow.
    fn echo(&mut self, now: Time, header: &Header) {
        let follows = match self.policy {
            RatePolicy::Fixed => false,
            RatePolicy::Timely => true,
            RatePolicy::InBand => header.switch_flags.hops == 0,
        };
        if !follows || header.sent_at == Ticks(0) {
            return;
        }
        if self.echo_from.is_empty() {
            self.echo_from.resize(self.ranks.into(), Time::ZERO);
        }
        let from = &mut self.echo_from[usize::from(header.source)];
        if now >= *from {
            *from = now + self.scale.interval;
            self.echoes.push_back((header.source, header.sent_at));
        }
    }

    fn end_interval(&mut self, now: Time) {
        let queues = self.queues();
        let full = queues.trimmed > 0
            || match queues.queue {
                Some(queue) => Duration::from(queue) > self.scale.target,
                None => queues.marked > 0,
            };
        if self.policy == RatePolicy::InBand && full {
            self.report = Some((queues, 0));
        }
        if self.packets > 0 {
            self.stamps = self.stamped > 0;
        }
        self.since = now;
        (self.packets, self.stamped, self.queue) = (0, 0, 0);
        (self.marked, self.trimmed) = (0, 0);
    }

    /// Of the present interval.
    fn queues(&self) -> Queues {
        // A share over 0 is told as such.
        let share = |part: u32| {
            let of = u64::from(self.packets).max(1);
            (u64::from(part) * 255).div_ceil(of).min(255) as u8
        };
        let mean = self.queue.checked_div(self.stamped.into());
        Queues {
            // A mean of 32-bit values is one; the largest of them means none.
            queue: mean.map(|mean| Ticks((mean as u32).min(u32::MAX - 1))),
            marked: share(self.marked),
            trimmed: share(self.trimmed),
        }
    }

    fn has_to_tell(&self) -> bool {
        self.report.is_some() || !self.echoes.is_empty()
    }

    fn forget(&mut self) {
        self.report = None;
        self.echoes.clear();
    }

    fn tell(&mut self) -> Option<Told> {
        if let Some((rank, sent_at)) = self.echoes.pop_front() {
            return Some(Told {
                to: Destination::Rank(rank),
                queues: self.queues(),
                echoed: sent_at,
            });
        }
        let (queues, told) = self.report.as_mut()?;
        let queues = *queues;
        let to = match self.gather {
            Gather::Multicast => {
                self.report = None;
                Destination::Group
            }
            Gather::Unicast => {
                *told += 1;
                let rank = (u32::from(self.rank) + u32::from(*told)) % u32::from(self.ranks);
                if *told == self.ranks - 1 {
                    self.report = None;
                }
                Destination::Rank(rank as u16)
            }
        };
        Some(Told {
            to,
            queues,
            echoed: Ticks(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observer(policy: RatePolicy, gather: Gather) -> Observer {
        let config = Config {
            gather,
            slot_bytes: 8192,
            ..Config::new(1, 1, 1, 4, 7, Duration::from_millis(50))
        };
        let pacing = Pacing {
            bits_per_second: 100_000_000_000,
            burst: 0,
            policy,
        };
        Observer::new(&config, policy, Scale::new(&config, &pacing))
    }

    fn at(us: u64) -> Time {
        Time::from_nanos(us * 1000)
    }

    fn packet(source: u16, queue: u32) -> Header {
        let mut header = Header::new(Kind::Scatter, 1, 1, source, 1);
        header.switch_flags.hops = 1;
        header.path_queue = Ticks(queue);
        header.sent_at = Ticks(77);
        header
    }

    #[test]
    fn full_queues_are_told_once_an_interval() {
        let mut observer = observer(RatePolicy::InBand, Gather::Multicast);
        for us in 0..200 {
            observer.packet(at(us), &packet(0, if us < 100 { 10 } else { 190 }));
            let told = observer.tell();
            assert_eq!(told.is_some(), us == 150, "{us}: {told:?}");
            if let Some(told) = told {
                assert_eq!(told.to, Destination::Group);
                assert_eq!(told.queues.queue, Some(Ticks(190)));
            }
        }
    }

    #[test]
    fn marks_and_cut_payloads_are_told_without_a_queue() {
        for trimmed in [true, false] {
            let mut observer = observer(RatePolicy::InBand, Gather::Unicast);
            // Marks count where no switch stamps.
            let mut unmarked = packet(0, 0);
            unmarked.switch_flags.hops = trimmed.into();
            let mut one = unmarked.clone();
            one.switch_flags.trimmed = trimmed;
            one.switch_flags.congestion = !trimmed;
            observer.packet(at(1000), &one);
            for us in 0..1000 {
                observer.packet(at(1001 + us / 100), &unmarked);
            }
            observer.packet(at(1100), &unmarked);
            // Packets without stamps are answered besides.
            let told = std::iter::from_fn(|| observer.tell());
            let told: Vec<Told> = told.filter(|told| told.echoed == Ticks(0)).collect();
            let to: Vec<Destination> = told.iter().map(|told| told.to).collect();
            assert_eq!(to, [2, 3, 0].map(Destination::Rank));
            let Queues {
                marked,
                trimmed: cut,
                ..
            } = told[0].queues;
            // Less than one of 255, and still told.
            assert_eq!((cut, marked), if trimmed { (1, 0) } else { (0, 1) });
        }
    }

    #[test]
    fn ranks_beside_show_nothing() {
        for policy in [RatePolicy::InBand, RatePolicy::Timely] {
            let mut observer = observer(policy, Gather::Multicast);
            observer.beside = vec![2];
            observer.packet(at(0), &packet(0, 10));
            std::iter::from_fn(|| observer.tell()).for_each(drop);
            let mut beside = packet(2, 0);
            beside.switch_flags.hops = 0;
            for us in 1..1000 {
                observer.packet(at(us), &beside);
                assert_eq!((observer.tell(), observer.stamps), (None, true), "{us}");
            }
        }
    }

    #[test]
    fn answers_go_to_each_source_once_an_interval() {
        let mut observer = observer(RatePolicy::Timely, Gather::Multicast);
        let mut sources = Vec::new();
        for us in 0..60 {
            for source in [0, 2, 3] {
                observer.packet(at(us), &packet(source, 0));
            }
            sources.extend(std::iter::from_fn(|| observer.tell()).map(|told| {
                assert_eq!(told.echoed, Ticks(77));
                told.to
            }));
        }
        assert_eq!(sources, [0, 2, 3, 0, 2, 3].map(Destination::Rank));
    }
}
