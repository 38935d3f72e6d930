//! Congestion state: queues that packets to this rank met, reports to and from other ranks (FEEDBACK), and
//! the sending rate.

use std::collections::VecDeque;
use std::time::Duration;

use ultima_wire::{Feedback, Header, Kind, Ticks};

use crate::config::{Config, Gather, Pacing};
use crate::pacing::Pacer;
use crate::rate::{RateControl, RatePolicy, Receivers, Scale};
use crate::time::Time;

use super::Destination;

/// The sending rate, and the congestion reports to other ranks. Exists only with [`Config::pacing`].
pub(super) struct Congestion {
    pub(super) pacer: Pacer,
    pub(super) scale: Scale,
    control: Box<dyn RateControl>,
    receivers: Receivers,
    /// Time of the next rate update.
    adapt_at: Time,
    monitor: QueueMonitor,
    /// Measurements above this are not round trips.
    longest_round_trip: Duration,
}

/// A congestion report (FEEDBACK) that is sent apart from notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CongestionReport {
    pub(super) to: Destination,
    pub(super) queues: Queues,
    /// The sender's time of the packet that it answers.
    pub(super) echoed: Ticks,
}

/// Queues that packets to this rank met: the middle fields of FEEDBACK.
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
            monitor: QueueMonitor::new(config, pacing.policy, scale),
            longest_round_trip: config.t_b,
        }
    }

    /// Notes a received packet of the job.
    pub(super) fn received(&mut self, now: Time, header: &Header) {
        if matches!(header.kind, Kind::Scatter | Kind::Gather | Kind::Repair) {
            self.monitor.packet(now, header);
        }
    }

    /// Notes a received FEEDBACK.
    pub(super) fn reported(&mut self, now: Time, header: &Header, feedback: &Feedback) {
        if header.echoed == Ticks(0) {
            return self.receivers.reported(now, header.source, feedback);
        }
        let clock = Ticks::from_clock_ns(now.as_nanos());
        let round_trip = Ticks(clock.0.wrapping_sub(header.echoed.0));
        if Duration::from(round_trip) <= self.longest_round_trip {
            self.receivers.echoed(now, header.source, round_trip);
        }
    }

    /// Notes a sent packet of `bytes`, which counts all its copies.
    pub(super) fn sent(&mut self, now: Time, bytes: u64) {
        self.pacer.spend(now, bytes);
        if now >= self.adapt_at {
            self.adapt_at = now + self.scale.interval;
            let seen = self.receivers.seen(now);
            self.pacer.set_share(self.control.adapt(now, &seen));
        }
    }

    /// Returns the next congestion report. `waits` says that an operation is in progress, which FEEDBACK
    /// needs.
    pub(super) fn next_report(&mut self, waits: bool) -> Option<CongestionReport> {
        if !waits {
            self.monitor.forget();
        }
        self.monitor.next_report()
    }

    /// Notes that [`Config::gather`] changed.
    pub(super) fn gather_changed(&mut self, gather: Gather) {
        self.monitor.gather = gather;
    }

    /// True if [`Congestion::next_report`] has a report.
    pub(super) fn has_report(&self) -> bool {
        self.monitor.has_report()
    }

    /// The queue fields of notices.
    pub(super) fn queues(&self) -> Queues {
        self.monitor.queues()
    }
}

/// Measures, by interval, the queues that packets to this rank met.
struct QueueMonitor {
    rank: u16,
    ranks: u16,
    gather: Gather,
    policy: RatePolicy,
    /// Ranks whose packets pass no switch and therefore carry no measurement.
    colocated: Vec<u16>,
    scale: Scale,
    since: Time,
    packets: u32,
    stamped: u32,
    /// Sum over stamped packets, in ticks.
    queue: u64,
    marked: u32,
    trimmed: u32,
    /// The report of an interval with full queues, and the number of ranks that already have it.
    report: Option<(Queues, u16)>,
    /// Sources to answer, with their times.
    echoes: VecDeque<(u16, Ticks)>,
    /// By source: the earliest time of the next answer. Empty until the first one.
    echo_from: Vec<Time>,
}

impl QueueMonitor {
    fn new(config: &Config, policy: RatePolicy, scale: Scale) -> Self {
        Self {
            rank: config.rank,
            ranks: config.ranks,
            gather: config.gather,
            policy,
            colocated: config.colocated.clone(),
            scale,
            since: Time::ZERO,
            packets: 0,
            stamped: 0,
            queue: 0,
            marked: 0,
            trimmed: 0,
            report: None,
            echoes: VecDeque::new(),
            echo_from: Vec::new(),
        }
    }

    fn packet(&mut self, now: Time, header: &Header) {
        if self.colocated.contains(&header.source) {
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
            self.stamped += 1;
            self.queue += u64::from(header.path_queue.0);
        }
    }

    /// Queues one answer per source and interval, for the rate policy that follows round trips.
    fn echo(&mut self, now: Time, header: &Header) {
        if self.policy != RatePolicy::Timely || header.sent_at == Ticks(0) {
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
        // A virtual queue may mark, and trim, while the switch's own queue is short.
        let full = queues.trimmed > 0
            || queues.marked > 0
            || (queues.queue).is_some_and(|queue| Duration::from(queue) > self.scale.target);
        if self.policy == RatePolicy::InBand && full {
            self.report = Some((queues, 0));
        }
        self.since = now;
        (self.packets, self.stamped, self.queue) = (0, 0, 0);
        (self.marked, self.trimmed) = (0, 0);
    }

    /// The queues of the current interval.
    fn queues(&self) -> Queues {
        // A share above 0 never rounds to 0.
        let share = |part: u32| {
            let of = u64::from(self.packets).max(1);
            (u64::from(part) * 255).div_ceil(of).min(255) as u8
        };
        let mean = self.queue.checked_div(self.stamped.into());
        Queues {
            // The mean of 32-bit values fits 32 bits. The largest value means "none".
            queue: mean.map(|mean| Ticks((mean as u32).min(u32::MAX - 1))),
            marked: share(self.marked),
            trimmed: share(self.trimmed),
        }
    }

    fn has_report(&self) -> bool {
        self.report.is_some() || !self.echoes.is_empty()
    }

    fn forget(&mut self) {
        self.report = None;
        self.echoes.clear();
    }

    fn next_report(&mut self) -> Option<CongestionReport> {
        if let Some((rank, sent_at)) = self.echoes.pop_front() {
            return Some(CongestionReport {
                to: Destination::Rank(rank),
                queues: self.queues(),
                echoed: sent_at,
            });
        }
        let (queues, sent) = self.report.as_mut()?;
        let queues = *queues;
        let to = match self.gather {
            Gather::Multicast => {
                self.report = None;
                Destination::Group
            }
            Gather::Unicast => {
                *sent += 1;
                let rank = (u32::from(self.rank) + u32::from(*sent)) % u32::from(self.ranks);
                if *sent == self.ranks - 1 {
                    self.report = None;
                }
                Destination::Rank(rank as u16)
            }
        };
        Some(CongestionReport {
            to,
            queues,
            echoed: Ticks(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor(policy: RatePolicy, gather: Gather) -> QueueMonitor {
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
        QueueMonitor::new(&config, policy, Scale::new(&config, &pacing))
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
    fn full_queues_are_reported_once_an_interval() {
        let mut monitor = monitor(RatePolicy::InBand, Gather::Multicast);
        for us in 0..200 {
            monitor.packet(at(us), &packet(0, if us < 100 { 10 } else { 190 }));
            let report = monitor.next_report();
            assert_eq!(report.is_some(), us == 150, "{us}: {report:?}");
            if let Some(report) = report {
                assert_eq!(report.to, Destination::Group);
                assert_eq!(report.queues.queue, Some(Ticks(190)));
            }
        }
    }

    #[test]
    fn marks_and_trimmed_payloads_are_reported_while_stamped_queues_are_empty() {
        for trimmed in [true, false] {
            let mut monitor = monitor(RatePolicy::InBand, Gather::Unicast);
            let unmarked = packet(0, 0);
            let mut one = unmarked.clone();
            one.switch_flags.trimmed = trimmed;
            one.switch_flags.congestion = !trimmed;
            monitor.packet(at(1000), &one);
            for us in 0..1000 {
                monitor.packet(at(1001 + us / 100), &unmarked);
            }
            monitor.packet(at(1100), &unmarked);
            let report = std::iter::from_fn(|| monitor.next_report());
            let report: Vec<CongestionReport> = report.collect();
            let to: Vec<Destination> = report.iter().map(|report| report.to).collect();
            assert_eq!(to, [2, 3, 0].map(Destination::Rank));
            let Queues {
                marked,
                trimmed: cut,
                ..
            } = report[0].queues;
            // Less than one in 255, but reported.
            assert_eq!((cut, marked), if trimmed { (1, 0) } else { (0, 1) });
        }
    }

    #[test]
    fn colocated_ranks_show_no_queue() {
        for policy in [RatePolicy::InBand, RatePolicy::Timely] {
            let mut monitor = monitor(policy, Gather::Multicast);
            monitor.colocated = vec![2];
            monitor.packet(at(0), &packet(0, 10));
            std::iter::from_fn(|| monitor.next_report()).for_each(drop);
            let mut colocated = packet(2, 0);
            colocated.switch_flags.hops = 0;
            for us in 1..1000 {
                monitor.packet(at(us), &colocated);
                assert_eq!(monitor.next_report(), None, "{us}");
            }
        }
    }

    #[test]
    fn answers_go_to_each_source_once_an_interval() {
        let mut monitor = monitor(RatePolicy::Timely, Gather::Multicast);
        let mut sources = Vec::new();
        for us in 0..60 {
            for source in [0, 2, 3] {
                monitor.packet(at(us), &packet(source, 0));
            }
            sources.extend(std::iter::from_fn(|| monitor.next_report()).map(|report| {
                assert_eq!(report.echoed, Ticks(77));
                report.to
            }));
        }
        assert_eq!(sources, [0, 2, 3, 0, 2, 3].map(Destination::Rank));
    }
}
