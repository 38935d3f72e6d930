//! Measures the creation and deletion of jobs on embedded switches in the same process:
//! `cargo bench -p ultima-controller --bench install`.
//!
//! Cases: one job on six switches; a further job on a switch with up to 999 jobs; a switch that restarts empty and gets its 100 jobs back.

mod embedded;

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use embedded::{LEAF_SPINE, create, spec, start, switch_at};
use tokio::runtime::Runtime;
use ultima_controller::server::Controller;
use ultima_planner::job::JobSpec;

const STAR: &str = include_str!("../../topologies/star16.yaml");

/// Creates and deletes a job `times` times; returns the total time of the creations, or else of the deletions.
async fn time(controller: &Controller, spec: &JobSpec, times: u64, created: bool) -> Duration {
    let mut took = Duration::ZERO;
    for _ in 0..times {
        let begun = Instant::now();
        create(controller, spec).await.expect("created");
        let between = Instant::now();
        controller.delete_job(&spec.name).await.expect("deleted");
        took += match created {
            true => between - begun,
            false => between.elapsed(),
        };
    }
    took
}

fn install(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let (_switches, handle) = runtime.block_on(start(LEAF_SPINE, 8));
    let controller = handle.controller();
    let mut group = criterion.benchmark_group("install");
    group.sample_size(20);
    for ranks in [1, 8] {
        // Ranks of a host are neighbours.
        let spec = spec("train", (1..=8).flat_map(|host| vec![host; ranks]));
        for (what, created) in [("created", true), ("deleted", false)] {
            let name = format!("{} members, 6 switches, {what}", 8 * ranks);
            group.bench_function(name, |bencher| {
                bencher
                    .iter_custom(|times| runtime.block_on(time(controller, &spec, times, created)));
            });
        }
    }
    group.finish();
    runtime.block_on(handle.stop());
}

/// Memory of this process, controller and switch, in MiB.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib >> 10)
}

/// A job on two of sixteen hosts: 1,000 such jobs fit into the program's counters by source and by share.
fn of_two(number: usize) -> JobSpec {
    let hosts = [number, number + 8].into_iter().map(|at| 1 + at % 16);
    spec(&format!("job{number}"), hosts)
}

/// Measures the creation of the n-th job on a switch. On links with a rate, each creation rewrites the shares of all jobs.
fn many_jobs(criterion: &mut Criterion) {
    for (links, topology) in [
        ("no rates", STAR.replace(", rate: 1G", "")),
        ("1 Gbit/s", STAR.to_owned()),
    ] {
        let runtime = Runtime::new().expect("a runtime");
        let (_switches, handle) = runtime.block_on(start(&topology, 1000));
        let controller = handle.controller();
        let mut group = criterion.benchmark_group(format!("one switch, {links}"));
        group.sample_size(20);
        let mut there = 0;
        for number in [1, 125, 250, 500, 1000] {
            for number in there..number - 1 {
                let created = runtime.block_on(create(controller, &of_two(number)));
                created.expect("created");
            }
            there = number - 1;
            let spec = of_two(there);
            group.bench_function(format!("job number {number}"), |bencher| {
                bencher.iter_custom(|times| runtime.block_on(time(controller, &spec, times, true)));
            });
            if let Some(resident) = resident() {
                eprintln!("{there} jobs: {resident} MiB");
            }
        }
        group.bench_function("999 jobs looked at", |bencher| {
            bencher.iter(|| {
                let audit = runtime.block_on(controller.audit(false));
                for (_, diff) in audit {
                    let differences = diff.map(|diff| diff.differences().len());
                    assert_eq!(differences, Ok(0));
                }
            });
        });
        group.finish();
        runtime.block_on(handle.stop());
    }
}

/// Measures the time from a switch's start until it has all entries again.
fn reboot(criterion: &mut Criterion) {
    const LEAF: usize = 2;
    let runtime = Runtime::new().expect("a runtime");
    let (mut switches, handle) = runtime.block_on(start(LEAF_SPINE, 100));
    let controller = handle.controller();
    for number in 0..100 {
        let spec = spec(&format!("job{number}"), 1..=8);
        runtime
            .block_on(create(controller, &spec))
            .expect("created");
    }
    let is_whole = || {
        let state = &controller.switches()[LEAF];
        state.problem.is_none() && !state.dirty
    };
    let until = async |whole: bool| {
        while is_whole() != whole {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let mut group = criterion.benchmark_group("reboot");
    group.sample_size(10);
    group.bench_function("a leaf with 100 jobs", |bencher| {
        bencher.iter_custom(|times| {
            runtime.block_on(async {
                let mut took = Duration::ZERO;
                for _ in 0..times {
                    let address = switches[LEAF].grpc_addr();
                    switches.remove(LEAF).stop().await.expect("it stops");
                    until(false).await;
                    let begun = Instant::now();
                    switches.insert(LEAF, switch_at(address).await);
                    until(true).await;
                    took += begun.elapsed();
                }
                took
            })
        });
    });
    group.finish();
    runtime.block_on(handle.stop());
}

criterion_group!(benches, install, many_jobs, reboot);
criterion_main!(benches);
