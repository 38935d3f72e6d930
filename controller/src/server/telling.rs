//! Who may be told of a change now: each member is told of all, so that a job of many members is many long messages.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

/// Members listed in all messages that are on their way at once, counted once for each message: at some 60 bytes each, 16 MB.
const ENTRIES: u32 = 1 << 18;

/// How long a message counts as on its way where it is not answered. A member opens sockets before it answers, and who does not read has no
/// right to keep others waiting.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

/// Messages up to so long have room of their own, as much again: a large job's change does not hold up those of small ones.
const SHORT: u32 = 256;

/// Room for messages that list all members.
#[derive(Clone, Debug)]
pub struct Telling {
    long: Arc<Semaphore>,
    short: Arc<Semaphore>,
}

impl Default for Telling {
    fn default() -> Self {
        let room = || Arc::new(Semaphore::new(ENTRIES as usize));
        let (long, short) = (room(), room());
        Telling { long, short }
    }
}

/// One message on its way.
#[derive(Debug)]
pub struct OnItsWay {
    _room: Option<OwnedSemaphorePermit>,
    until: Instant,
}

impl Telling {
    /// Waits until there is room for a message that lists so many members, behind all who have waited longer, but that [short](SHORT) ones do
    /// not wait for long ones. A longer one than there is room for goes alone.
    pub fn turn(&self, entries: usize) -> impl Future<Output = OnItsWay> + Send + use<> {
        let entries = u32::try_from(entries).unwrap_or(ENTRIES).min(ENTRIES);
        let room = match entries <= SHORT {
            true => &self.short,
            false => &self.long,
        };
        let room = Arc::clone(room).acquire_many_owned(entries);
        async move {
            OnItsWay {
                // Nobody closes it.
                _room: room.await.ok(),
                until: Instant::now() + ON_ITS_WAY,
            }
        }
    }
}

impl OnItsWay {
    /// Waits until it does not count as on its way any more.
    pub async fn forgotten(&self) {
        sleep_until(self.until).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn no_more_is_on_its_way_at_once_than_there_is_room_for() {
        let telling = Telling::default();
        // They leave room for a shorter one, but not for another of them.
        let (long, shorter) = (1100, 300);
        let most = ENTRIES as usize / long;
        assert!((shorter..long).contains(&(ENTRIES as usize % long)));
        let mut told = Vec::new();
        for _ in 0..most {
            told.push(telling.turn(long).await);
        }
        let mut next = Box::pin(telling.turn(long));
        assert!(next.as_mut().now_or_never().is_none());
        // It is not overtaken by shorter ones, but for those that are short.
        let mut shorter = Box::pin(telling.turn(shorter));
        assert!(shorter.as_mut().now_or_never().is_none());
        assert!(telling.turn(SHORT as usize).now_or_never().is_some());
        told.pop();
        assert!(next.as_mut().now_or_never().is_some());
        assert!(shorter.as_mut().now_or_never().is_some());
    }

    #[tokio::test]
    async fn the_longest_message_goes_alone() {
        let telling = Telling::default();
        let longest = telling.turn(1 << 30).now_or_never();
        assert!(telling.turn(300).now_or_never().is_none());
        drop(longest.expect("nothing else is on its way"));
        assert!(telling.turn(300).now_or_never().is_some());
    }
}
