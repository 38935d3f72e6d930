//! One direction of a TCP connection, with both ends.
//!
//! Connections are open from the start: the handshake measured the round-trip time. They keep their windows between
//! messages.

use std::collections::VecDeque;

use super::receiver::{Ack, Receiver};
use super::sender::{Next, Sender};
use crate::clock::Ps;
use crate::schedule::Message;

/// A message starts with a new segment.
pub(super) struct Connection {
    pub(super) from: u32,
    pub(super) to: u32,
    messages: VecDeque<Queued>,
    /// Number of `messages` that the receiver has.
    received_messages: usize,
    sender: Sender,
    receiver: Receiver,
}

struct Queued {
    message: Message,
    first: u32,
    end: u32,
}

impl Connection {
    pub(super) fn new(from: u32, to: u32, sender: Sender) -> Self {
        Self {
            from,
            to,
            messages: VecDeque::new(),
            received_messages: 0,
            sender,
            receiver: Receiver::default(),
        }
    }

    /// Queues a message in segments of `segment` bytes.
    pub(super) fn queue(&mut self, message: Message, segment: u64) {
        let segments = message.bytes.div_ceil(segment);
        let segments = u32::try_from(segments).expect("a message has under 2^32 segments");
        let first = self.sender.queue(segments);
        self.messages.push_back(Queued {
            message,
            first,
            end: first + segments,
        });
    }

    /// The expiry of the next timer.
    pub(super) fn deadline(&self) -> Ps {
        self.sender.deadline()
    }

    /// True if a segment may be sent now.
    pub(super) fn can_send(&self) -> bool {
        self.sender.can_send()
    }

    /// Takes the next segment, which is sent now.
    pub(super) fn take_next(&mut self, now: Ps) -> Next {
        self.sender.take_next(now)
    }

    /// Bytes of segment `number`, which is `segment` unless it is its message's last.
    pub(super) fn bytes(&self, number: u32, segment: u64) -> u64 {
        let queued = self.message(number);
        let before = u64::from(number - queued.first) * segment;
        (queued.message.bytes - before).min(segment)
    }

    /// True if segment `number` is its message's last.
    pub(super) fn ends_message(&self, number: u32) -> bool {
        self.message(number).end == number + 1
    }

    fn message(&self, number: u32) -> &Queued {
        let at = self.messages.partition_point(|queued| queued.end <= number);
        &self.messages[at]
    }

    /// Handles a segment at the receiver ([`Receiver::receive`]).
    pub(super) fn receive(&mut self, number: u32, sent_at: Ps, push: bool) -> Option<Ack> {
        self.receiver.receive(number, sent_at, push)
    }

    /// Returns each message once that the receiver has completely.
    pub(super) fn received_message(&mut self) -> Option<Message> {
        let queued = self.messages.get(self.received_messages)?;
        if queued.end > self.receiver.missing {
            return None;
        }
        self.received_messages += 1;
        Some(queued.message)
    }

    /// Handles an acknowledgement at the sender.
    pub(super) fn acknowledge(&mut self, now: Ps, ack: &Ack) {
        self.sender.acknowledge(now, ack);
        let missing = self.sender.unacknowledged();
        while self.messages.front().is_some_and(|m| m.end <= missing) {
            self.messages.pop_front();
            self.received_messages -= 1;
        }
    }

    /// Handles the sender's timers that have expired.
    pub(super) fn time_out(&mut self, now: Ps) {
        self.sender.time_out(now);
    }
}
