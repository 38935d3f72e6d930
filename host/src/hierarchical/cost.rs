//! A cost model of AllReduce, flat or on a grid, and the choice between them.
//!
//! A stage in which each of *n* ranks sends each other one a message of *b* bytes takes
//!
//! > T(*n*, *b*) = *a* + *d* + ⌈(*n* − 1)/*i*⌉·*m* + (*n* − 1)·(*b* + (⌈*b*/*s*⌉ + 1)·*h*)/*r* + (e^{σ·z(*N*)} − 1)·(*a* + *d* + *b*/*r*)
//!
//! with these terms, in order: the host's time before the first bit; the path's delay; the cost of each turn
//! of senders, with *i* of them sending to a receiver at a time; the load of a receiver's link, a header with
//! each slot of *s* bytes and one with each rank's notice that its last packet is sent; and the lateness of
//! the last of all *N* ranks, whose delay is log-normal with p99/p50 of e^{σ·2.326} and whose quantile is 1 −
//! 1/(*N* + 1). Rows wait for columns and columns for rows, so all wait for one rank. A multicast gather and
//! a scatter load a receiver's link alike. With *S* bytes,
//!
//! > flat(*N*) = 2·T(*N*, *S*/*N*),
//! >
//! > grid(*G*, *M*) = 2·T(*M*, *S*/*M*) + 2·T(*G*, *S*/(*G*·*M*)).
//!
//! Without headers, turns and starts both carry the same bytes. A grid adds two starts and delays, and saves
//! headers, notices and turns. It is faster with many ranks and small buckets, or if turns of senders have a
//! cost.

use std::time::Duration;

use ultima_wire::HEADER_LEN;
use ultima_wire::frame::FRAME_OVERHEAD;

use super::Grid;

/// The standard normal distribution's 99th percentile.
const Z99: f64 = 2.326_347_874_040_841;

/// The network between two ranks of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// Bits per second of a rank's link, each way.
    pub rate: u64,
    /// Delay from one host to another, without serialization.
    pub delay: Duration,
    /// The host's time before the first bit of a stage's messages.
    pub host: Duration,
    /// Payload of a full packet in bytes.
    pub slot_bytes: usize,
    /// Number of ranks that send to one at a time; 0 for all.
    pub incast: u16,
    /// Cost of a turn of senders beyond their bytes, such as a system call for each receiver or a wait for
    /// the turn before. Zero if turns follow each other without a wait, as with [`crate::IncastPolicy`].
    pub turn: Duration,
    /// p99/p50 of a message's time, 1 or more.
    pub tail: f64,
}

impl Path {
    /// A path with links of `rate`, slots of `slot_bytes`, 10 µs per start, all senders at once, and no tail.
    pub fn new(rate: u64, slot_bytes: usize) -> Self {
        Self {
            rate,
            delay: Duration::ZERO,
            host: Duration::from_micros(10),
            slot_bytes,
            incast: 0,
            turn: Duration::ZERO,
            tail: 1.0,
        }
    }

    /// Duration of an AllReduce of `bytes` among `ranks` without groups.
    pub fn flat(&self, ranks: u16, bytes: u64) -> Duration {
        duration(2.0 * self.stage(ranks, ranks, bytes as f64 / f64::from(ranks.max(1))))
    }

    /// Duration of an AllReduce of `bytes` on a grid.
    pub fn on(&self, grid: Grid, bytes: u64) -> Duration {
        let (members, groups) = (grid.members(), grid.groups());
        let of_row = bytes as f64 / f64::from(members);
        let of_column = of_row / f64::from(groups);
        let all = grid.ranks();
        duration(2.0 * (self.stage(all, members, of_row) + self.stage(all, groups, of_column)))
    }

    /// Seconds until each of `ranks`, in a job of `all`, has a message of `bytes` from every other.
    fn stage(&self, all: u16, ranks: u16, bytes: f64) -> f64 {
        let others = f64::from(ranks.saturating_sub(1));
        let rate = self.rate.max(1) as f64 / 8.0;
        let start = self.host.as_secs_f64() + self.delay.as_secs_f64();
        let turns = match self.incast {
            0 => 1.0,
            incast => (others / f64::from(incast)).ceil(),
        };
        let headers = ((bytes / self.slot_bytes.max(1) as f64).ceil() + 1.0)
            * (FRAME_OVERHEAD + HEADER_LEN) as f64;
        // The maximum of a number and NaN is the number.
        let sigma = self.tail.max(1.0).ln() / Z99;
        let late = (sigma * last_of(all)).exp() - 1.0;
        start
            + turns * self.turn.as_secs_f64()
            + others * (bytes + headers) / rate
            + late * (start + bytes / rate)
    }
}

/// Converts seconds. NaN and too large values become the maximum.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

/// Approximate largest of `n` standard normal draws: the quantile 1 − 1/(n + 1), by the approximation 26.2.23
/// of Abramowitz and Stegun's handbook, whose error is under 4.5·10⁻⁴.
fn last_of(n: u16) -> f64 {
    let t = (2.0 * (f64::from(n) + 1.0).ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

impl Grid {
    /// The fastest grid for an AllReduce of `bytes` among `ranks`. None if they cannot form a grid.
    pub fn cheapest(ranks: u16, bytes: u64, path: &Path) -> Option<Grid> {
        let grids = (2..=ranks / 2).filter_map(|groups| Grid::of(ranks, groups).ok());
        grids.min_by_key(|grid| path.on(*grid, bytes))
    }

    /// The fastest grid, if it is faster than an AllReduce without groups.
    pub fn choose(ranks: u16, bytes: u64, path: &Path) -> Option<Grid> {
        let flat = path.flat(ranks, bytes);
        Self::cheapest(ranks, bytes, path).filter(|grid| path.on(*grid, bytes) < flat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn path() -> Path {
        Path {
            delay: Duration::from_micros(2),
            ..Path::new(100_000_000_000, 8192)
        }
    }

    fn shape(grid: Option<Grid>) -> Option<(u16, u16)> {
        grid.map(|grid| (grid.groups(), grid.members()))
    }

    #[test]
    fn few_ranks_and_large_buckets_stay_flat() {
        for ranks in [2, 3, 4, 8, 64] {
            assert_eq!(Grid::choose(ranks, 25 * MB, &path()), None, "{ranks}");
        }
        assert_eq!(Grid::choose(256, 1000 * MB, &path()), None);
        // A prime number of ranks cannot form a grid.
        assert_eq!(Grid::cheapest(4093, MB, &path()), None);
    }

    #[test]
    fn thousands_of_ranks_with_small_shards_make_a_grid() {
        // A shard of 244 bytes: headers and notices are half of the traffic.
        let (groups, members) = shape(Grid::choose(4096, MB, &path())).expect("a grid");
        assert!((16..=256).contains(&groups) && (16..=256).contains(&members));
    }

    #[test]
    fn turns_that_cost_something_make_a_grid() {
        let turns = |incast, turn| Path {
            incast,
            turn: Duration::from_micros(turn),
            ..path()
        };
        // As published: 2(N/G − 1) + (G − 1) turns instead of 2(N − 1), here with the column's gather as a
        // stage of its own.
        assert_eq!(
            shape(Grid::choose(64, 25 * MB, &turns(1, 20))),
            Some((8, 8))
        );
        assert_eq!(Grid::choose(64, 25 * MB, &turns(1, 0)), None);
        assert_eq!(Grid::choose(64, 25 * MB, &turns(63, 20)), None);
        assert!(Grid::choose(256, 25 * MB, &turns(8, 20)).is_some());
    }

    #[test]
    fn a_tail_is_paid_for_in_every_stage() {
        let tail = Path {
            tail: 3.0,
            ..path()
        };
        let grid = Grid::new(64, 64).expect("a grid");
        let more = |quiet: Duration, late: Duration| late.as_secs_f64() - quiet.as_secs_f64();
        let flat = more(path().flat(4096, MB), tail.flat(4096, MB));
        let on_grid = more(path().on(grid, MB), tail.on(grid, MB));
        assert!(flat > 0.0 && on_grid > flat, "{flat} {on_grid}");
    }

    #[test]
    fn the_last_of_many_is_as_far_out_as_tables_say() {
        // 1 − 1/100 and 1 − 1/1000.
        assert!((last_of(99) - Z99).abs() < 1e-3);
        assert!((last_of(999) - 3.090_232).abs() < 1e-3);
    }

    #[test]
    fn impossible_paths_and_numbers_of_ranks_take_no_or_all_time() {
        assert!(path().flat(u16::MAX, MB) > path().flat(4096, MB));
        assert!(path().flat(0, MB) <= path().flat(2, MB));
        for tail in [f64::NAN, f64::NEG_INFINITY, 0.0] {
            let tail = Path { tail, ..path() };
            assert_eq!(tail.flat(64, MB), path().flat(64, MB));
        }
        let slow = Path {
            rate: 0,
            tail: f64::INFINITY,
            host: Duration::MAX,
            turn: Duration::MAX,
            delay: Duration::ZERO,
            ..path()
        };
        assert_eq!(slow.flat(u16::MAX, u64::MAX), Duration::MAX);
        let late = Path {
            delay: Duration::MAX,
            ..slow
        };
        let grid = Grid::new(2, 2).expect("a grid");
        assert_eq!(late.on(grid, u64::MAX), Duration::MAX);
        assert_eq!(Grid::choose(u16::MAX, u64::MAX, &late), None);
    }

    #[test]
    fn without_headers_and_starts_a_grid_carries_the_same() {
        let mut path = path();
        path.host = Duration::ZERO;
        path.delay = Duration::ZERO;
        path.slot_bytes = usize::MAX;
        let bytes = 100_000 * MB;
        let flat = path.flat(64, bytes).as_secs_f64();
        let grid = path
            .on(Grid::new(8, 8).expect("a grid"), bytes)
            .as_secs_f64();
        assert!((flat / grid - 1.0).abs() < 1e-6);
    }
}
