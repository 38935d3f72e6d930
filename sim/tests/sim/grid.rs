//! Hierarchical Transpose AllReduce in the simulated network.

use std::time::Duration;

use ultima_sim::{Algorithm, Experiment, ExperimentError, NetworkConfig, Ps, Report, Topology};

fn small(ranks: u16, groups: u16) -> Experiment {
    Experiment {
        groups: Some(groups),
        bytes: 400_000,
        slot: 1024,
        ..Experiment::new(Algorithm::Tar2d, ranks)
    }
}

fn run(experiment: &Experiment) -> Report {
    experiment.run(&mut |_| ()).expect("a possible experiment")
}

/// Loss in bursts, a tail, cross traffic and short queues, in a fabric with four hosts per leaf.
fn adverse(ranks: u16, groups: u16) -> Experiment {
    let quiet = small(ranks, groups);
    Experiment {
        tail: 3.0,
        operations: 6,
        compute: Duration::from_micros(50),
        network: NetworkConfig {
            loss: Some("0.02:4".parse().expect("a loss model")),
            cross: 0.2,
            burst: Ps(2_000_000),
            queue: 64 << 10,
            trim: 16 << 10,
            mark: 4 << 10,
            topology: Topology::LeafSpine {
                hosts_per_leaf: 4,
                spines: 1,
            },
            ..quiet.network
        },
        ..quiet
    }
}

#[test]
fn every_rank_gets_the_mean_at_the_same_times_as_without_values() {
    for (ranks, groups) in [(4, 2), (12, 3), (12, 6), (35, 5)] {
        let counted = Experiment {
            operations: 3,
            tail: 2.0,
            ..small(ranks, groups)
        };
        let paid = run(&Experiment {
            payload: true,
            ..counted.clone()
        });
        let error = paid.worst_error.expect("values");
        assert!(error < 1e-5, "{ranks} in {groups}: {error}");
        let report = run(&counted);
        assert_eq!((report.arrived_share, report.groups), (1.0, Some(groups)));
        assert_eq!(report.completion_ms, paid.completion_ms);
        assert_eq!(report.network, paid.network);
        assert_eq!(report.network.in_flight(), 0);
    }
}

#[test]
fn a_quiet_grid_is_as_fast_as_its_links_and_starts() {
    for (ranks, groups) in [(4, 2), (32, 4), (32, 8)] {
        let report = run(&small(ranks, groups));
        let completion = report.completion_ms.p50;
        // A column gathers while it scatters; the other phases wait for each other.
        assert!(completion > report.bound_ms + 3.0 * 0.020, "{report:?}");
        // Frames are 94 bytes longer than slots. Notices, shards' last slots and short queues add to that.
        let frames = report.bound_ms * (1.0 + 94.0 / 1024.0) + 0.001 * f64::from(ranks);
        let most = frames * 1.02 + 4.0 * (0.020 + 0.002 + 0.002);
        assert!(completion < most, "{ranks}: {completion} over {most}");
    }
}

#[test]
fn missing_packets_were_lost_by_the_network_and_bounds_hold() {
    let adverse = adverse(16, 4);
    let report = run(&adverse);
    assert_eq!(report, run(&adverse), "the same seed");
    let network = report.network;
    assert_eq!(network.in_flight(), 0, "{network:?}");
    assert!(network.link_lost > 0 && network.trimmed > 0);
    let (longest, t_b) = (report.completion_ms.max, report.t_b_ms.expect("a bound"));
    // Both are rounded.
    assert!(longest < t_b + 1e-6, "{longest} ms of {t_b} ms");
    // Bounds that suffice for every packet.
    let long = Duration::from_millis(100);
    let report = run(&Experiment {
        bounds: Some((long, 2 * long)),
        ..adverse
    });
    assert!(report.network.owed_lost > 0 && report.arrived_share < 1.0);
    assert_eq!(report.arrived_share_of_not_lost, 1.0, "{report:?}");
}

#[test]
fn rows_stay_below_their_leaf() {
    // 16 ranks, four per leaf: with groups of four only columns cross the spine.
    let copies = |experiment: Experiment| {
        let topology = Topology::LeafSpine {
            hosts_per_leaf: 4,
            spines: 1,
        };
        let network = NetworkConfig {
            topology,
            ..experiment.network
        };
        let report = run(&Experiment {
            network,
            ..experiment
        });
        assert_eq!(report.arrived_share, 1.0);
        report.network.copied + report.network.sent
    };
    let flat = Experiment {
        algorithm: Algorithm::Tar,
        groups: None,
        ..small(16, 4)
    };
    assert!(copies(small(16, 4)) < copies(flat));
}

#[test]
fn groups_are_as_asked_for_or_as_cost_least() {
    let chosen = |ranks, groups| {
        let experiment = Experiment {
            groups,
            ..small(ranks, 2)
        };
        experiment.grid().map(|grid| grid.map(|grid| grid.groups()))
    };
    assert_eq!(chosen(12, Some(6)), Ok(Some(6)));
    let Ok(Some(groups)) = chosen(1024, None) else {
        panic!("1024 ranks make a grid")
    };
    assert!((8..=128).contains(&groups), "{groups}");
    assert_eq!(chosen(13, None), Err(ExperimentError::Prime(13)));
    assert!(matches!(chosen(12, Some(5)), Err(ExperimentError::Grid(_))));
    let flat = Experiment {
        algorithm: Algorithm::Tar,
        ..small(12, 6)
    };
    assert_eq!(
        flat.validate(),
        Err(ExperimentError::Groups(Algorithm::Tar))
    );
}
