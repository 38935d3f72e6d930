//! Independent losses on each path between two ranks.

use rand::SeedableRng;
use rand_xoshiro::Xoshiro256PlusPlus;
use ultima_link::{Loss, LossProcess};

/// The paths between ranks, each with its own loss process.
pub struct Paths {
    ranks: u16,
    /// Loss processes by source and receiver.
    paths: Vec<LossProcess>,
    random: Xoshiro256PlusPlus,
}

impl Paths {
    /// Paths with the loss `model`, as parsed by [`loss`].
    pub fn new(model: &Loss, ranks: u16, seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let count = usize::from(ranks) * usize::from(ranks);
        Self {
            ranks,
            paths: (0..count)
                .map(|_| LossProcess::new(model.clone(), &mut random))
                .collect(),
            random,
        }
    }

    /// True if the next packet from `source` to `receiver` is lost.
    pub fn lose(&mut self, source: u16, receiver: u16) -> bool {
        let path = usize::from(source) * usize::from(self.ranks) + usize::from(receiver);
        // `loss` rejects models that read the frame.
        self.paths[path].loses(&[], &mut self.random)
    }
}

/// Parses a loss model. Rejects models that read fields of the frame: there are no frames here.
pub fn loss(text: &str) -> Result<Loss, String> {
    match text.parse().map_err(|error| format!("{error}"))? {
        Loss::Field { .. } => Err(
            "no loss by header field here; expected a probability such as 0.01, 0.01:8 for bursts of \
             8 packets, or ge:P:R"
                .into(),
        ),
        loss => Ok(loss),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lose_independently() {
        let mut paths = Paths::new(&loss("0.2:4").expect("a model"), 3, 1);
        let mut lost = |source, receiver| {
            let draws = (0..20_000).map(|_| paths.lose(source, receiver));
            draws.collect::<Vec<bool>>()
        };
        let (there, back) = (lost(0, 2), lost(2, 0));
        for way in [&there, &back] {
            let share = way.iter().filter(|lost| **lost).count() as f64 / 2e4;
            assert!((0.15..0.25).contains(&share), "{share}");
        }
        assert_ne!(there, back);
        assert!(loss("field:4:2:0..7").is_err() && loss("often").is_err());
    }
}
