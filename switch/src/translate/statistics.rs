//! Port statistics.

use crate::datapath::{PortSnapshot, Snapshot};
use crate::notify::{Tallies, Tally};
use crate::proto::{Count, Drops, GetResponse, KeyCount, Messages, Notifications, Port, Queue};
use crate::stats::{Place, PortStats};
use crate::tm::{Held, PRIORITIES};

pub(crate) fn message(device_id: u64, snapshot: Snapshot) -> GetResponse {
    GetResponse {
        device_id,
        time_ns: snapshot.now,
        ports: snapshot.ports.into_iter().map(port).collect(),
        unattached: Some(count(&snapshot.unattached, Place::Ordered)),
        unattached_queued: queued(&snapshot.unattached_held),
        over_limit: snapshot.over_limit,
        notifications: None,
    }
}

/// Converts the counts of notifications to a message.
pub(crate) fn notifications(tallies: &Tallies) -> Notifications {
    let messages = |tally: &Tally| {
        let (sent, dropped) = tally.get();
        Some(Messages { sent, dropped })
    };
    Notifications {
        packet_ins: messages(&tallies.packet_ins),
        digest_lists: messages(&tallies.digest_lists),
        idle_timeouts: messages(&tallies.idle_timeouts),
    }
}

/// Converts a port's counts to a message.
pub(crate) fn port(port: PortSnapshot) -> Port {
    let at = |place| Some(count(&port.stats, place));
    Port {
        number: u32::from(port.number),
        connected: port.connected,
        entered: at(Place::Entered),
        forwarded: at(Place::Forwarded),
        ingress_program: at(Place::IngressProgram),
        no_program: at(Place::NoProgram),
        too_long: at(Place::TooLong),
        overrun: at(Place::Overrun),
        ordered: at(Place::Ordered),
        left: at(Place::Left),
        drops: Some(Drops {
            queue: at(Place::Queue),
            egress_program: at(Place::EgressProgram),
            recirculated: at(Place::Recirculated),
            wire: at(Place::Wire),
            no_peer: at(Place::NoPeer),
            oversize: at(Place::Oversize),
            reconfigured: at(Place::Reconfigured),
            removed: at(Place::Removed),
        }),
        queued: queued(&port.held),
        in_flight: held(port.held.in_flight_packets, port.held.in_flight_bytes),
        marked: at(Place::Marked),
        queues: queues(&port.held),
        attachment: port.attachment,
    }
}

fn queued(of: &Held) -> Option<Count> {
    held(of.queued_packets(), of.queued_bytes())
}

fn held(packets: u64, bytes: u64) -> Option<Count> {
    Some(Count {
        packets,
        bytes,
        by_key: Vec::new(),
    })
}

fn queues(held: &Held) -> Vec<Queue> {
    let queues = (0..PRIORITIES as u32).zip(&held.queues).rev();
    queues
        .filter(|(_, queue)| queue.packets > 0)
        .map(|(priority, queue)| Queue {
            priority,
            packets: u64::from(queue.packets),
            bytes: queue.bytes,
        })
        .collect()
}

fn count(stats: &PortStats, place: Place) -> Count {
    let total = stats.at(place);
    let by_key = stats.by_key(place).map(|(key, count)| KeyCount {
        key: u32::from(key),
        packets: count.packets,
        bytes: count.bytes,
    });
    Count {
        packets: total.packets,
        bytes: total.bytes,
        by_key: by_key.collect(),
    }
}
