//! A histogram of packets' arrival times over the last operations.

use std::time::Duration;

/// Bins per factor of two: neighbours are 4.4 % apart.
const PER_DOUBLING: u32 = 16;
/// Times below 2^10 ns share one bin, those above 2^42 ns (73 minutes) another.
const SHORTEST: u32 = 10;
const LONGEST: u32 = 42;
const BINS: usize = ((LONGEST - SHORTEST) * PER_DOUBLING) as usize;
/// Sources that a generation of operations expects beyond the requested quantile: this determines the length of a
/// generation, of which two are kept. Sources count rather than packets, because all packets of a late source are
/// late together.
const SOURCES_BEYOND: f64 = 2.0;
const SHORTEST_GENERATION: u32 = 128;
const LONGEST_GENERATION: u32 = 1024;

/// Times since an operation's start, of the last one to two generations of operations.
pub(super) struct Arrivals {
    /// The current one first.
    generations: [Generation; 2],
    /// Operations in the current one.
    operations: u32,
    /// Operations per generation.
    most: u32,
    /// The share of packets that may arrive late.
    late: f64,
    sources: u16,
}

struct Generation {
    bins: Vec<u64>,
    total: u64,
    /// Operations, once it is complete.
    operations: u32,
}

impl Generation {
    fn new() -> Self {
        Self {
            bins: vec![0; BINS],
            total: 0,
            operations: 0,
        }
    }
}

impl Arrivals {
    /// Creates a histogram for quantiles at the share `late` of `sources`' packets.
    pub(super) fn new(late: f64, sources: u16) -> Self {
        let sources = sources.max(1);
        let needed = SOURCES_BEYOND / late / f64::from(sources);
        Self {
            generations: [Generation::new(), Generation::new()],
            operations: 0,
            most: (needed as u32).clamp(SHORTEST_GENERATION, LONGEST_GENERATION),
            late,
            sources,
        }
    }

    pub(super) fn add(&mut self, after: Duration, packets: u64) {
        let generation = &mut self.generations[0];
        generation.bins[bin(after)] += packets;
        generation.total += packets;
    }

    /// Notes the end of an operation.
    pub(super) fn operation_ended(&mut self) {
        self.operations += 1;
        if self.operations == self.most {
            self.generations[0].operations = std::mem::take(&mut self.operations);
            self.generations.swap(0, 1);
            let [current, _] = &mut self.generations;
            current.bins.fill(0);
            current.total = 0;
        }
    }

    /// A time by which all but the requested share of future packets should arrive; zero without data.
    ///
    /// Beyond the *k*th latest of *n* sources the next one is expected with probability (*k*+1)/(*n*+1)
    /// (Weibull's plotting position), so one source fewer may be beyond than the share allows. If that leaves
    /// none, it is the latest time of all, plus a quarter of its excess over the median.
    pub(super) fn bound(&self) -> Duration {
        let total = self.total();
        let operations = self.operations + self.generations[1].operations;
        let source = total / f64::from(operations.max(1)) / f64::from(self.sources);
        let allowed = total * self.late - source;
        match self.all_but(allowed.max(0.0)) {
            latest if allowed < 0.0 => latest + (latest - self.median().min(latest)) / 4,
            time => time,
        }
    }

    pub(super) fn median(&self) -> Duration {
        self.all_but_share(0.5)
    }

    /// A time after which at most `share` of the packets arrived.
    pub(super) fn all_but_share(&self, share: f64) -> Duration {
        self.all_but(self.total() * share)
    }

    fn total(&self) -> f64 {
        self.generations
            .iter()
            .map(|generation| generation.total as f64)
            .sum()
    }

    /// A time after which at most `allowed` packets arrived.
    fn all_but(&self, allowed: f64) -> Duration {
        let [current, last] = &self.generations;
        let mut above = 0;
        for number in (0..BINS).rev() {
            above += current.bins[number] + last.bins[number];
            if above as f64 > allowed {
                return upper_edge(number);
            }
        }
        Duration::ZERO
    }
}

/// The bin of a time: the leading bit, then the next four bits.
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
    fn old_operations_do_not_change_quantiles() {
        let ms = Duration::from_millis;
        let mut arrivals = Arrivals::new(1e-3, 10);
        assert_eq!(arrivals.bound(), Duration::ZERO);
        arrivals.add(ms(1), 999);
        arrivals.add(ms(50), 1);
        assert!(arrivals.bound() > ms(62), "the latest, and a quarter");
        assert!(arrivals.median() < ms(2));
        for operation in 1..400 {
            arrivals.operation_ended();
            arrivals.add(ms(1), 10);
            assert!(arrivals.all_but(0.0) > ms(50), "{operation}");
        }
        arrivals.operation_ended();
        assert!(arrivals.all_but(0.0) < ms(2));
        // Of 3,990 sources one may be beyond: three in a thousand, minus one.
        arrivals.add(ms(70), 1);
        assert!(arrivals.bound() < ms(2));
        arrivals.add(ms(70), 3);
        assert!(arrivals.bound() > ms(50));
        for (late, sources, operations) in [(7e-4, 3, 952), (7e-4, 1000, 128), (1e-9, 1, 1024)] {
            assert_eq!(Arrivals::new(late, sources).most, operations);
        }
    }
}
