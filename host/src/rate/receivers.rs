//! The congestion reports of a rank's receivers.

use std::collections::BTreeMap;
use std::time::Duration;

use ultima_wire::{Feedback, Ticks};

use crate::time::Time;

use super::{Scale, Seen};

/// The quantile of the receivers that the rate follows: the median, for an even number the worse of the two.
/// A multicast has one rate for all. A queue at most receivers is caused by this job. A queue at fewer is a
/// slow link, or a burst of other traffic, which many receivers always have: their packets are trimmed, and
/// only they lose data. With a higher quantile, all would wait for any of them (docs/transport.md has the
/// figures).
const QUANTILE: (usize, usize) = (1, 2);

/// Each receiver's last report. The result is a quantile: the worst value without those of the slow
/// receivers.
pub(crate) struct Receivers {
    others: usize,
    /// Queues up to this are ignored.
    target: Duration,
    /// The time for which a report counts.
    lasts: Duration,
    /// By rank.
    reports: BTreeMap<u16, Reported>,
    /// By rank. Empty before the first answer.
    echoed: Vec<Echoed>,
    scratch: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Reported {
    until: Time,
    queue: u32,
    marked: u8,
    trimmed: u8,
}

#[derive(Clone, Copy, Default)]
struct Echoed {
    until: Time,
    round_trip: u32,
}

impl Receivers {
    /// A receiver with a full queue reports once per interval, so a report lasts a little longer.
    pub(crate) fn new(scale: &Scale) -> Self {
        Self {
            others: scale.others.into(),
            target: scale.target,
            lasts: scale.interval + scale.interval / 2,
            reports: BTreeMap::new(),
            echoed: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Notes a FEEDBACK of `rank`.
    pub(crate) fn reported(&mut self, now: Time, rank: u16, feedback: &Feedback) {
        let report = Reported {
            until: now + self.lasts,
            queue: feedback.queue.unwrap_or_default().0,
            marked: feedback.marked,
            trimmed: feedback.trimmed,
        };
        let is_full = Duration::from(Ticks(report.queue)) > self.target;
        if is_full || report.marked > 0 || report.trimmed > 0 {
            self.reports.insert(rank, report);
        } else {
            self.reports.remove(&rank);
        }
    }

    /// Notes `rank`'s answer to a packet.
    pub(crate) fn echoed(&mut self, now: Time, rank: u16, round_trip: Ticks) {
        if self.echoed.is_empty() {
            self.echoed.resize(self.others + 1, Echoed::default());
        }
        self.echoed[usize::from(rank)] = Echoed {
            until: now + self.lasts,
            round_trip: round_trip.0,
        };
    }

    /// The recent reports, without the slow receivers. A receiver without a report has nothing to report.
    pub(crate) fn seen(&mut self, now: Time) -> Seen {
        let slow = slow(self.others);
        let share = |part: u32| f64::from(part) / 255.0;
        self.reports.retain(|_, report| report.until > now);
        let [queue, marked, trimmed] = if self.reports.len() <= slow {
            [0; 3]
        } else {
            let values = [
                |report: &Reported| report.queue,
                |report: &Reported| report.marked.into(),
                |report: &Reported| report.trimmed.into(),
            ];
            values.map(|value| {
                self.scratch.clear();
                self.scratch.extend(self.reports.values().map(value));
                worst_but(&mut self.scratch, slow)
            })
        };
        let echoed = self.echoed.iter().filter(|report| report.until > now);
        self.scratch.clear();
        self.scratch.extend(echoed.map(|report| report.round_trip));
        // The receivers that may be ignored must not hide the others' queues.
        let answered = self.scratch.len();
        let round_trip =
            (answered > slow).then(|| worst_but(&mut self.scratch, self::slow(answered)));
        Seen {
            queue: Ticks(queue).into(),
            marked: share(marked),
            trimmed: share(trimmed),
            round_trip: round_trip.map(|ticks| Ticks(ticks).into()),
        }
    }
}

/// Number of `receivers` that may be ignored.
fn slow(receivers: usize) -> usize {
    let (part, of) = QUANTILE;
    receivers.saturating_sub(1) * part / of
}

/// The largest value after the `but` largest ones, which are fewer than all.
fn worst_but(values: &mut [u32], but: usize) -> u32 {
    let at = values.len() - 1 - but;
    *values.select_nth_unstable(at).1
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_micros(50);

    /// Every queue counts.
    fn receivers(ranks: u16) -> Receivers {
        Receivers::new(&Scale {
            others: ranks - 1,
            interval: INTERVAL,
            target: Duration::ZERO,
        })
    }

    fn feedback(queue: u32, marked: u8) -> Feedback {
        Feedback {
            wait: Ticks(0),
            queue: Some(Ticks(queue)),
            marked,
            trimmed: 0,
            notice: false,
        }
    }

    fn at(us: u64) -> Time {
        Time::from_nanos(us * 1000)
    }

    #[test]
    fn the_slower_half_is_not_waited_for() {
        for (ranks, slow) in [(2u16, 0u16), (3, 0), (4, 1), (8, 3), (9, 3), (64, 31)] {
            let mut receivers = receivers(ranks);
            for rank in 1..=slow {
                receivers.reported(at(0), rank, &feedback(500, 255));
            }
            assert_eq!(receivers.seen(at(1)), Seen::default(), "{ranks}");
            // One more, with a shorter queue: its report counts.
            receivers.reported(at(0), slow + 1, &feedback(7, 51));
            let seen = receivers.seen(at(1));
            assert_eq!(seen.queue, Ticks(7).into(), "{ranks}");
            assert_eq!(seen.marked, 0.2, "{ranks}");
        }
    }

    #[test]
    fn reports_expire() {
        let mut receivers = receivers(2);
        receivers.reported(at(0), 1, &feedback(9, 0));
        receivers.echoed(at(0), 1, Ticks(3));
        assert_eq!(receivers.seen(at(74)).queue, Ticks(9).into());
        assert_eq!(receivers.seen(at(74)).round_trip, Some(Ticks(3).into()));
        assert_eq!(receivers.seen(at(75)), Seen::default());
        // Marks count at receivers that measure no queue, too.
        let marked = Feedback {
            queue: None,
            ..feedback(0, 51)
        };
        receivers.reported(at(80), 1, &marked);
        assert_eq!(receivers.seen(at(81)).marked, 0.2);
        // A newer report replaces the older.
        receivers.reported(at(80), 1, &feedback(9, 0));
        let nothing = Feedback {
            queue: None,
            ..feedback(0, 0)
        };
        receivers.reported(at(81), 1, &nothing);
        assert_eq!(receivers.seen(at(82)), Seen::default());
    }

    #[test]
    fn round_trips_are_compared_among_ranks_that_answered() {
        let mut receivers = receivers(64);
        for rank in 1..=31 {
            receivers.echoed(at(0), rank, Ticks(900));
            assert_eq!(receivers.seen(at(1)).round_trip, None);
        }
        for rank in 1..=17 {
            receivers.echoed(at(0), rank, Ticks(12));
        }
        receivers.echoed(at(0), 32, Ticks(12));
        assert_eq!(receivers.seen(at(1)).round_trip, Some(Ticks(12).into()));
    }

    #[test]
    fn reports_without_congestion_are_not_stored() {
        let mut receivers = Receivers {
            target: Ticks(8).into(),
            ..receivers(2)
        };
        for (queue, kept) in [(8, false), (9, true), (8, false)] {
            receivers.reported(at(0), 1, &feedback(queue, 0));
            assert_eq!(receivers.reports.is_empty(), !kept);
            let queue = if kept { queue } else { 0 };
            assert_eq!(receivers.seen(at(1)).queue, Ticks(queue).into());
        }
    }
}
