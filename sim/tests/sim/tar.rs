//! The protocol core in the simulated network.

use std::time::Duration;

use ultima_sim::{Algorithm, Experiment, NetworkConfig, Ps, Report, Stragglers, Topology};

fn small(ranks: u16) -> Experiment {
    Experiment {
        bytes: 400_000,
        slot: 1024,
        ..Experiment::new(Algorithm::Tar, ranks)
    }
}

fn run(experiment: &Experiment) -> Report {
    experiment.run(&mut |_| ()).expect("a possible experiment")
}

/// Loss in bursts, stragglers, cross traffic and short queues.
fn adverse(ranks: u16) -> Experiment {
    let quiet = small(ranks);
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
                spines: 2,
            },
            ..quiet.network
        },
        ..quiet
    }
}

#[test]
fn a_quiet_network_is_as_fast_as_its_links() {
    for ranks in [2, 3, 8, 32] {
        let experiment = small(ranks);
        let report = run(&experiment);
        assert_eq!(report.arrived_share, 1.0);
        let completion = report.completion_ms.p50;
        assert!(completion > report.bound_ms, "{report:?}");
        // Frames are 94 bytes longer than slots, shards' last slots shorter. Each phase also has the host's
        // 20 µs, two propagation delays, and a short queue from each owner.
        let frames = report.bound_ms * (1.0 + 94.0 / 1024.0) + 0.001 * f64::from(ranks);
        let most = frames * 1.02 + 2.0 * (0.020 + 0.002 + 0.002) + 0.0002 * f64::from(ranks);
        assert!(completion < most, "{ranks}: {completion} over {most}");
        assert_eq!(
            report.network.delivered,
            report.network.sent + report.network.copied
        );
    }
}

#[test]
fn seeds_give_the_same_bytes_and_others_do_not() {
    let bytes = |experiment: &Experiment| {
        serde_json::to_string(&run(experiment)).expect("a report is JSON")
    };
    let experiment = adverse(10);
    assert_eq!(bytes(&experiment), bytes(&experiment));
    let other = Experiment {
        seed: 2,
        ..adverse(10)
    };
    let figures = |experiment| {
        let report = run(experiment);
        (report.completion_ms, report.network)
    };
    assert_ne!(figures(&experiment), figures(&other));
}

#[test]
fn packets_are_delivered_or_lost_by_a_cause() {
    let report = run(&adverse(10));
    let network = report.network;
    assert_eq!(network.in_flight(), 0, "{network:?}");
    for (cause, count) in [
        ("link", network.link_lost),
        ("queue", network.queue_dropped),
        ("trimmed", network.trimmed),
    ] {
        assert!(count > 0, "{cause}: {network:?}");
    }
    assert!(report.arrived_share < 1.0);
}

#[test]
fn without_stragglers_only_the_network_loses_packets() {
    // Bounds that suffice for every packet: only lost, trimmed or dropped packets are missing.
    let long = Duration::from_millis(50);
    let bounds = Some((long, 2 * long));
    let adverse = adverse(10);
    // One spine: with several, a rank's multicast may overtake its unicast to an owner, which the core counts
    // as a loss because the fabric is configured to keep the order.
    let one_spine = Topology::LeafSpine {
        hosts_per_leaf: 4,
        spines: 1,
    };
    for topology in [Topology::Star, one_spine] {
        let experiment = Experiment {
            bounds,
            network: NetworkConfig {
                topology,
                ..adverse.network.clone()
            },
            ..adverse.clone()
        };
        let report = run(&experiment);
        assert!(report.network.owed_lost > 0 && report.arrived_share < 1.0);
        assert_eq!(report.arrived_share_of_not_lost, 1.0, "{report:?}");
    }
    // Without loss none is lost, however late packets are.
    let tight = Experiment {
        bounds: Some((Duration::from_micros(60), Duration::from_micros(75))),
        tail: 3.0,
        operations: 6,
        ..small(10)
    };
    let report = run(&tight);
    assert_eq!(report.network.owed_lost, 0);
    assert!(report.arrived_share < 1.0);
    assert_eq!(report.arrived_share_of_not_lost, report.arrived_share);
}

#[test]
fn packets_after_their_bound_are_late() {
    let quiet = small(10);
    let experiment = Experiment {
        bounds: Some((Duration::from_micros(60), Duration::from_micros(75))),
        operations: 6,
        network: NetworkConfig {
            cross: 0.5,
            ..quiet.network
        },
        ..quiet
    };
    let report = run(&experiment);
    assert!(report.network.late > 0, "{:?}", report.network);
    assert!(report.completion_ms.max <= 0.0751, "{report:?}");
}

#[test]
fn values_change_no_time() {
    for counted in [small(5), adverse(10)] {
        let stored = Experiment {
            payload: true,
            ..counted.clone()
        };
        let (counted, stored) = (run(&counted), run(&stored));
        let error = stored.worst_error.expect("results were checked");
        assert_eq!(error == 0.0, stored.arrived_share == 1.0, "{error}");
        let without = Report {
            worst_error: None,
            ..stored
        };
        assert_eq!(without, counted);
    }
}

#[test]
fn bad_experiments_are_refused_in_a_line() {
    let refused = |change: fn(&mut Experiment)| {
        let mut experiment = small(4);
        change(&mut experiment);
        experiment
            .run(&mut |_| ())
            .expect_err("refused")
            .to_string()
    };
    assert!(refused(|e| e.ranks = 1).contains("2 to 8192"));
    assert!(refused(|e| e.bytes = 6).contains("multiple of 4"));
    assert!(refused(|e| e.slot = 6).contains("multiple of 4"));
    assert!(refused(|e| e.tail = 0.5).contains("p99/p50"));
    assert!(refused(|e| e.tail = f64::NAN).contains("p99/p50"));
    assert!(refused(|e| e.compute_tail = 0.5).contains("compute tail"));
    assert!(refused(|e| e.compute_tail = 2.0).contains("no time"));
    let none = Stragglers {
        share: 0.0,
        delay: Duration::ZERO,
    };
    let late = Experiment {
        stragglers: Some(none),
        ..small(4)
    };
    let error = late.validate().expect_err("refused").to_string();
    assert!(error.contains("share of 0"), "{error}");
    let values = Experiment {
        payload: true,
        algorithm: Algorithm::Ring,
        ..small(4)
    };
    let error = values.validate().expect_err("refused").to_string();
    assert!(error.contains("values with ring: expected tar"), "{error}");
    assert!(refused(|e| e.operations = 0).contains("at least 1"));
    assert!(refused(|e| e.network.rate = 0).contains("at least 1"));
    assert!(refused(|e| e.network.cross = 1.0).contains("0.95"));
    assert!(refused(|e| e.network.queue = 1000).contains("1118"));
    let field = |e: &mut Experiment| e.network.loss = "field:0:1:0..9".parse().ok();
    assert!(refused(field).contains("frames have no bytes"));
    let bounds = (Duration::from_millis(2), Duration::from_millis(1));
    let experiment = Experiment {
        bounds: Some(bounds),
        ..small(4)
    };
    assert!(experiment.validate().is_err());
}
