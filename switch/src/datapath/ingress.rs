//! Ingress: from received frames to copies in queues.

use std::sync::Arc;

use nix::sys::epoll::EpollFlags;
use tonic::Code;

use super::programs::tell_learned;
use super::{Datapath, FLUSH_INTERVAL, Item, keyed};
use crate::pcap::Direction;
use crate::port::Received;
use crate::port::mmsg::{Frame, RxBatch};
use crate::stats::{Key, Place};
use crate::target::Refusal;
use crate::tm::Nanos;
use crate::trace::tracer::WatchId;
use ultima_engine::{ControllerHeaders, IngressOutcome};

/// Number of batches read from one port in a row.
const RECEIVE_TURN: usize = 2;

impl Datapath {
    /// Handles the poller's events of a port, which may have been removed.
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

    /// Passes a batch of a port's frames to `each`.
    pub(super) fn receive(
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

    /// Injects a frame at a port for a trace.
    pub(crate) fn inject(&mut self, number: u16, frame: &[u8], watch: WatchId) {
        let found = self.by_number.get(usize::from(number)).copied().flatten();
        if let Some(index) = found {
            self.ingress(index, frame, Some(watch), self.clock.now());
        }
    }

    /// Processes a received frame.
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

    /// Processes a packet-out, which enters at the CPU port. `headers` are those with which its frame was made.
    pub(crate) fn packet_out(
        &mut self,
        frame: &[u8],
        headers: &Arc<ControllerHeaders>,
    ) -> Result<(), Refusal> {
        let number = self.controllers.cpu_port;
        let Some(index) = number.and_then(|number| self.by_number[usize::from(number)]) else {
            let what = "packet-out: this switch has no CPU port; start it with one";
            return Err(Refusal::new(Code::FailedPrecondition, what));
        };
        let active = self
            .active
            .as_ref()
            .map(|it| it.engine.controller_headers());
        if active.is_none_or(|active| !Arc::ptr_eq(active, headers)) {
            let what = "packet-out: the forwarding pipeline config changed meanwhile; send again";
            return Err(Refusal::new(Code::Aborted, what));
        }
        self.ingress(index, frame, None, self.clock.now());
        Ok(())
    }

    /// Runs ingress for a frame and queues its copies. `injected` is the request that injected the frame.
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

    /// Queues a frame at the other one of two joined ports.
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
}
