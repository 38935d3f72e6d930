//! Flow control over kernel UDP: on a network that loses nothing, nothing is lost.

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::Duration;

use ultima_host::{Collective, Config, Gather, OperationId, Report, UdpConfig};
use ultima_wire::{UDP_PORT, group_address};

const JOB: u16 = 1;

/// Runs `steps` steps of some buckets on all ranks. Returns the ranks' reports.
fn run(config: &Config, steps: u32, buckets: &[usize]) -> Vec<Report> {
    let bind = |_| UdpSocket::bind("127.0.0.1:0").expect("binds");
    let sockets: Vec<UdpSocket> = (0..config.ranks).map(bind).collect();
    let address = |socket: &UdpSocket| match socket.local_addr() {
        Ok(SocketAddr::V4(address)) => address,
        other => panic!("an IPv4 socket: {other:?}"),
    };
    let peers: Vec<SocketAddrV4> = sockets.iter().map(address).collect();
    let mean = f32::from(config.ranks - 1) / 2.0;
    let rank = |(rank, socket)| {
        let udp = UdpConfig {
            socket,
            peers: peers.clone(),
            group: SocketAddrV4::new(group_address(JOB), UDP_PORT),
        };
        let config = Config {
            rank,
            ..config.clone()
        };
        let buckets = buckets.to_vec();
        thread::spawn(move || {
            let mut collective = Collective::over_udp(config, udp).expect("opens");
            let own = f32::from(rank);
            let mut gradients: Vec<Vec<f32>> = buckets.iter().map(|len| vec![own; *len]).collect();
            for step in 0..steps {
                let id = |bucket| OperationId { step, bucket };
                for (bucket, gradient) in (0..).zip(&mut gradients) {
                    gradient.fill(own);
                    collective.start(id(bucket), gradient).expect("starts");
                }
                for (bucket, gradient) in (0..).zip(&mut gradients) {
                    collective.wait(id(bucket), gradient).expect("ends");
                    let error = |value: &f32| (value - mean).abs();
                    let error = gradient.iter().map(error).fold(0.0, f32::max);
                    assert!(error < 1e-3, "step {step}: error {error}");
                }
            }
            collective
                .finish(Duration::from_millis(50))
                .expect("finishes")
        })
    };
    let ranks: Vec<_> = (0..).zip(sockets).map(rank).collect();
    let join = |rank: thread::JoinHandle<Report>| rank.join().expect("a rank panicked");
    ranks.into_iter().map(join).collect()
}

fn config(ranks: u16) -> Config {
    Config {
        gather: Gather::Unicast,
        ..Config::new(JOB, 1, 0, ranks, 7, Duration::from_secs(20))
    }
}

/// Every packet that was sent counts, and was sent once.
fn assert_nothing_lost(reports: &[Report]) {
    for report in reports {
        let phases = report.totals.phases;
        let lost = report.totals.lost;
        assert_eq!(lost.scatter.total() + lost.gather.total(), 0, "{report:?}");
        for phase in [phases.scatter, phases.gather] {
            let not = (
                phase.never_sent,
                phase.late,
                phase.duplicates,
                phase.refused,
            );
            assert_eq!(not, (0, 0, 0, 0), "{report:?}");
            assert_eq!(phase.sent, phase.slots, "{report:?}");
        }
    }
}

#[test]
fn nothing_is_lost_without_a_rate() {
    for (ranks, steps, buckets) in [
        (2, 50, &[1000][..]),
        (2, 4, &[500_000][..]),
        (4, 4, &[300_000, 5, 70_000][..]),
        (9, 3, &[100_000, 100_000][..]),
    ] {
        assert_nothing_lost(&run(&config(ranks), steps, buckets));
    }
}
