//! How a controller and embedded switches in one process grow: `cargo run --release -p ultima-controller --example scale`.
//!
//! A job of 64 members on six switches; a thousand jobs on one switch; a switch that comes back with a hundred jobs.

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ultima_controller::fabric;
use ultima_controller::job::{DEFAULT_LOSS_THRESHOLD, Gather, JobSpec, Weight};
use ultima_controller::membership::Eviction;
use ultima_controller::reconcile::Diff;
use ultima_controller::server::{self, Config, Handle};
use ultima_switch::{Switch, SwitchConfig};

const LEAF_SPINE: &str = include_str!("../../topologies/leaf-spine.yaml");
const STAR: &str = include_str!("../../topologies/star16.yaml");

type Outcome<T> = Result<T, Box<dyn Error>>;

async fn switch_at(grpc: SocketAddr) -> Outcome<Switch> {
    let config = SwitchConfig {
        grpc,
        ..SwitchConfig::default()
    };
    Ok(Switch::start(config).await?)
}

/// The switches and a controller of a topology, its hosts with room for so many ranks.
async fn start(topology: &str, ranks: u32) -> Outcome<(Vec<Switch>, Handle)> {
    let named = topology.lines().filter_map(|line| {
        let entry = line.trim().strip_prefix("- { name: ")?;
        entry.strip_suffix(" }").filter(|name| !name.contains(','))
    });
    let mut text = topology.replace("ranks: 2", &format!("ranks: {ranks}"));
    if !text.contains(&format!("ranks: {ranks}")) {
        let lines = text.lines().map(|line| match line.contains("mac:") {
            true => line.replace(" }", &format!(", ranks: {ranks} }}")),
            false => line.to_owned(),
        });
        text = lines.collect::<Vec<_>>().join("\n");
    }
    let mut switches = Vec::new();
    for name in named {
        let switch = switch_at("127.0.0.1:0".parse()?).await?;
        let entry = format!(
            "name: {name}, grpc: \"{}\", device_id: 1",
            switch.grpc_addr()
        );
        text = text.replace(&format!("name: {name} }}"), &format!("{entry} }}"));
        switches.push(switch);
    }
    let config = Config {
        listen: "127.0.0.1:0".parse()?,
        ..Config::new(fabric::parse(&text, "topology")?)?
    };
    Ok((switches, server::serve(config).await?))
}

fn job(name: String, members: Vec<String>) -> JobSpec {
    JobSpec {
        name,
        members,
        gather: Gather::Multicast,
        seed: Some(1),
        loss_threshold: DEFAULT_LOSS_THRESHOLD,
        weight: Weight::default(),
        eviction: Eviction::Never,
        sealed: false,
    }
}

fn hosts(numbers: impl Iterator<Item = usize>) -> Vec<String> {
    numbers.map(|number| format!("h{number}")).collect()
}

/// Memory of this process, the controller and its switches, in MiB.
fn resident() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .ok_or("no VmRSS")?
        .trim()
        .trim_end_matches(" kB")
        .trim()
        .parse()?;
    Ok(kib >> 10)
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    let (Some(least), Some(most)) = (times.first(), times.last()) else {
        return String::new();
    };
    format!(
        "median {:.1?}, {least:.1?} to {most:.1?} of {}",
        times[times.len() / 2],
        times.len()
    )
}

async fn large_job() -> Outcome<()> {
    let (_switches, handle) = start(LEAF_SPINE, 8).await?;
    let controller = handle.controller();
    let (mut created, mut deleted) = (Vec::new(), Vec::new());
    for round in 0..21 {
        let name = format!("large{round}");
        // Ranks of a host are neighbours.
        let members = hosts((1..=8).flat_map(|host| [host; 8]));
        let begun = Instant::now();
        let state = controller.create_job(&job(name.clone(), members)).await?;
        created.push(begun.elapsed());
        assert_eq!(
            (state.job.members.len(), state.switches.len() >= 5),
            (64, true)
        );
        let begun = Instant::now();
        assert!(controller.delete_job(&name).await?.is_empty());
        deleted.push(begun.elapsed());
    }
    println!("64 members under 2 spines: created in {}", spread(created));
    println!("                           deleted in {}", spread(deleted));
    handle.stop().await;
    Ok(())
}

/// On links with a rate each further job divides them anew among all that are there.
async fn many_jobs(with_rates: bool) -> Outcome<()> {
    let topology = match with_rates {
        true => STAR.to_owned(),
        false => STAR.replace(", rate: 1G", ""),
    };
    let (_switches, handle) = start(&topology, 1000).await?;
    let controller = handle.controller();
    let links = if with_rates {
        "links of 1 Gbit/s"
    } else {
        "links without rates"
    };
    println!("one switch, {links}: {} MiB", resident()?);
    let (mut begun, mut since) = (Instant::now(), 0);
    for number in 0..1000 {
        // Two of sixteen hosts, so many as the program's counters by source and by share have places for.
        let members = hosts([number, number + 8].into_iter().map(|at| 1 + at % 16));
        controller
            .create_job(&job(format!("job{number}"), members))
            .await?;
        if [125, 250, 500, 1000].contains(&(number + 1)) {
            let took = begun.elapsed();
            let each = took / (number + 1 - since) as u32;
            println!(
                "{:4} jobs: {each:.2?} for each of the last, {} MiB",
                number + 1,
                resident()?
            );
            (begun, since) = (Instant::now(), number + 1);
        }
    }
    let begun = Instant::now();
    let audit = controller.audit(false).await;
    let is_whole = |diff: &Result<Diff, String>| diff.as_ref().is_ok_and(Diff::is_empty);
    assert!(audit.iter().all(|(_, diff)| is_whole(diff)));
    println!("1000 jobs looked at in {:.1?}", begun.elapsed());
    // What is fullest binds first.
    let mut fills = controller.fills()?;
    fills.sort_by(|(_, one), (_, other)| (other.used * one.limit).cmp(&(one.used * other.limit)));
    for (_, fill) in fills.iter().take(3) {
        println!("{}: {} of {}", fill.of, fill.used, fill.limit);
    }
    handle.stop().await;
    Ok(())
}

async fn reboot() -> Outcome<()> {
    let (mut switches, handle) = start(LEAF_SPINE, 100).await?;
    let controller = handle.controller();
    for number in 0..100 {
        controller
            .create_job(&job(format!("job{number}"), hosts(1..=8)))
            .await?;
    }
    let leaf = 2;
    let is_whole = || {
        let state = &controller.switches()[leaf];
        state.problem.is_none() && !state.in_doubt
    };
    let mut times = Vec::new();
    for _ in 0..9 {
        let address = switches[leaf].grpc_addr();
        switches.remove(leaf).stop().await?;
        while is_whole() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let begun = Instant::now();
        switches.insert(leaf, switch_at(address).await?);
        while !is_whole() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        times.push(begun.elapsed());
    }
    println!("a leaf with 100 jobs is whole again: {}", spread(times));
    handle.stop().await;
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome<()> {
    large_job().await?;
    many_jobs(false).await?;
    many_jobs(true).await?;
    reboot().await
}
