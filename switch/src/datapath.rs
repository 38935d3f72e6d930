//! Everything a packet meets between two ports: ingress, queues, egress, wires, and their counts.
//!
//! Owned by the forwarding thread alone; time comes in as an argument.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollFlags};
use ultima_p4runtime::v1::{IdleTimeoutNotification, PacketOut};

use crate::clock::Clock;
use crate::config::MAX_PORT;
use crate::engine::{self, EgressOutcome, IngressOutcome, MetadataError, QueueInfo};
use crate::notify::Notifier;
use crate::pcap::{Capture, Direction};
use crate::pipeline::Pipeline;
use crate::port::mmsg::{Frame, MAX_FRAME, RxBatch};
use crate::port::{PortIo, Received, Replay};
use crate::stats::{Key, Place, PortStats, StatsKey};
use crate::tm::{
    Departure, EgressPort, EgressProgram, Held, Medium, Nanos, Pool, Queued, Verdict, Wait,
    WireConfig,
};
use crate::trace::Fate;
use crate::trace::tracer::{Tracer, WatchId};

mod liveness;
mod ports;

use liveness::Told;
pub(crate) use ports::{AddPortError, RemovePortError};

/// Batches read from one port before the others have their turn.
const RECEIVE_TURN: usize = 2;
/// Rounds over the ports before frames are received again.
const SERVE_TURN: usize = 8;
/// Longest time that a capture stays in memory.
const FLUSH_INTERVAL: Nanos = 200_000_000;

/// A port as the datapath is given it.
pub(crate) struct NewPort {
    pub(crate) number: u16,
    /// The attachment's name, for people.
    pub(crate) attachment: String,
    pub(crate) io: Box<dyn PortIo>,
    pub(crate) wire: WireConfig,
    /// Seed of the wire's losses.
    pub(crate) seed: u64,
    pub(crate) capture: Option<Capture>,
}

/// How the datapath reaches controllers.
pub(crate) struct ControllerLink {
    /// Number of the CPU port, if there is one.
    pub(crate) cpu_port: Option<u16>,
    pub(crate) notifier: Notifier,
}

/// Why a packet-out is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PacketOutError {
    #[error("packet-out: this switch has no CPU port; start it with one")]
    NoCpuPort,
    #[error("packet-out: no program is committed that could take it")]
    NoProgram,
    #[error("packet-out: {0}")]
    Metadata(#[from] MetadataError),
    #[error("packet-out: {0} bytes with its header, expected at most {MAX_FRAME}")]
    TooLong(usize),
}

struct Port {
    number: u16,
    attachment: String,
    egress: EgressPort<Item>,
    stats: PortStats,
    capture: Option<Capture>,
    /// Something changed that may let the port do more.
    ready: bool,
    /// The next moment at which time lets it do more.
    due: Option<Nanos>,
}

/// Where copies go that are ordered to ports that do not exist. Egress runs for them as for others:
/// it may count them, clone them or send them through ingress again. Only what it sends is lost.
struct Nowhere {
    egress: EgressPort<Item>,
    stats: PortStats,
    ready: bool,
}

/// The medium of ports that do not exist.
struct Void;

impl Medium for Void {
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) {
        reports.extend(frames.iter().map(|_| Departure::NoPeer));
    }
}

/// What waits in a queue.
enum Item {
    /// What the program ordered.
    Copy(engine::Copy),
    /// A whole frame, where two ports are joined without a program.
    Frame(Vec<u8>),
}

/// One port's state at one moment.
#[derive(Debug, Clone)]
pub(crate) struct PortSnapshot {
    pub(crate) number: u16,
    pub(crate) attachment: String,
    pub(crate) connected: bool,
    pub(crate) stats: PortStats,
    pub(crate) held: Held,
}

/// All ports' state at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) now: Nanos,
    pub(crate) ports: Vec<PortSnapshot>,
    /// Copies ordered to ports that do not exist, and those whose egress is still to come.
    pub(crate) unattached: PortStats,
    pub(crate) unattached_held: Held,
}

/// Ports, queues and programs.
pub(crate) struct Datapath {
    clock: Clock,
    poller: Arc<Epoll>,
    ports: Vec<Port>,
    /// What the ports are attached to, in the same order.
    attachments: Vec<Box<dyn PortIo>>,
    /// Index into `ports` by port number.
    by_number: Vec<Option<usize>>,
    told: Told,
    nowhere: Nowhere,
    stats_key: Option<StatsKey>,
    controllers: ControllerLink,
    /// There are two ports, and what enters at one leaves at the other.
    joined: bool,
    /// The program that packets run through.
    active: Option<Pipeline>,
    /// A program saved and not yet committed (P4Runtime §14, VERIFY_AND_SAVE).
    saved: Option<Pipeline>,
    pool: Pool,
    flush_at: Option<Nanos>,
    tracer: Tracer,
    // Emptied after each use; kept for their memory.
    copies: Vec<engine::Copy>,
    ordered: Vec<(engine::Copy, Key)>,
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
            told: Told::default(),
            nowhere: Nowhere {
                egress: EgressPort::new(WireConfig::default(), 0),
                stats: PortStats::new(keyed),
                ready: false,
            },
            stats_key,
            controllers,
            joined: false,
            active: None,
            saved: None,
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
            datapath.commit(pipeline);
        }
        Ok(datapath)
    }

    /// Joins its ports, of which there are two: no program has a say any more.
    pub(crate) fn join(&mut self) {
        debug_assert_eq!(self.ports.len(), 2);
        self.joined = true;
    }

    /// The clock that all times here are of.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// The poller reports these events for the port with this number, which may be gone by now.
    pub(crate) fn port_event(&mut self, number: u64, events: EpollFlags, batch: &mut RxBatch) {
        let found = usize::try_from(number).ok();
        let Some(index) = found.and_then(|number| *self.by_number.get(number)?) else {
            return;
        };
        // Room to send, or a peer that came or went: either changes what the port can do.
        self.ports[index].ready = true;
        if events.contains(EpollFlags::EPOLLERR) {
            self.attachments[index].failed();
        }
        if !events.intersects(!EpollFlags::EPOLLOUT) {
            return;
        }
        let replays = self.attachments[index].replay() == Replay::Running;
        if replays && self.queues_are_long() && self.attachments[index].hold_back() {
            return;
        }
        for _ in 0..RECEIVE_TURN {
            let now = self.clock.now();
            let received = self.receive(index, batch, &mut |datapath, frame| {
                datapath.enter(index, frame, now);
            });
            if received == Received::Empty {
                break;
            }
        }
    }

    /// Hands a batch of frames of a port to `each`.
    fn receive(
        &mut self,
        index: usize,
        batch: &mut RxBatch,
        each: &mut dyn FnMut(&mut Datapath, Frame<'_>),
    ) -> Received {
        let token = self.ports[index].number.into();
        let poller = self.poller.clone();
        // Frames lie in memory that the attachment lends, while all else works on them.
        let mut attachments = std::mem::take(&mut self.attachments);
        let received =
            attachments[index].receive(&poller, token, batch, &mut |frame| each(self, frame));
        self.attachments = attachments;
        received
    }

    /// The program that reads and writes of the control plane refer to: the saved one, if there is
    /// one.
    pub(crate) fn target(&mut self) -> Option<&mut Pipeline> {
        let target = self.saved.as_mut().or(self.active.as_mut())?;
        target.engine.set_now(self.clock.now() / 1000);
        Some(target)
    }

    /// The program that packets run through.
    pub(crate) fn active(&self) -> Option<&Pipeline> {
        self.active.as_ref()
    }

    /// The same, to change what is on its way to controllers.
    pub(crate) fn active_mut(&mut self) -> Option<&mut Pipeline> {
        self.active.as_mut()
    }

    /// Keeps a program for a later [`Forwarder::commit_saved`].
    pub(crate) fn save(&mut self, mut pipeline: Pipeline) {
        self.introduce_ports(&mut pipeline);
        self.saved = Some(pipeline);
    }

    /// Makes the saved program the one that packets run through. False: there is none.
    pub(crate) fn commit_saved(&mut self) -> bool {
        let saved = self.saved.take();
        let found = saved.is_some();
        if let Some(pipeline) = saved {
            self.commit(pipeline);
        }
        found
    }

    /// Makes this program the one that packets run through. Copies still queued are the old
    /// program's and go with it, counted.
    pub(crate) fn commit(&mut self, mut pipeline: Pipeline) {
        self.introduce_ports(&mut pipeline);
        for port in &mut self.ports {
            port.egress.discard_queue(&mut port.stats);
        }
        self.nowhere.egress.discard_queue(&mut self.nowhere.stats);
        self.saved = None;
        let headers = pipeline.engine.controller_headers().clone();
        self.controllers.notifier.set_headers(headers);
        pipeline.engine.start(self.clock.now() / 1000);
        self.active = Some(pipeline);
        self.note_fates(self.clock.now());
    }

    /// Whose packets are traced.
    pub(crate) fn tracer(&mut self) -> &mut Tracer {
        &mut self.tracer
    }

    /// Numbers of the ports, ascending.
    pub(crate) fn port_numbers(&self) -> Vec<u16> {
        let mut numbers: Vec<_> = self.ports.iter().map(|port| port.number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// A frame enters as if it had come from the port's medium, for whoever traces it.
    pub(crate) fn inject(&mut self, number: u16, frame: &[u8], watch: WatchId) {
        let found = self.by_number.get(usize::from(number)).copied().flatten();
        if let Some(index) = found {
            self.ingress(index, frame, Some(watch), self.clock.now());
        }
    }

    /// Number, attachment and configuration of each port's queues and wire.
    pub(crate) fn wires(&self) -> impl Iterator<Item = (u16, &str, &WireConfig)> {
        let ports = self.ports.iter();
        ports.map(|port| (port.number, port.attachment.as_str(), port.egress.config()))
    }

    /// Configures a port's queues and wire anew. A port that is not there is left out.
    pub(crate) fn set_wire(&mut self, number: u16, wire: WireConfig) {
        let now = self.clock.now();
        if let Some(port) = self.ports.iter_mut().find(|port| port.number == number) {
            port.egress.configure(wire, now);
            port.ready = true;
        }
    }

    /// The ports' counts and what they hold, all at one moment.
    pub(crate) fn snapshot(&mut self) -> Snapshot {
        let ports = self.ports.iter_mut().zip(&mut self.attachments);
        let ports = ports.map(|(port, io)| port.snapshot(io.as_mut()));
        Snapshot {
            now: self.clock.now(),
            ports: ports.collect(),
            unattached: self.nowhere.stats.clone(),
            unattached_held: self.nowhere.egress.held(),
        }
    }

    /// A message that came in at the port with this index goes through ingress.
    fn enter(&mut self, index: usize, frame: Frame<'_>, now: Nanos) {
        match frame {
            Frame::Whole(frame) => self.ingress(index, frame, None, now),
            Frame::Segments(frame, gso) => {
                let mut segment = std::mem::take(&mut self.segment);
                gso.for_each_segment(frame, &mut segment, |one| {
                    self.ingress(index, one, None, now);
                });
                self.segment = segment;
            }
            Frame::Refused(frame) => {
                let key = self.key_of(frame);
                let stats = &mut self.ports[index].stats;
                stats.count(Place::Entered, key, frame.len() as u64);
                stats.count(Place::TooLong, key, frame.len() as u64);
            }
        }
    }

    /// A controller's packet goes through ingress from the CPU port, with its metadata in front.
    pub(crate) fn packet_out(&mut self, packet: &PacketOut) -> Result<(), PacketOutError> {
        let number = self.controllers.cpu_port.ok_or(PacketOutError::NoCpuPort)?;
        let index = self.by_number[usize::from(number)].ok_or(PacketOutError::NoCpuPort)?;
        let pipeline = self.active.as_ref().ok_or(PacketOutError::NoProgram)?;
        let values = packet.metadata.iter();
        let values = values.map(|value| (value.metadata_id, value.value.as_slice()));
        let mut frame = Vec::new();
        let headers = pipeline.engine.controller_headers();
        headers.packet_out.write(values, &mut frame)?;
        frame.extend_from_slice(&packet.payload);
        if frame.len() > MAX_FRAME {
            return Err(PacketOutError::TooLong(frame.len()));
        }
        self.ingress(index, &frame, None, self.clock.now());
        Ok(())
    }

    /// A frame goes through ingress and its copies into the queues. `injected`: it did not come from
    /// the medium.
    fn ingress(&mut self, index: usize, frame: &[u8], injected: Option<WatchId>, now: Nanos) {
        let key = self.key_of(frame);
        let port = &mut self.ports[index];
        let bytes = frame.len() as u64;
        port.stats.count(Place::Entered, key, bytes);
        if let Some(capture) = &mut port.capture {
            capture.record(Direction::In, self.clock.time_of_day(now), frame);
            self.flush_at.get_or_insert(now + FLUSH_INTERVAL);
        }
        if self.joined {
            port.stats.count(Place::Forwarded, key, bytes);
            return self.cross(1 - index, frame, key, now);
        }
        let Some(pipeline) = &mut self.active else {
            port.stats.count(Place::NoProgram, key, bytes);
            return;
        };
        let recorder = self.tracer.admit(port.number, frame, injected, now / 1000);
        let traced = recorder.is_some();
        if let Some(recorder) = recorder {
            pipeline.engine.record(recorder);
        }
        let outcome = pipeline
            .engine
            .ingress(port.number, frame, now / 1000, &mut self.copies);
        if traced && let Some(recorder) = pipeline.engine.recorded() {
            self.tracer.entered(recorder, &self.copies);
        }
        let place = match outcome {
            IngressOutcome::Forwarded => Place::Forwarded,
            IngressOutcome::Dropped(_) => Place::IngressProgram,
        };
        port.stats.count(place, key, bytes);
        tell_learned(pipeline, &self.controllers.notifier, &self.clock, now);
        let ordered = self.copies.drain(..);
        self.ordered.extend(ordered.map(|copy| keyed(copy, key)));
        self.order(now);
    }

    /// A frame goes into the queue of the other one of two joined ports.
    fn cross(&mut self, index: usize, frame: &[u8], key: Key, now: Nanos) {
        let mut buffer = self.pool.take();
        buffer.extend_from_slice(frame);
        // At most MAX_FRAME.
        let len = frame.len() as u32;
        let port = &mut self.ports[index];
        port.egress
            .order(Item::Frame(buffer), 0, len, key, now, &mut port.stats);
        port.ready = true;
    }

    /// Puts ordered copies into the queues of their ports.
    fn order(&mut self, now: Nanos) {
        for (copy, key) in self.ordered.drain(..) {
            let (len, priority) = (copy.len, copy.priority);
            let found = self
                .by_number
                .get(usize::from(copy.port))
                .copied()
                .flatten();
            match found {
                Some(index) => {
                    let port = &mut self.ports[index];
                    port.egress
                        .order(Item::Copy(copy), priority, len, key, now, &mut port.stats);
                    port.ready = true;
                }
                None => {
                    let Nowhere { egress, stats, .. } = &mut self.nowhere;
                    egress.order(Item::Copy(copy), priority, len, key, now, stats);
                    self.nowhere.ready = true;
                }
            }
        }
        self.note_fates(now);
    }

    /// Tells traces where their copies were counted.
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

    /// Lets every port do what it can. True when more could be done right away.
    pub(crate) fn serve_ports(&mut self) -> bool {
        for _ in 0..SERVE_TURN {
            let mut more = false;
            let now = self.clock.now();
            for index in 0..self.ports.len() {
                let port = &self.ports[index];
                if port.ready || port.due.is_some_and(|due| due <= now) {
                    more |= self.serve(index, now);
                    // Clones made in egress.
                    more |= !self.ordered.is_empty();
                    self.order(now);
                }
            }
            if self.nowhere.ready {
                more |= self.serve_nowhere(now);
                self.order(now);
            }
            if !more {
                return false;
            }
        }
        true
    }

    /// True when there is more to do right away. Its wire takes no time.
    fn serve_nowhere(&mut self, now: Nanos) -> bool {
        let mut program = Program {
            pipeline: self.active.as_mut(),
            tracer: &mut self.tracer,
            clones: &mut self.copies,
            ordered: &mut self.ordered,
            notifier: &self.controllers.notifier,
            clock: &self.clock,
            used: &mut self.used,
        };
        let Nowhere { egress, stats, .. } = &mut self.nowhere;
        let wait = egress.serve(now, &mut program, &mut Void, stats, &mut self.pool);
        self.nowhere.ready = wait != Wait::Copy;
        self.nowhere.ready || !self.ordered.is_empty()
    }

    /// True when it was merely another port's turn.
    fn serve(&mut self, index: usize, now: Nanos) -> bool {
        let port = &mut self.ports[index];
        let io = self.attachments[index].as_mut();
        port.ready = false;
        let mut program = Program {
            pipeline: self.active.as_mut(),
            tracer: &mut self.tracer,
            clones: &mut self.copies,
            ordered: &mut self.ordered,
            notifier: &self.controllers.notifier,
            clock: &self.clock,
            used: &mut self.used,
        };
        let mut medium = Tap {
            io: &mut *io,
            capture: port.capture.as_mut(),
            time: self.clock.time_of_day(now),
        };
        let wait = port.egress.serve(
            now,
            &mut program,
            &mut medium,
            &mut port.stats,
            &mut self.pool,
        );
        for buffer in self.used.drain(..) {
            self.pool.give(buffer);
        }
        if port.capture.is_some() || io.buffers() {
            self.flush_at.get_or_insert(now + FLUSH_INTERVAL);
        }
        let (due, blocked) = match wait {
            Wait::Turn => {
                port.ready = true;
                (None, false)
            }
            Wait::Until(at) => (Some(at), false),
            Wait::Medium(at) => match io.retry_after() {
                Some(pause) => (Some(at.unwrap_or(Nanos::MAX).min(now + pause)), false),
                None => (at, true),
            },
            Wait::Copy => (None, false),
        };
        port.due = due;
        if let Err(error) = io.want_writable(&self.poller, port.number.into(), blocked) {
            tracing::error!("port {}: cannot wait to send: {error}", port.number);
        }
        port.ready
    }

    /// When time alone lets something happen next.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.ports
            .iter()
            .filter_map(|port| port.due)
            .chain(self.flush_at)
            .chain(self.active.as_ref().and_then(Pipeline::next_due))
            .min()
    }

    /// Tells controllers what time alone makes due.
    pub(crate) fn notify_due(&mut self) {
        let Some(pipeline) = self.active.as_mut().filter(|one| one.next_due().is_some()) else {
            return;
        };
        let now = self.clock.now();
        let notifier = &self.controllers.notifier;
        while let Some(list) = pipeline.digests.due(now) {
            let digests = pipeline.digests.all().clone();
            notifier.digests(list, self.clock.time_of_day(now), digests);
        }
        let table_entry = pipeline.take_idle(now);
        if !table_entry.is_empty() {
            let timestamp = self.clock.time_of_day(now).as_nanos();
            notifier.idle(IdleTimeoutNotification {
                table_entry,
                timestamp: i64::try_from(timestamp).unwrap_or(i64::MAX),
            });
        }
    }

    /// Writes captures out when it is time for that; with `all`, in any case.
    pub(crate) fn flush_captures(&mut self, all: bool) {
        if all || self.flush_at.is_some_and(|at| at <= self.clock.now()) {
            for (port, io) in self.ports.iter_mut().zip(&mut self.attachments) {
                if let Some(capture) = &mut port.capture {
                    capture.flush();
                }
                io.flush();
            }
            self.flush_at = None;
        }
    }

    fn key_of(&self, frame: &[u8]) -> Key {
        self.stats_key.map_or(Key::NONE, |key| key.of(frame))
    }
}

/// Takes the digest messages that a packet left behind.
fn tell_learned(pipeline: &mut Pipeline, notifier: &Notifier, clock: &Clock, now: Nanos) {
    for message in pipeline.engine.take_learned() {
        if let Some(list) = pipeline.digests.learn(message, now) {
            let digests = pipeline.digests.all().clone();
            notifier.digests(list, clock.time_of_day(now), digests);
        }
    }
}

/// A copy with the key of its frame, and its own trace.
fn keyed(copy: engine::Copy, key: Key) -> (engine::Copy, Key) {
    let key = key.marked(copy.mark);
    (copy, key)
}

/// The active program's egress.
struct Program<'a> {
    pipeline: Option<&'a mut Pipeline>,
    tracer: &'a mut Tracer,
    clones: &'a mut Vec<engine::Copy>,
    ordered: &'a mut Vec<(engine::Copy, Key)>,
    notifier: &'a Notifier,
    clock: &'a Clock,
    /// Buffers to give back to the pool.
    used: &'a mut Vec<Vec<u8>>,
}

impl EgressProgram<Item> for Program<'_> {
    fn run(&mut self, item: Queued<Item>, depth: u32, now: Nanos, out: &mut Vec<u8>) -> Verdict {
        let copy = match item.copy {
            Item::Copy(copy) => copy,
            Item::Frame(frame) => {
                self.used.push(std::mem::replace(out, frame));
                return Verdict::Send;
            }
        };
        let Some(pipeline) = &mut self.pipeline else {
            return Verdict::Gone(Place::Reconfigured);
        };
        let queue = QueueInfo {
            enq_timestamp_us: item.enqueued_at / 1000,
            enq_qdepth: item.depth_at_enqueue,
            deq_timedelta_us: u32::try_from((now - item.enqueued_at) / 1000).unwrap_or(u32::MAX),
            deq_qdepth: depth,
        };
        let traced = copy.mark.is_some();
        if let Some(mark) = copy.mark
            && let Some(recorder) = self.tracer.resume(mark, now / 1000)
        {
            pipeline.engine.record(recorder);
        }
        let outcome = pipeline
            .engine
            .egress(copy, queue, now / 1000, out, self.clones);
        if traced && let Some(recorder) = pipeline.engine.recorded() {
            self.tracer.suspend(recorder, self.clones);
        }
        tell_learned(pipeline, self.notifier, self.clock, now);
        let ordered = self.clones.drain(..);
        self.ordered
            .extend(ordered.map(|copy| keyed(copy, item.key)));
        match outcome {
            EgressOutcome::Sent => Verdict::Send,
            EgressOutcome::Recirculated(_) => Verdict::Gone(Place::Recirculated),
            EgressOutcome::Dropped(_) => Verdict::Gone(Place::EgressProgram),
        }
    }
}

/// A port's medium, with an ear on it.
struct Tap<'a> {
    io: &'a mut dyn PortIo,
    capture: Option<&'a mut Capture>,
    time: Duration,
}

impl Medium for Tap<'_> {
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) {
        let before = reports.len();
        self.io.send(frames, reports);
        if let Some(capture) = &mut self.capture {
            for (frame, report) in frames.iter().zip(&reports[before..]) {
                if *report == Departure::Left {
                    capture.record(Direction::Out, self.time, frame);
                }
            }
        }
    }
}
