//! Buckets that are averaged in parts.

use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use ultima_agent::Settings;
use ultima_agent::job::{Addresses, Job, JobError};
use ultima_host::{Element, Error};

use crate::job::{addresses, builder, on_threads};

/// Long enough for any operation on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// Values of buckets: in three parts, and in one.
const LARGE: usize = 1_700_017;
const SMALL: usize = 1000;

/// Starts a job of `ranks` with these settings, and runs `run` at each rank.
fn with_settings<T: Send + 'static>(
    ranks: usize,
    settings: Settings,
    run: impl Fn(Job) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let addresses = addresses(ranks);
    on_threads(ranks, move |rank| {
        let builder = builder(Addresses::new(rank, addresses.clone()));
        run(builder.settings(settings).start().expect("it starts"))
    })
}

/// Values of a rank's bucket that differ from entry to entry.
fn values(rank: u16, step: u16, len: usize) -> Vec<f32> {
    let of = |at: usize| (at % 1013) as f32 + f32::from(rank * 3 + step);
    (0..len).map(of).collect()
}

/// The largest distance of values from the mean of `ranks`.
fn error(reduced: &[f32], ranks: Range<u16>, step: u16) -> f32 {
    let mean = ranks.clone().sum::<u16>() as f32 * 3.0 / ranks.len() as f32;
    let expected = values(0, step, reduced.len());
    let errors = reduced.iter().zip(expected);
    let errors = errors.map(|(is, expected)| (is - expected - mean).abs());
    errors.fold(0.0, f32::max)
}

#[test]
fn a_bucket_in_parts_has_one_whole_outcome() {
    let settings = Settings::new(DEADLINE);
    let recycling = Settings {
        recycling: true,
        ..settings
    };
    let bf16 = Settings {
        element: Element::Bf16,
        ..settings
    };
    for (settings, tolerance) in [(settings, 0.01), (recycling, 0.01), (bf16, 30.0)] {
        with_settings(3, settings, move |job| {
            for step in 0..3 {
                // Ranks start buckets in another order.
                let mut lens = [(0, LARGE), (1, SMALL), (2, LARGE)];
                lens.rotate_left(usize::from(job.rank()));
                let start = |(bucket, len)| {
                    let values = values(job.rank(), step, len);
                    (bucket, len, job.all_reduce_bucket(bucket, values))
                };
                for (bucket, len, pending) in lens.map(start) {
                    let mean = pending.wait().expect("it ends");
                    let (outcome, rank) = (mean.outcome, usize::from(job.rank()));
                    assert_eq!((outcome.id.step, outcome.id.bucket), (step.into(), bucket));
                    assert!(outcome.is_whole(), "{outcome:?}");
                    assert!(outcome.duration <= DEADLINE && outcome.t_b <= DEADLINE);
                    let owed: u32 = outcome.slots.iter().sum::<u32>() + outcome.slots[rank];
                    assert_eq!(outcome.owed, u64::from(owed));
                    assert_eq!(outcome.missing_from(job.rank()).count(), 0);
                    assert_eq!(mean.values.len(), len);
                    let error = error(&mean.values, 0..3, step);
                    assert!(error < tolerance, "bucket {bucket}: {error}");
                }
            }
            let operations = job.report().expect("it runs").totals.operations;
            assert_eq!(operations, 3 * (3 + 1 + 3));
        });
    }
}

#[test]
fn a_rank_that_does_not_come_costs_no_others_packets_of_any_part() {
    let deadline = Duration::from_secs(10);
    let last = Arc::new(Barrier::new(3));
    with_settings(3, Settings::new(deadline), move |job| {
        if job.rank() < 2 {
            let mean = job.all_reduce(values(job.rank(), 0, LARGE)).wait();
            let outcome = mean.expect("it ends").outcome;
            assert!(outcome.t_b <= deadline, "{:?}", outcome.t_b);
            let missing: Vec<u16> = (outcome.missing_from(job.rank()))
                .map(|(rank, _)| rank)
                .collect();
            assert_eq!(missing, [2], "{outcome:?}");
            // Each slot of this rank's shard has its own contribution and that of the rank that came.
            let own = outcome.slots[usize::from(job.rank())];
            assert_eq!(outcome.contributions, [0, 0, own, 0], "{outcome:?}");
        }
        last.wait();
    });
}

/// Also if the call comes while the operation before it is in progress.
#[test]
fn parts_of_another_length_with_recycling_are_an_error() {
    let settings = Settings {
        recycling: true,
        ..Settings::new(DEADLINE)
    };
    with_settings(2, settings, |job| {
        const OTHER: usize = LARGE - 200_000;
        let lens = [LARGE, OTHER, LARGE];
        let calls = lens.map(|len| job.all_reduce_bucket(0, vec![1.0; len]));
        let [first, other, last] = calls.map(|call| call.wait());
        assert!(first.expect("it ends").outcome.is_whole());
        let error = other.expect_err("another length");
        let is_length = matches!(&error, JobError::Collective(e) if matches!(**e, Error::Length { bucket: 0, was: LARGE, is: OTHER }));
        assert!(is_length, "{error:?}");
        assert!(last.expect("the job continues").outcome.is_whole());
    });
}

#[test]
fn values_of_parts_may_be_lent_and_a_job_dropped() {
    let results = with_settings(2, Settings::new(DEADLINE), |job| {
        let (values, rank) = (values(job.rank(), 0, LARGE), job.rank());
        let mut pending = job.all_reduce_lent(7, Box::new(values));
        let dropped = job.all_reduce_bucket(8, vec![1.0; LARGE]);
        drop(dropped);
        // It waits until the operations have ended.
        drop(job);
        let ended = pending.try_wait().expect("it has ended").expect("a mean");
        assert!(ended.outcome.is_whole() && ended.values.is_empty());
        (rank, ended.outcome.id.bucket)
    });
    assert_eq!(results, [(0, 7), (1, 7)]);
}

#[test]
fn a_bucket_has_a_number_below_4095() {
    with_settings(2, Settings::new(DEADLINE), |job| {
        let refused = job.all_reduce_bucket(4095, vec![1.0; SMALL]).wait();
        let error = refused.expect_err("it is too large");
        assert!(matches!(error, JobError::Bucket(4095)), "{error}");
        let last = job.all_reduce_bucket(4094, vec![1.0; LARGE]).wait();
        let last = last.expect("the job continues");
        assert_eq!(last.outcome.id.bucket, 4094);
        assert!(last.values.iter().all(|value| (value - 1.0).abs() < 1e-4));
    });
}
