//! Whether a switch still answers. One that loses power, hangs or is cut off from us ends no stream, and TCP notices after minutes.
//!
//! It is asked for its Capabilities (P4Runtime §17), the smallest call that there is: BMv2 answers it without a look at its tables, so
//! that a switch that is busy with a large write answers all the same. HTTP/2's own pings would ask less of it; but gRPC servers end
//! connections that ping as often (`too_many_pings`).

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::{MissedTickBehavior, interval, timeout};

/// How often a switch is asked.
pub(super) const BEAT: Duration = Duration::from_millis(100);
/// After so many beats in a row without an answer to any question a switch counts as silent. So that is noticed after half a second at
/// most.
pub(super) const MISSES: u32 = 4;
/// An answer that comes later than that is none. So few questions wait at once.
const LATEST: Duration = Duration::from_secs(1);

/// The beats since the last answer. What counts is beats and not time: while we do not come to ask, no answer is missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pulse {
    missed: u32,
}

impl Pulse {
    /// Another beat begins; whether it was silent during the last ones.
    fn beat(&mut self) -> bool {
        let is_silent = self.missed == MISSES;
        self.missed += 1;
        is_silent
    }

    /// It has answered, to whichever question: one that is late answers, too.
    fn answer(&mut self) {
        self.missed = 0;
    }
}

/// Asks again and again, and returns when nobody answers any more. `ask` says whether it got an answer.
pub(super) async fn silence<F: Future<Output = bool>>(mut ask: impl FnMut() -> F) {
    let mut beats = interval(BEAT);
    // A process that was stopped for a while has not asked meanwhile.
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked = pin!(FuturesUnordered::new());
    let mut pulse = Pulse::default();
    loop {
        tokio::select! {
            biased;
            // What is here counts before another beat does.
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
    fn only_misses_in_a_row_are_silence() {
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

    /// It answers every question two beats late, some not at all, and then none.
    #[tokio::test]
    async fn one_that_is_late_is_not_silent() {
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
                    // Not there: an error of our own is no answer.
                    10 => ready(false).await,
                    _ => pending().await,
                }
            }
        })
        .await;
        assert!(asked.get() >= 9 + MISSES, "{}", asked.get());
    }
}
