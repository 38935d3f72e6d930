//! Accounts for every packet of a run, from the switch's port statistics and the workers' counters.
//!
//! Both sides count independently, so their agreement is evidence: packets sent by hosts, times the copies of each, must equal the packets
//! that hosts received plus those that the switch dropped.

use std::collections::BTreeMap;

use ultima_host::{PhaseCounters, Totals};
use ultima_switch::proto::{Count, Port};
use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{KIND_AT, KIND_MASK, Kind};

use super::options::Multicast;
use super::report::Phase;

/// `--stats-key` for the switch: splits its counters by packet kind.
pub fn stats_key() -> String {
    format!("{}:{KIND_MASK:02x}", FRAME_OVERHEAD + KIND_AT)
}

/// One worker at the end of the run.
pub struct Worker<'a> {
    /// The switch port that it is attached to.
    pub port: &'a Port,
    /// Its last reported counters.
    pub totals: Totals,
    /// True if it finished; if not, `totals` are out of date.
    pub finished: bool,
}

impl Worker<'_> {
    /// Packets that it sent. A killed worker cannot report its last packets, but the switch has counted them.
    fn sent(&self, kind: Kind, counters: fn(&Totals) -> PhaseCounters) -> u64 {
        match self.finished {
            true => counters(&self.totals).sent,
            false => by_kind(self.port.entered.as_ref(), kind),
        }
    }
}

/// The scatter phase: one copy per packet.
pub fn scatter(workers: &[Worker<'_>]) -> Phase {
    phase(workers, Kind::Scatter, |totals| totals.phases.scatter, None)
}

/// The gather phase: with multicast, a copy of each packet for each of the other workers.
pub fn gather(workers: &[Worker<'_>], multicast: Multicast) -> Phase {
    let members = match multicast {
        Multicast::Switch => Some(workers.len() as u64),
        Multicast::Unicast => None,
    };
    phase(
        workers,
        Kind::Gather,
        |totals| totals.phases.gather,
        members,
    )
}

/// `members`: copies that the switch's multicast group makes of a packet, the sender's own included.
fn phase(
    workers: &[Worker<'_>],
    kind: Kind,
    counters: fn(&Totals) -> PhaseCounters,
    members: Option<u64>,
) -> Phase {
    let packets = |count: fn(&Port) -> Option<&Count>| -> u64 {
        workers
            .iter()
            .map(|worker| by_kind(count(worker.port), kind))
            .sum()
    };
    let hosts = |count: fn(&PhaseCounters) -> u64| -> u64 {
        workers
            .iter()
            .map(|worker| count(&counters(&worker.totals)))
            .sum()
    };
    let drops = |count: fn(&ultima_switch::proto::Drops) -> Option<&Count>| -> u64 {
        workers
            .iter()
            .filter_map(|worker| worker.port.drops.as_ref())
            .map(|drops| by_kind(count(drops), kind))
            .sum()
    };

    let sent: u64 = workers
        .iter()
        .map(|worker| worker.sent(kind, counters))
        .sum();
    let entered = packets(|port| port.entered.as_ref());
    let forwarded = packets(|port| port.forwarded.as_ref());
    let ordered = packets(|port| port.ordered.as_ref());
    let left = packets(|port| port.left.as_ref());
    let (queue, egress) = (
        drops(|d| d.queue.as_ref()),
        drops(|d| d.egress_program.as_ref()),
    );
    let in_time = hosts(|phase| phase.in_time);
    // Duplicates, from retransmissions of exact operations, count as late.
    let late = hosts(|phase| phase.late + phase.duplicates);
    let cut = hosts(|phase| phase.trimmed);
    let no_room = hosts(|phase| phase.refused);

    // The group also makes a copy for the sender. The program drops it in egress, or it is dropped earlier because its queue is full.
    let copies_each = members.map_or(1, |members| members - 1);
    let own = if members.is_some() { forwarded } else { 0 };
    let own_in_egress = own.min(egress);
    let own_in_queue = own - own_in_egress;

    let dropped = [
        ("before_switch", sent.saturating_sub(entered) * copies_each),
        (
            "ingress_program",
            entered.saturating_sub(forwarded) * copies_each,
        ),
        (
            "not_copied",
            (forwarded * members.unwrap_or(1)).saturating_sub(ordered),
        ),
        ("queue", queue.saturating_sub(own_in_queue)),
        ("egress_program", egress - own_in_egress),
        ("wire", drops(|d| d.wire.as_ref())),
        // Delivered without payload.
        ("trimmed", cut),
        (
            "no_peer",
            drops(|d| d.no_peer.as_ref()) + drops(|d| d.oversize.as_ref()),
        ),
        // For an operation too far ahead of its receiver.
        ("no_room", no_room),
        // Delivered to a worker that did not count it: it was killed, or could not read it.
        (
            "receiver",
            left.saturating_sub(in_time + cut + late + no_room),
        ),
    ];
    Phase {
        // For a killed worker: packets sent, and those that it had given up at its last report.
        slots: workers
            .iter()
            .map(|worker| match worker.finished {
                true => counters(&worker.totals).slots,
                false => worker.sent(kind, counters) + counters(&worker.totals).never_sent,
            })
            .sum(),
        sent,
        copies: sent * copies_each,
        delivered_in_time: in_time,
        delivered_late: late,
        dropped: dropped
            .into_iter()
            .filter(|(_, packets)| *packets > 0)
            .map(|(cause, packets)| (cause.to_owned(), packets))
            .collect::<BTreeMap<_, _>>(),
        never_sent: hosts(|phase| phase.never_sent),
    }
}

fn by_kind(count: Option<&Count>, kind: Kind) -> u64 {
    count.map_or(0, |count| {
        let of_kind = count.by_key.iter().filter(|key| key.key == kind as u32);
        of_kind.map(|key| key.packets).sum()
    })
}
