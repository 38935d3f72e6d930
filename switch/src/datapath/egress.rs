//! Egress: from the queues through the program to each port's medium.

use std::time::Duration;

use super::programs::tell_learned;
use super::{Datapath, FLUSH_INTERVAL, Item, keyed};
use crate::clock::Clock;
use crate::notify::Notifier;
use crate::pcap::{Capture, Direction};
use crate::pipeline::Pipeline;
use crate::port::PortIo;
use crate::stats::{Key, Place};
use crate::tm::{Departure, EgressProgram, Medium, Nanos, Queued, Verdict, Wait};
use crate::trace::tracer::Tracer;
use ultima_engine::{self, EgressOutcome, QueueInfo};

/// Rounds over the ports before frames are received again.
const SERVE_TURN: usize = 8;

impl Datapath {
    /// Serves all ports. Returns true if there is more work at once.
    pub(crate) fn serve_ports(&mut self) -> bool {
        for _ in 0..SERVE_TURN {
            let mut more = false;
            let now = self.clock.now();
            for index in 0..self.ports.len() {
                let port = &self.ports[index];
                if port.ready || port.due.is_some_and(|due| due <= now) {
                    more |= self.serve(Some(index), now);
                }
            }
            if self.nowhere.ready {
                more |= self.serve(None, now);
            }
            if !more {
                return false;
            }
        }
        true
    }

    /// Serves a port, or the copies for ports that do not exist. Returns true if there is more work at once.
    fn serve(&mut self, index: Option<usize>, now: Nanos) -> bool {
        let (egress, stats, capture) = match index {
            Some(index) => {
                let port = &mut self.ports[index];
                (&mut port.egress, &mut port.stats, port.capture.as_mut())
            }
            None => (&mut self.nowhere.egress, &mut self.nowhere.stats, None),
        };
        if capture.is_some() {
            self.flush_at.get_or_insert(now + FLUSH_INTERVAL);
        }
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
            io: index.map(|index| &mut self.attachments[index]),
            capture,
            time: self.clock.time_of_day(now),
        };
        let wait = egress.serve(now, &mut program, &mut medium, stats, &mut self.pool);
        for buffer in self.used.drain(..) {
            self.pool.give(buffer);
        }
        let ready = match index {
            Some(index) => self.await_next(index, wait, now),
            None => {
                self.nowhere.ready = wait != Wait::Copy;
                self.nowhere.ready
            }
        };
        // Clones made in egress.
        let has_clones = !self.ordered.is_empty();
        self.order(now);
        ready || has_clones
    }

    /// Notes when a port has work next. Returns true if that is now.
    fn await_next(&mut self, index: usize, wait: Wait, now: Nanos) -> bool {
        let port = &mut self.ports[index];
        let io = self.attachments[index].as_mut();
        port.ready = wait == Wait::Turn;
        let (due, blocked) = match wait {
            Wait::Turn | Wait::Copy => (None, false),
            Wait::Until(at) => (Some(at), false),
            Wait::Medium(at) => match io.retry_after() {
                Some(pause) => (Some(at.unwrap_or(Nanos::MAX).min(now + pause)), false),
                None => (at, true),
            },
        };
        port.due = due;
        if let Err(error) = io.want_writable(&self.poller, port.number.into(), blocked) {
            tracing::error!("port {}: cannot wait to send: {error}", port.number);
        }
        port.ready
    }
}

/// The active program's egress.
struct Program<'a> {
    pipeline: Option<&'a mut Pipeline>,
    tracer: &'a mut Tracer,
    clones: &'a mut Vec<ultima_engine::Copy>,
    ordered: &'a mut Vec<(ultima_engine::Copy, Key)>,
    notifier: &'a Notifier,
    clock: &'a Clock,
    /// Buffers to return to the pool.
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

/// A port's medium with its capture.
struct Tap<'a> {
    /// `None` for ports that do not exist.
    io: Option<&'a mut Box<dyn PortIo>>,
    capture: Option<&'a mut Capture>,
    time: Duration,
}

impl Medium for Tap<'_> {
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) {
        let before = reports.len();
        match &mut self.io {
            Some(io) => io.send(frames, reports),
            None => reports.extend(frames.iter().map(|_| Departure::NoPeer)),
        }
        if let Some(capture) = &mut self.capture {
            for (frame, report) in frames.iter().zip(&reports[before..]) {
                if *report == Departure::Left {
                    capture.record(Direction::Out, self.time, frame);
                }
            }
        }
    }
}
