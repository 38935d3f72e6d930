//! Bounding the messages in flight that announce a change of members: each lists all members and
//! goes to each of them, which is a lot in a large job.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// Members listed in all messages in flight, counted per message: about 60 bytes each, 16 MB in
/// total.
const ENTRIES: u32 = 1 << 18;

/// Time for which a message without an answer counts as in flight. A member opens sockets before it
/// answers; one that does not read must not delay others.
const IN_FLIGHT: Duration = Duration::from_millis(250);

/// Longest message with room of its own, as much again: a large job's change must not delay small
/// ones.
const SHORT: u32 = 256;

/// The room for messages in flight.
#[derive(Clone, Debug)]
pub struct MessageRoom {
    long: Arc<Semaphore>,
    short: Arc<Semaphore>,
}

impl Default for MessageRoom {
    fn default() -> Self {
        let room = || Arc::new(Semaphore::new(ENTRIES as usize));
        let (long, short) = (room(), room());
        MessageRoom { long, short }
    }
}

/// The room of one message.
#[derive(Debug)]
pub struct InFlight {
    _room: Option<OwnedSemaphorePermit>,
    until: Instant,
}

impl MessageRoom {
    /// Waits for room for a message that lists `entries` members, first come, first served;
    /// [short](SHORT) messages and long ones have separate queues. A message that exceeds the whole
    /// room is sent alone.
    pub fn reserve(&self, entries: usize) -> impl Future<Output = InFlight> + Send + use<> {
        let entries = u32::try_from(entries).unwrap_or(ENTRIES).min(ENTRIES);
        let room = match entries <= SHORT {
            true => &self.short,
            false => &self.long,
        };
        let room = Arc::clone(room).acquire_many_owned(entries);
        async move {
            InFlight {
                // The semaphore is never closed.
                _room: room.await.ok(),
                until: Instant::now() + IN_FLIGHT,
            }
        }
    }
}

impl InFlight {
    /// Waits until the message no longer counts as in flight.
    pub async fn expired(&self) {
        sleep_until(self.until).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn messages_in_flight_do_not_exceed_the_room() {
        let message_room = MessageRoom::default();
        // They leave room for a shorter message, but not for another of them.
        let (long, shorter) = (1100, 300);
        let most = ENTRIES as usize / long;
        assert!((shorter..long).contains(&(ENTRIES as usize % long)));
        let mut in_flight = Vec::new();
        for _ in 0..most {
            in_flight.push(message_room.reserve(long).await);
        }
        let mut next = Box::pin(message_room.reserve(long));
        assert!(next.as_mut().now_or_never().is_none());
        // Shorter messages do not overtake it, unless they are short.
        let mut shorter = Box::pin(message_room.reserve(shorter));
        assert!(shorter.as_mut().now_or_never().is_none());
        assert!(
            message_room
                .reserve(SHORT as usize)
                .now_or_never()
                .is_some()
        );
        in_flight.pop();
        assert!(next.as_mut().now_or_never().is_some());
        assert!(shorter.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn the_longest_message_goes_alone() {
        let message_room = MessageRoom::default();
        let longest = message_room.reserve(1 << 30).now_or_never();
        assert!(message_room.reserve(300).now_or_never().is_none());
        drop(longest.expect("no other message is in flight"));
        assert!(message_room.reserve(300).now_or_never().is_some());
    }
}
