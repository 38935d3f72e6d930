//! Measures how exactly a link keeps its delay, jitter and rate: `cargo run --release -p
//! ultima-switch --example accuracy`.
//!
//! Frames cross a [`Link`] between two virtual ports. The receiver polls, so that what is measured is
//! the link, and not how fast the receiver's thread wakes up. Run it on an idle machine with two
//! processors or more.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use ultima_switch::tm::{WireChange, WireConfig};
use ultima_switch::{Attach, Link, LinkConfig};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Frames per measurement, and the time between two of them.
const FRAMES: usize = 5_000;
const PAUSE: Duration = Duration::from_micros(300);
/// How long a rate is measured.
const SPAN: Duration = Duration::from_secs(2);
const FRAME: usize = 1400;
const BITS: f64 = FRAME as f64 * 8.0;

#[tokio::main]
async fn main() -> Outcome<()> {
    println!("delay: how much later than configured frames arrive, µs");
    println!(
        "{:>24}{:>9}{:>9}{:>9}{:>9}",
        "", "10 %", "50 %", "90 %", "99 %"
    );
    for delay in ["0s", "100us", "1ms", "10ms"] {
        let wire = wire(&format!("delay={delay}"))?;
        let configured = wire.delay.as_secs_f64() * 1e6;
        let took = crossings(wire).await?;
        let late = |percent: usize| quantile(&took, percent as f64 / 100.0) - configured;
        println!(
            "{delay:>24}{:9.1}{:9.1}{:9.1}{:9.1}",
            late(10),
            late(50),
            late(90),
            late(99)
        );
    }

    println!("jitter: time under way at each quantile, µs, and what it should be");
    println!("{:>24}{:>18}{:>18}{:>18}", "", "10 %", "50 %", "90 %");
    for jitter in [
        "uniform:500us",
        "normal:200us",
        "pareto:200us:3",
        "lognormal:200us:1",
    ] {
        let settings = format!("delay=1ms,jitter={jitter},reorder=true");
        let took = crossings(wire(&settings)?).await?;
        let mut row = format!("{jitter:>24}");
        for share in [0.1, 0.5, 0.9] {
            let expected = 1000.0 + theory(jitter, share);
            row += &format!("{:9.1}{expected:9.1}", quantile(&took, share));
        }
        println!("{row}");
    }

    println!("rate: bits of frames of {FRAME} bytes per second");
    for rate in ["1M", "10M", "100M", "1G", "4G"] {
        let wire = wire(&format!("rate={rate}"))?;
        let configured = wire.rate.unwrap_or_default() as f64;
        let measured = throughput(wire).await?;
        let error = (measured / configured - 1.0) * 100.0;
        println!("{rate:>24}{:12.3} Mbit/s, {error:+.3} %", measured / 1e6);
    }
    Ok(())
}

fn wire(settings: &str) -> Outcome<WireConfig> {
    let mut wire = WireConfig::default();
    settings.parse::<WireChange>()?.apply(&mut wire);
    Ok(wire)
}

/// A link with this wire from the first socket to the second, which does not block.
async fn link(wire: WireConfig) -> Outcome<(Link, UnixDatagram, UnixDatagram)> {
    let pair = || -> Outcome<(OwnedFd, UnixDatagram)> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        setsockopt(&theirs, sockopt::SndBuf, &(4 << 20))?;
        Ok((ours, UnixDatagram::from(theirs)))
    };
    let ((at_a, a), (at_b, b)) = (pair()?, pair()?);
    b.set_nonblocking(true)?;
    let link = Link::start(LinkConfig {
        a: Attach::Socket(at_a),
        b: Attach::Socket(at_b),
        a_to_b: wire,
        b_to_a: WireConfig::default(),
        seed: 1,
        grpc: None,
        pcap_dir: None,
    });
    Ok((link.await?, a, b))
}

/// How long each of some frames was under way, in µs, in ascending order.
async fn crossings(wire: WireConfig) -> Outcome<Vec<f64>> {
    let (link, a, b) = link(wire).await?;
    let start = Instant::now();
    let took = thread::scope(|scope| -> Outcome<Vec<f64>> {
        let receiver = scope.spawn(|| -> std::io::Result<Vec<f64>> {
            let mut took = Vec::with_capacity(FRAMES);
            let mut buffer = [0; 2048];
            while took.len() < FRAMES {
                match b.recv(&mut buffer) {
                    Ok(_) => {
                        let (stamp, _) = buffer.split_first_chunk::<8>().expect("longer");
                        let sent = Duration::from_nanos(u64::from_be_bytes(*stamp));
                        took.push((start.elapsed() - sent).as_secs_f64() * 1e6);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
                    Err(error) => return Err(error),
                }
            }
            Ok(took)
        });
        let mut frame = [0; 100];
        for _ in 0..FRAMES {
            thread::sleep(PAUSE);
            let now = start.elapsed().as_nanos() as u64;
            frame[..8].copy_from_slice(&now.to_be_bytes());
            a.send(&frame)?;
        }
        Ok(receiver.join().map_err(|_| "the receiver panicked")??)
    });
    link.stop().await?;
    let mut took = took?;
    took.sort_unstable_by(f64::total_cmp);
    Ok(took)
}

fn quantile(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

/// The added time, in µs, that this share of frames stays under.
fn theory(jitter: &str, share: f64) -> f64 {
    // The standard normal distribution's quantile at 10 and 90 %.
    let z = if share == 0.5 {
        0.0
    } else {
        1.281_55_f64.copysign(share - 0.5)
    };
    match jitter.split_once(':') {
        Some(("uniform", _)) => 500.0 * (2.0 * share - 1.0),
        Some(("normal", _)) => 200.0 * z,
        Some(("pareto", _)) => 400.0 * ((1.0 - share).powf(-1.0 / 3.0) - 1.0),
        _ => 200.0 * (z - 0.5).exp(),
    }
}

/// Bits per second that leave a link that is offered a quarter more than its rate.
async fn throughput(wire: WireConfig) -> Outcome<f64> {
    let rate = wire.rate.unwrap_or_default() as f64;
    let (link, a, b) = link(wire).await?;
    b.set_nonblocking(false)?;
    let stop = AtomicBool::new(false);
    let measured = thread::scope(|scope| -> Outcome<f64> {
        scope.spawn(|| {
            let (frame, start) = ([0; FRAME], Instant::now());
            let mut sent = 0.0;
            while !stop.load(Ordering::Relaxed) {
                let offered = start.elapsed().as_secs_f64() * rate * 1.25 / BITS;
                // An error ends the measurement by its result.
                while sent < offered && a.send(&frame).is_ok() {
                    sent += 1.0;
                }
                thread::sleep(PAUSE);
            }
        });
        let mut buffer = [0; 2048];
        b.recv(&mut buffer)?;
        let (first, mut frames) = (Instant::now(), 0.0);
        let measured = loop {
            if let Err(error) = b.recv(&mut buffer) {
                break Err(error.into());
            }
            frames += 1.0;
            let elapsed = first.elapsed();
            if elapsed > SPAN {
                break Ok(frames * BITS / elapsed.as_secs_f64());
            }
        };
        stop.store(true, Ordering::Relaxed);
        measured
    });
    link.stop().await?;
    measured
}
