// Every algorithm of v1model's `hash`, over fields that do not end at bytes, with bases and ranges
// that wrap; and a checksum over fields and payload. The results precede the packet.
//
// p4c-bm2-ss --arch v1model --p4runtime-files hashes.p4info.txtpb -o hashes.json hashes.p4

#include <core.p4>
#include <v1model.p4>

header input_t {
    bit<16> word;
    bit<12> label;
    bit<4> rest;
    bit<32> number;
    bit<48> address;
}

header results_t {
    bit<32> crc32;
    bit<32> crc32_custom;
    bit<16> crc16;
    bit<16> crc16_custom;
    bit<64> identity;
    bit<16> csum16;
    bit<16> xor16;
    bit<32> in_range;
    bit<32> no_range;
    bit<16> too_narrow;
    bit<32> with_payload;
}

struct headers_t {
    results_t results;
    input_t input;
}

struct metadata_t {}

parser Read(packet_in packet, out headers_t hdr, inout metadata_t meta,
            inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.input);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Hash(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action compute() {
        hdr.results.setValid();
        hash(hdr.results.crc32, HashAlgorithm.crc32, 32w0,
             { hdr.input.word, hdr.input.label, hdr.input.number, hdr.input.address },
             64w0x100000000);
        hash(hdr.results.crc32_custom, HashAlgorithm.crc32_custom, 32w0,
             { hdr.input.word, hdr.input.label, hdr.input.number, hdr.input.address },
             64w0x100000000);
        hash(hdr.results.crc16, HashAlgorithm.crc16, 16w0,
             { hdr.input.word, hdr.input.label, hdr.input.number, hdr.input.address }, 32w65536);
        hash(hdr.results.crc16_custom, HashAlgorithm.crc16_custom, 16w0,
             { hdr.input.word, hdr.input.label, hdr.input.number, hdr.input.address }, 32w65536);
        hash(hdr.results.identity, HashAlgorithm.identity, 64w0,
             { hdr.input.word, hdr.input.label, hdr.input.rest, hdr.input.address },
             64w0xffffffffffffffff);
        hash(hdr.results.csum16, HashAlgorithm.csum16, 16w0,
             { hdr.input.word, hdr.input.label, hdr.input.number, hdr.input.address }, 32w65536);
        hash(hdr.results.xor16, HashAlgorithm.xor16, 16w0,
             { hdr.input.word, hdr.input.label, hdr.input.number, hdr.input.address }, 32w65536);
        hash(hdr.results.in_range, HashAlgorithm.crc32, 32w1000,
             { hdr.input.word, hdr.input.number }, 32w17);
        hash(hdr.results.no_range, HashAlgorithm.crc32, 32w7,
             { hdr.input.word, hdr.input.number }, 32w0);
        hash(hdr.results.too_narrow, HashAlgorithm.crc32, 16w0xfff0,
             { hdr.input.word, hdr.input.number }, 32w0x30000);
    }
    // The P4Info of a program without tables would be empty.
    table hashes {
        key = { standard.ingress_port: exact; }
        actions = { compute; }
        const default_action = compute();
    }
    apply {
        standard.egress_spec = standard.ingress_port;
        hashes.apply();
    }
}

control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum_with_payload(true, { hdr.input.word, hdr.input.number },
                                     hdr.results.with_payload, HashAlgorithm.crc32);
    }
}

control Write(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.results);
        packet.emit(hdr.input);
    }
}

V1Switch(Read(), Verify(), Hash(), Leave(), Update(), Write()) main;
