//! Measures membership changes against the number of members and jobs: `cargo bench -p ultima-controller --bench membership`.
//!
//! Cases: a change of all members, from the request until the old epoch is off the switches; a suspicion of a member, until a client that
//! watches the job gets the event, and a list of all jobs, both with other jobs present; and the computations of these by themselves.

mod crowd;
mod embedded;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use crowd::Crowd;
use embedded::{LEAF_SPINE, create, spec, start};
use tokio::runtime::Runtime;
use ultima_api::client::{Client, JobWatch};
use ultima_api::v1::membership_event::Kind;
use ultima_planner::fabric::HostId;
use ultima_planner::job::{JobSpec, Rank};
use ultima_planner::membership::{Seen, Succession, Suspicion};

const MEMBERS: [u16; 3] = [100, 1000, 4000];
/// Members of a job that all change. Each gets a list of all others, and all are in this process: 4,000 do not acknowledge in time on two cores.
const CHANGING: [usize; 3] = [100, 300, 1000];
const JOBS: [usize; 2] = [100, 1000];
const HOSTS: usize = 8;

/// Measures the assignment of ranks in a resize that replaces half of the members.
fn succession(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("assign ranks");
    for members in MEMBERS {
        let from: Vec<HostId> = (0..members.into()).map(HostId).collect();
        let to: Vec<HostId> = (usize::from(members / 2)..usize::from(members / 2 * 3))
            .map(HostId)
            .collect();
        group.throughput(Throughput::Elements(members.into()));
        group.bench_function(BenchmarkId::from_parameter(members), |bencher| {
            bencher.iter(|| {
                let succession =
                    Succession::new(&from, |_| true, black_box(&to), |_| String::new());
                let becomes = (0..members).filter_map(|rank| succession.becomes(Rank(rank)));
                assert_eq!(becomes.count(), usize::from(members / 2));
            });
        });
    }
    group.finish();
}

/// Measures the search for suspects if all members report the same one.
fn suspicion(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a look at members");
    for members in MEMBERS {
        let all: BTreeSet<Rank> = (0..members).map(Rank).collect();
        let seen = Seen {
            with_session: all.iter().copied().skip(1).collect(),
            joined: all,
        };
        let mut suspicion = Suspicion::default();
        for by in 1..members {
            suspicion.report(Rank(by), [Rank(0)]);
        }
        let now = Instant::now();
        group.throughput(Throughput::Elements(members.into()));
        group.bench_function(BenchmarkId::from_parameter(members), |bencher| {
            bencher.iter_batched_ref(
                || suspicion.clone(),
                |suspicion| assert_eq!(suspicion.update(&seen, now).len(), 1),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// Waits for an event of this kind.
async fn until(watch: &mut JobWatch, kind: Kind) {
    loop {
        let next = watch.next().await.expect("it answers");
        let event = next.expect("the job is there").event;
        let event = event.unwrap_or_default();
        assert_ne!(event.kind(), Kind::Cancelled, "{}", event.reason);
        if event.kind() == kind {
            return;
        }
    }
}

/// A job with this many ranks; ranks of a host are consecutive.
fn of_many(members: usize) -> JobSpec {
    spec("train", (0..members).map(|rank| 1 + rank * HOSTS / members))
}

/// Reverses the order of the members `times` times; returns the total time.
async fn change(client: &Client, hosts: &mut [String], times: u64) -> Duration {
    let mut took = Duration::ZERO;
    let mut watch = client.watch_job("train").await.expect("it is there");
    for _ in 0..times {
        hosts.reverse();
        let begun = Instant::now();
        let changed = client
            .resize_job("train", None, hosts, Duration::from_secs(60), false)
            .await;
        changed.expect("there is room");
        until(&mut watch, Kind::Fenced).await;
        took += begun.elapsed();
    }
    took
}

fn changes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("all members change");
    group.sample_size(10);
    for members in CHANGING {
        let runtime = Runtime::new().expect("a runtime");
        let (_switches, handle) = runtime.block_on(start(LEAF_SPINE, 500));
        let address = handle.address().to_string();
        let spec = of_many(members);
        let mut hosts = spec.members.clone();
        let controller = handle.controller();
        runtime
            .block_on(create(controller, &spec))
            .expect("created");
        let (client, _crowd) = runtime.block_on(async {
            let crowd = Crowd::join(&address, "train", &hosts).await;
            (Client::connect(&address).await.expect("it answers"), crowd)
        });
        group.throughput(Throughput::Elements(members as u64));
        group.bench_function(BenchmarkId::from_parameter(members), |bencher| {
            bencher.iter_custom(|times| runtime.block_on(change(&client, &mut hosts, times)));
        });
        runtime.block_on(handle.stop());
    }
    group.finish();
}

/// The first member suspects the second one and withdraws the suspicion, `times` times; returns half of the total time.
async fn suspicions(crowd: &Crowd, watch: &mut JobWatch, times: u64) -> Duration {
    let begun = Instant::now();
    for _ in 0..times {
        crowd.suspect(&[1]);
        until(watch, Kind::Suspected).await;
        crowd.suspect(&[]);
        until(watch, Kind::Cleared).await;
    }
    begun.elapsed() / 2
}

fn of_two(number: usize) -> JobSpec {
    spec(&format!("job{number}"), 1..=2)
}

fn with_other_jobs(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let (_switches, handle) = runtime.block_on(start(LEAF_SPINE, 1023));
    let address = handle.address().to_string();
    let controller = handle.controller();
    let mut group = criterion.benchmark_group("with other jobs");
    group.sample_size(20);
    let mut there = 0;
    for jobs in JOBS {
        for number in there..jobs {
            let spec = of_two(number);
            runtime
                .block_on(create(controller, &spec))
                .expect("created");
        }
        there = jobs;
        let (client, crowd, mut watch) = runtime.block_on(async {
            let JobSpec {
                name: job, members, ..
            } = of_two(jobs - 1);
            let client = Client::connect(&address).await.expect("it answers");
            let watch = client.watch_job(&job).await.expect("it is there");
            let crowd = Crowd::join(&address, &job, &members).await;
            (client, crowd, watch)
        });
        group.bench_function(BenchmarkId::new("suspicion", jobs), |bencher| {
            bencher.iter_custom(|times| runtime.block_on(suspicions(&crowd, &mut watch, times)));
        });
        group.bench_function(BenchmarkId::new("a list of all", jobs), |bencher| {
            bencher.iter(|| {
                let all = runtime.block_on(client.jobs()).expect("it answers");
                assert_eq!(all.len(), jobs);
            });
        });
    }
    group.finish();
    runtime.block_on(handle.stop());
}

criterion_group!(benches, succession, suspicion, with_other_jobs, changes);
criterion_main!(benches);
