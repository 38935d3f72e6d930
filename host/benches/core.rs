//! The protocol core without a network: packets per second that all ranks together send and receive, on one
//! thread. With a trace it measures the cost of recording, with a key that of sealing and verifying, and of rejecting
//! hostile packets: `cargo bench -p ultima-host --bench core`.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ultima_host::trace::{Clock, Head, TraceFile, WhenFull};
use ultima_host::{Coding, Config, Core, Destination, Event, OperationId, Time, Values};
use ultima_wire::{Key, SLOT_AT};

/// Runs one operation among `cores`, each packet handed over at once; returns the datagrams
/// delivered.
fn run(cores: &mut [Core], id: OperationId, buckets: &mut [Values], buf: &mut [u8]) -> u64 {
    let now = Time::ZERO;
    for (core, bucket) in cores.iter_mut().zip(buckets.iter_mut()) {
        core.start(now, id, std::mem::take(bucket)).expect("starts");
    }
    let mut delivered = 0;
    let mut idle = false;
    while !std::mem::replace(&mut idle, true) {
        for from in 0..cores.len() {
            while let Some(transmit) = cores[from].next_datagram(now, buf) {
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
        (4, 7616, ""),
        (4, 7616, ", sealed"),
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
        let bucket = || Values::from(vec![1.0; len]);
        let mut buckets: Vec<Values> = (0..ranks).map(|_| bucket()).collect();
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

/// The time to reject a packet that no member of a sealed job sent: its tag is wrong, or only its payload.
fn hostile(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hostile");
    for slot_bytes in [1408, 7616] {
        let config = Config {
            slot_bytes,
            key: Some(Key([7; 16])),
            ..Config::new(1, 1, 0, 2, 42, Duration::from_secs(1))
        };
        let core = |rank| {
            let config = Config {
                rank,
                ..config.clone()
            };
            Core::new(config).expect("a good configuration")
        };
        let (mut attacked, mut other) = (core(0), core(1));
        let mut buf = vec![0; other.max_datagram()];
        let id = OperationId { step: 1, bucket: 0 };
        for core in [&mut attacked, &mut other] {
            core.start(Time::ZERO, id, vec![1.0; 100_000])
                .expect("starts");
        }
        let sent = other.next_datagram(Time::ZERO, &mut buf).expect("a packet");
        for (what, at) in [("tag", SLOT_AT), ("payload", sent.len - 1)] {
            let mut forged = buf[..sent.len].to_vec();
            forged[at] ^= 1;
            let name = BenchmarkId::new(format!("wrong {what}"), slot_bytes);
            group.bench_function(name, |bencher| {
                bencher.iter(|| attacked.handle_datagram(Time::ZERO, &forged));
            });
        }
        assert!(attacked.totals().rejected.total() > 0);
    }
    group.finish();
}

criterion_group!(benches, core, hostile);
criterion_main!(benches);
