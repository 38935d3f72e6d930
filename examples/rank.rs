//! One rank of a job: joins at the controller, averages a gradient ten times, leaves.
//!
//! Start one on each host of the job, with the host's name in the fabric:
//! `cargo run --release -p ultima-examples --bin rank -- 192.0.2.100:9555 train h1`

use std::env;
use std::error::Error;
use std::time::Duration;

use ultima_agent::{Membership, meet};
use ultima_controller::client::Client;
use ultima_host::{Collective, OperationId};

const VALUES: usize = 100_000;
const STEPS: u32 = 10;
/// When an AllReduce ends at the latest.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long to wait for the other ranks.
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [controller, job, host] = &arguments[..] else {
        return Err("usage: rank CONTROLLER JOB HOST".into());
    };
    let runtime = tokio::runtime::Runtime::new()?;

    let client = runtime.block_on(Client::connect(controller))?;
    let membership = runtime.block_on(Membership::join(&client, job, host, JOIN_TIMEOUT))?;
    let (rank, ranks) = (membership.rank, membership.seats.len());
    println!("rank {rank} of {ranks}");

    let mut collective = Collective::over_udp(membership.config(DEADLINE), membership.udp()?)?;
    // The other processes may need a moment to open their sockets.
    let missing = meet(
        &collective.prober(),
        rank,
        u16::try_from(ranks)?,
        JOIN_TIMEOUT,
    )?;
    if !missing.is_empty() {
        return Err(
            format!("ranks {missing:?} do not answer; see `ultima job check {job}`").into(),
        );
    }
    for step in 0..STEPS {
        let mut gradient = vec![f32::from(rank); VALUES];
        let id = OperationId { step, bucket: 0 };
        let outcome = collective.allreduce(id, &mut gradient)?;
        println!(
            "step {step}: mean {:.3}, {:?} after {:.1?}",
            gradient[0], outcome.closed_by, outcome.duration
        );
    }
    // Peers may still ask for packets of the last step.
    collective.finish(Duration::from_millis(100))?;

    let epoch = (membership.epoch.into(), membership.id.into());
    runtime.block_on(client.leave(job, epoch, rank.into()))?;
    Ok(())
}
