//! The sending end of a connection: scoreboard, loss detection and timers.
//!
//! - Scoreboard and pipe: RFC 6675. Each segment is in flight, selectively acknowledged or lost.
//! - Loss detection: RACK (RFC 8985, 6). A segment is lost if one that was sent later arrived, and the reordering
//!   window has passed since.
//! - Tail loss probe (RFC 8985, 7): a probe after 2·SRTT without an acknowledgement.
//! - Retransmission timeout: RFC 6298, with Linux's minimum, which applies to the variance term.
//! - Congestion window: [`Cubic`].

use std::collections::VecDeque;

use super::cubic::Cubic;
use super::receiver::Ack;
use crate::clock::Ps;

/// Number of segments after a hole that end the reordering window (RFC 8985, 6.2: DupThresh).
const DUPLICATES: usize = 3;
/// Linux's `TCP_RTO_MAX`.
const MAX_RTO: Ps = Ps(120_000_000_000_000);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    InFlight,
    Sacked,
    /// Lost, and not retransmitted yet.
    Lost,
}

/// A segment that is not acknowledged.
struct Sent {
    /// Its last transmission.
    at: Ps,
    status: Status,
    retransmitted: bool,
}

/// A segment to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) number: u32,
    /// True for a retransmission or a probe.
    pub(super) urgent: bool,
}

/// Loss recovery.
#[derive(Clone, Copy)]
struct Recovery {
    /// It ends when all segments before this one are acknowledged.
    end: u32,
    after_timeout: bool,
}

/// An unanswered tail loss probe.
#[derive(Clone, Copy)]
struct Probe {
    /// The segment after all that were sent at the time of the probe.
    end: u32,
    /// True for a retransmission, false for new data.
    retransmitted: bool,
}

/// The state of RACK (RFC 8985, 5.2).
struct Rack {
    /// The delivered segment that was sent last, and when.
    number: u32,
    at: Ps,
    /// Its round-trip time.
    rtt: Ps,
    min_rtt: Ps,
    /// The segment after the last delivered one.
    end: u32,
    reordering_seen: bool,
}

impl Rack {
    /// Handles the delivery of a segment (RFC 8985, 6.2, steps 1 to 3).
    fn deliver(&mut self, now: Ps, number: u32, sent: &Sent) {
        let rtt = now.since(sent.at);
        if sent.retransmitted && rtt < self.min_rtt {
            // The original arrived.
            return;
        }
        if !sent.retransmitted {
            self.min_rtt = self.min_rtt.min(rtt);
            self.reordering_seen |= number < self.end;
        }
        self.end = self.end.max(number + 1);
        if (sent.at, number) > (self.at, self.number) {
            (self.at, self.number, self.rtt) = (sent.at, number, rtt);
        }
    }
}

/// The sender's state. Numbers count segments.
pub(super) struct Sender {
    /// The segment after the last queued one.
    end: u32,
    /// The first unacknowledged segment.
    unacknowledged: u32,
    /// Segments from `unacknowledged` that were sent.
    sent: VecDeque<Sent>,
    sacked: usize,
    lost: usize,
    /// Maximum segments outstanding: the receiver's buffer.
    room: usize,
    cubic: Cubic,
    recovery: Option<Recovery>,
    /// A segment that is sent whatever the window.
    forced: Option<u32>,
    rack: Rack,
    probe: Option<Probe>,
    smoothed: Ps,
    variance: Ps,
    min_rto: Ps,
    rto: Ps,
    rto_at: Ps,
    probe_at: Ps,
    /// The end of a segment's reordering window.
    reorder_at: Ps,
}

impl Sender {
    /// Creates a sender with a receiver's buffer of `room` segments, whose handshake took `rtt`.
    pub(super) fn new(room: u32, rtt: Ps, min_rto: Ps) -> Self {
        let variance = Ps(rtt.0 / 2);
        Self {
            end: 0,
            unacknowledged: 0,
            sent: VecDeque::new(),
            sacked: 0,
            lost: 0,
            room: room as usize,
            cubic: Cubic::new(),
            recovery: None,
            forced: None,
            rack: Rack {
                number: 0,
                at: Ps::ZERO,
                rtt,
                min_rtt: rtt,
                end: 0,
                reordering_seen: false,
            },
            probe: None,
            smoothed: rtt,
            variance,
            min_rto,
            rto: rto(rtt, variance, min_rto),
            rto_at: Ps::NEVER,
            probe_at: Ps::NEVER,
            reorder_at: Ps::NEVER,
        }
    }

    /// Adds `segments` to send. Returns the number of the first.
    pub(super) fn queue(&mut self, segments: u32) -> u32 {
        self.end += segments;
        self.end - segments
    }

    /// The first unacknowledged segment.
    pub(super) fn unacknowledged(&self) -> u32 {
        self.unacknowledged
    }

    /// The expiry of the next timer.
    pub(super) fn deadline(&self) -> Ps {
        self.rto_at.min(self.probe_at).min(self.reorder_at)
    }

    /// True if a segment may be sent now.
    pub(super) fn can_send(&self) -> bool {
        let within_window = self.pipe() < self.cubic.window();
        self.forced.is_some() || within_window && (self.lost > 0 || self.has_new())
    }

    /// Takes the next segment, which is sent now: a probe, the first lost one or a new one (RFC 6675, 4).
    pub(super) fn take_next(&mut self, now: Ps) -> Next {
        let forced = self.forced.take();
        let number = forced.or_else(|| self.first_lost()).unwrap_or(self.next());
        let retransmitted = number < self.next();
        if retransmitted {
            let at = self.index(number);
            let sent = &mut self.sent[at];
            if sent.status == Status::Lost {
                sent.status = Status::InFlight;
                self.lost -= 1;
            }
            (sent.at, sent.retransmitted) = (now, true);
        } else {
            self.sent.push_back(Sent {
                at: now,
                status: Status::InFlight,
                retransmitted: false,
            });
        }
        if self.rto_at == Ps::NEVER {
            self.rto_at = now + self.rto;
        }
        self.schedule_probe(now);
        Next {
            number,
            urgent: retransmitted || forced.is_some(),
        }
    }

    /// Handles an acknowledgement.
    pub(super) fn acknowledge(&mut self, now: Ps, ack: &Ack) {
        let in_flight = self.pipe();
        let newly = ack.missing.saturating_sub(self.unacknowledged);
        self.deliver(now, ack);
        if newly > 0 {
            self.measure(now.since(ack.echoed));
            self.rto_at = match self.sent.is_empty() {
                true => Ps::NEVER,
                false => now + self.rto,
            };
        }
        self.forced = self.forced.filter(|&number| {
            let sent = number.checked_sub(self.unacknowledged);
            let sent = sent.map(|at| self.sent.get(at as usize).map(|sent| sent.status));
            sent.is_some_and(|status| status != Some(Status::Sacked))
        });
        self.end_probe(ack);
        if (self.recovery).is_some_and(|recovery| self.unacknowledged >= recovery.end) {
            self.recovery = None;
        }
        self.detect_losses(now);
        if newly > 0 && self.recovery.is_none_or(|recovery| recovery.after_timeout) {
            let (rtt, room) = (self.smoothed, self.room as f64);
            self.cubic.grow(now, rtt, f64::from(newly), in_flight, room);
        }
        self.schedule_probe(now);
    }

    /// Handles the timers that have expired.
    pub(super) fn time_out(&mut self, now: Ps) {
        if self.reorder_at <= now {
            self.detect_losses(now);
        }
        if self.rto_at <= now {
            self.retransmission_timeout(now);
        } else if self.probe_at <= now {
            self.send_probe(now);
        }
    }

    fn next(&self) -> u32 {
        self.unacknowledged + self.sent.len() as u32
    }

    fn index(&self, number: u32) -> usize {
        (number - self.unacknowledged) as usize
    }

    /// Number of segments in flight (RFC 6675, 4: SetPipe).
    fn pipe(&self) -> usize {
        self.sent.len() - self.sacked - self.lost
    }

    fn has_new(&self) -> bool {
        self.next() < self.end && self.sent.len() < self.room
    }

    fn first_lost(&self) -> Option<u32> {
        let numbered = (self.unacknowledged..).zip(&self.sent);
        let mut lost = numbered.filter(|(_, sent)| sent.status == Status::Lost);
        (self.lost > 0).then(|| lost.next().map(|(number, _)| number))?
    }

    /// Removes what is acknowledged, and marks what is selectively acknowledged.
    fn deliver(&mut self, now: Ps, ack: &Ack) {
        while self.unacknowledged < ack.missing {
            let Some(sent) = self.sent.pop_front() else {
                return;
            };
            match sent.status {
                Status::Sacked => self.sacked -= 1,
                Status::Lost => self.lost -= 1,
                Status::InFlight => {}
            }
            if sent.status != Status::Sacked {
                self.rack.deliver(now, self.unacknowledged, &sent);
            }
            self.unacknowledged += 1;
        }
        let mut blocks = ack.blocks;
        blocks.sort_unstable();
        for (first, end) in blocks {
            for number in first.max(self.unacknowledged)..end.min(self.next()) {
                let at = self.index(number);
                let sent = &mut self.sent[at];
                if sent.status == Status::Sacked {
                    continue;
                }
                self.lost -= usize::from(sent.status == Status::Lost);
                sent.status = Status::Sacked;
                self.sacked += 1;
                self.rack.deliver(now, number, &self.sent[at]);
            }
        }
    }

    /// RFC 6298, 2, with the minimum as in Linux.
    fn measure(&mut self, took: Ps) {
        let off = self.smoothed.0.abs_diff(took.0);
        self.smoothed = Ps((self.smoothed.0 * 7 + took.0) / 8);
        self.variance = Ps((self.variance.0 * 3 + off) / 4);
        self.rto = rto(self.smoothed, self.variance, self.min_rto);
    }

    /// RFC 8985, 6.2, step 4. Windows that grow with D-SACK are left out: no path here reorders a connection's
    /// segments.
    fn reordering_window(&self) -> Ps {
        let sure = self.recovery.is_some() || self.sacked >= DUPLICATES;
        match sure && !self.rack.reordering_seen {
            true => Ps::ZERO,
            false => Ps(self.rack.min_rtt.0 / 4).min(self.smoothed),
        }
    }

    /// RFC 8985, 6.2, step 5. The first loss starts recovery.
    fn detect_losses(&mut self, now: Ps) {
        self.reorder_at = Ps::NEVER;
        if self.sacked == 0 && self.recovery.is_none() {
            // Everything outstanding was sent after everything delivered.
            return;
        }
        let window = self.reordering_window();
        let lost_before = self.lost;
        let mut latest = None;
        for (number, sent) in (self.unacknowledged..).zip(&mut self.sent) {
            let sent_before = (sent.at, number) < (self.rack.at, self.rack.number);
            if sent.status != Status::InFlight || !sent_before {
                continue;
            }
            let due = sent.at + self.rack.rtt + window;
            if due <= now {
                sent.status = Status::Lost;
                self.lost += 1;
            } else {
                latest = latest.max(Some(due));
            }
        }
        self.reorder_at = latest.unwrap_or(Ps::NEVER);
        if self.lost > lost_before && self.recovery.is_none() {
            self.cubic.reduce(self.sent.len());
            self.recovery = Some(Recovery {
                end: self.next(),
                after_timeout: false,
            });
            self.forced = self.first_lost();
            self.schedule_probe(now);
        }
    }

    /// RFC 8985, 7.2. Receivers acknowledge the end of a message at once, so one segment in flight needs no allowance
    /// for delayed acknowledgements.
    fn schedule_probe(&mut self, now: Ps) {
        let idle = self.sent.is_empty() || self.probe.is_some();
        let open = self.recovery.is_none() && self.sacked == 0;
        self.probe_at = match open && !idle {
            true => now + Ps(2 * self.smoothed.0),
            false => Ps::NEVER,
        };
    }

    /// RFC 8985, 7.3: new data if the receiver has room, or else the last segment again.
    fn send_probe(&mut self, now: Ps) {
        if self.can_send() {
            // The host's link is busy: the next segment waits there.
            return self.schedule_probe(now);
        }
        let new = self.has_new();
        self.forced = Some(if new { self.next() } else { self.next() - 1 });
        self.probe = Some(Probe {
            end: self.next(),
            retransmitted: !new,
        });
        self.probe_at = Ps::NEVER;
        self.rto_at = now + self.rto;
    }

    /// RFC 8985, 7.4: a probe that repaired a loss is a loss event.
    fn end_probe(&mut self, ack: &Ack) {
        let Some(probe) = self.probe.filter(|probe| ack.missing >= probe.end) else {
            return;
        };
        if !probe.retransmitted || ack.duplicate {
            self.probe = None;
        } else if ack.missing > probe.end {
            self.probe = None;
            self.cubic.reduce(self.sent.len());
        }
    }

    /// RFC 6298, 5.4 to 5.6, and RFC 8985, 6.3: lost are the first segment, and those beyond their reordering window.
    fn retransmission_timeout(&mut self, now: Ps) {
        if self.recovery.is_none() {
            self.cubic.reduce(self.sent.len());
        }
        let window = self.reordering_window();
        for (number, sent) in (self.unacknowledged..).zip(&mut self.sent) {
            let is_due = sent.at + self.rack.rtt + window <= now;
            if sent.status == Status::InFlight && (is_due || number == self.unacknowledged) {
                sent.status = Status::Lost;
                self.lost += 1;
            }
        }
        self.cubic.restart(self.pipe());
        self.recovery = Some(Recovery {
            end: self.next(),
            after_timeout: true,
        });
        self.forced = None;
        self.probe = None;
        self.probe_at = Ps::NEVER;
        self.reorder_at = Ps::NEVER;
        self.rto = Ps(self.rto.0.saturating_mul(2)).min(MAX_RTO);
        self.rto_at = now + self.rto;
    }
}

fn rto(smoothed: Ps, variance: Ps, least: Ps) -> Ps {
    (smoothed + Ps(4 * variance.0).max(least)).min(MAX_RTO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::receiver::Receiver;

    const MS: u64 = 1_000_000_000;
    const LEAST: Ps = Ps(200 * MS);
    /// The round-trip time of the handshake and of every delivery in these tests.
    const RTT: Ps = Ps(10 * MS);

    /// Two ends, half of [`RTT`] apart.
    struct Pair {
        sender: Sender,
        receiver: Receiver,
    }

    fn at(ms: u64) -> Ps {
        Ps(ms * MS)
    }

    impl Pair {
        fn new(segments: u32) -> Self {
            let mut sender = Sender::new(1000, RTT, LEAST);
            sender.queue(segments);
            Self {
                sender,
                receiver: Receiver::default(),
            }
        }

        /// Sends as much as the window allows.
        fn send(&mut self, now: Ps) -> Vec<u32> {
            let mut sent = Vec::new();
            while self.sender.can_send() {
                sent.push(self.sender.take_next(now).number);
            }
            sent
        }

        /// Delivers `numbers`, sent at `sent`; their acknowledgements arrive at `now`.
        fn deliver(&mut self, numbers: impl IntoIterator<Item = u32>, sent: Ps, now: Ps) {
            for number in numbers {
                let ack = self.receiver.receive(number, sent, true);
                self.sender.acknowledge(now, &ack.expect("pushed"));
            }
        }

        fn is_idle(&self) -> bool {
            let sender = &self.sender;
            sender.sent.is_empty() && !sender.can_send() && sender.deadline() == Ps::NEVER
        }
    }

    #[test]
    fn only_the_hole_is_retransmitted() {
        let mut pair = Pair::new(12);
        assert_eq!(pair.send(at(0)), (0..10).collect::<Vec<_>>());
        pair.deliver((0..10).filter(|n| ![2, 5].contains(n)), at(0), at(10));
        // The window is 0.7 of the eight outstanding ones.
        assert_eq!(pair.sender.cubic.window(), 5);
        assert_eq!(pair.send(at(10)), [2, 5, 10, 11]);
        pair.deliver([2, 5, 10, 11], at(10), at(20));
        assert!(pair.sender.recovery.is_none() && pair.is_idle());
        assert_eq!(pair.receiver.missing, 12);
    }

    #[test]
    fn a_lost_retransmission_is_sent_again_without_a_timeout() {
        let mut pair = Pair::new(14);
        pair.send(at(0));
        pair.deliver(1..10, at(0), at(10));
        let sent = pair.send(at(10));
        assert_eq!(sent[0], 0);
        pair.deliver(sent[1..].iter().copied(), at(10), at(20));
        assert_eq!(pair.send(at(20))[0], 0);
        assert!(pair.sender.rto == RTT + LEAST, "no timeout");
    }

    #[test]
    fn a_lost_tail_is_probed_after_two_round_trips() {
        let mut pair = Pair::new(6);
        pair.send(at(0));
        pair.deliver(0..3, at(0), at(10));
        // SRTT is 10 ms. The timeout would be at 220 ms.
        assert_eq!(pair.sender.deadline(), at(30));
        pair.sender.time_out(at(30));
        // The last one: its acknowledgement shows that 3 and 4 are lost.
        assert_eq!(pair.send(at(30)), [5]);
        pair.deliver([5], at(30), at(40));
        assert_eq!(pair.send(at(40)), [3, 4]);
        pair.deliver([3, 4], at(40), at(50));
        assert!(pair.is_idle() && pair.receiver.missing == 6);
    }

    #[test]
    fn a_probe_that_repairs_a_loss_reduces_the_window_later_and_a_spurious_one_does_not() {
        for spurious in [false, true] {
            let mut pair = Pair::new(10);
            pair.send(at(0));
            pair.deliver(0..9, at(0), at(10));
            pair.sender.time_out(at(30));
            assert_eq!(pair.send(at(30)), [9]);
            if spurious {
                pair.deliver([9], at(0), at(31));
            }
            pair.deliver([9], at(30), at(40));
            assert!(pair.is_idle());
            let window = pair.sender.cubic.window();
            pair.sender.queue(2);
            pair.send(at(40));
            pair.deliver([10, 11], at(40), at(50));
            assert_eq!(pair.sender.cubic.window() < window, !spurious);
        }
    }

    #[test]
    fn a_probe_prefers_new_data() {
        let mut pair = Pair::new(11);
        pair.send(at(0));
        pair.sender.time_out(at(20));
        let next = pair.sender.take_next(at(20));
        assert_eq!((next.number, next.urgent), (10, true));
        // One probe at a time: the timeout follows.
        assert_eq!(pair.sender.deadline(), at(20) + pair.sender.rto);
    }

    #[test]
    fn reordering_within_the_window_retransmits_nothing() {
        let mut pair = Pair::new(10);
        pair.send(at(0));
        pair.deliver([1, 2], at(0), at(10));
        // A quarter of the minimum round-trip time.
        assert_eq!(pair.sender.deadline(), Ps(12 * MS + MS / 2));
        assert!(!pair.sender.can_send());
        pair.deliver([0], at(0), at(12));
        pair.deliver(3..10, at(0), at(12));
        assert!(pair.sender.rack.reordering_seen && pair.is_idle());

        let mut pair = Pair::new(10);
        pair.send(at(0));
        pair.deliver([1, 2], at(0), at(10));
        pair.sender.time_out(Ps(12 * MS + MS / 2));
        assert_eq!(pair.send(at(13)), [0]);
    }

    #[test]
    fn timeouts_double_and_a_measurement_ends_that() {
        let mut pair = Pair::new(3);
        pair.send(at(0));
        assert_eq!(pair.sender.rto, RTT + LEAST);
        pair.sender.time_out(at(20));
        assert_eq!(pair.send(at(20)), [2]);
        pair.sender.time_out(at(230));
        assert_eq!(pair.send(at(230)), [0]);
        assert_eq!(pair.sender.deadline(), at(230 + 420));
        pair.sender.time_out(at(650));
        assert_eq!(pair.send(at(650)), [0]);
        assert_eq!(pair.sender.deadline(), at(650 + 840));
        pair.deliver([0], at(650), at(660));
        assert_eq!(pair.sender.rto, RTT + LEAST);
        // The window restarted at one segment, and grows by slow start.
        assert_eq!(pair.send(at(660)), [1, 2]);
        pair.deliver([1, 2], at(660), at(670));
        assert!(pair.is_idle());
    }
}
