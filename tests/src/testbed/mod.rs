//! Switches with hosts' ends of links, and what comes out of them.

mod build;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::fabric::{Fabric, HostId};
use crate::generator::{Datagram, UdpChecksum};
use crate::host_end::HostEnd;
use crate::job::GATEWAY;
use crate::stamps::unstamped;

/// What each host received, in order.
pub type Arrivals = BTreeMap<HostId, Vec<Vec<u8>>>;

/// Frames that may be on their way into a switch at once. BMv2 loses bursts of more than 32 at
/// its input, before P4 sees them; each burst is followed by a sentinel for every host.
const BURST: usize = 16;

/// How long what is sent again and again may take to come.
const PATIENCE: Duration = Duration::from_secs(10);

/// UDP's discard service (RFC 863): sentinels go there.
const DISCARD: u16 = 9;

/// A switch that runs, of whatever make, and ends when this is dropped.
pub trait RunningSwitch {
    /// Ends, and all connections to it.
    fn end(self: Box<Self>, runtime: &Runtime);

    /// Where its P4Runtime server listens.
    fn grpc(&self) -> SocketAddr;

    /// How long its threads that forward have computed.
    fn cpu_time(&self) -> Duration;
}

/// A fabric of running switches.
pub struct Testbed {
    /// What is linked to what.
    pub fabric: Fabric,
    ends: Vec<Box<dyn HostEnd>>,
    switches: Vec<Box<dyn RunningSwitch>>,
    sentinels: u64,
    /// Where asynchronous work of the test runs; its threads are in the testbed's namespace.
    pub runtime: Runtime,
}

impl Testbed {
    /// Where the switches' P4Runtime servers listen.
    pub fn grpc(&self) -> Vec<SocketAddr> {
        self.switches.iter().map(|switch| switch.grpc()).collect()
    }

    /// As [`Testbed::exchange_stamped`], without what is different each time, see [`crate::stamps`].
    ///
    /// # Panics
    /// If a sentinel is lost.
    pub fn exchange(&mut self, from: HostId, frames: &[Vec<u8>]) -> Arrivals {
        let mut arrivals = self.exchange_stamped(from, frames);
        for frame in arrivals.values_mut().flatten() {
            *frame = unstamped(std::mem::take(frame));
        }
        arrivals
    }

    /// Sends frames from one host, one after the other, and returns all that comes out of the fabric for
    /// them. Nothing is timed: a plain datagram follows to every host, and as queues keep their
    /// order, what has not come before it does not come.
    ///
    /// # Panics
    /// If a sentinel is lost.
    pub fn exchange_stamped(&mut self, from: HostId, frames: &[Vec<u8>]) -> Arrivals {
        let mut arrivals = Arrivals::new();
        let mut bursts = frames.chunks(BURST);
        loop {
            // Without frames, too: for what was injected.
            for frame in bursts.next().unwrap_or_default() {
                self.send(from, frame);
            }
            self.collect(from, &mut arrivals);
            if bursts.len() == 0 {
                break arrivals;
            }
        }
    }

    /// Sends frames from one host and looks at nothing: the next exchange returns what comes of them.
    ///
    /// # Panics
    /// If they cannot be sent.
    pub fn inject(&mut self, from: HostId, frames: &[Vec<u8>]) {
        frames.iter().for_each(|frame| self.send(from, frame));
    }

    fn send(&mut self, from: HostId, frame: &[u8]) {
        if let Err(error) = self.ends[from.0].send(frame) {
            panic!(
                "{} cannot send {} bytes: {error}",
                self.fabric.host(from).name,
                frame.len()
            );
        }
    }

    /// Sends a sentinel to every host and adds what they receive before it.
    fn collect(&mut self, from: HostId, arrivals: &mut Arrivals) {
        self.sentinels += 1;
        let mark = format!("sentinel {}", self.sentinels);
        let sentinels: Vec<(HostId, Datagram)> = (self.fabric.host_ids())
            .map(|to| (to, self.plain(from, to, DISCARD, mark.clone().into())))
            .collect();
        for (_, sentinel) in &sentinels {
            self.send(from, &sentinel.emit());
        }
        for (to, sentinel) in sentinels {
            let mut last = sentinel;
            last.dst_mac = self.fabric.host(to).mac;
            last.ttl -= self.fabric.hops(from, to);
            let last = last.emit();
            loop {
                match self.ends[to.0].receive() {
                    Ok(frame) if frame == last => break,
                    Ok(frame) => arrivals.entry(to).or_default().push(frame),
                    Err(error) => {
                        let (from, to) = (&self.fabric.host(from).name, &self.fabric.host(to).name);
                        panic!("a plain datagram from {from} did not reach {to}: {error}");
                    }
                }
            }
        }
    }

    /// Ends a switch, as if its process were killed: its ports and its server are gone.
    ///
    /// # Panics
    /// If there is no such switch.
    pub fn kill(&mut self, switch: usize) {
        self.switches.remove(switch).end(&self.runtime);
    }

    /// Sends frames from one host, one each millisecond, until another has received one that `is_it`; returns how long that took.
    ///
    /// # Panics
    /// If none comes in ten seconds.
    pub fn send_until(
        &mut self,
        [from, to]: [HostId; 2],
        frame: impl Fn(u32) -> Vec<u8> + Sync,
        is_it: impl Fn(&[u8]) -> bool,
    ) -> Duration {
        let ends = self.ends.get_disjoint_mut([from.0, to.0]);
        let [sender, receiver] = ends.expect("two hosts");
        let (begun, done) = (Instant::now(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    if done.load(Ordering::Relaxed) || begun.elapsed() > PATIENCE {
                        break;
                    }
                    sender.send(&frame(number)).expect("the first switch is up");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let received = loop {
                match receiver.receive() {
                    Ok(frame) if is_it(&frame) => break Ok(begun.elapsed()),
                    Ok(_) if begun.elapsed() > PATIENCE => break Err("none is it".to_owned()),
                    Ok(_) => {}
                    // Somebody has stopped this process and let it go on.
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => break Err(error.to_string()),
                }
            };
            done.store(true, Ordering::Relaxed);
            received.unwrap_or_else(|error| panic!("nothing came: {error}"))
        })
    }

    /// How long the threads that forward, of all switches, have computed.
    pub fn cpu_time(&self) -> Duration {
        self.switches.iter().map(|switch| switch.cpu_time()).sum()
    }

    /// Closes the hosts' ends, whose interfaces are then the caller's alone.
    pub fn release_ends(&mut self) {
        self.ends.clear();
    }

    /// A datagram that is none of Ultima's.
    pub fn plain(&self, from: HostId, to: HostId, port: u16, payload: Vec<u8>) -> Datagram {
        plain(&self.fabric, from, to, port, payload)
    }
}

/// A datagram between two hosts that is none of Ultima's.
pub fn plain(fabric: &Fabric, from: HostId, to: HostId, port: u16, payload: Vec<u8>) -> Datagram {
    let (from, to) = (fabric.host(from), fabric.host(to));
    Datagram {
        src_mac: from.mac,
        dst_mac: GATEWAY,
        src: SocketAddrV4::new(from.ip, 40_000),
        dst: SocketAddrV4::new(to.ip, port),
        ttl: ultima_wire::frame::TTL,
        checksum: UdpChecksum::Right,
        length_error: 0,
        payload,
    }
}
