//! Where every packet of a run went: the switch's port statistics and the workers' own counts, added up.
//!
//! Both sides count independently, so that the sums prove something: what hosts sent, weighed by the
//! copies that it owed, is what hosts received and what the switch's ports dropped, by place.

use std::collections::BTreeMap;

use ultima_host::{PhaseCounters, Totals};
use ultima_switch::proto::{Count, Port};
use ultima_wire::frame::FRAME_OVERHEAD;
use ultima_wire::{KIND_AT, KIND_MASK, Kind};

use super::report::{Multicast, Phase};

/// `--stats-key` for the switch: break its counts down by the packets' kind.
pub fn stats_key() -> String {
    format!("{}:{KIND_MASK:02x}", FRAME_OVERHEAD + KIND_AT)
}

/// One worker at the end of the run.
pub struct Worker<'a> {
    /// The switch port that it is attached to.
    pub port: &'a Port,
    /// Its last word on its packets.
    pub totals: Totals,
    /// Whether it was still there at the end; if not, its last word is old.
    pub finished: bool,
}

impl Worker<'_> {
    /// What left it: a worker that was killed cannot say what it sent last, but the switch saw it.
    fn sent(&self, kind: Kind, counters: fn(&Totals) -> PhaseCounters) -> u64 {
        match self.finished {
            true => counters(&self.totals).sent,
            false => by_kind(self.port.entered.as_ref(), kind),
        }
    }
}

/// The scatter: one copy for every packet.
pub fn scatter(workers: &[Worker<'_>]) -> Phase {
    phase(workers, Kind::Scatter, |totals| totals.phases.scatter, None)
}

/// The gather: with multicast by the switch every packet owes a copy to each of the other workers.
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

/// `members`: how many copies the switch's group makes of a packet, the sender's own included.
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
    // What comes again, because exact operations asked for it again, is late too.
    let late = hosts(|phase| phase.late + phase.duplicates);
    let cut = hosts(|phase| phase.cut);
    let no_room = hosts(|phase| phase.refused);

    // Copies owed for a packet, and copies that the group makes for its own sender. The program drops these in
    // egress; one that did not even fit its queue is found among the queue's.
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
        // Delivered without its payload.
        ("cut", cut),
        (
            "no_peer",
            drops(|d| d.no_peer.as_ref()) + drops(|d| d.oversize.as_ref()),
        ),
        // For an operation so far ahead of its receiver that there was no room to keep it.
        ("no_room", no_room),
        // Handed to a worker that did not count it: it was killed, or could not read it.
        (
            "receiver",
            left.saturating_sub(in_time + cut + late + no_room),
        ),
    ];
    Phase {
        // What a killed worker owed is what it sent, and what it had given up when it last told.
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
