//! What the P4 program calls its tables, fields, actions, parameters and counters: once, so that the
//! controller spells none of them. Full names, as P4Info has them.

/// `jobs.p4`: a job's counter index and group.
pub mod job {
    /// The table.
    pub const TABLE: &str = "UltimaIngress.jobs.job";
    /// Key, exact: the job's id.
    pub const JOB: &str = "job";
    /// Action.
    pub const SET_JOB: &str = "UltimaIngress.jobs.set_job";
    /// Parameter of [`SET_JOB`]: where the job's counts stand.
    pub const INDEX: &str = "index";
    /// Parameter of [`SET_JOB`]: the multicast group of its GATHER packets; 0 for none.
    pub const GROUP: &str = "group";
    /// Parameter of [`SET_JOB`]: losses of one operation at one place at which the controller gets a digest; 0 for never.
    pub const LOSS_THRESHOLD: &str = "loss_threshold";
}

/// `admission.p4`: who may send for a job.
pub mod source {
    /// The table.
    pub const TABLE: &str = "UltimaIngress.admission.source";
    /// Key, exact: the port that the packet came in by.
    pub const INGRESS_PORT: &str = "ingress_port";
    /// Key, exact: the job's id.
    pub const JOB: &str = "job";
    /// Key, exact: the membership epoch.
    pub const EPOCH: &str = "epoch";
    /// Key, exact: the sender's rank.
    pub const SOURCE_RANK: &str = "source_rank";
    /// Key, exact: the sender's IPv4 address.
    pub const SRC_ADDR: &str = "src_addr";
    /// Action without parameters: for a source whose host is linked to another switch.
    pub const ADMIT: &str = "UltimaIngress.admission.admit";
    /// Action: for a source whose host is linked to this switch.
    pub const ADMIT_FROM_HOST: &str = "UltimaIngress.admission.admit_from_host";
    /// Parameter of [`ADMIT_FROM_HOST`]: where the source's losses stand, from 1.
    pub const SOURCE_INDEX: &str = "source_index";
}

/// `admission.p4`: where a job's unicast may go.
pub mod destination {
    /// The table.
    pub const TABLE: &str = "UltimaIngress.admission.destination";
    /// Key, exact: the job's id.
    pub const JOB: &str = "job";
    /// Key, exact: a member's IPv4 address.
    pub const DST_ADDR: &str = "dst_addr";
    /// Key, exact: that member's UDP port.
    pub const DST_PORT: &str = "dst_port";
    /// Action without parameters.
    pub const ADMIT: &str = super::source::ADMIT;
}

/// `routing.p4`: IPv4 forwarding.
pub mod route {
    /// The table.
    pub const TABLE: &str = "UltimaIngress.routing.route";
    /// Key, longest prefix: the destination.
    pub const DST_ADDR: &str = "dst_addr";
    /// Action.
    pub const FORWARD: &str = "UltimaIngress.routing.forward";
    /// Parameter of [`FORWARD`]: the egress port.
    pub const PORT: &str = "port";
    /// Parameter of [`FORWARD`]: the destination's MAC address.
    pub const DST_MAC: &str = "dst_mac";
}

/// `arp.p4`: hosts for which the switch answers ARP.
pub mod neighbor {
    /// The table.
    pub const TABLE: &str = "UltimaIngress.arp.neighbor";
    /// Key, exact: the address asked for.
    pub const TARGET_IP: &str = "target_ip";
    /// Action.
    pub const ANSWER: &str = "UltimaIngress.arp.answer";
    /// Parameter of [`ANSWER`]: that host's MAC address.
    pub const MAC: &str = "mac";
}

/// `delivery.p4`: how a copy is addressed to its rank.
pub mod replica {
    /// The table.
    pub const TABLE: &str = "UltimaEgress.delivery.replica";
    /// Key, exact: the job's id.
    pub const JOB: &str = "job";
    /// Key, exact: the copy's RID, which is the receiver's rank.
    pub const RID: &str = "rid";
    /// Action.
    pub const READDRESS: &str = "UltimaEgress.delivery.readdress";
    /// Parameter of [`READDRESS`]: the rank's MAC address.
    pub const DST_MAC: &str = "dst_mac";
    /// Parameter of [`READDRESS`]: the rank's IPv4 address.
    pub const DST_ADDR: &str = "dst_addr";
    /// Parameter of [`READDRESS`]: the rank's UDP port.
    pub const DST_PORT: &str = "dst_port";
    /// The RID of copies that go to another switch; no rank may have it (`TRUNK_RID` in `constants.p4`).
    pub const TRUNK_RID: u16 = 0xffff;
}

/// `shares.p4`: where the counts, the meter and the operations of a job at an egress port stand.
pub mod share {
    /// The table.
    pub const TABLE: &str = "UltimaEgress.shares.share";
    /// Key, exact: the job's id.
    pub const JOB: &str = "job";
    /// Key, exact: the port that the packet leaves by.
    pub const EGRESS_PORT: &str = "egress_port";
    /// Action.
    pub const SET_SHARE: &str = "UltimaEgress.shares.set_share";
    /// Parameter of [`SET_SHARE`]: the place, from 1.
    pub const INDEX: &str = "index";
    /// The meter of bytes by share: its virtual queue, see `queue.p4`.
    pub const METER: &str = "UltimaEgress.queue.share_rate";
}

/// `queue.p4`: what an egress port can carry.
pub mod queue {
    /// The table: how long packets may be queued.
    pub const TABLE: &str = "UltimaEgress.queue.queue_time";
    /// Key, exact: the port that the packet leaves by.
    pub const EGRESS_PORT: &str = "egress_port";
    /// Action.
    pub const LIMIT: &str = "UltimaEgress.queue.limit";
    /// Parameter of [`LIMIT`]: packets that were queued for more ticks are marked; all ones for none.
    pub const MARK: &str = "mark";
    /// Parameter of [`LIMIT`]: data that was queued for more ticks is trimmed; all ones for none.
    pub const TRIM: &str = "trim";
    /// The meter of bytes by egress port: its virtual queue.
    pub const METER: &str = "UltimaEgress.queue.port_rate";
}

/// The digest about an operation that lost too much: `operation_loss_t` in `headers.p4`.
pub mod loss {
    /// The digest.
    pub const DIGEST: &str = "operation_loss_t";
    /// Member: the job's id.
    pub const JOB: &str = "job";
    /// Member: its membership epoch.
    pub const EPOCH: &str = "epoch";
    /// Member: the operation's step.
    pub const STEP: &str = "step";
    /// Member: its bucket.
    pub const BUCKET: &str = "bucket";
    /// Member: whose packet made it too much.
    pub const SOURCE_RANK: &str = "source_rank";
    /// Member: where it was lost: an egress port, for [`UPSTREAM_LOST`] the ingress port.
    pub const PORT: &str = "port";
    /// Member: the operation's packets trimmed there.
    pub const TRIMMED: &str = "trimmed";
    /// Member: those late there.
    pub const LATE: &str = "late";
    /// Member: those that the source's host or link lost.
    pub const UPSTREAM_LOST: &str = "upstream_lost";
    /// The clone session that brings them from egress to ingress (`LOSS_SESSION` in `target_v1model.p4`).
    pub const SESSION: u32 = 1;
    /// Its port: recirculated, so no link may have it.
    pub const SESSION_PORT: u16 = 510;
}

/// Indirect counters of packets and bytes, one array a cause. The first group is indexed by a job's counter
/// index, 0 standing for jobs that the switch does not know; the second by ingress port; the third by a job's
/// share of an egress port, 0 standing for none; the fourth by a source that sends from a host at this switch.
///
/// Every packet with Ultima's magic and version in an intact IPv4 packet is one of `RECEIVED` and `REJECTED`. For
/// each job `RECEIVED` is `REPLICATED` + `UNICAST` + `REFLECTED` + `UNDELIVERABLE`, and
/// `REPLICATED` × the replicas of its group + `UNICAST` + `REFLECTED` is `DELIVERED` + `OWN_COPY` + `UNKNOWN_RANK` +
/// what queues between ingress and egress dropped. Of `DELIVERED`, `LATE` and `TRIMMED` have lost their payload here.
pub mod counter {
    /// Admitted packets of the job.
    pub const RECEIVED: &str = "UltimaIngress.admission.received";
    /// Rejected and dropped packets with the job's id.
    pub const REJECTED: &str = "UltimaIngress.admission.rejected";
    /// Admitted packets handed to the job's group.
    pub const REPLICATED: &str = "UltimaIngress.replication.replicated";
    /// Admitted packets that routing found a way for.
    pub const UNICAST: &str = "UltimaIngress.routing.unicast";
    /// Probes sent back to where they came from.
    pub const REFLECTED: &str = "UltimaIngress.reflection.reflected";
    /// Admitted packets without a way: no time to live left, no group, or no route. `UNROUTED` counts them, too.
    pub const UNDELIVERABLE: &str = "UltimaIngress.undeliverable";
    /// Copies, unicast packets and reports sent out, whole or cut.
    pub const DELIVERED: &str = "UltimaEgress.delivery.delivered";
    /// Copies dropped because they would return to where they came from: to their sender, or over the trunk.
    pub const OWN_COPY: &str = "UltimaEgress.delivery.own_copy";
    /// Copies dropped because the switch doesn't know their rank.
    pub const UNKNOWN_RANK: &str = "UltimaEgress.delivery.unknown_rank";
    /// Data that lost its payload here because its budget ran out. Bytes are those that came in, as in every counter.
    pub const LATE: &str = "UltimaEgress.trim.late";
    /// Data cut here because its port could not carry it.
    pub const TRIMMED: &str = "UltimaEgress.trim.trimmed";
    /// Those among [`LATE`] and [`TRIMMED`] that were cut behind digest and tag (AUTH).
    pub const CUT_SEALED: &str = "UltimaEgress.trim.cut_sealed";
    /// By ingress port: bad IPv4 checksum, version, options, or a frame shorter than IPv4 says.
    pub const MALFORMED: &str = "UltimaIngress.malformed";
    /// By ingress port: no route, group or neighbor, another protocol, or no time to live left.
    pub const UNROUTED: &str = "UltimaIngress.unrouted";

    /// Those indexed by job: ingress's, then egress's.
    pub const BY_JOB: [&str; 12] = [
        RECEIVED,
        REJECTED,
        REPLICATED,
        UNICAST,
        REFLECTED,
        UNDELIVERABLE,
        DELIVERED,
        OWN_COPY,
        UNKNOWN_RANK,
        LATE,
        TRIMMED,
        CUT_SEALED,
    ];

    /// By share: what left the port, whole or cut.
    pub const SHARE_SENT: &str = "UltimaEgress.share_counts.sent";
    /// By share: as [`LATE`].
    pub const SHARE_LATE: &str = "UltimaEgress.share_counts.late";
    /// By share: as [`TRIMMED`].
    pub const SHARE_TRIMMED: &str = "UltimaEgress.share_counts.trimmed";
    /// By share: as [`CUT_SEALED`].
    pub const SHARE_CUT_SEALED: &str = "UltimaEgress.share_counts.cut_sealed";

    /// Those indexed by share.
    pub const BY_SHARE: [&str; 4] = [SHARE_SENT, SHARE_LATE, SHARE_TRIMMED, SHARE_CUT_SEALED];

    /// Gaps in a source's packet numbers, an array for each hexadecimal digit of a gap, the lowest first: [`gap_cells`].
    pub const GAPS: [&str; 3] = [
        "UltimaIngress.upstream.gaps.weight_1",
        "UltimaIngress.upstream.gaps.weight_16",
        "UltimaIngress.upstream.gaps.weight_256",
    ];

    /// The cells that count a source's gaps: the array, the index in it, and the length of the gaps that the cell counts.
    pub fn gap_cells(source: u32) -> impl Iterator<Item = (&'static str, u32, u64)> {
        (GAPS.into_iter().zip(0..)).flat_map(move |(array, place)| {
            (1..16).map(move |digit| (array, 16 * source + digit, u64::from(digit) << (4 * place)))
        })
    }

    /// Packets that came after one with a higher number: what [`GAPS`] counted as lost before they came.
    pub const OVERTAKEN: &str = "UltimaIngress.upstream.overtaken";
    /// Packets whose number is far from the one expected: their source has started a new numbering.
    pub const RENUMBERED: &str = "UltimaIngress.upstream.renumbered";
    /// Packets whose number is among the latest 64 that have arrived: the network duplicated them.
    pub const DUPLICATED: &str = "UltimaIngress.upstream.duplicated";

    /// Those indexed by source, beside [`GAPS`].
    pub const BY_SOURCE: [&str; 3] = [OVERTAKEN, RENUMBERED, DUPLICATED];
}

/// `mirror_tna.p4`: by which mirror sessions packets that are cut go on, on chips that cut only what they mirror.
pub mod cut {
    /// The table.
    pub const TABLE: &str = "UltimaEgress.mirrors.session";
    /// Key, exact: the port that the packet leaves by.
    pub const EGRESS_PORT: &str = "egress_port";
    /// Key, exact: 1 if the packet has digest and tag (AUTH).
    pub const SEALED: &str = "sealed";
    /// Action.
    pub const SET_SESSION: &str = "UltimaEgress.mirrors.set_session";
    /// Parameter of [`SET_SESSION`]: the session.
    pub const SESSION: &str = "session";
    /// Bytes that the session of packets without digest and tag keeps: 94 of the frame, and 15 in front of them on the way
    /// (`loss_h`).
    pub const PLAIN_BYTES: u16 = 94 + 15;
    /// Bytes that the session of packets with them keeps.
    pub const SEALED_BYTES: u16 = 110 + 15;
}
