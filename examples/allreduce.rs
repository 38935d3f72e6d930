//! Ranks average a gradient ten times, over UDP: no switch, no controller, no root.
//!
//! Four ranks in one process: `cargo run --release -p ultima-examples --bin allreduce`
//!
//! One process per rank, here rank 0 of 2, or with torchrun's variables from any other launcher:
//! `ULTIMA_STORE=host RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 allreduce`

use std::net::TcpListener;
use std::{env, thread};

use anyhow::Result;
use ultima_agent::job::{Job, JobBuilder, Reduced, TcpStore};

const RANKS: usize = 4;
const VALUES: usize = 100_000;
const STEPS: u32 = 10;

/// One rank: in training, the process of one GPU.
fn average(job: JobBuilder) -> Result<()> {
    // Programs with a subscriber of `tracing` need no function for notices.
    let job = job.notice(|line| eprintln!("{line}")).start()?;
    let (rank, ranks) = (job.rank(), job.ranks());
    for step in 0..STEPS {
        let gradient = vec![f32::from(rank); VALUES];
        let Reduced { values, outcome } = job.all_reduce(gradient).wait()?;
        let (end, took, lost) = (outcome.closed_by, outcome.duration, outcome.lost_share());
        if rank == 0 {
            let exact = f32::from(ranks - 1) / 2.0;
            let errors = values.iter().map(|value| (value - exact).abs());
            println!(
                "step {step}: {end:?} after {took:.1?}, {:.2} % lost, largest error {:.1e}",
                100.0 * lost,
                errors.fold(0.0, f32::max)
            );
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    if env::var_os("RANK").is_some() {
        return average(JobBuilder::from_env()?);
    }
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let ranks = (0..RANKS).map(|rank| {
        let store = TcpStore::new("127.0.0.1", port, rank, RANKS).host();
        thread::spawn(move || average(Job::builder().rendezvous(store)))
    });
    for rank in ranks.collect::<Vec<_>>() {
        rank.join().expect("no panic")?;
    }
    Ok(())
}
