//! The options of studies that train.

use anyhow::Result;

use super::training::Job;
use ultima_digits::shards::Dealing;
use ultima_digits::training::Plan;

/// The widest hidden layer.
const MAX_WIDTH: usize = 4096;

/// The training job and its seeds.
#[derive(clap::Args)]
pub struct Training {
    /// Number of ranks
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub ranks: u16,
    /// Training: number of steps
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub steps: u32,
    /// Training: widths of the model's 1 to 8 hidden layers
    #[arg(long, value_delimiter = ',', default_value = "288,288", value_parser = width)]
    pub hidden: Vec<usize>,
    /// Number of seeds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub seeds: u16,
    /// First seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Training {
    /// Every seed.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + Clone + '_ {
        (0..u64::from(self.seeds)).map(|at| self.seed.wrapping_add(at))
    }

    /// The job with these shards and this seed.
    pub fn job(&self, shards: Dealing, seed: u64) -> Job {
        Job {
            plan: Plan {
                workers: self.ranks,
                shards,
                seed,
            },
            hidden: self.hidden.clone(),
            steps: self.steps,
        }
    }

    /// # Errors
    /// If there are too many layers.
    pub fn validate(&self) -> Result<()> {
        anyhow::ensure!(
            self.hidden.len() <= 8,
            "--hidden: {} layers; expected 1 to 8",
            self.hidden.len()
        );
        Ok(())
    }
}

fn width(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(width) if (1..=MAX_WIDTH).contains(&width) => Ok(width),
        _ => Err(format!(
            "expected a width from 1 to {MAX_WIDTH}, such as 288"
        )),
    }
}
