//! The other algorithms in the simulated network, over the modelled TCP.

use std::time::Duration;

use ultima_sim::{Algorithm, Experiment, NetworkConfig, Ps, Report};

/// The algorithms over TCP.
fn over_tcp() -> impl Iterator<Item = Algorithm> {
    let all = Algorithm::ALL.into_iter();
    let others = [
        Algorithm::Tar,
        Algorithm::Tar2d,
        Algorithm::SwitchAggregation,
    ];
    all.filter(move |algorithm| !others.contains(algorithm))
}

fn run(experiment: &Experiment) -> Report {
    experiment.run(&mut |_| ()).expect("a possible experiment")
}

/// Hosts and links without delays other than serialization.
fn ideal(algorithm: Algorithm, ranks: u16, bytes: u64) -> Experiment {
    let experiment = Experiment::new(algorithm, ranks);
    Experiment {
        bytes,
        host: Duration::ZERO,
        network: NetworkConfig {
            delay: Ps::ZERO,
            ..experiment.network
        },
        ..experiment
    }
}

/// Milliseconds that `bytes` of a message take at 100 Gb/s, in segments of 8 KiB.
fn framed_ms(bytes: u64) -> f64 {
    let bytes = bytes + bytes.div_ceil(8192) * 66;
    bytes as f64 * 8.0 / 100e9 * 1e3
}

#[test]
fn a_ring_takes_2_n_minus_1_steps() {
    for ranks in [2, 4, 16] {
        let experiment = ideal(Algorithm::Ring, ranks, 16 << 20);
        let part = experiment.bytes / u64::from(ranks);
        let steps = f64::from(2 * (ranks - 1));
        // The switch receives a whole segment before it forwards it: once more for each step's last one.
        let expected = steps * (framed_ms(part) + framed_ms(8192));
        let completion = run(&experiment).completion_ms.p50;
        // Acknowledgements share the links: 66 bytes for each segment.
        assert!(
            (0.999..1.02).contains(&(completion / expected)),
            "{completion} {expected}"
        );
    }
}

#[test]
fn one_server_receives_all_buckets_on_its_own_link() {
    // The queue has room for all seven windows.
    let experiment = ideal(Algorithm::ParameterServer, 8, 4 << 20);
    let expected = 7.0 * framed_ms(experiment.bytes);
    let completion = run(&experiment).completion_ms.p50;
    // It sends complete pieces while the rest arrives, but acknowledgements queue behind that.
    assert!(
        (1.0..2.0).contains(&(completion / expected)),
        "{completion} {expected}"
    );
}

#[test]
fn no_algorithm_is_faster_than_its_links() {
    for algorithm in over_tcp() {
        for ranks in [2, 7, 16] {
            let report = run(&ideal(algorithm, ranks, 4 << 20));
            let share = report.goodput_share_of_bound;
            assert!(share < 1.0, "{algorithm:?}, {ranks}: {share}");
            assert_eq!(report.network.delivered, report.network.sent);
        }
    }
}

#[test]
fn lost_segments_are_sent_again() {
    for algorithm in over_tcp() {
        let quiet = ideal(algorithm, 8, 1 << 20);
        let without = run(&quiet);
        let lossy = Experiment {
            operations: 4,
            network: NetworkConfig {
                loss: Some("0.02:4".parse().expect("a loss model")),
                ..quiet.network
            },
            ..quiet
        };
        let report = run(&lossy);
        let network = report.network;
        assert!(
            network.link_lost > 0 && network.in_flight() == 0,
            "{network:?}"
        );
        assert_eq!(report.arrived_share, 1.0);
        // Some loss is found only by a timer.
        assert!(
            report.completion_ms.max > 200.0,
            "{algorithm:?}: {report:?}"
        );
        assert!(
            without.completion_ms.max < 10.0,
            "{algorithm:?}: {without:?}"
        );
        assert_eq!(report, run(&lossy));
    }
}

#[test]
fn isolated_losses_cost_no_timeout() {
    for algorithm in over_tcp() {
        let quiet = ideal(algorithm, 8, 1 << 20);
        let report = run(&Experiment {
            operations: 10,
            network: NetworkConfig {
                loss: Some("0.001".parse().expect("a loss model")),
                ..quiet.network
            },
            ..quiet
        });
        assert!(report.network.link_lost > 0, "{report:?}");
        assert!(report.completion_ms.max < 10.0, "{algorithm:?}: {report:?}");
    }
}

#[test]
fn a_queue_that_is_too_short_drops_and_all_arrives() {
    let quiet = ideal(Algorithm::ParameterServer, 16, 4 << 20);
    let report = run(&Experiment {
        network: NetworkConfig {
            queue: 256 << 10,
            ..quiet.network
        },
        ..quiet
    });
    assert!(report.network.queue_dropped > 0, "{report:?}");
    assert_eq!(report.network.in_flight(), 0);
}
