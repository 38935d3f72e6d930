//! One rank of a job: joins at the controller, averages a gradient ten times, leaves.
//!
//! Start one on each host of the job, with the host's name in the fabric:
//! `cargo run --release -p ultima-examples --bin rank -- 192.0.2.100:9555 train h1`

use std::env;

use anyhow::{Result, bail};
use ultima_agent::job::{Controller, Job};

const VALUES: usize = 100_000;
const STEPS: u32 = 10;

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [controller, name, host] = &arguments[..] else {
        bail!("usage: rank CONTROLLER JOB HOST");
    };
    let rendezvous = Controller::new(controller, name, host);
    let job = Job::builder().rendezvous(rendezvous);
    // Programs with a subscriber of `tracing` need no function for notices.
    let job = job.notice(|line| eprintln!("{line}")).start()?;
    println!("rank {} of {}", job.rank(), job.ranks());
    for step in 0..STEPS {
        let gradient = vec![f32::from(job.rank()); VALUES];
        let mean = job.all_reduce(gradient).wait()?;
        println!(
            "step {step}: mean {:.3}, {:?} after {:.1?}",
            mean.values[0], mean.outcome.closed_by, mean.outcome.duration
        );
    }
    Ok(())
}
