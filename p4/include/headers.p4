// Headers and metadata, for every target.

header ethernet_h {
    bit<48> dst_mac;
    bit<48> src_mac;
    bit<16> ether_type;
}

// ARP for IPv4 over Ethernet (RFC 826).
header arp_h {
    bit<16> hardware_type;
    bit<16> protocol_type;
    bit<8>  hardware_length;
    bit<8>  protocol_length;
    bit<16> operation;
    bit<48> sender_mac;
    bit<32> sender_ip;
    bit<48> target_mac;
    bit<32> target_ip;
}

header ipv4_h {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> total_length;
    bit<16> identification;
    bit<1>  reserved;
    bit<1>  dont_fragment;
    bit<1>  more_fragments;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src_addr;
    bit<32> dst_addr;
}

// The fields of an IPv4 header that its checksum covers.
#define IPV4_CHECKSUM_FIELDS(IPV4) { \
    IPV4.version, IPV4.ihl, IPV4.tos, IPV4.total_length, IPV4.identification, IPV4.reserved, IPV4.dont_fragment, \
    IPV4.more_fragments, IPV4.fragment_offset, IPV4.ttl, IPV4.protocol, IPV4.src_addr, IPV4.dst_addr }

header udp_h {
    bit<16> src_port;
    bit<16> dst_port;
    bit<16> length;
    bit<16> checksum;
}

// docs/packet.md is the byte table. The tag and digest of AUTH packets stay in the payload: switches do not read them.
header ultima_h {
    bit<16> magic;
    bit<4>  version;
    bit<4>  kind;
    // Written by switches, up to path_queue.
    bit<1>  trimmed;
    bit<1>  late;
    bit<1>  congestion;
    bit<5>  hops;
    bit<32> budget;
    bit<32> path_queue;
    bit<16> job;
    bit<16> epoch;
    bit<16> source_rank;
    bit<16> owner_rank;
    bit<32> packet_number;
    bit<32> step;
    bit<16> bucket;
    bit<1>  last;
    bit<1>  hadamard;
    bit<1>  auth;
    bit<5>  host_reserved;
    bit<4>  dtype;
    bit<4>  incast;
    // Read by the ends only.
    bit<32> slot;
    bit<32> slots;
    bit<16> contributions;
    bit<16> shared_tc;
    bit<32> sent_at;
    bit<32> echoed;
}

// The switch's answer to a PROBE, which it writes into the PROBE's room for it.
header report_h {
    bit<16> port;            // the port at which the PROBE arrived and leaves; the counts are of this port
    bit<16> known;           // 1 if the switch has counts of the PROBE's operation, else 0
    bit<32> sent;            // data packets of the operation that left the port, trimmed or not
    bit<32> trimmed;         // those trimmed because the port could not carry them
    bit<32> late;            // those whose budget was used up
    bit<32> upstream_lost;   // packets of the PROBE's source that were lost before this switch
}

// The digest about an operation whose losses reach the job's threshold, one for each hop that lost.
struct operation_loss_t {
    bit<16> job;
    bit<16> epoch;
    bit<32> step;
    bit<16> bucket;
    bit<16> source_rank;     // of the packet that reached the threshold; for upstream losses, of the lost packets
    bit<16> port;            // the egress port that lost; for upstream losses the ingress port
    bit<32> trimmed;
    bit<32> late;
    bit<32> upstream_lost;
}

struct headers_t {
    ethernet_h ethernet;
    arp_h      arp;
    ipv4_h     ipv4;
    udp_h      udp;
    ultima_h   ultima;
    report_h   report;
}

// The metadata of control blocks. The first group copies the target's intrinsic metadata, which only the top file accesses.
struct metadata_t {
    bit<9>  ingress_port;
    bit<9>  egress_port;
    bit<16> rid;            // egress: the copy's replication id
    bit<32> residence;      // egress: ticks since the packet arrived
    bit<32> queue_time;     // egress: ticks in the queue
    bit<1>  bad_checksum;   // the IPv4 header checksum is wrong
    bit<1>  malformed;      // ingress: its headers cannot be trusted
    bit<1>  drop;
    bit<1>  unrouted;       // ingress: it has no route
    bit<16> group;          // the multicast group to copy to, or NO_GROUP

    bit<1>  is_ultima;      // magic and version match, whether or not the whole header is there
    bit<1>  is_data;        // of a kind that carries a slot's values: only such a packet can be late or trimmed
    bit<1>  has_operation;  // its step and bucket name a running operation
    bit<16> header_length;  // of data: bytes of the datagram up to its payload, UDP header included
    bit<1>  replicated;     // ingress sends it to a multicast group
    bit<1>  reflected;      // a PROBE on its way back
    bit<16> job_index;      // index of the job's counters; 0: unknown job
    bit<16> source_index;   // index of the source's loss registers; 0: its host is linked to another switch
    bit<16> share;          // egress: index of the counters of job and port; 0: none
    bit<32> gap;            // missing packet numbers before this one
    bit<32> upstream_lost;  // packets of this source that were lost before this switch
    bit<32> loss_threshold; // losses of an operation at which the controller gets a digest; 0: never
    bit<2>  cause;          // egress: CAUSE_LATE or CAUSE_TRIMMED if the packet's values are lost here
    meter_color_t share_color;   // egress
    meter_color_t port_color;
    bit<1>  is_trimmable;   // egress: it has a payload that may be trimmed
    bit<1>  late;           // egress: its budget is used up, and no earlier switch has trimmed it
    bit<1>  marked;         // egress: a queue is over its marking threshold

    // The digest for the controller. Ingress finds a source's losses; a port's losses come from egress.
    bit<1>  notify;
    bit<32> notify_upstream;
    bit<32> notify_step;
    bit<16> notify_bucket;
    LOSS_FIELD bit<16> notify_port;
    LOSS_FIELD bit<32> notify_trimmed;
    LOSS_FIELD bit<32> notify_late;

    TARGET_METADATA
}
