//! The report of a run: the document that the demo prints.

use super::agreement::Agreements;
use super::options::{Impairments, Multicast};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;
use ultima_digits::data::CLASSES;
use ultima_digits::metrics::Percentiles;
use ultima_digits::shards::Dealing;
use ultima_host::Timeouts;

/// The number of operations over all workers, by the reason of their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedBy {
    /// All slots arrived.
    pub complete: u64,
    /// All slots arrived or are known to be lost.
    pub known_loss: u64,
    /// The early bound t_C passed after the first of everyone's last packets.
    pub t_c: u64,
    /// The flush at t_S closed incomplete slots.
    pub t_s: u64,
    /// The deadline t_B passed.
    pub t_b: u64,
}

/// The packets of one phase, over all workers and steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// Packets to send: one per slot, and by unicast per receiver.
    pub slots: u64,
    /// Packets that left the hosts.
    pub sent: u64,
    /// Copies that receivers should get of these, without the sender's own copy of a multicast packet.
    pub copies: u64,
    /// Copies that arrived in time.
    pub delivered_in_time: u64,
    /// Copies that arrived after their slot closed or their operation ended, or twice.
    pub delivered_late: u64,
    /// Lost copies by cause.
    pub dropped: BTreeMap<String, u64>,
    /// Packets that hosts did not send because of the deadline.
    pub never_sent: u64,
}

/// A phase whose counts do not add up.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{phase}: {copies} copies, but {in_time} delivered in time + {late} late + {dropped} dropped = \
     {}; each copy must be counted once",
    in_time + late + dropped
)]
pub struct Imbalance {
    /// `scatter` or `gather`.
    pub phase: &'static str,
    /// Copies that receivers should get.
    pub copies: u64,
    /// Delivered in time.
    pub in_time: u64,
    /// Delivered late.
    pub late: u64,
    /// Dropped, for all causes.
    pub dropped: u64,
}

impl Phase {
    /// Lost copies, for all causes.
    pub fn total_dropped(&self) -> u64 {
        self.dropped.values().sum()
    }

    fn check(&self, phase: &'static str) -> Result<(), Imbalance> {
        let imbalance = Imbalance {
            phase,
            copies: self.copies,
            in_time: self.delivered_in_time,
            late: self.delivered_late,
            dropped: self.total_dropped(),
        };
        let accounted = imbalance.in_time + imbalance.late + imbalance.dropped;
        if accounted == self.copies {
            Ok(())
        } else {
            Err(imbalance)
        }
    }
}

/// The report of a run. [`Display`](std::fmt::Display) prints it as text.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Number of workers at the start.
    pub workers: u16,
    /// Number of training steps, one AllReduce each.
    pub steps: u32,
    /// The run's seed.
    pub seed: u64,
    /// Number of parameters of the model.
    pub parameters: usize,
    /// Distribution of the training set.
    pub shards: Dealing,
    /// True if gradients used the Hadamard transform.
    pub hadamard: bool,
    /// True if lost values were sent again in later steps.
    pub recycling: bool,
    /// The policy for t_S and t_B.
    pub timeouts: Timeouts,
    /// The estimator for missing contributions.
    pub estimator: &'static str,
    /// The place where gather packets were replicated.
    pub multicast: Multicast,
    /// True if packets were authenticated.
    pub sealed: bool,
    /// The impairments of the run.
    pub impairments: Impairments,
    /// Ranks of workers that did not finish.
    pub lost_workers: Vec<u16>,
    /// Accuracy of the worst worker on the held-out examples, 0 to 1.
    pub accuracy: f64,
    /// Its accuracy by digit; null for a digit without held-out examples.
    pub accuracy_by_class: [f64; CLASSES],
    /// Accuracy with exact averaging, 0 to 1.
    pub baseline_accuracy: f64,
    /// That accuracy by digit.
    pub baseline_accuracy_by_class: [f64; CLASSES],
    /// The largest ‖w_i − w_0‖/‖w_0‖ over the workers that finished.
    pub replica_spread: f64,
    /// Distance of the first finished worker's replica from the one with exact averaging: ‖w_0 − w‖/‖w‖.
    pub baseline_distance: f64,
    /// SHA-256 of the first finished worker's parameters as little-endian f32; equal for equal runs.
    pub parameters_sha256: String,
    /// The mean ‖applied − exact‖²/‖exact‖² over steps and ranks.
    pub update_error: f64,
    /// The error of the whole run: the mean over ranks of ‖Σ applied − Σ exact‖²/‖Σ exact‖².
    pub run_error: f64,
    /// The results of votes.
    pub agreements: Agreements,
    /// The weight of each worker's data over the last steps, by rank: 1/N each if no worker is late. Empty if no worker
    /// finished.
    pub weights: Vec<f32>,
    /// Ranks that were silent in the last three or more steps, according to any worker that finished.
    pub suspected: Vec<u16>,
    /// Steps to which a worker contributed nothing because the others were far ahead, by rank.
    pub passed_steps: Vec<u32>,
    /// The mean ‖gradient − exact‖²/‖exact‖² over steps and ranks. It determines the cost of a missing contribution.
    pub gradient_dispersion: f64,
    /// Duration of an AllReduce over all workers and steps.
    pub allreduce_ms: Percentiles,
    /// The deadline t_B in milliseconds.
    pub deadline_ms: f64,
    /// Reasons for the end of AllReduces.
    pub closed_by: ClosedBy,
    /// Contributions to the owners of slots, in packets.
    pub scatter: Phase,
    /// Aggregates from owners to all others, in packets.
    pub gather: Phase,
    /// Gather packets that hosts would send by unicast.
    pub unicast_equivalent: u64,
    /// Duration of the run in seconds.
    pub wall_s: f64,
}

impl Report {
    /// Verifies that every copy of both phases was delivered in time, delivered late, or dropped.
    ///
    /// # Errors
    /// The first phase whose counts do not add up.
    pub fn check(&self) -> Result<(), Imbalance> {
        self.scatter.check("scatter")?;
        self.gather.check("gather")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::demo::agreement::{Drift, Healed};
    use crate::demo::options::{Late, Straggler};

    /// A report whose counts add up.
    pub fn example() -> Report {
        Report {
            workers: 4,
            steps: 300,
            seed: 1,
            parameters: 104_842,
            shards: Dealing::ByClass,
            hadamard: true,
            recycling: true,
            timeouts: Timeouts::CauseAware,
            estimator: "arrived-mean",
            multicast: Multicast::Switch,
            sealed: true,
            impairments: Impairments {
                loss: 0.01,
                burst_loss: None,
                drop_slots: None,
                link_rate: None,
                link_delay_ms: 0.0,
                queue: 1 << 20,
                straggler: Straggler {
                    probability: 0.01,
                    sleep_ms: 250.0,
                },
                late: Some(Late {
                    rank: 3,
                    sleep_ms: 30.0,
                }),
            },
            lost_workers: vec![],
            accuracy: 0.975,
            accuracy_by_class: std::array::from_fn(|class| 1.0 - class as f64 / 100.0),
            baseline_accuracy: 0.982,
            baseline_accuracy_by_class: [1.0; CLASSES],
            replica_spread: 0.0186,
            baseline_distance: 0.02,
            parameters_sha256: "00".into(),
            update_error: 0.0123,
            run_error: 0.0004,
            agreements: Agreements {
                skipped_updates: 2,
                coding: None,
                drift: Some(Drift {
                    bound: 0.005,
                    every: 50,
                    measured: 6,
                    largest: 0.0071,
                    healed: vec![Healed {
                        step: 99,
                        before: 0.0071,
                        after: 0.0,
                    }],
                }),
                ended: None,
            },
            weights: vec![0.33, 0.33, 0.33, 0.01],
            suspected: vec![2],
            passed_steps: vec![0, 0, 0, 12],
            gradient_dispersion: 1.85,
            allreduce_ms: Percentiles {
                p50: 4.25,
                p99: 11.5,
                max: 20.02,
            },
            deadline_ms: 20.0,
            closed_by: ClosedBy {
                complete: 150,
                known_loss: 1000,
                t_c: 2,
                t_s: 45,
                t_b: 5,
            },
            scatter: Phase {
                slots: 270_000,
                sent: 269_990,
                copies: 269_990,
                delivered_in_time: 267_000,
                delivered_late: 290,
                dropped: BTreeMap::from([("queue".into(), 50), ("wire".into(), 2_650)]),
                never_sent: 10,
            },
            gather: Phase {
                slots: 90_000,
                sent: 90_000,
                copies: 270_000,
                delivered_in_time: 267_300,
                delivered_late: 0,
                dropped: BTreeMap::from([("wire".into(), 2_700)]),
                never_sent: 0,
            },
            unicast_equivalent: 270_000,
            wall_s: 6.54,
        }
    }

    #[test]
    fn counts_that_add_up_pass() {
        assert_eq!(example().check(), Ok(()));
    }

    #[test]
    fn a_copy_missing_or_counted_twice_is_found_in_either_phase() {
        type Change = (&'static str, fn(&mut Report));
        let changes: [Change; 5] = [
            ("scatter", |r| r.scatter.copies += 1),
            ("scatter", |r| r.scatter.delivered_in_time -= 1),
            ("scatter", |r| {
                *r.scatter.dropped.get_mut("queue").unwrap() += 1
            }),
            ("gather", |r| r.gather.delivered_late += 1),
            ("gather", |r| r.gather.dropped.clear()),
        ];
        for (phase, change) in changes {
            let mut report = example();
            change(&mut report);
            assert_eq!(report.check().unwrap_err().phase, phase);
        }
        let mut report = example();
        report.gather.copies = 1;
        assert_eq!(
            report.check().unwrap_err().to_string(),
            "gather: 1 copies, but 267300 delivered in time + 0 late + 2700 dropped = 270000; \
             each copy must be counted once"
        );
    }

    #[test]
    fn by_unicast_a_host_sends_one_packet_to_each_other() {
        assert_eq!(Multicast::Switch.unicast_equivalent(100, 4), 300);
        assert_eq!(Multicast::Unicast.unicast_equivalent(300, 4), 300);
    }

    #[test]
    fn json_has_stable_names() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!(json["shards"], "by-class");
        assert_eq!(json["multicast"], "switch");
        assert_eq!(json["impairments"]["loss"], 0.01);
        assert_eq!(json["allreduce_ms"]["p99"], 11.5);
        assert_eq!(json["closed_by"]["known_loss"], 1000);
        assert_eq!(json["closed_by"]["t_s"], 45);
        assert_eq!(json["accuracy_by_class"][9], 0.91);
        assert_eq!(json["scatter"]["dropped"]["wire"], 2650);
        assert_eq!(json["gather"]["delivered_in_time"], 267_300);
    }

    #[test]
    fn a_digit_without_examples_is_null() {
        let mut report = example();
        report.accuracy_by_class[3] = f64::NAN;
        assert!(serde_json::to_value(report).unwrap()["accuracy_by_class"][3].is_null());
    }
}
