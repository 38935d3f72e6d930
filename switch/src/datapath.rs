//! The datapath between ports: ingress, queues, egress, wires, and their counts.
//!
//! Only the forwarding thread uses it. Callers pass the time.

use std::io;
use std::sync::Arc;

use nix::sys::epoll::Epoll;

use crate::clock::Clock;
use crate::config::MAX_PORT;
use crate::notify::Notifier;
use crate::pcap::Capture;
use crate::pipeline::Pipeline;
use crate::port::PortIo;
use crate::port::links::LinkEvents;
use crate::stats::{Key, Place, PortStats, StatsKey};
use crate::tm::{EgressPort, Held, Nanos, PRIORITIES, Pool, WireConfig};
use crate::trace::tracer::Tracer;
use crate::trace::{Fate, PacketLog};

mod egress;
mod ingress;
mod liveness;
mod ports;
mod programs;

pub(crate) use liveness::PortStatus;
use liveness::Reported;
pub use ports::unknown_port;

/// Poller token of interface notifications; smaller tokens are port numbers.
pub(crate) const LINK_EVENTS: u64 = u64::MAX - 2;
/// Longest time that a capture stays in memory.
const FLUSH_INTERVAL: Nanos = 200_000_000;

/// A port to add.
pub(crate) struct NewPort {
    pub(crate) number: u16,
    /// The attachment's name.
    pub(crate) attachment: String,
    pub(crate) io: Box<dyn PortIo>,
    pub(crate) wire: WireConfig,
    /// Seed of the wire's losses.
    pub(crate) seed: u64,
    /// Number of its queues.
    pub(crate) priority_queues: u8,
    pub(crate) capture: Option<Capture>,
    /// The capture's name; `None` for a port without captures.
    pub(crate) capture_name: Option<String>,
}

/// The datapath's connection to controllers.
pub(crate) struct ControllerLink {
    /// Number of the CPU port, if there is one.
    pub(crate) cpu_port: Option<u16>,
    pub(crate) notifier: Notifier,
}

struct Port {
    number: u16,
    attachment: String,
    egress: EgressPort<Item>,
    stats: PortStats,
    capture: Option<Capture>,
    /// True if the port may have work.
    ready: bool,
    /// The next time at which the port has work.
    due: Option<Nanos>,
}

/// Copies for ports that do not exist. Egress processes them too: it may count, clone or recirculate them. Only frames that it
/// sends are lost.
struct Nowhere {
    egress: EgressPort<Item>,
    stats: PortStats,
    ready: bool,
}

/// An item of a queue.
enum Item {
    /// A copy for the egress program.
    Copy(ultima_engine::Copy),
    /// A whole frame, if two ports are joined without a program.
    Frame(Vec<u8>),
}

#[derive(Debug, Clone)]
pub(crate) struct PortSnapshot {
    pub(crate) number: u16,
    pub(crate) attachment: String,
    pub(crate) connected: bool,
    pub(crate) stats: PortStats,
    pub(crate) held: Held,
}

/// A consistent snapshot of all ports.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) now: Nanos,
    pub(crate) ports: Vec<PortSnapshot>,
    /// Copies for ports that do not exist.
    pub(crate) unattached: PortStats,
    pub(crate) unattached_held: Held,
    /// Number of copies beyond the limits of all programs so far.
    pub(crate) over_limit: u64,
}

/// Ports, queues and programs.
pub(crate) struct Datapath {
    clock: Clock,
    poller: Arc<Epoll>,
    /// By number, ascending.
    ports: Vec<Port>,
    /// Attachments of the ports, in the same order.
    attachments: Vec<Box<dyn PortIo>>,
    /// Index into `ports` by port number.
    by_number: Vec<Option<usize>>,
    /// Interface notifications, from the first port on a network interface on.
    links: Option<LinkEvents>,
    reported: Reported,
    nowhere: Nowhere,
    stats_key: Option<StatsKey>,
    controllers: ControllerLink,
    /// True if frames cross between two ports without a program.
    joined: bool,
    /// The program that packets run through.
    active: Option<Pipeline>,
    /// A program saved and not yet committed (P4Runtime §14, VERIFY_AND_SAVE).
    saved: Option<Pipeline>,
    /// Number of copies beyond the limits of former programs.
    over_limit: u64,
    pool: Pool,
    flush_at: Option<Nanos>,
    tracer: Tracer,
    // Emptied after each use; kept for their memory.
    copies: Vec<ultima_engine::Copy>,
    ordered: Vec<(ultima_engine::Copy, Key)>,
    segment: Vec<u8>,
    used: Vec<Vec<u8>>,
}

impl Datapath {
    /// Registers the ports with `poller`, each under its number.
    pub(crate) fn new(
        ports: Vec<NewPort>,
        controllers: ControllerLink,
        stats_key: Option<StatsKey>,
        active: Option<Pipeline>,
        poller: Arc<Epoll>,
    ) -> io::Result<Self> {
        let keyed = stats_key.is_some();
        let mut datapath = Datapath {
            clock: Clock::start(),
            poller,
            ports: Vec::with_capacity(ports.len()),
            attachments: Vec::with_capacity(ports.len()),
            by_number: vec![None; usize::from(MAX_PORT) + 1],
            links: None,
            reported: Reported::default(),
            nowhere: Nowhere {
                egress: EgressPort::new(WireConfig::default(), 0, PRIORITIES as u8),
                stats: PortStats::new(keyed),
                ready: false,
            },
            stats_key,
            controllers,
            joined: false,
            active: None,
            saved: None,
            over_limit: 0,
            pool: Pool::default(),
            flush_at: None,
            tracer: Tracer::default(),
            copies: Vec::new(),
            ordered: Vec::new(),
            segment: Vec::new(),
            used: Vec::new(),
        };
        for new in ports {
            datapath.add_port(new).map_err(io::Error::other)?;
        }
        if let Some(pipeline) = active {
            drop(datapath.commit(pipeline));
        }
        Ok(datapath)
    }

    /// Joins its two ports; frames then bypass the pipeline.
    pub(crate) fn join(&mut self) {
        debug_assert_eq!(self.ports.len(), 2);
        self.joined = true;
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn tracer(&mut self) -> &mut Tracer {
        &mut self.tracer
    }

    pub(crate) fn start_log(&mut self, log: PacketLog) {
        self.tracer.log_to(log, self.clock.time_of_day(0));
    }

    /// Iterates over number, attachment and wire configuration of each port.
    pub(crate) fn wires(&self) -> impl Iterator<Item = (u16, &str, &WireConfig)> {
        let ports = self.ports.iter();
        ports.map(|port| (port.number, port.attachment.as_str(), port.egress.config()))
    }

    /// Configures a port's queues and wire. Ignores an unknown port.
    pub(crate) fn set_wire(&mut self, number: u16, wire: WireConfig) {
        let now = self.clock.now();
        if let Some(port) = self.ports.iter_mut().find(|port| port.number == number) {
            port.egress.configure(wire, now);
            port.ready = true;
        }
    }

    /// Returns a consistent snapshot of all ports.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let ports = self.ports.iter_mut().zip(&mut self.attachments);
        let ports = ports.map(|(port, io)| port.snapshot(io.as_mut()));
        Snapshot {
            now: self.clock.now(),
            ports: ports.collect(),
            unattached: self.nowhere.stats.clone(),
            unattached_held: self.nowhere.egress.held(),
            over_limit: self.over_limit
                + (self.active()).map_or(0, |active| active.engine.over_limit()),
        }
    }

    /// Queues copies at their ports.
    fn order(&mut self, now: Nanos) {
        for (copy, key) in self.ordered.drain(..) {
            let (len, priority) = (copy.len, copy.priority);
            let found = self
                .by_number
                .get(usize::from(copy.port))
                .copied()
                .flatten();
            let (egress, stats, ready) = match found.map(|index| &mut self.ports[index]) {
                Some(port) => (&mut port.egress, &mut port.stats, &mut port.ready),
                None => {
                    let nowhere = &mut self.nowhere;
                    (&mut nowhere.egress, &mut nowhere.stats, &mut nowhere.ready)
                }
            };
            egress.order(Item::Copy(copy), priority, len, key, now, stats);
            *ready = true;
        }
        self.note_fates(now);
    }

    /// Reports to traces where their copies were counted.
    fn note_fates(&mut self, now: Nanos) {
        if self.tracer.is_idle() {
            return;
        }
        for port in &mut self.ports {
            for (mark, place) in port.stats.take_noted() {
                self.tracer.counted(mark, place, None, now / 1000);
            }
        }
        for (mark, place) in self.nowhere.stats.take_noted() {
            let fate = (place == Place::NoPeer).then_some(Fate::NoPort);
            self.tracer.counted(mark, place, fate, now / 1000);
        }
    }

    /// Returns the next time at which a timer has work.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.ports
            .iter()
            .filter_map(|port| port.due)
            .chain(self.flush_at)
            .chain(self.active.as_ref().and_then(Pipeline::next_due))
            .min()
    }

    /// Flushes captures if that is due, or if `all`.
    pub(crate) fn flush_captures(&mut self, all: bool) {
        if all || self.flush_at.is_some_and(|at| at <= self.clock.now()) {
            let captures = self.ports.iter_mut().filter_map(|it| it.capture.as_mut());
            captures.for_each(Capture::flush);
            self.flush_at = None;
        }
    }

    fn key_of(&self, frame: &[u8]) -> Key {
        self.stats_key.map_or(Key::NONE, |key| key.of(frame))
    }
}

/// Returns a copy with the key of its frame and its own trace mark.
fn keyed(copy: ultima_engine::Copy, key: Key) -> (ultima_engine::Copy, Key) {
    let key = key.marked(copy.mark);
    (copy, key)
}
