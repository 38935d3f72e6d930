//! Traces of a running switch: requests that wait for packets, the packet log, and packets that are followed.
//!
//! The forwarding thread owns it. Without requests and a log it costs two checks per frame.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::time::Duration;

use tokio::sync::mpsc::{OwnedPermit, Sender};

use super::log::Reservation;
use super::{Fate, PacketLog, PacketTrace};
use crate::stats::Place;
use ultima_engine::Copy;
use ultima_engine::trace::{Mark, Recorder};

/// Largest number of packets that are followed, also for the log: ports with queues of 64 packets fill up.
const MAX_LOGGED: usize = 512;

/// Bytes that a traced frame must have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Pattern {
    pub(crate) offset: usize,
    pub(crate) value: Vec<u8>,
    /// The bits that matter; as long as `value`.
    pub(crate) mask: Vec<u8>,
}

impl Pattern {
    fn matches(&self, frame: &[u8]) -> bool {
        let Some(bytes) = frame
            .get(self.offset..)
            .and_then(|rest| rest.get(..self.value.len()))
        else {
            return false;
        };
        let wanted = self.value.iter().zip(&self.mask);
        let mut pairs = bytes.iter().zip(wanted);
        pairs.all(|(byte, (value, mask))| byte & mask == value & mask)
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    /// The next packets with the pattern, and their number.
    Next(Pattern, u32),
    /// The packet that the request injects.
    Injected,
}

/// Names a request that waits for packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WatchId(u64);

struct Watch {
    id: WatchId,
    port: u16,
    wanted: Wanted,
    traces: Sender<PacketTrace>,
}

struct Open {
    /// The request and reserved room for the trace in its channel. A slow reader gets fewer traces.
    watch: Option<(WatchId, OwnedPermit<PacketTrace>)>,
    log: Option<Reservation>,
    port: u16,
    at_us: u64,
    frame: Vec<u8>,
    /// The recorder; `None` while the engine has it.
    recorder: Option<Box<Recorder>>,
    /// Number of copies that are still followed.
    under_way: usize,
}

/// Requests that wait for packets, and packets that are followed.
#[derive(Default)]
pub(crate) struct Tracer {
    watches: Vec<Watch>,
    open: HashMap<NonZeroU16, Open>,
    log: Option<PacketLog>,
    /// The time of day at which the switch started, since the epoch.
    start: Duration,
    watch_ids: u64,
    trace_ids: u16,
}

impl Tracer {
    /// Starts the log of all packets. `start` is the time of day at the switch's start.
    pub(crate) fn log_to(&mut self, log: PacketLog, start: Duration) {
        self.log = Some(log);
        self.start = start;
    }

    /// Ends the log: followed packets are written as they are.
    pub(crate) fn end_log(&mut self) {
        self.log = None;
        for (_, open) in self.open.drain() {
            open.finish(self.start);
        }
    }

    /// True if there are no requests, no log and no followed packets.
    pub(crate) fn is_idle(&self) -> bool {
        self.watches.is_empty() && self.log.is_none() && self.open.is_empty()
    }

    /// Adds a request for packets at a port. As many packets are followed as the channel has room. It closes after the last trace.
    pub(crate) fn watch(
        &mut self,
        port: u16,
        wanted: Wanted,
        traces: Sender<PacketTrace>,
    ) -> WatchId {
        self.watches.retain(|watch| !watch.traces.is_closed());
        self.watch_ids += 1;
        let id = WatchId(self.watch_ids);
        self.watches.push(Watch {
            id,
            port,
            wanted,
            traces,
        });
        id
    }

    /// Removes a request and sends the traces of its followed packets as they are.
    pub(crate) fn unwatch(&mut self, id: WatchId) {
        self.watches.retain(|watch| watch.id != id);
        let of_watch = |open: &Open| open.watch.as_ref().is_some_and(|(watch, _)| *watch == id);
        let ended: Vec<_> = (self.open).extract_if(|_, open| of_watch(open)).collect();
        for (_, open) in ended {
            open.finish(self.start);
        }
    }

    /// Returns a recorder if the arriving frame must be traced.
    pub(crate) fn admit(
        &mut self,
        port: u16,
        frame: &[u8],
        injected: Option<WatchId>,
        now_us: u64,
    ) -> Option<Box<Recorder>> {
        let watch = self.watch_for(port, frame, injected);
        let log = self.reserve_in_log();
        if watch.is_none() && log.is_none() {
            return None;
        }
        let trace = self.free_id();
        let mut recorder = Box::new(Recorder::new(trace));
        recorder.follow(0, now_us);
        let open = Open {
            watch,
            log,
            port,
            at_us: now_us,
            frame: frame.to_vec(),
            recorder: None,
            under_way: 0,
        };
        self.open.insert(trace, open);
        Some(recorder)
    }

    /// Reserves room in the log, if there is one.
    fn reserve_in_log(&mut self) -> Option<Reservation> {
        let log = self.log.as_mut()?;
        if self.open.len() >= MAX_LOGGED {
            log.miss();
            return None;
        }
        log.reserve()
    }

    /// Finds the request that wants an arriving frame.
    fn watch_for(
        &mut self,
        port: u16,
        frame: &[u8],
        injected: Option<WatchId>,
    ) -> Option<(WatchId, OwnedPermit<PacketTrace>)> {
        let found = self.watches.iter().position(|watch| match &watch.wanted {
            Wanted::Next(pattern, left) => {
                watch.port == port && *left > 0 && injected.is_none() && pattern.matches(frame)
            }
            Wanted::Injected => injected == Some(watch.id),
        })?;
        let watch = &mut self.watches[found];
        // Full: its reader has not taken the earlier ones. Closed: there is no reader any more.
        let permit = watch.traces.clone().try_reserve_owned().ok()?;
        let id = watch.id;
        let last = match &mut watch.wanted {
            Wanted::Next(_, left) => {
                *left -= 1;
                *left == 0
            }
            Wanted::Injected => true,
        };
        if last {
            self.watches.remove(found);
        }
        Some((id, permit))
    }

    fn free_id(&mut self) -> NonZeroU16 {
        loop {
            self.trace_ids = self.trace_ids.wrapping_add(1);
            match NonZeroU16::new(self.trace_ids) {
                Some(id) if !self.open.contains_key(&id) => return id,
                _ => {}
            }
        }
    }

    /// Returns the recorder of a copy that enters egress, if its trace is still open.
    pub(crate) fn resume(&mut self, mark: Mark, now_us: u64) -> Option<Box<Recorder>> {
        let mut recorder = self.open.get_mut(&mark.trace)?.recorder.take()?;
        recorder.follow(mark.copy, now_us);
        Some(recorder)
    }

    /// Takes the recorder back from the engine, with the copies that it made.
    pub(crate) fn suspend(&mut self, recorder: Box<Recorder>, copies: &[Copy]) {
        let trace = recorder.trace();
        let Some(open) = self.open.get_mut(&trace) else {
            return;
        };
        open.recorder = Some(recorder);
        let ours = |copy: &&Copy| copy.mark.is_some_and(|mark| mark.trace == trace);
        open.under_way += copies.iter().filter(ours).count();
    }

    /// Records the end of the packet's ingress. Without copies the trace is complete.
    pub(crate) fn entered(&mut self, recorder: Box<Recorder>, copies: &[Copy]) {
        let trace = recorder.trace();
        self.suspend(recorder, copies);
        self.close_if_done(trace);
    }

    pub(crate) fn counted(&mut self, mark: Mark, place: Place, fate: Option<Fate>, now_us: u64) {
        let Some(open) = self.open.get_mut(&mark.trace) else {
            return;
        };
        let Some(recorder) = &mut open.recorder else {
            return;
        };
        recorder.follow(mark.copy, now_us);
        if place == Place::Marked {
            recorder.marked();
        }
        if let Some(fate) = fate.or_else(|| fate_at(place)) {
            recorder.end(fate);
            open.under_way = open.under_way.saturating_sub(1);
            self.close_if_done(mark.trace);
        }
    }

    fn close_if_done(&mut self, trace: NonZeroU16) {
        if self
            .open
            .get(&trace)
            .is_some_and(|open| open.under_way == 0)
            && let Some(open) = self.open.remove(&trace)
        {
            open.finish(self.start);
        }
    }
}

impl Open {
    /// Sends the trace. `start` is the time of day at the switch's start.
    fn finish(self, start: Duration) {
        let Some(recorder) = self.recorder else {
            return;
        };
        let trace = recorder.finish(self.port, self.at_us, self.frame);
        if let Some(reservation) = self.log {
            reservation.fill(start + Duration::from_micros(self.at_us), trace.clone());
        }
        if let Some((_, permit)) = self.watch {
            permit.send(trace);
        }
    }
}

/// Returns the outcome of a copy that is counted at a place; `None` if it continues.
fn fate_at(place: Place) -> Option<Fate> {
    Some(match place {
        Place::Left => Fate::Left,
        Place::Queue => Fate::QueueFull,
        Place::EgressProgram => Fate::Dropped,
        Place::Recirculated => Fate::Recirculated,
        Place::Wire => Fate::LostOnWire,
        Place::NoPeer => Fate::NoPeer,
        Place::Oversize => Fate::Oversize,
        Place::Reconfigured => Fate::Reconfigured,
        Place::Removed => Fate::PortRemoved,
        Place::Entered
        | Place::Forwarded
        | Place::IngressProgram
        | Place::NoProgram
        | Place::TooLong
        | Place::Overrun
        | Place::Ordered
        | Place::Marked => return None,
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    fn all() -> Pattern {
        Pattern::default()
    }

    #[test]
    fn patterns_match_at_their_offset_under_their_mask() {
        let pattern = Pattern {
            offset: 1,
            value: vec![0x12, 0x30],
            mask: vec![0xff, 0xf0],
        };
        assert!(pattern.matches(&[9, 0x12, 0x3f]));
        assert!(pattern.matches(&[9, 0x12, 0x30, 7]));
        assert!(!pattern.matches(&[9, 0x12, 0x4f]));
        assert!(!pattern.matches(&[9, 0x12]), "it ends too early");
        assert!(!pattern.matches(&[]));
        assert!(all().matches(&[]));
    }

    #[test]
    fn only_the_packets_asked_for_are_admitted() {
        let mut tracer = Tracer::default();
        let (sender, mut receiver) = mpsc::channel(8);
        tracer.watch(3, Wanted::Next(all(), 2), sender);
        assert!(tracer.admit(4, &[1], None, 5).is_none(), "another port");
        for _ in 0..2 {
            let recorder = tracer.admit(3, &[1], None, 5).unwrap();
            tracer.entered(recorder, &[]);
        }
        assert!(tracer.admit(3, &[1], None, 5).is_none());
        assert!(tracer.is_idle());
        for _ in 0..2 {
            let trace = receiver.try_recv().unwrap();
            assert_eq!((trace.port, trace.at_us, trace.frame.0), (3, 5, vec![1]));
        }
        let end = receiver.try_recv().unwrap_err();
        assert_eq!(end, mpsc::error::TryRecvError::Disconnected);
    }

    #[test]
    fn slow_readers_get_fewer_and_those_that_leave_none() {
        let mut tracer = Tracer::default();
        let (sender, mut receiver) = mpsc::channel(1);
        tracer.watch(3, Wanted::Next(all(), 9), sender);
        let recorder = tracer.admit(3, &[1], None, 0).unwrap();
        assert!(tracer.admit(3, &[2], None, 0).is_none(), "no room");
        tracer.entered(recorder, &[]);
        assert!(tracer.admit(3, &[2], None, 0).is_none(), "not read");
        receiver.try_recv().unwrap();
        assert!(tracer.admit(3, &[2], None, 0).is_some());
        drop(receiver);
        assert!(tracer.admit(3, &[3], None, 0).is_none());
    }

    #[test]
    fn an_injected_frame_is_the_one_that_put_it_in_waits_for() {
        let mut tracer = Tracer::default();
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (sender, receiver) = mpsc::channel(1);
            senders.push(sender);
            receivers.push(receiver);
        }
        let first = tracer.watch(1, Wanted::Injected, senders.remove(0));
        let _second = tracer.watch(1, Wanted::Next(all(), 1), senders.remove(0));
        let recorder = tracer.admit(1, &[7], Some(first), 0).unwrap();
        tracer.entered(recorder, &[]);
        assert!(receivers[0].try_recv().is_ok() && receivers[1].try_recv().is_err());
    }

    #[test]
    fn the_log_has_every_packet_and_counts_those_it_misses() {
        let mut tracer = Tracer::default();
        let (log, mut reader) = PacketLog::new();
        tracer.log_to(log, Duration::from_secs(100));
        assert!(!tracer.is_idle());
        let (sender, mut receiver) = mpsc::channel(1);
        tracer.watch(3, Wanted::Next(all(), 1), sender);
        let mut admit = |port, frame: u8| {
            let recorder = tracer.admit(port, &[frame], None, 5_000_000);
            let recorded = recorder.is_some();
            recorder.into_iter().for_each(|it| tracer.entered(it, &[]));
            recorded
        };
        assert!(admit(3, 1) && admit(4, 2));
        assert_eq!(receiver.try_recv().unwrap().frame.0, [1]);
        for frame in [1, 2] {
            let entry = reader.try_recv().unwrap();
            assert_eq!(entry.trace.frame.0, [frame]);
            assert_eq!((entry.time, entry.missed), (Duration::from_secs(105), 0));
        }
        // A reader that does not read misses packets, and learns how many.
        let mut room = 0;
        while admit(5, 3) {
            room += 1;
        }
        assert!(!admit(5, 3));
        for _ in 0..room {
            assert_eq!(reader.try_recv().unwrap().missed, 0);
        }
        assert!(admit(5, 3));
        assert_eq!(reader.try_recv().unwrap().missed, 2);
        // At the end, followed packets are written as they are.
        let mut recorder = tracer.admit(6, &[9], None, 0).unwrap();
        let trace = recorder.trace();
        recorder.order(2, 0, crate::trace::Origin::Unicast);
        tracer.open.get_mut(&trace).unwrap().under_way = 1;
        tracer.entered(recorder, &[]);
        assert!(reader.try_recv().is_err());
        tracer.end_log();
        assert_eq!(
            reader.try_recv().unwrap().trace.copies[0].fate,
            Fate::UnderWay
        );
        let end = reader.try_recv().unwrap_err();
        assert_eq!(end, mpsc::error::TryRecvError::Disconnected);
    }

    #[test]
    fn unfinished_traces_are_sent_at_the_end() {
        let mut tracer = Tracer::default();
        let (sender, mut receiver) = mpsc::channel(1);
        let id = tracer.watch(1, Wanted::Next(all(), 1), sender);
        let mut recorder = tracer.admit(1, &[7], None, 0).unwrap();
        let trace = recorder.trace();
        recorder.order(2, 0, crate::trace::Origin::Unicast);
        tracer.open.get_mut(&trace).unwrap().under_way = 1;
        tracer.entered(recorder, &[]);
        assert!(receiver.try_recv().is_err());
        tracer.unwatch(id);
        let trace = receiver.try_recv().unwrap();
        assert!(!trace.complete);
        assert_eq!(trace.copies[0].fate, Fate::UnderWay);
        assert!(tracer.is_idle());
    }
}
