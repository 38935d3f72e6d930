//! Duration of a simulated operation per simulated event.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ultima_sim::{Algorithm, Experiment};

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("events");
    group.sample_size(10);
    for algorithm in Algorithm::ALL {
        let experiment = Experiment {
            bytes: 4_000_000,
            ..Experiment::new(algorithm, 32)
        };
        let run = || experiment.run(&mut |_| ()).expect("a possible experiment");
        group.throughput(Throughput::Elements(run().events));
        group.bench_function(algorithm.name(), |b| b.iter(run));
    }
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
