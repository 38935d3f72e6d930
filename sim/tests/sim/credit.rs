//! Flow control in the simulated network: receivers grant credit, in grids and with multicast too.

use std::time::Duration;

use ultima_sim::{Algorithm, Experiment, NetworkConfig, Report, Stragglers};

/// Linux's default limit of a socket's receive buffer, as the kernel counts it.
const USUAL: u64 = 425_984;
/// Room for a few packets of each rank.
const SMALL: u64 = 64 << 10;

/// Links of 10 Gbit/s, so that a grant's round trip is short beside an operation.
fn experiment(algorithm: Algorithm, ranks: u16) -> Experiment {
    let usual = Experiment::new(algorithm, ranks);
    Experiment {
        bytes: 400_000,
        slot: 1024,
        operations: 3,
        groups: (algorithm == Algorithm::Tar2d).then_some(ranks / 3),
        network: NetworkConfig {
            rate: 10_000_000_000,
            ..usual.network
        },
        ..usual
    }
}

fn run(experiment: &Experiment, receive_buffer: Option<u64>) -> Report {
    let experiment = Experiment {
        receive_buffer,
        ..experiment.clone()
    };
    experiment.run(&mut |_| ()).expect("a possible experiment")
}

/// Bounds that suffice for all packets, however little room there is.
fn patient(experiment: Experiment) -> Experiment {
    let t_s = Duration::from_millis(100);
    Experiment {
        bounds: Some((t_s, 2 * t_s)),
        ..experiment
    }
}

#[test]
fn credit_costs_little_where_there_is_room() {
    for ranks in [2, 9] {
        let experiment = Experiment {
            payload: true,
            // The first one begins with small congestion windows.
            operations: 9,
            ..patient(experiment(Algorithm::Tar, ranks))
        };
        let [free, bounded] = [None, Some(USUAL)].map(|buffer| run(&experiment, buffer));
        for report in [&free, &bounded] {
            assert_eq!(report.arrived_share, 1.0, "{report:?}");
            let error = report.worst_error.expect("values");
            assert!(error < 1e-5, "{report:?}");
        }
        let ratio = bounded.completion_ms.p50 / free.completion_ms.p50;
        assert!(ratio < 1.1, "{ranks}: {ratio}");
        // Grants are packets too.
        assert!(bounded.network.sent > free.network.sent);
    }
}

/// Its bounds are those of the simulator, which leave no time for grants.
#[test]
fn a_grid_with_credit_is_in_time() {
    let experiment = experiment(Algorithm::Tar2d, 9);
    let [free, bounded] = [None, Some(USUAL)].map(|buffer| run(&experiment, buffer));
    assert_eq!(free.arrived_share, 1.0);
    assert!(bounded.arrived_share > 0.98, "{bounded:?}");
    assert!(bounded.network.sent > free.network.sent);
}

#[test]
fn a_small_buffer_delays_packets_and_loses_none() {
    let experiment = patient(experiment(Algorithm::Tar, 9));
    let [free, bounded] = [None, Some(SMALL)].map(|buffer| run(&experiment, buffer));
    assert_eq!(bounded.arrived_share, 1.0, "{bounded:?}");
    assert_eq!(bounded.network.in_flight(), 0);
    let ratio = bounded.completion_ms.p50 / free.completion_ms.p50;
    assert!(ratio > 1.1, "credit sets the pace: {ratio}");
}

fn lossy(experiment: Experiment) -> Experiment {
    Experiment {
        network: NetworkConfig {
            loss: Some("0.02:4".parse().expect("a loss model")),
            ..experiment.network
        },
        ..experiment
    }
}

/// Grants are lost like other packets. A rank without credit asks for it again before a bound passes.
#[test]
fn lost_grants_cost_no_other_packet() {
    let report = run(&lossy(patient(experiment(Algorithm::Tar, 9))), Some(SMALL));
    assert!(report.network.owed_lost > 0, "{report:?}");
    assert_eq!(report.arrived_share_of_not_lost, 1.0, "{report:?}");
    let grid = lossy(experiment(Algorithm::Tar2d, 9));
    let [free, bounded] = [None, Some(USUAL)].map(|buffer| run(&grid, buffer));
    let share = bounded.arrived_share_of_not_lost / free.arrived_share_of_not_lost;
    assert!(share > 0.95, "{bounded:?}, without credit {free:?}");
}

/// A rank that starts late grants no more credit meanwhile. Packets to it wait, those to the group do not.
#[test]
fn a_late_rank_does_not_stop_the_others() {
    let delay = Duration::from_millis(5);
    let experiment = Experiment {
        operations: 20,
        compute: Duration::from_millis(1),
        stragglers: Some(Stragglers { share: 0.05, delay }),
        ..experiment(Algorithm::Tar, 9)
    };
    let [free, bounded] = [None, Some(USUAL)].map(|buffer| run(&experiment, buffer));
    let on_time = |report: &Report| report.on_time_ms.expect("stragglers").p50;
    let ratio = on_time(&bounded) / on_time(&free);
    assert!(ratio < 1.1, "{ratio}: {bounded:?}, without credit {free:?}");
    assert!(
        bounded.arrived_share >= 0.98 * free.arrived_share,
        "{bounded:?}"
    );
}
