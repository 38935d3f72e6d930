//! Over kernel UDP nothing is lost, whatever net.core.rmem_max is. A binary of its own: the limit is the machine's, and cargo
//! runs no other test meanwhile.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use ultima_host::{Collective, Config, Element, Gather, OperationId, Report, UdpConfig};
use ultima_testing::receive_limit::{ReceiveLimit, become_ordinary};
use ultima_testing::veth::Veth;
use ultima_testing::{per_run, skipped};
use ultima_wire::{Key, UDP_PORT, group_address};

const JOB: u16 = 1;
/// Each test holds it, because the limit is the machine's.
static MACHINE: Mutex<()> = Mutex::new(());

/// Operations of one job.
struct Run<'a> {
    config: Config,
    steps: u32,
    /// Values of each bucket of a step.
    buckets: &'a [usize],
    /// How much later than the others the last rank starts.
    late: Duration,
    /// True if ranks may not exceed net.core.rmem_max.
    ordinary: bool,
    /// The ranks are at its two ends in turn. None: at loopback.
    veth: Option<&'a Veth>,
}

impl Run<'_> {
    fn reports(&self) -> Vec<Report> {
        let bind = |rank| {
            let ip = self
                .veth
                .map_or(Ipv4Addr::LOCALHOST, |_| Veth::address(end(rank)));
            // Sockets share an address only if one user made them.
            let of_rank = || {
                self.become_rank(rank);
                UdpSocket::bind((ip, 0)).expect("binds")
            };
            thread::scope(|scope| scope.spawn(of_rank).join().expect("binds"))
        };
        let sockets: Vec<UdpSocket> = (0..self.config.ranks).map(bind).collect();
        let address = |socket: &UdpSocket| match socket.local_addr() {
            Ok(SocketAddr::V4(address)) => address,
            other => panic!("an IPv4 socket: {other:?}"),
        };
        let peers: Vec<SocketAddrV4> = sockets.iter().map(address).collect();
        thread::scope(|scope| {
            let rank = |(rank, socket)| {
                let peers = peers.clone();
                scope.spawn(move || self.rank(rank, socket, peers))
            };
            let ranks: Vec<_> = (0..).zip(sockets).map(rank).collect();
            let join = |rank: thread::ScopedJoinHandle<Report>| rank.join().expect("no panic");
            ranks.into_iter().map(join).collect()
        })
    }

    /// Gives the calling thread, and threads that it starts, the network and the user of a rank.
    fn become_rank(&self, rank: u16) {
        if let Some(veth) = self.veth {
            veth.enter(end(rank));
        }
        if self.ordinary {
            become_ordinary();
        }
    }

    fn rank(&self, rank: u16, socket: UdpSocket, peers: Vec<SocketAddrV4>) -> Report {
        let ranks = self.config.ranks;
        self.become_rank(rank);
        if rank == ranks - 1 {
            thread::sleep(self.late);
        }
        let udp = UdpConfig {
            socket,
            peers,
            group: SocketAddrV4::new(group_address(JOB), UDP_PORT),
        };
        let config = Config {
            rank,
            ..self.config.clone()
        };
        let mut collective = Collective::over_udp(config, udp).expect("opens");
        let (own, mean) = (f32::from(rank), f32::from(ranks - 1) / 2.0);
        let mut gradients: Vec<Vec<f32>> =
            (self.buckets.iter()).map(|len| vec![own; *len]).collect();
        for step in 0..self.steps {
            let id = |bucket| OperationId { step, bucket };
            for (bucket, gradient) in (0..).zip(&mut gradients) {
                gradient.fill(own);
                collective.start(id(bucket), gradient).expect("starts");
            }
            for (bucket, gradient) in (0..).zip(&mut gradients) {
                collective.wait(id(bucket), gradient).expect("ends");
                let error = |value: &f32| (value - mean).abs();
                let error = gradient.iter().map(error).fold(0.0, f32::max);
                let bound = match self.config.element {
                    Element::F32 => 1e-5,
                    Element::Bf16 | Element::F16 => 2e-2,
                };
                assert!(
                    error < bound * mean,
                    "step {step}: error {error} of {:?}",
                    self.config
                );
            }
        }
        collective
            .finish(Duration::from_millis(50))
            .expect("finishes")
    }

    /// Runs it. Every packet counts, and is sent once.
    fn loses_nothing(&self) {
        let operations = u64::from(self.steps) * self.buckets.len() as u64;
        let (mut sent, mut came) = (0, 0);
        for report in self.reports() {
            let totals = &report.totals;
            assert_eq!(totals.operations, operations, "{report:?}");
            let lost = totals.lost.scatter.total() + totals.lost.gather.total();
            assert_eq!((lost, totals.rejected.total()), (0, 0), "{report:?}");
            for phase in [totals.phases.scatter, totals.phases.gather] {
                let not = (
                    phase.never_sent,
                    phase.late,
                    phase.duplicates,
                    phase.refused,
                );
                assert_eq!(not, (0, 0, 0, 0), "{report:?}");
                assert_eq!(phase.sent, phase.slots, "{report:?}");
                (sent, came) = (sent + phase.sent, came + phase.in_time);
            }
            assert_eq!(report.link, Default::default());
        }
        assert_eq!(came, sent);
    }
}

/// The end of a veth pair at which `rank` is.
fn end(rank: u16) -> usize {
    usize::from(rank % 2)
}

fn config(ranks: u16) -> Config {
    Config {
        gather: Gather::Unicast,
        ..Config::new(JOB, 1, 0, ranks, 7, Duration::from_secs(60))
    }
}

/// Jobs of 2, 4, 9 and 16 ranks, small and large buckets, one and several in progress, short and long packets. Ten thousand
/// operations in a full run.
fn all(ordinary: bool, shared_memory: bool, veth: Option<&Veth>) {
    type Change = fn(Config) -> Config;
    let plain: Change = |config| config;
    let bf16: Change = |config| Config {
        element: Element::Bf16,
        ..config
    };
    let sealed: Change = |config| Config {
        key: Some(Key([7; 16])),
        ..config
    };
    // As long as loopback's MTU allows by itself.
    let long = 32_192;
    // Once in a quick run: it takes most of the time.
    let largest = match ordinary || shared_memory {
        true => per_run(5_000_000, 25_000_000),
        false => 25_000_000,
    };
    let run = |config: Config, steps, buckets: &[usize], late| {
        let config = Config {
            shared_memory,
            ..config
        };
        // Long slots fit the MTU, and not much longer ones.
        let mtu = if config.slot_bytes > 1408 {
            65_535
        } else {
            1500
        };
        veth.inspect(|veth| veth.set_mtu(mtu));
        let run = Run {
            config,
            steps,
            buckets,
            late,
            ordinary,
            veth,
        };
        run.loses_nothing();
    };
    for (ranks, slot, few, many, buckets, change) in [
        (2, 1408, 40, 5000, &[1000][..], plain),
        (2, 1408, 4, 300, &[500_000][..], plain),
        (2, long, 1, 20, &[largest][..], plain),
        (2, 1408, 0, 10, &[25_000_000][..], plain),
        (4, 1408, 4, 400, &[300_000, 5, 70_000][..], plain),
        (4, long, 4, 300, &[300_000, 5, 70_000, 1_500_000][..], plain),
        (4, 1408, 2, 100, &[300_000][..], bf16),
        // With the tag, as long as an MTU of 1,500 allows.
        (4, 1392, 2, 100, &[300_000][..], sealed),
        (9, 1408, 3, 200, &[100_000, 100_000][..], plain),
        (16, 1408, 2, 570, &[20_000][..], plain),
        (16, long, 2, 150, &[200_000, 200_000][..], plain),
        (16, 1408, 1, 400, &[1000, 50_000][..], plain),
    ] {
        let config = Config {
            slot_bytes: slot,
            ..config(ranks)
        };
        run(change(config), per_run(few, many), buckets, Duration::ZERO);
    }
    // A rank that starts late has the buffer of a process that has not sized its socket.
    // It has no room for a long packet of each of fifteen.
    for (ranks, slot, bucket) in [
        (2, 1408, 500_000),
        (9, long, 300_000),
        (16, 1408, 300_000),
        (16, long, 300_000),
    ] {
        let config = Config {
            slot_bytes: slot,
            ..config(ranks)
        };
        run(config, 2, &[bucket], Duration::from_millis(50));
    }
}

#[test]
fn nothing_is_lost_whatever_the_limit_is() {
    let _machine = MACHINE.lock();
    // Linux's default, and that of hosts that are set up for it.
    for bytes in [212_992, 4 << 20] {
        let Some(_limit) = ReceiveLimit::set(bytes) else {
            return skipped("only root may set net.core.rmem_max, where it is visible");
        };
        all(true, false, None);
    }
}

/// The limit is the machine's, so processes in other namespaces have it, too.
#[test]
fn nothing_is_lost_over_a_veth_pair() {
    let _machine = MACHINE.lock();
    for bytes in [212_992, 4 << 20] {
        let (Some(veth), Some(_limit)) = (Veth::new(), ReceiveLimit::set(bytes)) else {
            return skipped("only root may add namespaces and set net.core.rmem_max");
        };
        // Without waiting for overtaken packets (`Config::reorder`), a job loses what is overtaken.
        veth.resolve();
        all(true, false, Some(&veth));
    }
}

#[test]
fn nothing_is_lost_at_the_machines_limit() {
    let _machine = MACHINE.lock();
    all(false, false, None);
}

#[test]
fn nothing_is_lost_in_shared_memory() {
    let _machine = MACHINE.lock();
    all(false, true, None);
}
