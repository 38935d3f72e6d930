//! What the forwarding thread tells controllers unasked: packets, digests, idle entries.
//!
//! Forwarding never waits for a controller: what does not fit into a queue is dropped and counted,
//! as the specification allows for all of these (P4Runtime §9.1.8, §9.8, §16.1). Packets have a
//! queue of their own, so that a flood of them costs neither digests nor notifications.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use ultima_p4runtime::v1::IdleTimeoutNotification;

use crate::digests::DigestList;
use crate::engine::{ControllerHeaders, Digest};

/// Packets on their way to the gRPC server.
const PACKETS: usize = 1024;
/// Other events on their way there.
const EVENTS: usize = 64;

/// A frame that left through the CPU port.
#[derive(Debug)]
pub(crate) struct PacketIn {
    /// With the controller header in front, if the program has one.
    pub(crate) frame: Vec<u8>,
    /// Of the program that sent it.
    pub(crate) headers: Arc<ControllerHeaders>,
}

/// What is told beside packets.
#[derive(Debug)]
pub(crate) enum Event {
    /// A list of messages of one digest.
    Digests {
        /// What to tell.
        list: DigestList,
        /// When it was made, since the epoch.
        made: Duration,
        /// The digests of the program that sent it.
        digests: Arc<[Digest]>,
    },
    /// Entries that no packet has hit for their idle timeout.
    Idle(IdleTimeoutNotification),
}

/// Messages of one kind: those that a controller's stream took, and those dropped on the way.
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

    /// Sent and dropped so far.
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
    /// Of the program that packets run through. Locked by the forwarding thread alone.
    headers: Arc<Mutex<Arc<ControllerHeaders>>>,
}

/// The gRPC server's end of the queues.
#[derive(Debug)]
pub(crate) struct Notifications {
    pub(crate) packets: mpsc::Receiver<PacketIn>,
    pub(crate) events: mpsc::Receiver<Event>,
}

/// The two ends of empty queues.
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
    /// Packets run through another program from now on.
    pub(crate) fn set_headers(&self, headers: Arc<ControllerHeaders>) {
        *self.headers.lock().unwrap_or_else(PoisonError::into_inner) = headers;
    }

    /// A frame leaves through the CPU port. False: it was dropped.
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

    /// A digest list is to be sent.
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

    /// Entries have become idle.
    pub(crate) fn idle(&self, notification: IdleTimeoutNotification) {
        if self.events.try_send(Event::Idle(notification)).is_err() {
            self.tallies.idle_timeouts.count(false);
        }
    }
}
