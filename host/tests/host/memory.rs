//! Memory does not grow over a run, whatever the network does.

use std::ops::Range;
use std::time::Duration;

use crate::common::{Network, Random, config};
use ultima_host::{
    Config, Core, Exact, OperationId, Pacing, Part, RatePolicy, Recycling, Time, Timeouts,
    ValueStore, Values,
};
use ultima_testing::heap;

/// Ranks start late or never; packets are lost, duplicated, delayed and trimmed; every tenth step has an
/// exact operation. Live bytes still grow by about 2 % in 300 steps, up to step 1,600: the more operations, the more bytes arrive
/// early for one of them, and each rank keeps two buffers of that size.
#[test]
fn memory_does_not_grow() {
    const RANKS: u16 = 4;
    let mut network = Network::new(&Config {
        slot_bytes: 256,
        recycling: Some(Recycling { keep: 4 }),
        timeouts: Timeouts::CauseAware,
        ..config(RANKS)
    });
    let mut random = Random::new(6);
    let mut cut = Random::new(7);
    network.fifo = false;
    network.faults = Box::new(move |_, _| {
        let delay = Duration::from_micros(random.below(2000));
        match random.below(10) {
            0 => vec![],
            1 => vec![delay, delay * 2],
            _ => vec![delay],
        }
    });
    network.switch = Some(Box::new(move |header, _| {
        header.switch_flags.trimmed = cut.chance(0.05);
    }));
    let mut starts = Random::new(8);
    let mut peaks = Vec::new();
    for step in 0..900 {
        let start = |_| match starts.below(20) {
            0 => None,
            late => Some(Duration::from_millis(late / 5)),
        };
        let when: Vec<_> = (0..RANKS).map(start).collect();
        let id = OperationId { step, bucket: 0 };
        network.run(id, vec![vec![1.0; 5000]; RANKS.into()], &when);
        for core in &mut network.cores {
            core.take_corrections(0);
        }
        if step % 10 == 0 {
            let id = OperationId { step, bucket: 1 };
            let now = network.now;
            for core in &mut network.cores {
                // A rank without an earlier operation of the step starts it with this one.
                let _ = core.start_exact(
                    now,
                    id,
                    Exact::Sum,
                    vec![1.0; 100],
                    Duration::from_millis(40),
                );
            }
            network.drain();
        }
        peaks.push(heap::live_bytes());
    }
    // The same operations, early and late in the run.
    let most = |steps: &[i64]| *steps.iter().max().expect("some");
    let (early, late) = (most(&peaks[400..600]), most(&peaks[700..900]));
    println!("at most {early} bytes in steps 400 to 599, {late} in steps 700 to 899");
    assert!(late < early + early / 10, "{early} {late}");
}

/// During an operation with four slots for each rank, of which there may be thousands: with the defaults, and
/// with some policies.
#[test]
fn few_bytes_are_kept_of_each_rank() {
    let plain = kept_of_each(&|config| config);
    let learned = kept_of_each(&|config| Config {
        timeouts: Timeouts::CauseAware,
        ..config
    });
    let paced = kept_of_each(&|config| Config {
        pacing: Some(Pacing {
            bits_per_second: 100_000_000_000,
            burst: 0,
            policy: RatePolicy::InBand,
        }),
        ..config
    });
    let recycled = kept_of_each(&|config| Config {
        recycling: Some(Recycling::default()),
        ..config
    });
    println!("{plain} bytes; learned {learned}, paced {paced}, recycled {recycled}");
    assert!(plain < 40.0, "{plain} bytes");
    let more = [learned, paced, recycled].map(|bytes| bytes - plain);
    let most = [9.0, 1.0, 41.0];
    assert!(
        more.iter().zip(most).all(|(more, most)| *more < most),
        "{more:?}"
    );
}

/// The number of an operation's values, without memory for them.
#[derive(Default)]
struct Counted(usize);

impl ValueStore for Counted {
    fn count(&self) -> usize {
        self.0
    }

    fn resize(&mut self, count: usize) {
        self.0 = count;
    }

    fn get(&self, _: Range<usize>) -> &[f32] {
        &[]
    }

    fn get_mut(&mut self, _: Range<usize>) -> &mut [f32] {
        &mut []
    }

    fn into_values(self) -> Values {
        Values::default()
    }
}

/// Bytes per rank, other than values, of a core that has one operation in progress.
fn kept_of_each(configure: &dyn Fn(Config) -> Config) -> f64 {
    const SLOTS: usize = 4;
    let kept = |ranks: u16| {
        let before = heap::live_bytes();
        let configured = Core::with_store(configure(config(ranks)));
        let mut core = configured.expect("a good configuration");
        let len = core.config().slot_len() * SLOTS * usize::from(ranks);
        let id = OperationId { step: 0, bucket: 0 };
        core.start_with(Time::ZERO, id, Part::Whole.into(), Counted(len))
            .expect("starts");
        heap::live_bytes() - before
    };
    let ranks = [1024, 2048];
    let [few, many] = ranks.map(kept);
    (many - few) as f64 / f64::from(ranks[1] - ranks[0])
}
