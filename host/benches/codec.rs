//! Encoding and decoding, in bytes of gradient per second, and the transform alone for each instruction set:
//! `cargo bench -p ultima-host --bench codec`. `identity` is a copy of the bucket: the memory's speed.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ultima_host::{Buffer, Codec, Coding, OperationId};

// The transform is private to the library.
#[allow(dead_code, reason = "the library uses the rest")]
#[path = "../src/codec/hadamard.rs"]
mod hadamard;
#[allow(dead_code, reason = "the library uses the rest")]
#[path = "../src/codec/simd.rs"]
mod simd;

use simd::{Cpu, Row, Simd, Task};

const ID: OperationId = OperationId { step: 1, bucket: 0 };

fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    // 1, 10 and 100 MB, and DDP's default bucket of 25 MiB.
    for len in [250_000, 2_500_000, 6_553_600, 25_000_000] {
        group.throughput(Throughput::BytesDecimal(len as u64 * 4));
        let bucket: Vec<f32> = (0..len).map(|at| at as f32).collect();
        for (name, coding, threads) in [
            ("hadamard", Coding::default(), 1),
            ("hadamard on two threads", Coding::default(), 2),
            ("identity", Coding::Identity, 1),
        ] {
            let mut codec = Codec::new(coding, 42).with_threads(threads);
            let (mut encoded, mut decoded) = (Buffer::default(), Buffer::zeroed(len));
            codec.encode(ID, &bucket, &mut encoded);
            group.bench_function(BenchmarkId::new(format!("encode/{name}"), len), |bencher| {
                bencher.iter(|| codec.encode(ID, black_box(&bucket), &mut encoded));
            });
            group.bench_function(BenchmarkId::new(format!("decode/{name}"), len), |bencher| {
                bencher.iter(|| codec.decode(ID, black_box(&encoded), &mut decoded));
            });
        }
    }
    group.finish();
}

/// Transforms one vector in rows of 16 values, in place and without a scale.
struct Transform<'a>(&'a mut [Row]);

impl Task for Transform<'_> {
    #[inline(always)]
    fn run<S: Simd, const R: usize>(self, simd: S) {
        let Self(rows) = self;
        let far = hadamard::far_stride::<R>(rows.len());
        for done in (16..=rows.len()).step_by(16) {
            let group = &mut rows[done - 16..done];
            for row in group.iter_mut() {
                hadamard::across::<S, 1, true>(simd, row);
            }
            for near in group.chunks_exact_mut(R) {
                hadamard::pass::<S, R, true>(simd, near, 1);
            }
            hadamard::ascend::<S, R>(simd, rows, done, far);
        }
        hadamard::far_pass::<S, true>(simd, rows, far);
    }
}

fn name(cpu: Cpu) -> &'static str {
    match cpu {
        Cpu::Portable => "portable",
        #[cfg(target_arch = "aarch64")]
        Cpu::Neon(_) => "neon",
        #[cfg(target_arch = "x86_64")]
        Cpu::Avx2(_) => "avx2",
        #[cfg(target_arch = "x86_64")]
        Cpu::Avx512(_) => "avx512",
    }
}

fn transform(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("transform");
    for log2 in (10..=20).step_by(2) {
        group.throughput(Throughput::BytesDecimal(4 << log2));
        let mut rows = vec![Row::ZERO; 1 << (log2 - 4)];
        for cpu in Cpu::available() {
            group.bench_function(
                BenchmarkId::new(name(cpu), format!("2^{log2}")),
                |bencher| {
                    bencher.iter(|| cpu.run(Transform(black_box(&mut rows))));
                },
            );
        }
    }
    group.finish();
}

criterion_group!(benches, codec, transform);
criterion_main!(benches);
