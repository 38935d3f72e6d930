//! Messages from the forwarding thread to controllers: packet-ins, digest lists, idle-timeout notifications.
//!
//! Forwarding never waits for a controller. A message that does not fit into a queue is dropped and counted, as P4Runtime
//! §9.1.8, §9.8 and §16.1 allow. Packets have a queue of their own, so a flood of packets costs no digests or notifications.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use ultima_p4runtime::v1::IdleTimeoutNotification;

use crate::digests::DigestList;
use crate::engine::{ControllerHeaders, Digest};

/// Capacity of the queue of packet-ins.
const PACKETS: usize = 1024;
/// Capacity of the queue of other events.
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
        /// The list.
        list: DigestList,
        /// Time of the list, since the epoch.
        made: Duration,
        /// The digests of the program that sent it.
        digests: Arc<[Digest]>,
    },
    /// Entries that no packet has hit for their idle timeout.
    Idle(IdleTimeoutNotification),
}

/// Counts of messages of one kind: delivered to a controller's stream, and dropped.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Tally {
    /// Counts one message.
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

/// Counts of all notifications.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) packet_ins: Tally,
    pub(crate) digest_lists: Tally,
    pub(crate) idle_timeouts: Tally,
}

/// The forwarding thread's end of the queues.
#[derive(Debug, Clone)]
pub(crate) struct Notifier {
    packets: mpsc::Sender<PacketIn>,
    events: mpsc::Sender<Event>,
    tallies: Arc<Tallies>,
    /// Controller headers of the current program. Only the forwarding thread locks it.
    headers: Arc<Mutex<Arc<ControllerHeaders>>>,
}

/// The gRPC server's end of the queues.
#[derive(Debug)]
pub(crate) struct Notifications {
    pub(crate) packets: mpsc::Receiver<PacketIn>,
    pub(crate) events: mpsc::Receiver<Event>,
}

/// Returns the two ends of empty queues.
pub(crate) fn queues(tallies: Arc<Tallies>) -> (Notifier, Notifications) {
    let (packets, packets_out) = mpsc::channel(PACKETS);
    let (events, events_out) = mpsc::channel(EVENTS);
    let notifier = Notifier {
        packets,
        events,
        tallies,
        headers: Arc::default(),
    };
    let notifications = Notifications {
        packets: packets_out,
        events: events_out,
    };
    (notifier, notifications)
}

impl Notifier {
    /// Sets the controller headers of a new program.
    pub(crate) fn set_headers(&self, headers: Arc<ControllerHeaders>) {
        *self.headers.lock().unwrap_or_else(PoisonError::into_inner) = headers;
    }

    /// Queues a frame that leaves through the CPU port. Returns false if it is dropped.
    pub(crate) fn packet_in(&self, frame: &[u8]) -> bool {
        let Ok(place) = self.packets.try_reserve() else {
            self.tallies.packet_ins.count(false);
            return false;
        };
        let headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        place.send(PacketIn {
            frame: frame.to_vec(),
            headers: headers.clone(),
        });
        true
    }

    /// Queues a digest list.
    pub(crate) fn digests(&self, list: DigestList, made: Duration, digests: Arc<[Digest]>) {
        let event = Event::Digests {
            list,
            made,
            digests,
        };
        if self.events.try_send(event).is_err() {
            self.tallies.digest_lists.count(false);
        }
    }

    /// Queues an idle-timeout notification.
    pub(crate) fn idle(&self, notification: IdleTimeoutNotification) {
        if self.events.try_send(Event::Idle(notification)).is_err() {
            self.tallies.idle_timeouts.count(false);
        }
    }
}
