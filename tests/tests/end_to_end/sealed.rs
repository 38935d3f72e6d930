//! A job at work with a forger in its fabric, who sends from a member's port in its name, as a program on its host may.

use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::Duration;

use ultima_agent::Membership;
use ultima_host::{Coding, Collective, Config, OperationId, Rejection};
use ultima_tests::controller::Controller;
use ultima_tests::fabric::Fabric;
use ultima_tests::job::Job;
use ultima_tests::testbed::Testbed;
use ultima_wire::{Header, Key};

const RANKS: u16 = 3;
/// The rank whose port the forger has.
const FORGED: u16 = 2;
/// A slot for each shard.
const VALUES: usize = 100 * RANKS as usize;
const ID: OperationId = OperationId { step: 0, bucket: 0 };
/// Nobody's value.
const LIE: f32 = 1e6;
/// A bound that even a busy machine meets.
const T_B: Duration = Duration::from_secs(20);

/// A forger's contributions to the others' shards and aggregate of its own, each sealed under these keys: frames that
/// are right but for that.
fn forgeries(job: &Job, keys: &[Option<Key>]) -> Vec<Vec<u8>> {
    let lies = LIE.to_le_bytes().repeat(VALUES / usize::from(RANKS));
    let scatter = (0..RANKS)
        .filter(|owner| *owner != FORGED)
        .map(|owner| (job.scatter(FORGED, owner, &lies), owner));
    let packets: Vec<_> = scatter
        .chain([(job.gather(FORGED, &lies), FORGED)])
        .collect();
    let forge = |key: &Option<Key>| {
        let frame = |(packet, owner): &(ultima_tests::generator::Datagram, u16)| {
            let (sent, _) = Header::parse(&packet.payload).expect("a packet");
            let mut header = Header {
                step: ID.step,
                bucket: ID.bucket,
                slot: 0,
                slots: 1,
                contributions: if *owner == FORGED { RANKS } else { 1 },
                ..sent
            };
            if let Some(key) = key {
                header.seal(key, &lies);
            }
            packet.with_header(&header).emit()
        };
        packets.iter().map(frame).collect::<Vec<_>>()
    };
    keys.iter().flat_map(forge).collect()
}

/// What the ranks average with forgeries in front of what they send, and how many datagrams each refused for their seal,
/// and in all.
fn average(yaml: &str, keys: &[Option<Key>]) -> Vec<(Vec<f32>, u64, u64)> {
    let (testbed, ends) = Testbed::of_embedded_with_hosts(Fabric::star());
    let controller = Controller::start(&testbed);
    let job = controller.create(&testbed, yaml);
    let (client, mut ends) = (controller.client(), ends.into_iter());
    let mut forger = None;
    let mut collectives = Vec::new();
    for rank in 0..RANKS {
        let host = job.host_of(rank);
        let end = ends.next().expect("a rank a host");
        if rank == FORGED {
            forger = Some(File::from(end.try_clone().expect("descriptors are left")));
        }
        let name = &testbed.fabric.host(host).name;
        let joined = Membership::join(&client, "train", name, Duration::ZERO);
        let membership = testbed.runtime.block_on(joined);
        let membership = membership.unwrap_or_else(|error| panic!("{error}"));
        let config = Config {
            coding: Coding::Identity,
            ..membership.config(T_B)
        };
        let collective = Collective::over_port(config, membership.port(end));
        collectives.push(collective.unwrap_or_else(|error| panic!("{error}")));
    }
    // They are in front of what the rank itself sends by that port.
    let mut forger = forger.expect("one of the ranks");
    for frame in forgeries(&job, keys) {
        forger.write_all(&frame).expect("the port takes frames");
    }
    let ranks = (0..RANKS).zip(collectives).map(|(rank, mut collective)| {
        thread::spawn(move || {
            let mut values = vec![f32::from(rank); VALUES];
            let outcome = collective.allreduce(ID, &mut values).expect("averages");
            assert!(outcome.is_whole(), "rank {rank}: {outcome:?}");
            let report = collective.finish(Duration::from_millis(100));
            let rejected = report.expect("finishes").totals.rejected;
            (values, rejected.of(Rejection::Seal), rejected.total())
        })
    });
    let ranks: Vec<_> = ranks.collect();
    ranks
        .into_iter()
        .map(|rank| rank.join().expect("no panic"))
        .collect()
}

#[test]
fn in_a_sealed_job_a_forgery_is_counted_and_no_more() {
    let keys = [None, Some(Key(*b"none of the jobs"))];
    let yaml = "{ name: train, members: [h1, h2, h3], sealed: true }";
    for (rank, (values, seal, rejected)) in (0..).zip(average(yaml, &keys)) {
        assert!(values.iter().all(|value| *value == 1.0), "{values:?}");
        // A contribution and an aggregate, each without a tag and with another.
        let forged = if rank == FORGED { 0 } else { 4 };
        assert_eq!((seal, rejected), (forged, forged), "rank {rank}");
    }
}

/// So that the test above tells something: the same packets are taken where no key is asked for.
#[test]
fn in_a_job_that_is_not_sealed_a_forgery_is_taken() {
    let yaml = "{ name: train, members: [h1, h2, h3] }";
    for (rank, (values, _, rejected)) in (0..).zip(average(yaml, &[None])) {
        let lied = values.iter().filter(|value| **value > 1.0).count();
        // The shards of ranks 0 and 1, and what those two were told of rank 2's.
        let expected = if rank == FORGED { 200 } else { 300 };
        assert_eq!((lied, rejected), (expected, 0), "rank {rank}");
    }
}
