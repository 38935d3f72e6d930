//! Heartbeats: detects a switch that stops answering. A switch that loses power, hangs or is cut
//! off ends no stream, and TCP needs minutes to notice.
//!
//! The heartbeat is the smallest P4Runtime call, Capabilities (§17). BMv2 answers it without
//! locking its tables, so a switch that is busy with a large write still answers. HTTP/2 pings
//! would be cheaper, but gRPC servers end connections that ping this often (`too_many_pings`).

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Interval of heartbeats.
pub(super) const BEAT: Duration = Duration::from_millis(100);
/// The missed beats in a row after which a switch counts as silent; detection takes at most 0.7 s.
pub(super) const MISSES: u32 = 6;
/// Timeout of an answer, which bounds the number of open calls.
const LATEST: Duration = Duration::from_secs(1);

/// The beats since the last answer. It counts beats instead of time, so that a delay of this
/// process counts as no miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pulse {
    missed: u32,
}

impl Pulse {
    /// Starts a beat. Returns true if all recent beats were missed.
    fn beat(&mut self) -> bool {
        let is_silent = self.missed == MISSES;
        self.missed += 1;
        is_silent
    }

    /// Records an answer to any beat, even a late one.
    fn answer(&mut self) {
        self.missed = 0;
    }
}

/// Sends heartbeats, and returns when the answers stop. `ask` returns true for an answer.
pub(super) async fn silence<F: Future<Output = bool>>(mut ask: impl FnMut() -> F) {
    let mut beats = interval(BEAT);
    // A process that was suspended has sent no heartbeats meanwhile.
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked = pin!(FuturesUnordered::new());
    let mut pulse = Pulse::default();
    loop {
        tokio::select! {
            biased;
            // Answers that are already here count before the next beat.
            Some(answer) = asked.next() => if answer == Ok(true) { pulse.answer() },
            _ = beats.tick() => {
                if pulse.beat() {
                    return;
                }
                asked.push(timeout(LATEST, ask()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use super::*;

    #[test]
    fn only_consecutive_misses_are_silence() {
        let mut pulse = Pulse::default();
        for _ in 0..100 {
            for _ in 0..MISSES {
                assert!(!pulse.beat());
            }
            pulse.answer();
        }
        for _ in 0..MISSES {
            assert!(!pulse.beat());
        }
        assert!(pulse.beat());
    }

    /// Answers come two beats late, some not at all, and then none.
    #[tokio::test(start_paused = true)]
    async fn late_answers_are_not_silence() {
        let asked = Cell::new(0);
        silence(|| {
            asked.set(asked.get() + 1);
            let number = asked.get();
            async move {
                match number {
                    3 | 6 | 9 => pending().await,
                    ..9 => {
                        tokio::time::sleep(2 * BEAT).await;
                        true
                    }
                    // A local error is not an answer.
                    10 => ready(false).await,
                    _ => pending().await,
                }
            }
        })
        .await;
        assert!(asked.get() >= 9 + MISSES, "{}", asked.get());
    }
}
