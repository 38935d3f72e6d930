//! The training set's shards, one for each worker, and a worker's batches.

use crate::data::Samples;
use crate::random::{Purpose, stream};
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

/// The distribution of the training set to the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Dealing {
    /// Shuffle the images: all workers have similar data
    #[default]
    Random,
    /// Sort by class and split: each worker has few classes, and gradients differ
    ByClass,
}

impl Dealing {
    /// Both.
    pub const ALL: [Dealing; 2] = [Dealing::Random, Dealing::ByClass];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Dealing::Random => "random",
            Dealing::ByClass => "by-class",
        }
    }
}

/// Deals examples with these `labels` to `workers`: for each rank the indices of its examples.
///
/// Every example goes to exactly one worker; sizes differ by at most one.
///
/// # Panics
/// If there are no workers, or fewer examples than workers.
pub fn deal(labels: &[u8], workers: usize, dealing: Dealing, seed: u64) -> Vec<Vec<usize>> {
    assert!(
        (1..=labels.len()).contains(&workers),
        "every worker needs an example"
    );
    let mut order: Vec<usize> = (0..labels.len()).collect();
    match dealing {
        Dealing::Random => order.shuffle(&mut stream(seed, Purpose::Deal, 0)),
        Dealing::ByClass => order.sort_by_key(|&i| labels[i]),
    }
    let start = |rank: usize| rank * order.len() / workers;
    (0..workers)
        .map(|rank| order[start(rank)..start(rank + 1)].to_vec())
        .collect()
}

/// A worker's way through its shard: batches of one size, without end.
///
/// All workers use the same batch size even where their shards differ by an example, so that the mean
/// over all examples of a step is the plain mean of the workers' gradients. An epoch's last batch is
/// therefore filled up from the next epoch, which has an order of its own.
#[derive(Clone, Debug)]
pub struct Batches {
    shard: Vec<usize>,
    next: usize,
    size: usize,
    rng: Xoshiro256PlusPlus,
}

impl Batches {
    /// Batches of `size` examples of the `shard` of `rank`.
    ///
    /// # Panics
    /// If the shard is empty.
    pub fn new(shard: Vec<usize>, size: usize, seed: u64, rank: usize) -> Self {
        assert!(!shard.is_empty(), "a worker needs an example");
        let next = shard.len();
        Self {
            shard,
            next,
            size,
            rng: stream(seed, Purpose::Batches, rank),
        }
    }

    /// The next batch, taken from the set that the shard's indices refer to.
    pub fn draw(&mut self, samples: &Samples) -> Samples {
        let indices: Vec<usize> = (0..self.size).map(|_| self.draw_one()).collect();
        samples.select(&indices)
    }

    fn draw_one(&mut self) -> usize {
        if self.next == self.shard.len() {
            self.shard.shuffle(&mut self.rng);
            self.next = 0;
        }
        self.next += 1;
        self.shard[self.next - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CLASSES, Digits};
    use std::collections::{BTreeMap, HashSet};

    const DEALINGS: [Dealing; 2] = [Dealing::Random, Dealing::ByClass];

    #[test]
    fn every_example_goes_to_exactly_one_worker() {
        let train = Digits::load(1).unwrap().train;
        for dealing in DEALINGS {
            for workers in [1, 2, 3, 4, 7, 31, 32] {
                let shards = deal(train.labels(), workers, dealing, 1);
                let sizes: Vec<usize> = shards.iter().map(Vec::len).collect();
                assert_eq!(sizes.len(), workers);
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                let mut dealt = shards.concat();
                dealt.sort();
                assert!(dealt.into_iter().eq(0..train.len()));
            }
        }
    }

    #[test]
    fn by_class_a_worker_sees_few_classes_at_random_all() {
        let train = Digits::load(1).unwrap().train;
        let most_classes = |dealing, workers| {
            let shards = deal(train.labels(), workers, dealing, 1);
            let classes = |shard: &Vec<usize>| {
                shard
                    .iter()
                    .map(|&i| train.labels()[i])
                    .collect::<HashSet<_>>()
                    .len()
            };
            shards.iter().map(classes).max().unwrap()
        };
        assert!(most_classes(Dealing::ByClass, 4) <= 4);
        assert!(most_classes(Dealing::ByClass, 32) <= 2);
        assert_eq!(most_classes(Dealing::Random, 4), CLASSES);
    }

    #[test]
    fn dealing_at_random_depends_on_the_seed_alone() {
        let labels = [0; 100];
        assert_eq!(
            deal(&labels, 3, Dealing::Random, 1),
            deal(&labels, 3, Dealing::Random, 1)
        );
        assert_ne!(
            deal(&labels, 3, Dealing::Random, 1),
            deal(&labels, 3, Dealing::Random, 2)
        );
    }

    #[test]
    fn an_epoch_has_every_example_once_across_batches() {
        let shard: Vec<usize> = (100..145).collect();
        let mut batches = Batches::new(shard.clone(), 32, 1, 0);
        for epoch in 0..10 {
            let mut drawn: Vec<usize> = (0..shard.len()).map(|_| batches.draw_one()).collect();
            assert_ne!(drawn, shard, "epoch {epoch} has its own order");
            drawn.sort();
            assert_eq!(drawn, shard);
        }
    }

    #[test]
    fn a_batch_larger_than_the_shard_goes_round() {
        let train = Digits::load(1).unwrap().train;
        let batch = Batches::new(vec![5, 6, 7], 8, 1, 0).draw(&train);
        assert_eq!(batch.len(), 8);
        let mut times = BTreeMap::new();
        batch
            .labels()
            .iter()
            .for_each(|&class| *times.entry(class).or_insert(0) += 1);
        let allowed: HashSet<u8> = [5, 6, 7].map(|i| train.labels()[i]).into();
        assert!(times.keys().all(|class| allowed.contains(class)));
        assert!(times.values().all(|&n| n >= 2));
    }

    #[test]
    fn workers_draw_in_different_orders() {
        let shard: Vec<usize> = (0..50).collect();
        let order = |rank| {
            let mut batches = Batches::new(shard.clone(), 1, 1, rank);
            (0..50).map(|_| batches.draw_one()).collect::<Vec<_>>()
        };
        assert_eq!(order(0), order(0));
        assert_ne!(order(0), order(1));
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for dealing in DEALINGS {
            let json = serde_json::to_string(&dealing).unwrap();
            assert_eq!(json, format!("\"{}\"", dealing.name()));
            let option = clap::ValueEnum::to_possible_value(&dealing).unwrap();
            assert_eq!(option.get_name(), dealing.name());
        }
    }
}
