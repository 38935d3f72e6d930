//! One direction of a TCP connection, with both ends.
//!
//! NewReno with retransmission timeouts: slow start and congestion avoidance (RFC 5681), initial window of
//! ten segments (RFC 6928), fast retransmit on the third duplicate acknowledgement and recovery by partial
//! ones (RFC 6582), the timer of RFC 6298 with timestamps, after which all segments from the first missing
//! one are sent again. Every segment is acknowledged at once. Connections are open from the start and keep
//! their windows between messages.

use std::collections::{BTreeSet, VecDeque};

use crate::clock::Ps;
use crate::schedule::Message;

/// RFC 6928.
const INITIAL_WINDOW: f32 = 10.0;
/// Number of duplicate acknowledgements that indicate a loss (RFC 5681).
const DUPLICATES: u32 = 3;
/// Timeout before the first measurement (RFC 6298, 2.1).
const INITIAL_RTO: Ps = Ps(1_000_000_000_000);
/// RFC 6298, 2.5.
const MAX_RTO: Ps = Ps(60_000_000_000_000);

/// Numbers count segments. A message starts with a new one.
pub(super) struct Connection {
    pub(super) from: u32,
    pub(super) to: u32,
    messages: VecDeque<Queued>,
    /// Number of `messages` that the receiver has.
    received_messages: usize,
    /// The segment after the last message.
    end: u32,
    /// The first unacknowledged segment.
    unacknowledged: u32,
    next: u32,
    /// The segment after the last one that was sent.
    sent: u32,
    window: f32,
    threshold: f32,
    /// Maximum segments in flight for the receiver's buffer.
    room: f32,
    duplicates: u32,
    recovering: bool,
    /// The value of `sent` when the last loss was detected.
    recover: u32,
    smoothed: Option<(Ps, Ps)>,
    rto: Ps,
    /// When the timer expires.
    pub(super) deadline: Ps,
    /// The receiver's first missing segment, and the later ones that it has.
    missing: u32,
    beyond: BTreeSet<u32>,
}

struct Queued {
    message: Message,
    first: u32,
    end: u32,
}

impl Connection {
    pub(super) fn new(from: u32, to: u32, room: f32) -> Self {
        Self {
            from,
            to,
            messages: VecDeque::new(),
            received_messages: 0,
            end: 0,
            unacknowledged: 0,
            next: 0,
            sent: 0,
            window: INITIAL_WINDOW,
            threshold: f32::INFINITY,
            room,
            duplicates: 0,
            recovering: false,
            recover: 0,
            smoothed: None,
            rto: INITIAL_RTO,
            deadline: Ps::NEVER,
            missing: 0,
            beyond: BTreeSet::new(),
        }
    }

    /// Queues a message in segments of `segment` bytes.
    pub(super) fn queue(&mut self, message: Message, segment: u64) {
        let segments = message.bytes.div_ceil(segment);
        let first = self.end;
        self.end += u32::try_from(segments).expect("a message has under 2^32 segments");
        let end = self.end;
        self.messages.push_back(Queued {
            message,
            first,
            end,
        });
    }

    /// True if a segment may be sent now.
    pub(super) fn can_send(&self) -> bool {
        let on_the_way = (self.next - self.unacknowledged) as f32;
        self.next < self.end && on_the_way < self.window.min(self.room).floor().max(1.0)
    }

    /// Takes the next segment, which is sent now.
    pub(super) fn take_next(&mut self, now: Ps) -> u32 {
        let number = self.next;
        self.next += 1;
        self.sent = self.sent.max(self.next);
        if self.deadline == Ps::NEVER {
            self.deadline = now + self.rto;
        }
        number
    }

    /// Bytes of segment `number`, which is `segment` unless it is its message's last.
    pub(super) fn bytes(&self, number: u32, segment: u64) -> u64 {
        let at = self.messages.partition_point(|queued| queued.end <= number);
        let queued = &self.messages[at];
        let before = u64::from(number - queued.first) * segment;
        (queued.message.bytes - before).min(segment)
    }

    /// Handles segment `number` at the receiver. Returns its first missing one.
    pub(super) fn receive(&mut self, number: u32) -> u32 {
        if number == self.missing {
            self.missing += 1;
            while self.beyond.remove(&self.missing) {
                self.missing += 1;
            }
        } else if number > self.missing {
            self.beyond.insert(number);
        }
        self.missing
    }

    /// Returns each message once that the receiver has completely.
    pub(super) fn received_message(&mut self) -> Option<Message> {
        let queued = self.messages.get(self.received_messages)?;
        if queued.end > self.missing {
            return None;
        }
        self.received_messages += 1;
        Some(queued.message)
    }

    /// Handles an acknowledgement of all segments before `missing`, for a segment sent at `sent_at`. Returns
    /// a segment to send again.
    pub(super) fn acknowledge(
        &mut self,
        now: Ps,
        missing: u32,
        sent_at: Ps,
        least: Ps,
    ) -> Option<u32> {
        if missing > self.unacknowledged {
            self.measure(now.since(sent_at), least);
            return self.advance(now, missing);
        }
        let on_the_way = self.sent > self.unacknowledged;
        if missing < self.unacknowledged || !on_the_way {
            return None;
        }
        self.duplicates += 1;
        if self.recovering {
            self.window += 1.0;
            return None;
        }
        // Losses before recovery started are known (RFC 6582, 3.2).
        if self.duplicates != DUPLICATES || self.unacknowledged < self.recover {
            return None;
        }
        self.halve();
        self.recovering = true;
        self.recover = self.sent;
        self.window = self.threshold + DUPLICATES as f32;
        Some(self.unacknowledged)
    }

    fn advance(&mut self, now: Ps, missing: u32) -> Option<u32> {
        let newly = (missing - self.unacknowledged) as f32;
        self.unacknowledged = missing;
        self.next = self.next.max(missing);
        while self.messages.front().is_some_and(|m| m.end <= missing) {
            self.messages.pop_front();
            self.received_messages -= 1;
        }
        self.duplicates = 0;
        self.deadline = match self.unacknowledged < self.sent {
            true => now + self.rto,
            false => Ps::NEVER,
        };
        if self.recovering && missing < self.recover {
            self.window = (self.window - newly + 1.0).max(1.0);
            return Some(missing);
        }
        if self.recovering {
            self.recovering = false;
            self.window = self.threshold;
        } else if self.window < self.threshold {
            self.window += newly;
        } else {
            self.window += newly / self.window;
        }
        self.window = self.window.min(self.room);
        None
    }

    /// RFC 6298, section 2, with `least` instead of its second.
    fn measure(&mut self, took: Ps, least: Ps) {
        let (smoothed, variance) = match self.smoothed {
            None => (took, Ps(took.0 / 2)),
            Some((smoothed, variance)) => {
                let off = smoothed.0.abs_diff(took.0);
                (
                    Ps((smoothed.0 * 7 + took.0) / 8),
                    Ps((variance.0 * 3 + off) / 4),
                )
            }
        };
        self.smoothed = Some((smoothed, variance));
        self.rto = (smoothed + Ps(4 * variance.0)).max(least).min(MAX_RTO);
    }

    fn halve(&mut self) {
        let on_the_way = (self.next - self.unacknowledged) as f32;
        self.threshold = (on_the_way / 2.0).max(2.0);
    }

    /// Handles the timeout: all segments from the first missing one are sent again.
    pub(super) fn time_out(&mut self) {
        self.halve();
        self.window = 1.0;
        self.recovering = false;
        self.recover = self.sent;
        self.duplicates = 0;
        self.next = self.unacknowledged;
        self.rto = Ps(self.rto.0.saturating_mul(2)).min(MAX_RTO);
        self.deadline = Ps::NEVER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Ps = Ps(200_000_000_000);
    const MS: u64 = 1_000_000_000;

    fn connection(segments: u32) -> Connection {
        let mut connection = Connection::new(0, 1, 1000.0);
        let message = Message {
            from: 0,
            to: 1,
            stage: 0,
            piece: 0,
            bytes: u64::from(segments) * 1000 - 1,
        };
        connection.queue(message, 1000);
        connection
    }

    /// Sends as much as the window allows.
    fn send(connection: &mut Connection, now: Ps) -> Vec<u32> {
        let mut sent = Vec::new();
        while connection.can_send() {
            sent.push(connection.take_next(now));
        }
        sent
    }

    #[test]
    fn slow_start_doubles_the_window() {
        let mut connection = connection(100);
        assert_eq!(send(&mut connection, Ps(0)), (0..10).collect::<Vec<_>>());
        for number in 0..10 {
            let missing = connection.receive(number);
            let again = connection.acknowledge(Ps(MS), missing, Ps(0), LEAST);
            assert_eq!(again, None);
        }
        assert_eq!(send(&mut connection, Ps(MS)).len(), 20);
        assert_eq!(connection.deadline, Ps(MS) + LEAST);
        assert_eq!(
            [connection.bytes(98, 1000), connection.bytes(99, 1000)],
            [1000, 999]
        );
    }

    #[test]
    fn the_third_duplicate_sends_again_and_halves() {
        let mut connection = connection(12);
        send(&mut connection, Ps(0));
        let mut again = Vec::new();
        for number in (0..10).filter(|number| ![2, 5].contains(number)) {
            let missing = connection.receive(number);
            again.extend(connection.acknowledge(Ps(MS), missing, Ps(0), LEAST));
        }
        assert_eq!(again, [2]);
        // The window grows with sent segments: the last two are sent meanwhile.
        assert_eq!(send(&mut connection, Ps(MS)), [10, 11]);
        // A partial acknowledgement shows the next hole.
        let missing = connection.receive(2);
        assert_eq!(missing, 5);
        assert_eq!(
            connection.acknowledge(Ps(2 * MS), missing, Ps(MS), LEAST),
            Some(5)
        );
        let missing = connection.receive(5);
        assert_eq!(
            connection.acknowledge(Ps(3 * MS), missing, Ps(MS), LEAST),
            None
        );
        assert!(!connection.recovering && connection.window == connection.threshold);
        assert_eq!(connection.received_message(), None);
        for number in [10, 11] {
            let missing = connection.receive(number);
            assert_eq!(connection.received_message().is_some(), number == 11);
            connection.acknowledge(Ps(4 * MS), missing, Ps(MS), LEAST);
        }
        assert_eq!(connection.deadline, Ps::NEVER);
    }

    #[test]
    fn a_timeout_sends_everything_again_and_doubles() {
        let mut connection = connection(3);
        assert_eq!(send(&mut connection, Ps(0)), [0, 1, 2]);
        assert_eq!(connection.deadline, INITIAL_RTO);
        connection.time_out();
        assert_eq!(send(&mut connection, INITIAL_RTO), [0]);
        assert_eq!(connection.deadline, Ps(3 * INITIAL_RTO.0));
        connection.receive(1);
        connection.receive(2);
        assert_eq!(connection.receive(0), 3);
        assert!(connection.received_message().is_some());
        assert_eq!(connection.received_message(), None);
        let now = INITIAL_RTO + Ps(MS);
        assert_eq!(connection.acknowledge(now, 3, INITIAL_RTO, LEAST), None);
        // All are acknowledged: nothing is sent, and no timer runs.
        assert!(!connection.can_send() && connection.deadline == Ps::NEVER);
        assert_eq!(connection.rto, LEAST);
    }
}
