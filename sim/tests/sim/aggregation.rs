//! In-network aggregation in the simulated network.

use ultima_sim::{Algorithm, Experiment, NetworkConfig, Ps, Report, Topology};
use ultima_testing::full;

fn run(experiment: &Experiment) -> Report {
    experiment.run(&mut |_| ()).expect("a possible experiment")
}

fn quiet(ranks: u16, topology: Topology) -> Experiment {
    let experiment = Experiment::new(Algorithm::SwitchAggregation, ranks);
    Experiment {
        bytes: 300_004,
        payload: true,
        operations: 3,
        network: NetworkConfig {
            topology,
            ..experiment.network
        },
        ..experiment
    }
}

fn fabrics() -> [Topology; 2] {
    let leaf_spine = Topology::LeafSpine {
        hosts_per_leaf: 4,
        spines: 2,
    };
    [Topology::Star, leaf_spine]
}

#[test]
fn every_rank_gets_the_exact_mean() {
    for topology in fabrics() {
        // More ranks than a word has bits: in every run on the leaf-spine, on the star in a full one.
        let many = (full() || topology != Topology::Star).then_some(70);
        for ranks in [2, 4, 9].into_iter().chain(many) {
            let report = run(&quiet(ranks, topology));
            assert_eq!(report.worst_error, Some(0.0), "{ranks}, {topology:?}");
            assert_eq!(report.network.in_flight(), 0);
            // One packet up and one down for each piece: nothing was sent again.
            let pieces = 3 * 300_004u64.div_ceil(8192);
            assert_eq!(report.network.sent, pieces * u64::from(ranks));
            assert_eq!(report.network.delivered, report.network.sent);
        }
    }
}

#[test]
fn lost_results_are_given_again() {
    for topology in fabrics() {
        let quiet = quiet(9, topology);
        let lossy = Experiment {
            network: NetworkConfig {
                loss: Some("0.05:2".parse().expect("a loss model")),
                ..quiet.network.clone()
            },
            ..quiet.clone()
        };
        let report = run(&lossy);
        assert_eq!(report.worst_error, Some(0.0), "{report:?}");
        assert!(report.network.link_lost > 0 && report.network.in_flight() == 0);
        let timeout = report.min_rto_ms.expect("there is a timeout");
        assert!(report.completion_ms.max > run(&quiet).completion_ms.max + timeout);
        assert_eq!(report, run(&lossy));
    }
}

#[test]
fn full_queues_between_switches_lose_nothing() {
    let quiet = quiet(12, fabrics()[1]);
    let report = run(&Experiment {
        network: NetworkConfig {
            queue: 9_000,
            cross: 0.3,
            burst: Ps(2_000_000),
            ..quiet.network
        },
        ..quiet
    });
    assert!(report.network.queue_dropped > 0, "{report:?}");
    assert_eq!(report.worst_error, Some(0.0));
    assert_eq!(report.network.in_flight(), 0);
}

#[test]
fn a_link_carries_the_bucket_once_each_way() {
    // Twice the goodput of the bound, in which receivers' links carry 2·S·(N−1)/N bytes, minus headers and
    // the path's delays.
    let report = run(&Experiment {
        payload: false,
        bytes: 25_000_000,
        ..quiet(64, Topology::Star)
    });
    let share = report.goodput_share_of_bound;
    assert!((1.85..1.97).contains(&share), "{share}");
}

#[test]
fn values_change_no_time() {
    let stored = quiet(9, fabrics()[1]);
    let counted = Experiment {
        payload: false,
        ..stored.clone()
    };
    let without = Report {
        worst_error: None,
        ..run(&stored)
    };
    assert_eq!(without, run(&counted));
}
