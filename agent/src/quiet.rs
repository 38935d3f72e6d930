//! The pause in a job's operations that a check requests after losses. It owns the deadline, not the check.
//!
//! Switches count all packets of a job together, so operations would hide where the packets of a check are lost.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time by which a pause exceeds a round, so that it lasts from one round to the next.
const BEYOND: Duration = Duration::from_millis(500);

/// The end of the current pause, during which a rank starts no operation.
#[derive(Clone, Debug, Default)]
pub struct Quiet(Arc<Mutex<Option<Instant>>>);

impl Quiet {
    /// Starts a pause that lasts for a round and until the next one has started.
    pub(crate) fn begin(&self, round: Duration) {
        self.begin_at(Instant::now(), round);
    }

    /// Blocks until the pause is over, if there is one. It ends by itself, whatever the controller does.
    pub fn wait(&self) {
        loop {
            match self.left(Instant::now()) {
                Duration::ZERO => return,
                left => sleep(left),
            }
        }
    }

    fn begin_at(&self, now: Instant, round: Duration) {
        *self.lock() = Some(now + round + BEYOND);
    }

    fn left(&self, now: Instant) -> Duration {
        let end = *self.lock();
        end.map_or(Duration::ZERO, |end| end.saturating_duration_since(now))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_lasts_for_a_round_and_a_half_second() {
        let (quiet, now) = (Quiet::default(), Instant::now());
        assert_eq!(quiet.left(now), Duration::ZERO);
        quiet.wait();
        let round = Duration::from_millis(20);
        quiet.begin_at(now, round);
        let other = quiet.clone();
        assert_eq!(other.left(now), round + BEYOND);
        assert_eq!(other.left(now + round), BEYOND);
        assert_eq!(other.left(now + round + BEYOND), Duration::ZERO);
    }

    #[test]
    fn a_rank_waits_until_the_pause_is_over() {
        let (quiet, now) = (Quiet::default(), Instant::now());
        let end = now + Duration::from_millis(20);
        *quiet.lock() = Some(end);
        quiet.clone().wait();
        assert!(Instant::now() >= end);
    }
}
