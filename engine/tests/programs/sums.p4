// Appends sums of the packet's operands. Tests replace the statements of its only action.

#include <core.p4>
#include <v1model.p4>

header operands_t {
    bit<32> a;
    bit<32> b;
    bit<8>  n;
}

header narrow_t {
    bit<32> sum;
    bit<32> difference;
}

struct headers_t {
    operands_t operands;
    narrow_t   narrow;
}

struct metadata_t {
    bit<64> tmp;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.operands);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control IngressPipe(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.narrow.setValid();
        meta.tmp = (bit<64>)hdr.operands.a;
        hdr.narrow.sum = (bit<32>)meta.tmp + hdr.operands.b;
        hdr.narrow.difference = hdr.operands.a - hdr.operands.b;
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
        packet.emit(hdr.operands);
        packet.emit(hdr.narrow);
    }
}

V1Switch(Parse(), Verify(), IngressPipe(), EgressPipe(), Compute(), Deparse()) main;
