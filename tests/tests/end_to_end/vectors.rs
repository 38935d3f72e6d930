//! The vectors of `p4/vectors/`, which the owner of a chip runs on it with `p4/ptf/`.

use std::collections::BTreeMap;
use std::time::Duration;

use ultima_controller::p4rt::{Device, ELECTION_ID, SwitchClient};
use ultima_controller::program::Program;
use ultima_tests::counters::CounterReader;
use ultima_tests::fabric::{Fabric, HostId, device_id, switch_name};
use ultima_tests::stage::Target;
use ultima_tests::testbed::Testbed;
use ultima_tests::vectors::{self, Counted, Vectors};

on_both! {
    all_hold, all_hold_on_the_embedded_switch, all_hold_on_bmv2;
}

fn all_hold(target: &Target) {
    for (name, vectors) in vectors::all() {
        // Each on a switch of its own: BMv2 keeps a group's copies when it is given another program.
        target.bare(Fabric::star(), |mut testbed| {
            run(&mut testbed, &name, &vectors)
        });
    }
}

/// Runs one file on a switch without a program.
fn run(testbed: &mut Testbed, name: &str, vectors: &Vectors) {
    let grpc = testbed.grpc()[0];
    let program = ultima_p4::v1model();
    let program = Program::new(program.device_config.to_vec(), program.p4info, "v1model")
        .unwrap_or_else(|error| panic!("{error}"));
    let device = Device {
        name: switch_name(0),
        grpc: grpc.to_string(),
        device_id: device_id(0),
        tls: None,
        packing: Default::default(),
    };
    let mut updates = vectors::setup().updates(program.names());
    updates.extend(vectors.entries.updates(program.names()));
    let mut counters = testbed.runtime.block_on(async {
        let client = SwitchClient::connect(device, ELECTION_ID, Duration::from_secs(5)).await;
        let client = client.unwrap_or_else(|error| panic!("{name}: {error}"));
        let set = client.set_pipeline(&program).await;
        set.unwrap_or_else(|error| panic!("{name}: {error}"));
        let written = client.write(updates).await;
        written.unwrap_or_else(|error| panic!("{name}: {error}"));
        let counters = CounterReader::connect([(grpc, device_id(0))]).await;
        counters.expect("the switch serves P4Runtime")
    });

    for step in &vectors.packets {
        let hosts = testbed.fabric.host_ids();
        let at: BTreeMap<u16, HostId> = hosts
            .map(|host| (testbed.fabric.host(host).port, host))
            .collect();
        let arrivals = testbed
            .exchange_stamped(at[&step.port], &[step.frame()])
            .into_iter()
            .map(|(host, frames)| (testbed.fabric.host(host).port, frames))
            .collect();
        let checked = step.check(&arrivals);
        checked.unwrap_or_else(|why| panic!("{name}, {}: {why}", step.name));
    }

    let read = testbed.runtime.block_on(counters.read());
    let mut counted = Counted::new();
    for (cell, count) in read.expect("switches let everybody read").0 {
        let array = counted.entry(cell.array.into()).or_default();
        array.insert(cell.index, count.packets);
    }
    assert_eq!(counted, vectors.counters, "{name}");
}
