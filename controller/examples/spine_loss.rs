//! How long 100 jobs on six embedded switches take to leave a spine that is lost: `cargo run --release -p ultima-controller --example
//! spine_loss`.

use std::time::{Duration, Instant};

use ultima_controller::fabric;
use ultima_controller::job::{DEFAULT_LOSS_THRESHOLD, Gather, JobSpec, Weight};
use ultima_controller::membership::Eviction;
use ultima_controller::server::{self, Config};
use ultima_switch::{Switch, SwitchConfig};

const JOBS: usize = 100;
const NAMES: [&str; 6] = ["spine1", "spine2", "leaf1", "leaf2", "leaf3", "leaf4"];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut switches = Vec::new();
    // Room for as many ranks on each host.
    let mut text =
        include_str!("../../topologies/leaf-spine.yaml").replace("ranks: 2", "ranks: 100");
    for name in NAMES {
        let config = SwitchConfig {
            grpc: "127.0.0.1:0".parse()?,
            ..SwitchConfig::default()
        };
        let switch = Switch::start(config).await?;
        let entry = format!(
            "name: {name}, grpc: \"{}\", device_id: 1",
            switch.grpc_addr()
        );
        text = text.replace(&format!("name: {name} }}"), &format!("{entry} }}"));
        switches.push(switch);
    }
    let config = Config {
        listen: "127.0.0.1:0".parse()?,
        ..Config::new(fabric::parse(&text, "leaf-spine.yaml")?)?
    };
    let grace = config.terms.grace;
    let handle = server::serve(config).await?;
    let controller = handle.controller();
    for job in 0..JOBS {
        let spec = JobSpec {
            name: format!("job{job}"),
            members: (1..=8).map(|host| format!("h{host}")).collect(),
            gather: Gather::Multicast,
            seed: Some(1),
            loss_threshold: DEFAULT_LOSS_THRESHOLD,
            weight: Weight::default(),
            eviction: Eviction::default(),
        };
        controller.create_job(&spec).await?;
    }
    let on_spine = || controller.switches()[0].jobs.len();
    println!("{} of {JOBS} jobs on spine1", on_spine());

    let begun = Instant::now();
    switches.remove(0).stop().await?;
    println!("spine1 stopped after {:?}", begun.elapsed());
    while on_spine() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let planned = begun.elapsed();
    // Requests wait until all is written; that there is no such job is said then.
    let nothing = controller.delete_job("none").await;
    assert!(nothing.is_err());
    println!(
        "planned after {planned:?}, last write after {:?}, of which {grace:?} grace",
        begun.elapsed()
    );
    let audit = controller.audit(false).await;
    let whole = audit
        .iter()
        .filter(|(_, diff)| diff.as_ref().is_ok_and(|diff| diff.is_empty()));
    println!("{} switches hold what they should", whole.count());
    handle.stop().await;
    Ok(())
}
