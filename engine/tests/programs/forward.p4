// Forwards by destination address and counts the frames of each: the program of the crate's example.

#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

struct headers_t {
    ethernet_t ethernet;
}

struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control IngressPipe(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets_and_bytes) frames;

    action send(bit<9> port) {
        standard.egress_spec = port;
    }

    action drop() {
        mark_to_drop(standard);
    }

    table forward {
        key = { hdr.ethernet.dst: exact; }
        actions = { send; drop; }
        const default_action = drop();
        counters = frames;
        size = 1024;
    }

    apply {
        forward.apply();
    }
}

control EgressPipe(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
    }
}

V1Switch(Parse(), Verify(), IngressPipe(), EgressPipe(), Compute(), Deparse()) main;
