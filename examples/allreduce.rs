//! Four ranks average a gradient ten times, over UDP on this machine: no switch, no controller, no root.
//!
//! `cargo run --release -p ultima-examples --bin allreduce`

use std::error::Error;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::thread;
use std::time::Duration;

use ultima_host::{Collective, Config, Gather, OperationId, Pacing, RatePolicy, UdpConfig};
use ultima_wire::{UDP_PORT, group_address};

const RANKS: u16 = 4;
const VALUES: usize = 100_000;
const STEPS: u32 = 10;
/// The number of the job and its membership epoch, as packets have them. A controller assigns them.
const JOB: u16 = 1;
const EPOCH: u16 = 1;
/// All ranks draw the signs of the Hadamard transform from this seed.
const SEED: u64 = 42;
/// When an AllReduce ends at the latest.
const DEADLINE: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn Error>> {
    let sockets: Vec<UdpSocket> = (0..RANKS)
        .map(|_| UdpSocket::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()?;
    let peers: Vec<SocketAddrV4> = sockets.iter().map(address).collect::<Result<_, _>>()?;

    let ranks: Vec<_> = (0..RANKS)
        .zip(sockets)
        .map(|(rank, socket)| {
            let group = SocketAddrV4::new(group_address(JOB), UDP_PORT);
            let peers = peers.clone();
            let udp = UdpConfig {
                socket,
                peers,
                group,
            };
            thread::spawn(move || run(rank, udp))
        })
        .collect();
    for rank in ranks {
        rank.join().expect("a rank panicked")?;
    }
    Ok(())
}

/// One rank: in training, the process of one GPU.
fn run(rank: u16, udp: UdpConfig) -> Result<(), ultima_host::Error> {
    let config = Config {
        // No switch here copies packets to a group.
        gather: Gather::Unicast,
        // There is no flow control yet: without a rate, four ranks overrun each other's socket buffers.
        pacing: Some(Pacing {
            bits_per_second: 200_000_000,
            burst: 15_000,
            policy: RatePolicy::default(),
        }),
        ..Config::new(JOB, EPOCH, rank, RANKS, SEED, DEADLINE)
    };
    let mut collective = Collective::over_udp(config, udp)?;
    // The mean of 0, 1, 2 and 3.
    let mean = f32::from(RANKS - 1) / 2.0;
    for step in 0..STEPS {
        let mut gradient = vec![f32::from(rank); VALUES];
        let id = OperationId { step, bucket: 0 };
        let outcome = collective.allreduce(id, &mut gradient)?;
        let error = (gradient.iter())
            .map(|value| (value - mean).abs())
            .fold(0.0, f32::max);
        if rank == 0 {
            println!(
                "step {step}: {:?} after {:.1?}, {:.2} % lost, largest error {error:.1e}",
                outcome.closed_by,
                outcome.duration,
                100.0 * outcome.lost_share()
            );
        }
    }
    // Peers may still ask for packets of the last step.
    collective.finish(Duration::from_millis(100))?;
    Ok(())
}

fn address(socket: &UdpSocket) -> std::io::Result<SocketAddrV4> {
    match socket.local_addr()? {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(address) => Err(std::io::Error::other(format!("{address} is not IPv4"))),
    }
}
