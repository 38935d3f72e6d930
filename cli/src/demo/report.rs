//! What a run of the demo found out: the document that it prints.

use super::agreement::Agreements;
use super::options::Impairments;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;
use ultima_digits::data::CLASSES;
use ultima_digits::metrics::Percentiles;
use ultima_digits::shards::Dealing;
use ultima_host::Timeouts;

/// Who copies a gather packet for its receivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Multicast {
    /// The switch: a host sends it once, to the job's group.
    #[default]
    Switch,
    /// The host: it sends one to each receiver.
    Unicast,
}

impl Multicast {
    /// The gather packets that hosts would have sent by unicast, where they `sent` so many this way.
    pub fn unicast_equivalent(self, sent: u64, workers: u16) -> u64 {
        match self {
            Multicast::Switch => sent * u64::from(workers.saturating_sub(1)),
            Multicast::Unicast => sent,
        }
    }
}

/// How many operations, over all workers, ended for which reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedBy {
    /// Every slot was in.
    pub complete: u64,
    /// Every slot was in or known to be lost.
    pub known_loss: u64,
    /// Everyone's last packets had begun to come, and what was missing took too long: t_C.
    pub t_c: u64,
    /// The flush at t_S closed what was incomplete.
    pub t_s: u64,
    /// The deadline t_B.
    pub t_b: u64,
}

/// The packets of one phase, over all workers and steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phase {
    /// What senders owed, one per slot (and receiver, where hosts send one to each).
    pub slots: u64,
    /// What left the hosts.
    pub sent: u64,
    /// What receivers were to get of it: a multicast packet's copies without the sender's own.
    pub copies: u64,
    /// Copies that their receiver used.
    pub delivered_in_time: u64,
    /// Copies that arrived after their slot had closed or their operation had ended, or a second time.
    pub delivered_late: u64,
    /// Copies that did not arrive, by cause.
    pub dropped: BTreeMap<String, u64>,
    /// What the deadline kept hosts from sending.
    pub never_sent: u64,
}

/// A phase whose copies are not all accounted for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{phase}: {copies} copies, but {in_time} delivered in time + {late} late + {dropped} dropped = \
     {}; each copy must be counted once",
    in_time + late + dropped
)]
pub struct Imbalance {
    /// `scatter` or `gather`.
    pub phase: &'static str,
    /// Copies that receivers were to get.
    pub copies: u64,
    /// Delivered in time.
    pub in_time: u64,
    /// Delivered late.
    pub late: u64,
    /// Dropped, by all causes.
    pub dropped: u64,
}

impl Phase {
    /// Copies that did not arrive, by all causes.
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

/// A run of the demo. Printed by [`Display`](std::fmt::Display) as a table for people.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Workers that the run started with.
    pub workers: u16,
    /// Steps of training, one AllReduce each.
    pub steps: u32,
    /// The run's seed.
    pub seed: u64,
    /// The model's parameters, hence a gradient's entries.
    pub parameters: usize,
    /// How the training set was dealt.
    pub shards: Dealing,
    /// Whether gradients were Hadamard-coded.
    pub hadamard: bool,
    /// Whether losses were made good in later steps.
    pub recycling: bool,
    /// What t_S and t_B were.
    pub timeouts: Timeouts,
    /// What owners made of the contributions that arrived.
    pub estimator: &'static str,
    /// Who copied gather packets.
    pub multicast: Multicast,
    /// Whether the workers sealed their packets.
    pub sealed: bool,
    /// What was done to the run on purpose.
    pub impairments: Impairments,
    /// Ranks of workers that did not finish.
    pub lost_workers: Vec<u16>,
    /// The worst worker's, on the held-out examples, 0 to 1.
    pub accuracy: f64,
    /// That worker's, by digit; null for a digit that no held-out example shows.
    pub accuracy_by_class: [f64; CLASSES],
    /// With exact means instead of AllReduce, 0 to 1.
    pub baseline_accuracy: f64,
    /// The same by digit.
    pub baseline_accuracy_by_class: [f64; CLASSES],
    /// The largest ‖w_i − w_0‖/‖w_0‖ over the workers that finished.
    pub replica_spread: f64,
    /// How far the first finished worker's replica is from the one with exact means: ‖w_0 − w‖/‖w‖.
    pub baseline_distance: f64,
    /// SHA-256 of the first finished worker's parameters as little-endian f32: equal for equal runs.
    pub parameters_sha256: String,
    /// The mean ‖applied − exact‖²/‖exact‖² over steps and ranks.
    pub update_error: f64,
    /// The same of the run as a whole: the mean over ranks of ‖Σ applied − Σ exact‖²/‖Σ exact‖².
    pub run_error: f64,
    /// What the workers agreed on beside the updates.
    pub agreements: Agreements,
    /// What each worker's data weighed over the last steps, by rank: 1/N for each of N where nothing is late. Empty
    /// where no worker finished.
    pub weights: Vec<f32>,
    /// Ranks that any worker that finished had not heard in its last three steps or more, and did not wait for.
    pub suspected: Vec<u16>,
    /// Steps that a worker contributed nothing of its own to because the others were long past them, by rank.
    pub passed_steps: Vec<u32>,
    /// The mean ‖gradient − exact‖²/‖exact‖² over steps and ranks: what a missing contribution costs
    /// depends on it.
    pub gradient_dispersion: f64,
    /// How long an AllReduce took, over all workers and steps.
    pub allreduce_ms: Percentiles,
    /// The bound t_B on it, in milliseconds.
    pub deadline_ms: f64,
    /// Why AllReduces ended.
    pub closed_by: ClosedBy,
    /// Contributions on their way to a slot's owner, in packets.
    pub scatter: Phase,
    /// Aggregates on their way to all others, in packets.
    pub gather: Phase,
    /// Gather packets that hosts would have sent by unicast.
    pub unicast_equivalent: u64,
    /// From start to report, in seconds.
    pub wall_s: f64,
}

impl Report {
    /// Verifies that every copy of both phases was delivered in time, delivered late, or dropped.
    ///
    /// # Errors
    /// The first phase where the counts of hosts and switch do not add up.
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
            sealed: false,
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
    fn by_unicast_a_host_sends_to_each_other() {
        assert_eq!(Multicast::Switch.unicast_equivalent(100, 4), 300);
        assert_eq!(Multicast::Unicast.unicast_equivalent(300, 4), 300);
    }

    #[test]
    fn json_has_the_names_that_scripts_rely_on() {
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
