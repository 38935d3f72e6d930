//! The pause that a check asks for where packets do not arrive: switches count all packets of a job together, so that
//! its operations would hide where the check's stop.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How much longer than a round the pause is, so that it lasts from one round to the next.
const BEYOND: Duration = Duration::from_millis(500);

/// Whether a rank is to start no operation now.
#[derive(Clone, Debug, Default)]
pub struct Quiet(Arc<Mutex<Option<Instant>>>);

impl Quiet {
    /// From now on, as long as a round lasts and until the next one has come.
    pub(crate) fn begin(&self, round: Duration) {
        *self.lock() = Some(Instant::now() + round + BEYOND);
    }

    /// Blocks until the pause is over, if there is one. It ends however the controller ends.
    pub fn wait(&self) {
        loop {
            let until = *self.lock();
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(left) if !left.is_zero() => sleep(left),
                _ => return,
            }
        }
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
    fn a_pause_is_waited_for_and_ends() {
        let quiet = Quiet::default();
        quiet.wait();
        let round = Duration::from_millis(20);
        let end = Instant::now() + round + BEYOND;
        quiet.begin(round);
        quiet.clone().wait();
        assert!(Instant::now() >= end);
        quiet.wait();
    }
}
