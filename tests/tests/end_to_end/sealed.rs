//! A job with a forger, which sends packets as a member from that member's port, like another program on the member's host.

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
use ultima_wire::{Header, Key, Sealer};

const RANKS: u16 = 3;
/// The rank whose port the forger uses.
const FORGED_RANK: u16 = 2;
/// Each shard has one slot.
const VALUES: usize = 100 * RANKS as usize;
const ID: OperationId = OperationId { step: 0, bucket: 0 };
/// A value that no rank sends.
const FORGED_VALUE: f32 = 1e6;
/// A bound that a busy machine meets.
const T_B: Duration = Duration::from_secs(20);

/// Forged contributions to the others' shards, and a forged aggregate, each sealed with these keys. The frames are correct
/// otherwise.
fn forgeries(job: &Job, keys: &[Option<Key>]) -> Vec<Vec<u8>> {
    let values = FORGED_VALUE
        .to_le_bytes()
        .repeat(VALUES / usize::from(RANKS));
    let scatter = (0..RANKS)
        .filter(|owner| *owner != FORGED_RANK)
        .map(|owner| (job.scatter(FORGED_RANK, owner, &values), owner));
    let packets: Vec<_> = scatter
        .chain([(job.gather(FORGED_RANK, &values), FORGED_RANK)])
        .collect();
    let forge = |key: &Option<Key>| {
        let frame = |(packet, owner): &(ultima_tests::generator::Datagram, u16)| {
            let (sent, _) = Header::parse(&packet.payload).expect("a packet");
            let mut header = Header {
                step: ID.step,
                bucket: ID.bucket,
                slot: 0,
                slots: 1,
                length_check: ultima_wire::length_check(VALUES),
                contributions: if *owner == FORGED_RANK { RANKS } else { 1 },
                ..sent
            };
            if let Some(key) = key {
                header.seal(&mut Sealer::new(key), &values);
            }
            packet.with_header(&header).emit()
        };
        packets.iter().map(frame).collect::<Vec<_>>()
    };
    keys.iter().flat_map(forge).collect()
}

/// Averages with forged packets sent first. Returns, for each rank, the result, the number of datagrams rejected for their
/// seal, and the number of all rejected datagrams.
fn average(yaml: &str, keys: &[Option<Key>]) -> Vec<(Vec<f32>, u64, u64)> {
    let (testbed, ends) = Testbed::of_embedded_with_hosts(Fabric::star());
    let controller = Controller::start(&testbed);
    let job = controller.create(&testbed, yaml);
    let (client, mut ends) = (controller.client(), ends.into_iter());
    let mut forger = None;
    let mut collectives = Vec::new();
    for rank in 0..RANKS {
        let host = job.host_of(rank);
        let end = ends.next().expect("one rank per host");
        if rank == FORGED_RANK {
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
    // The forged packets are ahead of the rank's own packets at that port.
    let mut forger = forger.expect("the forged rank");
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
fn a_sealed_job_rejects_and_counts_forged_packets() {
    let keys = [None, Some(Key(*b"none of the jobs"))];
    let yaml = "{ name: train, members: [h1, h2, h3] }";
    for (rank, (values, seal, rejected)) in (0..).zip(average(yaml, &keys)) {
        assert!(values.iter().all(|value| *value == 1.0), "{values:?}");
        // A contribution and an aggregate, each without a tag and with a wrong one.
        let forged = if rank == FORGED_RANK { 0 } else { 4 };
        assert_eq!((seal, rejected), (forged, forged), "rank {rank}");
    }
}

/// The counterpart of the test above: without sealing, the ranks accept the same packets.
#[test]
fn a_job_that_is_not_sealed_accepts_forged_packets() {
    let yaml = "{ name: train, members: [h1, h2, h3], sealed: false }";
    for (rank, (values, _, rejected)) in (0..).zip(average(yaml, &[None])) {
        let forged = values.iter().filter(|value| **value > 1.0).count();
        // The shards of ranks 0 and 1, and on those ranks also the aggregate of rank 2. It replaces a contribution to rank 2's
        // shard that is not sent yet.
        let is_right = forged == 300 || rank == FORGED_RANK && forged == 200;
        assert!(
            is_right && rejected == 0,
            "rank {rank}: {forged} {rejected}"
        );
    }
}
