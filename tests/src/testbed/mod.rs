//! Running switches, and hosts that send and receive frames.

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

/// The frames that each host received, in order.
pub type Arrivals = BTreeMap<HostId, Vec<Vec<u8>>>;

/// The number of frames sent in a burst, which sentinels follow. BMv2 loses bursts of more than 32 at its input.
const BURST: usize = 16;

/// The deadline for a frame that is sent repeatedly.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The port of sentinels: UDP's discard service (RFC 863).
const DISCARD: u16 = 9;

/// A running switch. Dropping it ends the switch.
pub trait RunningSwitch {
    /// Ends the switch and all connections to it.
    fn end(self: Box<Self>, runtime: &Runtime);

    /// The address of its P4Runtime server.
    fn grpc(&self) -> SocketAddr;

    /// The id of its process.
    fn process(&self) -> u32;
}

/// A fabric of running switches.
pub struct Testbed {
    /// Switches, hosts and links.
    pub fabric: Fabric,
    ends: Vec<Box<dyn HostEnd>>,
    switches: Vec<Box<dyn RunningSwitch>>,
    sentinels: u64,
    /// The runtime for asynchronous work. Its threads are in the testbed's network namespace.
    pub runtime: Runtime,
}

impl Testbed {
    /// The addresses of the switches' P4Runtime servers.
    pub fn grpc(&self) -> Vec<SocketAddr> {
        self.switches.iter().map(|switch| switch.grpc()).collect()
    }

    /// As [`Testbed::exchange_stamped`], without [`crate::stamps`], which differ in each run.
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

    /// Sends frames from one host, and returns the frames that all hosts receive. There is no timeout: a sentinel to every host
    /// follows, and queues keep the order, so no frame comes after it.
    ///
    /// # Panics
    /// If a sentinel is lost.
    pub fn exchange_stamped(&mut self, from: HostId, frames: &[Vec<u8>]) -> Arrivals {
        let mut arrivals = Arrivals::new();
        let mut bursts = frames.chunks(BURST);
        loop {
            // Without frames, collects the effects of injected ones.
            for frame in bursts.next().unwrap_or_default() {
                self.send(from, frame);
            }
            self.collect(from, &mut arrivals);
            if bursts.len() == 0 {
                break arrivals;
            }
        }
    }

    /// Sends frames from one host. The next exchange returns the frames that arrive for them, too.
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

    /// Sends a sentinel to every host, and adds the frames that arrive before it.
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

    /// Ends a switch, as if its process were killed.
    ///
    /// # Panics
    /// If there is no such switch.
    pub fn kill(&mut self, switch: usize) {
        self.switches.remove(switch).end(&self.runtime);
    }

    /// Sends a frame each millisecond from one host until another receives one that `is_wanted` accepts; returns the elapsed time.
    ///
    /// # Panics
    /// If none comes in ten seconds.
    pub fn send_until(
        &mut self,
        [from, to]: [HostId; 2],
        frame: impl Fn(u32) -> Vec<u8> + Sync,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Duration {
        let ends = self.ends.get_disjoint_mut([from.0, to.0]);
        let [sender, receiver] = ends.expect("two hosts");
        let (start, done) = (Instant::now(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    if done.load(Ordering::Relaxed) || start.elapsed() > TIMEOUT {
                        break;
                    }
                    sender.send(&frame(number)).expect("the first switch is up");
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let received = loop {
                match receiver.receive() {
                    Ok(frame) if is_wanted(&frame) => break Ok(start.elapsed()),
                    Ok(_) if start.elapsed() > TIMEOUT => {
                        break Err("other frames arrive".to_owned());
                    }
                    Ok(_) => {}
                    // This process was stopped and continued.
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => break Err(error.to_string()),
                }
            };
            done.store(true, Ordering::Relaxed);
            received.unwrap_or_else(|error| panic!("the frame does not arrive: {error}"))
        })
    }

    /// The ids of the switches' processes.
    pub fn processes(&self) -> Vec<u32> {
        self.switches
            .iter()
            .map(|switch| switch.process())
            .collect()
    }

    /// Closes the hosts' ends, so that the caller can open their interfaces.
    pub fn release_ends(&mut self) {
        self.ends.clear();
    }

    /// A datagram that is not Ultima's.
    pub fn plain(&self, from: HostId, to: HostId, port: u16, payload: Vec<u8>) -> Datagram {
        plain(&self.fabric, from, to, port, payload)
    }
}

/// A datagram between two hosts that is not Ultima's.
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
