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
    /// Action without parameters.
    pub const ADMIT: &str = "UltimaIngress.admission.admit";
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

/// Indirect counters of packets and bytes, one array a cause. The first group is indexed by a job's counter
/// index, 0 standing for jobs that the switch does not know; the second by ingress port.
///
/// Every packet that claims to be Ultima's in an intact IPv4 packet is one of `RECEIVED` and `REJECTED`. For
/// each job `RECEIVED` is `REPLICATED` + `UNICAST` + those of its packets that `UNROUTED` counts, and
/// `REPLICATED` × the replicas of its group + `UNICAST` is `DELIVERED` + `OWN_COPY` + `UNKNOWN_RANK` + what
/// queues between ingress and egress dropped.
pub mod counter {
    /// Admitted packets of the job.
    pub const RECEIVED: &str = "UltimaIngress.admission.received";
    /// Packets that claim to be the job's and were refused and dropped.
    pub const REJECTED: &str = "UltimaIngress.admission.rejected";
    /// Admitted packets handed to the job's group.
    pub const REPLICATED: &str = "UltimaIngress.replication.replicated";
    /// Admitted packets that routing found a way for.
    pub const UNICAST: &str = "UltimaIngress.routing.unicast";
    /// Copies and unicast packets sent out.
    pub const DELIVERED: &str = "UltimaEgress.delivery.delivered";
    /// Copies dropped because they would return to where they came from: to their sender, or over the trunk.
    pub const OWN_COPY: &str = "UltimaEgress.delivery.own_copy";
    /// Copies dropped because the switch doesn't know their rank.
    pub const UNKNOWN_RANK: &str = "UltimaEgress.delivery.unknown_rank";
    /// By ingress port: bad IPv4 checksum, version, options, or a frame shorter than IPv4 says.
    pub const MALFORMED: &str = "UltimaIngress.malformed";
    /// By ingress port: no route, group or neighbor, another protocol, or no time to live left.
    pub const UNROUTED: &str = "UltimaIngress.unrouted";

    /// Those indexed by job: ingress's, then egress's.
    pub const BY_JOB: [&str; 7] = [
        RECEIVED,
        REJECTED,
        REPLICATED,
        UNICAST,
        DELIVERED,
        OWN_COPY,
        UNKNOWN_RANK,
    ];
}
