//! How long the demo's AllReduce may take.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_host::Config;
use ultima_wire::HEADER_LEN;
use ultima_wire::frame::FRAME_OVERHEAD;

/// What 2 cores need at most to move a step's packets through the interpreted switch, measured on the slow
/// side and doubled: a part that is always there, and one for each worker.
const BASE: Duration = Duration::from_millis(80);
const PER_WORKER: Duration = Duration::from_millis(30);

/// t_S and t_B of an operation, from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// When owners send what they have.
    pub t_s: Duration,
    /// When the operation ends.
    pub t_b: Duration,
}

impl Bounds {
    /// For a gradient of `parameters` values among `workers` over wires of `rate` bits per second and `delay`.
    ///
    /// Each receiver's wire carries 2·S·(N−1)/N bytes in an operation, half of them in the gather. The end leaves
    /// that twice over, and the flush leaves the gather's half, a round trip and a quarter of the machine's own time.
    pub fn new(
        deadline: Option<Duration>,
        parameters: usize,
        workers: u16,
        rate: Option<u64>,
        delay: Duration,
    ) -> Self {
        let packets = (4 * parameters).div_ceil(Config::SLOT_BYTES);
        let bytes = 4 * parameters + packets * (HEADER_LEN + FRAME_OVERHEAD);
        let share = f64::from(workers - 1) / f64::from(workers);
        let gather = rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(bytes as f64 * share * 8.0 / rate as f64)
        });
        let machine = BASE + PER_WORKER * u32::from(workers);
        let t_b = deadline.unwrap_or(machine + 4 * gather + 4 * delay);
        let crossing = gather + 2 * delay + machine / 4;
        // A deadline that the user set may leave no room for that: then half of it is the gather's.
        Self {
            t_s: t_b.saturating_sub(crossing).max(t_b / 2),
            t_b,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gather_has_time_to_cross() {
        let slow = Bounds::new(
            None,
            104_842,
            4,
            Some(100_000_000),
            Duration::from_millis(1),
        );
        // 320 kB at 100 Mbit/s take 26 ms.
        assert!(slow.t_b - slow.t_s > Duration::from_millis(26 + 2));
        assert!(slow.t_s > Duration::from_millis(26));
        let fast = Bounds::new(None, 104_842, 4, None, Duration::ZERO);
        assert_eq!(fast.t_b, Duration::from_millis(200));
        let set = Bounds::new(
            Some(Duration::from_millis(10)),
            104_842,
            32,
            None,
            Duration::ZERO,
        );
        assert_eq!(
            set,
            Bounds {
                t_s: Duration::from_millis(5),
                t_b: Duration::from_millis(10)
            }
        );
    }
}
