//! Encoding and decoding, in bytes of gradient per second: `cargo bench -p ultima-host --bench
//! codec`.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ultima_host::{Codec, Coding, OperationId};

const ID: OperationId = OperationId { step: 1, bucket: 0 };

fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    // An MLP's gradient, and DDP's default bucket of 25 MB.
    for len in [100_000, 6_553_600] {
        group.throughput(Throughput::Bytes(len as u64 * 4));
        let bucket: Vec<f32> = (0..len).map(|at| at as f32).collect();
        for (name, coding) in [
            ("hadamard", Coding::default()),
            ("identity", Coding::Identity),
        ] {
            let mut codec = Codec::new(coding, 42);
            let (mut encoded, mut decoded) = (Vec::new(), vec![0.0; len]);
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

criterion_group!(benches, codec);
criterion_main!(benches);
