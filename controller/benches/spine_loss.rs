//! Measures how long 100 jobs on six embedded switches take to leave a spine that is lost:
//! `cargo bench -p ultima-controller --bench spine_loss`.
//!
//! A case is the time from the loss to the last write on the other five switches, the grace (`DampingConfig::grace`) included.

mod embedded;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, criterion_group, criterion_main};
use embedded::{LEAF_SPINE, create, spec, start, switch_at};
use tokio::runtime::Runtime;
use ultima_planner::reconcile::Diff;

const JOBS: usize = 100;

#[derive(Clone, Copy, Debug)]
enum Loss {
    /// The switch stops, and its connections end.
    Stop,
    /// The connections stay open, and the switch does not answer.
    Hang,
}

/// A switch in a runtime of its own, so that nothing else of this process stops or hangs with it.
struct Spine {
    address: SocketAddr,
    loss: mpsc::Sender<Loss>,
    /// Set when a hanging switch may end.
    is_over: Arc<AtomicBool>,
}

impl Spine {
    fn start() -> Self {
        let (addresses, address) = mpsc::channel();
        let (loss, losses) = mpsc::channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        thread::spawn(move || {
            let runtime = Runtime::new().expect("a runtime");
            let switch = runtime.block_on(switch_at(SocketAddr::from(([127, 0, 0, 1], 0))));
            addresses.send(switch.grpc_addr()).expect("a receiver");
            if let Ok(Loss::Hang) = losses.recv() {
                for _ in 0..runtime.metrics().num_workers() {
                    let ends = Arc::clone(&ends);
                    runtime.spawn(async move { wait_until(&ends) });
                }
                wait_until(&ends);
            }
            runtime.block_on(switch.stop()).expect("it stops");
        });
        Spine {
            address: address.recv().expect("an address"),
            loss,
            is_over,
        }
    }
}

impl Drop for Spine {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Blocks the thread until `flag` is set.
fn wait_until(flag: &AtomicBool) {
    while !flag.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the time from the loss of spine1 to the last write.
async fn lose(loss: Loss) -> Duration {
    let spine = Spine::start();
    let name = "name: spine1 }";
    assert!(LEAF_SPINE.contains(name));
    let entry = format!("name: spine1, grpc: \"{}\", device_id: 1 }}", spine.address);
    let (switches, handle) = start(&LEAF_SPINE.replace(name, &entry), JOBS as u32).await;
    let controller = handle.controller();
    for job in 0..JOBS {
        let spec = spec(&format!("job{job}"), 1..=8);
        create(controller, &spec).await.expect("created");
    }
    let on_spine = || controller.switches()[0].jobs.len();
    assert_eq!(on_spine(), JOBS);

    let begun = Instant::now();
    spine.loss.send(loss).expect("a spine");
    while on_spine() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // A request is answered after all writes of a move, also this one, which fails.
    let refused = controller.delete_job("none").await;
    refused.expect_err("there is no such job");
    let took = begun.elapsed();

    let audit = controller.audit(false).await;
    let is_whole = |diff: &Result<_, _>| diff.as_ref().is_ok_and(Diff::is_empty);
    let whole = audit.iter().filter(|(_, diff)| is_whole(diff)).count();
    assert_eq!(whole, switches.len(), "all other switches match the plan");
    handle.stop().await;
    for switch in switches {
        switch.stop().await.expect("it stops");
    }
    took
}

fn spine_loss(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = criterion.benchmark_group(format!("{JOBS} jobs leave a spine"));
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    for (name, loss) in [("that stops", Loss::Stop), ("that hangs", Loss::Hang)] {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|times| (0..times).map(|_| runtime.block_on(lose(loss))).sum());
        });
    }
    group.finish();
}

criterion_group!(benches, spine_loss);
criterion_main!(benches);
