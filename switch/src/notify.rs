//! Messages from the forwarding thread to controllers: packet-ins, digest lists, idle-timeout notifications.
//!
//! Forwarding never waits for a controller. A message that does not fit into a queue is dropped and counted, as P4Runtime
//! §9.1.8, §9.8 and §16.1 allow. Packets have a queue of their own, so a flood of packets costs no digests or notifications.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::digests::DigestList;
use ultima_engine::{ControllerHeaders, Digest, EntryView};

const PACKETS: usize = 1024;
const EVENTS: usize = 64;

/// A frame that left through the CPU port.
#[derive(Debug)]
pub(crate) struct PacketIn {
    /// The frame with the controller header in front, if the program has one.
    pub(crate) frame: Vec<u8>,
    /// The controller headers of the program that sent it.
    pub(crate) headers: Arc<ControllerHeaders>,
}

/// A message other than a packet-in.
#[derive(Debug)]
pub(crate) enum Event {
    /// A list of messages of one digest.
    Digests {
        list: DigestList,
        /// The digests of the program that sent it.
        digests: Arc<[Digest]>,
    },
    /// Entries that no packet has hit for their idle timeout.
    /// With the ids of their tables.
    Idle(Vec<(u32, EntryView)>),
}

impl Event {
    pub(crate) fn tally<'a>(&self, tallies: &'a Tallies) -> &'a Tally {
        match self {
            Event::Digests { .. } => &tallies.digest_lists,
            Event::Idle(_) => &tallies.idle_timeouts,
        }
    }
}

/// Counts of messages of one kind: delivered to a controller's stream, and dropped.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Tally {
    pub(crate) fn count(&self, sent: bool) {
        let counter = if sent { &self.sent } else { &self.dropped };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of sent and dropped messages.
    pub(crate) fn get(&self) -> (u64, u64) {
        let [sent, dropped] = [&self.sent, &self.dropped].map(|n| n.load(Ordering::Relaxed));
        (sent, dropped)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) packet_ins: Tally,
    pub(crate) digest_lists: Tally,
    pub(crate) idle_timeouts: Tally,
}

/// Controller headers of the current program, `None` before the first one. Only the forwarding thread writes them.
#[derive(Debug, Clone, Default)]
pub(crate) struct CurrentHeaders(Arc<RwLock<Option<Arc<ControllerHeaders>>>>);

impl CurrentHeaders {
    pub(crate) fn get(&self) -> Option<Arc<ControllerHeaders>> {
        let headers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        headers.clone()
    }

    pub(crate) fn set(&self, headers: Arc<ControllerHeaders>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(headers);
    }
}

/// The forwarding thread's end of the queues.
#[derive(Debug, Clone)]
pub(crate) struct Notifier {
    packets: mpsc::Sender<PacketIn>,
    events: mpsc::Sender<(Event, Duration)>,
    tallies: Arc<Tallies>,
    pub(crate) headers: CurrentHeaders,
}

/// The gRPC server's end of the queues.
#[derive(Debug)]
pub(crate) struct Notifications {
    pub(crate) packets: mpsc::Receiver<PacketIn>,
    /// Events with their times since the epoch.
    pub(crate) events: mpsc::Receiver<(Event, Duration)>,
    pub(crate) headers: CurrentHeaders,
}

/// Returns the two ends of empty queues.
pub(crate) fn queues(tallies: Arc<Tallies>) -> (Notifier, Notifications) {
    let (packets, packets_out) = mpsc::channel(PACKETS);
    let (events, events_out) = mpsc::channel(EVENTS);
    let notifier = Notifier {
        packets,
        events,
        tallies,
        headers: CurrentHeaders::default(),
    };
    let notifications = Notifications {
        packets: packets_out,
        events: events_out,
        headers: notifier.headers.clone(),
    };
    (notifier, notifications)
}

impl Notifier {
    /// Queues a frame that leaves through the CPU port. Returns false if it is dropped.
    pub(crate) fn packet_in(&self, frame: &[u8]) -> bool {
        let (Ok(place), Some(headers)) = (self.packets.try_reserve(), self.headers.get()) else {
            self.tallies.packet_ins.count(false);
            return false;
        };
        let frame = frame.to_vec();
        place.send(PacketIn { frame, headers });
        true
    }

    /// Queues an event of this time since the epoch.
    pub(crate) fn notify(&self, event: Event, made: Duration) {
        let tally = event.tally(&self.tallies);
        if self.events.try_send((event, made)).is_err() {
            tally.count(false);
        }
    }
}
