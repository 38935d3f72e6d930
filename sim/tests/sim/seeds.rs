//! The same arguments and seed give the same bytes.

use std::time::Duration;

use ultima_sim::{Algorithm, Experiment, NetworkConfig, Ps, Stragglers, Topology};

/// An experiment with everything random.
fn eventful(algorithm: Algorithm) -> Experiment {
    let quiet = Experiment::new(algorithm, 10);
    Experiment {
        bytes: 200_000,
        slot: 2048,
        tail: 3.0,
        operations: 3,
        compute: Duration::from_millis(1),
        compute_tail: 1.5,
        stragglers: Some(Stragglers {
            share: 0.1,
            delay: Duration::from_millis(1),
        }),
        network: NetworkConfig {
            loss: Some("0.01:2".parse().expect("a loss model")),
            jitter: Some("lognormal:5us:0.5".parse().expect("a jitter")),
            cross: 0.2,
            burst: Ps(2_000_000),
            topology: Topology::LeafSpine {
                hosts_per_leaf: 4,
                spines: 2,
            },
            ..quiet.network
        },
        ..quiet
    }
}

#[test]
fn every_algorithm_gives_the_same_bytes_again() {
    for algorithm in Algorithm::ALL {
        let bytes = |experiment: &Experiment| {
            let report = experiment.run(&mut |_| ()).expect("a possible experiment");
            serde_json::to_string(&report).expect("a report is JSON")
        };
        let experiment = eventful(algorithm);
        let first = bytes(&experiment);
        assert_eq!(first, bytes(&experiment), "{algorithm:?}");
        let other = Experiment {
            seed: 2,
            ..experiment
        };
        assert_ne!(
            first.replace("\"seed\":1,", ""),
            bytes(&other).replace("\"seed\":2,", ""),
            "{algorithm:?}"
        );
    }
}
