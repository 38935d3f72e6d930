//! The protocol core without a network: packets per second that all ranks together send and receive, on one
//! thread. With a trace it measures the cost of recording, with a key that of sealing and verifying: `cargo
//! bench -p ultima-host --bench core`.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ultima_host::trace::{Clock, Head, TraceFile, WhenFull};
use ultima_host::{Coding, Config, Core, Destination, Event, OperationId, Time};
use ultima_wire::Key;

/// Runs one operation among `cores`, each packet handed over at once; returns the datagrams
/// delivered.
fn run(cores: &mut [Core], id: OperationId, buckets: &mut [Vec<f32>], buf: &mut [u8]) -> u64 {
    let now = Time::ZERO;
    for (core, bucket) in cores.iter_mut().zip(buckets.iter_mut()) {
        core.start(now, id, std::mem::take(bucket)).expect("starts");
    }
    let mut delivered = 0;
    let mut idle = false;
    while !std::mem::replace(&mut idle, true) {
        for from in 0..cores.len() {
            while let Some(transmit) = cores[from].poll_transmit(now, buf) {
                idle = false;
                let datagram = &buf[..transmit.len];
                match transmit.to {
                    Destination::Rank(to) => {
                        cores[usize::from(to)].handle_datagram(now, datagram);
                        delivered += 1;
                    }
                    Destination::Group => {
                        for (_, core) in cores.iter_mut().enumerate().filter(|(to, _)| *to != from)
                        {
                            core.handle_datagram(now, datagram);
                            delivered += 1;
                        }
                    }
                }
            }
        }
    }
    for (core, bucket) in cores.iter_mut().zip(buckets) {
        let Some(Event::Done { result, .. }) = core.poll_event() else {
            panic!("an operation without loss ends");
        };
        *bucket = result;
    }
    delivered
}

fn core(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core");
    for (ranks, slot_bytes, how) in [
        (4, 1408, ""),
        (4, 1408, ", traced"),
        (4, 1408, ", sealed"),
        (4, 8192, ""),
        (4, 8192, ", sealed"),
        (32, 1408, ""),
    ] {
        let len = 1_000_000;
        let config = Config {
            slot_bytes,
            key: (how == ", sealed").then_some(Key([7; 16])),
            coding: Coding::Identity,
            ..Config::new(1, 1, 0, ranks, 42, Duration::from_secs(1))
        };
        let mut cores: Vec<Core> = (0..ranks)
            .map(|rank| {
                Core::new(Config {
                    rank,
                    ..config.clone()
                })
                .expect("a good configuration")
            })
            .collect();
        let trace = (how == ", traced").then(|| {
            let path = std::env::temp_dir().join("ultima-bench-trace.jsonl");
            let head = Head::new(&config, Clock::Real, "a benchmark");
            let trace = TraceFile::create(&path, &head, WhenFull::Drop).expect("a file");
            for core in &mut cores {
                core.trace(Box::new(trace.sink()));
            }
            (path, trace)
        });
        let mut buckets = vec![vec![1.0; len]; usize::from(ranks)];
        let mut buf = vec![0; cores[0].max_datagram()];
        let mut step = 0;
        let mut next = || {
            step += 1;
            run(
                &mut cores,
                OperationId { step, bucket: 0 },
                &mut buckets,
                &mut buf,
            )
        };
        group.throughput(Throughput::Elements(next()));
        let name = format!("slots of {slot_bytes}{how}");
        let name = BenchmarkId::new(format!("{ranks} ranks"), name);
        group.bench_function(name, |bencher| bencher.iter(&mut next));
        if let Some((path, trace)) = trace {
            drop(cores);
            let written = trace.finish().expect("room for it");
            println!("{written:?}");
            std::fs::remove_file(path).expect("it was written");
        }
    }
    group.finish();
}

criterion_group!(benches, core);
criterion_main!(benches);
