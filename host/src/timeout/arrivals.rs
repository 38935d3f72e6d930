//! When packets came, as a histogram that forgets.

use std::time::Duration;

/// Bins for each doubling: neighbours are 4.4 % apart.
const PER_DOUBLING: u32 = 16;
/// Times under 2^10 ns are one bin, those over 2^42 ns (73 minutes) another.
const SHORTEST: u32 = 10;
const LONGEST: u32 = 42;
const BINS: usize = ((LONGEST - SHORTEST) * PER_DOUBLING) as usize;
/// What an operation weighs after as many: a half of its mass is in the last 177 operations.
const WINDOW: f64 = 256.0;

/// Times since an operation's start, by count; older operations weigh less.
pub(super) struct Arrivals {
    bins: Vec<f64>,
    total: f64,
    /// What one packet weighs now: grows instead of all that is there shrinking.
    weight: f64,
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Self {
            bins: vec![0.0; BINS],
            total: 0.0,
            weight: 1.0,
        }
    }

    pub(super) fn add(&mut self, after: Duration, packets: u64) {
        let weight = self.weight * packets as f64;
        self.bins[bin(after)] += weight;
        self.total += weight;
    }

    /// An operation is over: it and those before it weigh less than the next one.
    pub(super) fn forget(&mut self) {
        self.weight *= 1.0 + 1.0 / WINDOW;
        if self.weight > 1e100 {
            let weight = self.weight;
            self.bins.iter_mut().for_each(|bin| *bin /= weight);
            self.total /= weight;
            self.weight = 1.0;
        }
    }

    /// A time that all but the share `late` of the packets came before; zero where none came.
    pub(super) fn all_but(&self, late: f64) -> Duration {
        let allowed = self.total * late;
        let mut above = 0.0;
        for (number, bin) in self.bins.iter().enumerate().rev() {
            above += bin;
            if above > allowed {
                return upper_edge(number);
            }
        }
        Duration::ZERO
    }
}

/// The bin of a time: its doubling by the leading bit, within it by the next four bits.
fn bin(after: Duration) -> usize {
    let ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
    if ns < 1 << SHORTEST {
        return 0;
    }
    let doubling = ns.ilog2();
    let within = (ns >> (doubling - PER_DOUBLING.ilog2())) as u32 - PER_DOUBLING;
    (((doubling - SHORTEST) * PER_DOUBLING + within) as usize).min(BINS - 1)
}

fn upper_edge(bin: usize) -> Duration {
    let (doubling, within) = (bin as u32 / PER_DOUBLING, bin as u32 % PER_DOUBLING);
    let unit = 1u64 << (SHORTEST + doubling - PER_DOUBLING.ilog2());
    Duration::from_nanos(unit * u64::from(PER_DOUBLING + within + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_under_its_bins_upper_edge_by_a_sixteenth_at_most() {
        for ns in [1, 1023, 1024, 1025, 5000, 123_456_789, 1 << 41, u64::MAX] {
            let edge = upper_edge(bin(Duration::from_nanos(ns))).as_nanos() as u64;
            match ns {
                0..1024 => assert_eq!(edge, 1088),
                u64::MAX => assert_eq!(edge, 1 << LONGEST),
                _ => assert!(edge > ns && edge - ns <= ns / 16, "{ns} {edge}"),
            }
        }
    }

    #[test]
    fn quantiles_and_oblivion() {
        let ms = Duration::from_millis;
        let mut arrivals = Arrivals::new();
        assert_eq!(arrivals.all_but(0.001), Duration::ZERO);
        arrivals.add(ms(1), 999);
        arrivals.add(ms(50), 1);
        assert!(arrivals.all_but(0.0) > ms(50));
        assert!(arrivals.all_but(0.0015) < ms(2));
        // What does not come again is forgotten, at last.
        for _ in 0..(20.0 * WINDOW) as u32 {
            arrivals.forget();
            arrivals.add(ms(1), 10);
        }
        assert!(arrivals.all_but(1e-6) < ms(2));
        for _ in 0..100_000 {
            arrivals.forget();
        }
        assert!(arrivals.all_but(0.5) < ms(2) && arrivals.total.is_finite());
    }
}
