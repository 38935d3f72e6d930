//! A link between two virtual ports: the time that a frame takes to cross it, and the frames per second that it carries.
//!
//! The receiver polls, so its own wake-ups do not count. Use an idle machine with two processors or more.
//! `tests/benches/bmv2` measures a switch with a program.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use tokio::runtime::Runtime;
use ultima_switch::tm::WireConfig;
use ultima_switch::{Attach, LinkConfig, Running, link};

const FRAME: usize = 1400;
/// Frames sent at once when throughput is measured.
const BATCH: usize = 64;

/// Returns the end for the link and the far end of a port.
fn pair() -> (OwnedFd, UnixDatagram) {
    let flags = SockFlag::SOCK_CLOEXEC;
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("socketpair");
    setsockopt(&theirs, sockopt::SndBuf, &(4 << 20)).expect("send buffer");
    (ours, UnixDatagram::from(theirs))
}

/// Starts a link with this wire and returns it with its far ends.
fn start(runtime: &Runtime, a_to_b: WireConfig) -> (Running, UnixDatagram, UnixDatagram) {
    let ((at_a, a), (at_b, b)) = (pair(), pair());
    b.set_nonblocking(true).expect("non-blocking");
    let link = runtime.block_on(link::start(LinkConfig {
        a: Attach::Socket(at_a.into()),
        b: Attach::Socket(at_b.into()),
        a_to_b,
        b_to_a: WireConfig::default(),
        seed: 1,
        grpc: None,
        pcap_dir: None,
    }));
    (link.expect("the link starts"), a, b)
}

fn receive(from: &UnixDatagram) {
    let mut buffer = [0; 2 * FRAME];
    loop {
        match from.recv(&mut buffer) {
            Ok(_) => return,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => panic!("the link has ended: {error}"),
        }
    }
}

/// Sends `frames` frames and receives them, again and again.
fn bench(c: &mut Criterion, name: &str, wire: WireConfig, frames: usize) {
    let runtime = Runtime::new().expect("a runtime");
    let (link, a, b) = start(&runtime, wire);
    let mut group = c.benchmark_group("link");
    group.throughput(Throughput::Elements(frames as u64));
    group.bench_function(name, |bencher| {
        bencher.iter(|| {
            for _ in 0..frames {
                a.send(&[0; FRAME]).expect("sent");
            }
            for _ in 0..frames {
                receive(&b);
            }
        });
    });
    group.finish();
    runtime.block_on(link.stop()).expect("stopped");
}

fn crossing(c: &mut Criterion) {
    for (name, delay) in [
        ("crossing, no delay", Duration::ZERO),
        ("crossing, 100 µs", Duration::from_micros(100)),
        ("crossing, 1 ms", Duration::from_millis(1)),
    ] {
        let wire = WireConfig {
            delay,
            ..WireConfig::default()
        };
        bench(c, name, wire, 1);
    }
}

fn throughput(c: &mut Criterion) {
    for (name, rate) in [("no rate", None), ("1 Gbit/s", Some(1_000_000_000))] {
        let wire = WireConfig {
            rate,
            ..WireConfig::default()
        };
        bench(c, name, wire, BATCH);
    }
}

criterion_group!(benches, crossing, throughput);
criterion_main!(benches);
