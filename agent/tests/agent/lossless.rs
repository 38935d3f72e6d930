//! Jobs with default settings lose nothing: learned timeouts, credit and dynamic incast,
//! packets sealed and as long as the MTU allows. Where a link is slower than the hosts, they lose little. Packets pass the
//! kernel, at loopback or over a veth pair.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use ultima_agent::job::{Addresses, Job, JobBuilder};
use ultima_host::Report;
use ultima_testing::receive_limit::{ReceiveLimit, become_ordinary};
use ultima_testing::veth::Veth;
use ultima_testing::{per_run, skipped};

use crate::job::addresses;

/// Each test holds it: two of them at a time have more threads than the machine can run in time.
static MACHINE: Mutex<()> = Mutex::new(());

/// The network between the ranks.
enum Network {
    /// The loopback interface, with slots of this many bytes, or as long as it allows.
    Loopback(Option<usize>),
    /// The loopback interface, and ranks of an ordinary user, whose receive buffers are limited.
    Ordinary,
    /// The ranks are at its two ends in turn.
    Veth(Veth),
}

/// The end of a veth pair at which `rank` is.
fn end(rank: usize) -> usize {
    rank % 2
}

impl Network {
    fn addresses(&self, ranks: usize) -> Vec<SocketAddr> {
        match self {
            Network::Loopback(_) | Network::Ordinary => addresses(ranks),
            // No other program has ports there.
            Network::Veth(_) => (0..ranks)
                .map(|rank| SocketAddr::from((Veth::address(end(rank)), 7000 + rank as u16)))
                .collect(),
        }
    }

    /// Starts the job of `rank` on the calling thread, which is its own.
    fn start(&self, rank: usize, addresses: &[SocketAddr]) -> Job {
        let rendezvous = Addresses::new(rank, addresses.iter().copied());
        let mut builder = JobBuilder::default().rendezvous(rendezvous);
        let settings = builder.settings_mut();
        match self {
            Network::Loopback(slot_bytes) => {
                settings.shared_memory = false;
                settings.slot_bytes = *slot_bytes;
            }
            Network::Ordinary => {
                settings.shared_memory = false;
                become_ordinary();
            }
            Network::Veth(veth) => veth.enter(end(rank)),
        }
        builder.start().expect("it starts")
    }

    /// Runs `steps` steps of these buckets, all in flight together. Every packet counts, and is sent once.
    fn loses_nothing(&self, ranks: usize, steps: u32, buckets: &[usize]) {
        let addresses = self.addresses(ranks);
        let reports: Vec<Report> = thread::scope(|scope| {
            let addresses = &addresses;
            let start =
                |rank| scope.spawn(move || average(self.start(rank, addresses), steps, buckets));
            let threads: Vec<_> = (0..ranks).map(start).collect();
            threads
                .into_iter()
                .map(|rank| rank.join().expect("no panic"))
                .collect()
        });
        let (mut sent, mut came) = (0, 0);
        // All ranks divide large buckets into as many parts, which count as operations.
        let operations = reports[0].totals.operations;
        assert!(operations >= u64::from(steps) * buckets.len() as u64);
        for report in reports {
            let totals = &report.totals;
            assert_eq!(totals.operations, operations, "{report:?}");
            let lost = totals.lost.scatter.total() + totals.lost.gather.total();
            assert_eq!((lost, totals.rejected.total()), (0, 0), "{report:?}");
            for phase in [totals.phases.scatter, totals.phases.gather] {
                let wrong = (
                    phase.never_sent,
                    phase.late,
                    phase.duplicates,
                    phase.refused,
                );
                assert_eq!(wrong, (0, 0, 0, 0), "{report:?}");
                assert_eq!(phase.sent, phase.slots, "{report:?}");
                (sent, came) = (sent + phase.sent, came + phase.in_time);
            }
            assert_eq!(report.link, Default::default());
        }
        assert_eq!(came, sent);
    }

    /// Jobs of 2 to 16 ranks, buckets of 4 KB to 100 MB. More than ten thousand operations in a full run.
    fn all(&self) {
        for (ranks, few, many, buckets) in [
            (2, 50, 6000, &[1000][..]),
            (2, 5, 400, &[250_000]),
            (3, 0, 6, &[25_000_000]),
            (4, 0, 4, &[25_000_000]),
            (4, 5, 700, &[300_000, 5, 70_000]),
            (4, 1, 15, &[1_500_000, 1_500_000, 1_500_000, 1_500_000]),
            (9, 3, 500, &[100_000, 100_000]),
            (16, 2, 400, &[20_000, 1000, 50_000]),
        ] {
            let steps = per_run(few, many);
            if steps > 0 {
                self.loses_nothing(ranks, steps, buckets);
            }
        }
    }
}

/// Averages as one rank, and returns its counters.
fn average(job: Job, steps: u32, buckets: &[usize]) -> Report {
    let (own, mean) = (f32::from(job.rank()), f32::from(job.ranks() - 1) / 2.0);
    for _ in 0..steps {
        let start = |(bucket, len): (u16, &usize)| job.all_reduce_bucket(bucket, vec![own; *len]);
        let pending: Vec<_> = (0..).zip(buckets).map(start).collect();
        for pending in pending {
            let reduced = pending.wait().expect("it ends");
            assert!(reduced.outcome.is_whole(), "{:?}", reduced.outcome);
            let errors = reduced.values.iter().map(|value| (value - mean).abs());
            let error = errors.fold(0.0, f32::max);
            assert!(error < 1e-4, "error {error} of {:?}", reduced.outcome);
        }
    }
    job.finish(Duration::from_millis(50)).expect("it finishes")
}

/// 100 Mbit/s and a queue of 64 KB at each end, without a configured rate.
#[test]
fn little_is_lost_where_a_link_is_slower_than_the_hosts() {
    let _machine = MACHINE.lock();
    let Some(veth) = Veth::new() else {
        return skipped("only root may add namespaces");
    };
    if !veth.shape("100mbit", 64 << 10) {
        return skipped("the kernel has no tbf");
    }
    let network = Network::Veth(veth);
    let addresses = network.addresses(4);
    let ended: Vec<Report> = thread::scope(|scope| {
        let ranks = (0..4).map(|rank| (rank, &network, &addresses));
        let ranks: Vec<_> = ranks
            .map(|(rank, network, addresses)| {
                scope.spawn(move || {
                    let job = network.start(rank, addresses);
                    for _ in 0..60 {
                        let pending = job.all_reduce(vec![1.0; 100_000]);
                        pending.wait().expect("it ends");
                    }
                    job.finish(Duration::from_millis(50)).expect("it finishes")
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("no panic"))
            .collect()
    });
    for Report { totals, .. } in ended {
        let lost = totals.lost.scatter.total() + totals.lost.gather.total();
        let owed = totals.phases.scatter.slots + totals.phases.gather.slots;
        assert!(lost * 20 < owed, "{lost} of {owed}: {totals:?}");
    }
}

#[test]
fn nothing_is_lost_at_loopback() {
    let _machine = MACHINE.lock();
    Network::Loopback(None).all();
}

#[test]
fn nothing_is_lost_at_loopback_in_short_packets() {
    let _machine = MACHINE.lock();
    Network::Loopback(Some(1408)).all();
}

#[test]
fn nothing_is_lost_over_a_veth_pair() {
    let _machine = MACHINE.lock();
    match Veth::new() {
        Some(veth) => Network::Veth(veth).all(),
        None => skipped("only root may add namespaces"),
    }
}

/// Linux's default limit of receive buffers, which root's sockets in the other tests exceed.
#[test]
fn nothing_is_lost_in_the_buffers_of_an_ordinary_user() {
    let _machine = MACHINE.lock();
    let Some(_limit) = ReceiveLimit::set(212_992) else {
        return skipped("only root may set net.core.rmem_max, where it is visible");
    };
    for (ranks, few, many, buckets) in [
        (2, 20, 2000, &[1000][..]),
        (4, 3, 300, &[300_000, 5, 70_000]),
        (16, 1, 150, &[20_000, 1000, 50_000]),
    ] {
        Network::Ordinary.loses_nothing(ranks, per_run(few, many), buckets);
    }
}
