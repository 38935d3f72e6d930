//! When packets came: a histogram over the last operations.

use std::time::Duration;

/// Bins for each doubling: neighbours are 4.4 % apart.
const PER_DOUBLING: u32 = 16;
/// Times under 2^10 ns are one bin, those over 2^42 ns (73 minutes) another.
const SHORTEST: u32 = 10;
const LONGEST: u32 = 42;
const BINS: usize = ((LONGEST - SHORTEST) * PER_DOUBLING) as usize;
/// Operations after which a new generation begins. Two are kept, so that what was is forgotten after twice as many.
const GENERATION: u32 = 128;

/// Times since an operation's start, of the last 128 to 256 operations.
pub(super) struct Arrivals {
    /// The current one first.
    generations: [Generation; 2],
    operations: u32,
}

struct Generation {
    bins: Vec<u64>,
    total: u64,
}

impl Generation {
    fn new() -> Self {
        Self {
            bins: vec![0; BINS],
            total: 0,
        }
    }
}

impl Arrivals {
    pub(super) fn new() -> Self {
        Self {
            generations: [Generation::new(), Generation::new()],
            operations: 0,
        }
    }

    pub(super) fn add(&mut self, after: Duration, packets: u64) {
        let generation = &mut self.generations[0];
        generation.bins[bin(after)] += packets;
        generation.total += packets;
    }

    /// An operation is over.
    pub(super) fn operation_ended(&mut self) {
        self.operations += 1;
        if self.operations == GENERATION {
            self.operations = 0;
            self.generations.swap(0, 1);
            let [current, _] = &mut self.generations;
            current.bins.fill(0);
            current.total = 0;
        }
    }

    /// A time that all but the share `late` of the packets came before; zero where none came. Where so few came that
    /// this is the last of them, a quarter more: what comes next may well be later.
    pub(super) fn all_but(&self, late: f64) -> Duration {
        let [current, last] = &self.generations;
        let allowed = (current.total + last.total) as f64 * late;
        let mut above = 0;
        for number in (0..BINS).rev() {
            let here = current.bins[number] + last.bins[number];
            above += here;
            if above as f64 > allowed {
                let edge = upper_edge(number);
                return match above == here {
                    true => edge + edge / 4,
                    false => edge,
                };
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
        assert!(arrivals.all_but(0.0) > ms(62), "the last, and a quarter");
        assert!(arrivals.all_but(0.0015) < ms(2));
        for operation in 1..2 * GENERATION {
            arrivals.operation_ended();
            arrivals.add(ms(1), 10);
            assert!(arrivals.all_but(0.0) > ms(50), "{operation}");
        }
        arrivals.operation_ended();
        assert!(arrivals.all_but(0.0) < ms(2));
    }
}
