//! Time limits of the demo's AllReduce.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_host::Config;
use ultima_wire::HEADER_LEN;
use ultima_wire::frame::FRAME_OVERHEAD;

/// The time that 2 cores need to move the packets of a step through the interpreted switch, measured and doubled: a fixed part, and a part
/// per worker.
const BASE: Duration = Duration::from_millis(80);
const PER_WORKER: Duration = Duration::from_millis(30);

/// t_S and t_B of an operation, from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Owners flush incomplete slots after this time.
    pub t_s: Duration,
    /// The operation ends after this time.
    pub t_b: Duration,
}

impl Bounds {
    /// Limits for a gradient of `parameters` values among `workers` over wires of `rate` bits per second and `delay`.
    ///
    /// In an operation each receiver's wire carries 2·S·(N−1)/N bytes, half of them in the gather. t_B allows twice that time. t_S is earlier
    /// by the time of the gather, a round trip and a quarter of the machine's own time.
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
        // A short deadline leaves no room for that: then the gather gets half of it.
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
    fn the_gather_has_enough_time() {
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
