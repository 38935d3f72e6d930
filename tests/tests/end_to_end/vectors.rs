//! The vectors of `p4/vectors/`, which an owner of a chip runs with `p4/ptf/`.

mod files;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;
use ultima_controller::p4rt::{Device, ELECTION_ID, Order, SwitchClient};
use ultima_p4::names::loss;
use ultima_p4runtime::names::{Digest, Names};
use ultima_p4runtime::v1::DigestList;
use ultima_planner::program::Program;
use ultima_planner::telemetry::OperationLoss;
use ultima_tests::counters::CounterReader;
use ultima_tests::fabric::{Fabric, HostId, device_id, switch_name};
use ultima_tests::stage::Target;
use ultima_tests::testbed::Testbed;

use self::files::{Counted, LossDigest, Vectors};

/// The deadline for a switch to report a loss.
const TIMEOUT: Duration = Duration::from_secs(10);

on_both! {
    all_vectors_hold;
}

fn all_vectors_hold(target: &Target) {
    for (name, vectors) in files::all() {
        // Each file has its own switch: BMv2 keeps the replicas of a group when it gets another program.
        target.bare(Fabric::star(), |mut testbed| {
            run(&mut testbed, &name, &vectors)
        });
    }
}

/// Receives the digests of a switch.
struct Listener<'a> {
    digests: Receiver<DigestList>,
    digest: &'a Digest,
    waiting: VecDeque<OperationLoss>,
}

impl<'a> Listener<'a> {
    fn of(client: &SwitchClient, names: &'a Names) -> Self {
        let digest = names.digest(loss::DIGEST);
        Listener {
            digests: client.digests().expect("the first receiver of digests"),
            digest: digest.unwrap_or_else(|error| panic!("{error}")),
            waiting: VecDeque::new(),
        }
    }

    /// The next operation with losses.
    async fn next(&mut self) -> LossDigest {
        while self.waiting.is_empty() {
            let list = timeout(TIMEOUT, self.digests.recv()).await;
            let list = list.expect("a digest in time");
            let list = list.expect("the stream lasts as long as the client");
            let losses = list.data.iter().map(|message| {
                OperationLoss::read(self.digest, message).unwrap_or_else(|error| panic!("{error}"))
            });
            self.waiting.extend(losses);
        }
        let loss = self.waiting.pop_front().expect("a loss");
        LossDigest {
            job: loss.job.0,
            epoch: loss.epoch.0,
            step: loss.step,
            bucket: loss.bucket,
            source_rank: loss.source.0,
            port: loss.port.0,
            trimmed: loss.trimmed,
            late: loss.late,
            upstream_lost: loss.upstream_lost,
        }
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
    let setup = files::setup();
    let entries = setup.iter().chain([&vectors.entries]);
    let updates = entries.flat_map(|entries| entries.updates(program.names()));
    let updates = updates.collect();
    let (client, mut counters) = testbed.runtime.block_on(async {
        let client = SwitchClient::connect(device, ELECTION_ID, Duration::from_secs(5)).await;
        let client = client.unwrap_or_else(|error| panic!("{name}: {error}"));
        let set = client.set_pipeline(&program).await;
        set.unwrap_or_else(|error| panic!("{name}: {error}"));
        let written = client.write(updates, Order::AsGiven).await;
        written.unwrap_or_else(|error| panic!("{name}: {error}"));
        let counters = CounterReader::connect([(grpc, device_id(0))]).await;
        (client, counters.expect("the switch serves P4Runtime"))
    });
    let mut listener = Listener::of(&client, program.names());

    for step in &vectors.packets {
        let hosts = testbed.fabric.host_ids();
        let at: BTreeMap<u16, HostId> = hosts
            .map(|host| (testbed.fabric.host(host).port, host))
            .collect();
        for number in step.numbers() {
            let arrivals = testbed
                .exchange_stamped(at[&step.port], &[step.frame(number)])
                .into_iter()
                .map(|(host, frames)| (testbed.fabric.host(host).port, frames))
                .collect();
            let checked = step.check(number, &arrivals);
            checked.unwrap_or_else(|why| panic!("{name}, {}, {number}: {why}", step.name));
        }
        for digest in &step.digests {
            // A report of an earlier step would come first, and differ.
            let next = testbed.runtime.block_on(listener.next());
            assert_eq!(&next, digest, "{name}, {}", step.name);
        }
    }

    let read = testbed.runtime.block_on(counters.read());
    let mut counted = Counted::new();
    for (cell, count) in read.expect("a read needs no primary").0 {
        let array = counted.entry(cell.array.into()).or_default();
        array.insert(cell.index, count.packets);
    }
    assert_eq!(counted, vectors.counters, "{name}");
}
