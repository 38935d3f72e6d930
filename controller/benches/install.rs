//! How long jobs take to be on embedded switches in the same process: `cargo bench -p ultima-controller --bench install`.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use ultima_controller::fabric;
use ultima_controller::job::{DEFAULT_LOSS_THRESHOLD, Gather, JobSpec, Weight};
use ultima_controller::membership::Eviction;
use ultima_controller::server::{self, Config, Handle};
use ultima_switch::{Switch, SwitchConfig};

const NAMES: [&str; 6] = ["spine1", "spine2", "leaf1", "leaf2", "leaf3", "leaf4"];

async fn start() -> (Vec<Switch>, Handle) {
    let mut switches = Vec::new();
    let mut text = include_str!("../../topologies/leaf-spine.yaml").replace("ranks: 2", "ranks: 8");
    for name in NAMES {
        let config = SwitchConfig {
            grpc: "127.0.0.1:0".parse().expect("an address"),
            ..SwitchConfig::default()
        };
        let switch = Switch::start(config).await.expect("it starts");
        let entry = format!(
            "name: {name}, grpc: \"{}\", device_id: 1",
            switch.grpc_addr()
        );
        text = text.replace(&format!("name: {name} }}"), &format!("{entry} }}"));
        switches.push(switch);
    }
    let fabric = fabric::parse(&text, "leaf-spine.yaml").expect("a fabric");
    let config = Config {
        listen: "127.0.0.1:0".parse().expect("an address"),
        ..Config::new(fabric).expect("a program")
    };
    (switches, server::serve(config).await.expect("it starts"))
}

fn spec(ranks: usize) -> JobSpec {
    let members = (1..=8).flat_map(|host| vec![format!("h{host}"); ranks]);
    JobSpec {
        name: "train".into(),
        members: members.collect(),
        gather: Gather::Multicast,
        seed: Some(1),
        loss_threshold: DEFAULT_LOSS_THRESHOLD,
        weight: Weight::default(),
        eviction: Eviction::Never,
        sealed: false,
    }
}

fn install(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (_switches, handle) = runtime.block_on(start());
    let controller = handle.controller();
    let mut group = criterion.benchmark_group("install");
    group.sample_size(20);
    for ranks in [1, 8] {
        let spec = spec(ranks);
        group.bench_function(format!("{} members, 6 switches", 8 * ranks), |bencher| {
            bencher.iter_custom(|times| {
                let mut took = Duration::ZERO;
                for _ in 0..times {
                    let begun = Instant::now();
                    runtime
                        .block_on(controller.create_job(&spec))
                        .expect("created");
                    took += begun.elapsed();
                    runtime
                        .block_on(controller.delete_job("train"))
                        .expect("deleted");
                }
                took
            });
        });
    }
    group.finish();
    runtime.block_on(handle.stop());
}

criterion_group!(benches, install);
criterion_main!(benches);
