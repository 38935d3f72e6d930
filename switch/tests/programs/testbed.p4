/* -*- P4_16 -*- */
// The program of most tests of the switch: every match kind, direct and indirect resources,
// multicast, clones, and an egress that truncates frames.
//
//   p4c-bm2-ss --arch v1model --p4runtime-files testbed.p4info.txtpb -o testbed.json testbed.p4

#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

// Follows an Ethernet header of type 0x88B5 (IEEE 802 local experimental).
header probe_t {
    bit<8>  kind;
    bit<32> number;
}

struct headers_t {
    ethernet_t ethernet;
    probe_t    probe;
}

struct metadata_t {
    bit<2> color;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x88B5: probe;
            default: accept;
        }
    }
    state probe {
        packet.extract(hdr.probe);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control IngressPipe(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    counter(16, CounterType.packets_and_bytes) received;
    meter(16, MeterType.bytes) policer;
    register<bit<32>>(8) last_number;
    direct_counter(CounterType.packets_and_bytes) hits;
    direct_meter<bit<2>>(MeterType.packets) limiter;

    action drop() {
        mark_to_drop(standard);
    }
    action send(bit<9> port) {
        hits.count();
        standard.egress_spec = port;
    }
    action flood(bit<16> group) {
        hits.count();
        standard.mcast_grp = group;
    }
    // Selects the output. Frames to unknown addresses are dropped.
    table forward {
        key = { hdr.ethernet.dst: exact; }
        actions = { send; flood; @defaultonly drop; }
        default_action = drop();
        counters = hits;
        size = 64;
    }

    action deny() {
        mark_to_drop(standard);
        exit;
    }
    action mirror(bit<32> session) {
        clone(CloneType.I2E, session);
    }
    action permit() { }
    // Denies, mirrors or permits a frame.
    table acl {
        key = {
            hdr.ethernet.src: ternary;
            hdr.ethernet.type: range;
            hdr.probe.isValid(): optional;
        }
        actions = { deny; mirror; permit; }
        default_action = permit();
        size = 16;
    }

    action watch() {
        limiter.read(meta.color);
    }
    // A direct meter for each prefix of the source address.
    table metered {
        key = { hdr.ethernet.src: lpm; }
        actions = { watch; @defaultonly NoAction; }
        const default_action = NoAction();
        meters = limiter;
        size = 16;
    }

    action redirect(bit<9> port) {
        standard.egress_spec = port;
    }
    table fixed {
        key = { hdr.ethernet.type: exact; }
        actions = { redirect; @defaultonly NoAction; }
        const entries = { 0x88B6: redirect(7); }
    }

    apply {
        received.count((bit<32>) standard.ingress_port);
        policer.execute_meter((bit<32>) standard.ingress_port, meta.color);
        acl.apply();
        metered.apply();
        forward.apply();
        fixed.apply();
        if (hdr.probe.isValid()) {
            last_number.write(0, hdr.probe.number);
        }
        if (meta.color == 2) {
            mark_to_drop(standard);
        }
    }
}

control EgressPipe(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action readdress(bit<48> dst) {
        hdr.ethernet.dst = dst;
    }
    action discard() {
        mark_to_drop(standard);
    }
    action cut(bit<32> length) {
        truncate(length);
    }
    // Changes a replica by its RID; unicast has RID 0.
    table replica {
        key = { standard.egress_rid: exact; }
        actions = { readdress; discard; cut; NoAction; }
        default_action = NoAction();
        size = 32;
    }
    apply {
        replica.apply();
    }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.probe);
    }
}

V1Switch(Parse(), Verify(), IngressPipe(), EgressPipe(), Compute(), Deparse()) main;
