// Parser value sets: of a single field, of a struct whose fields have every match kind of
// P4Runtime, and one that two states share. The first byte of a returned packet is the parser state
// that it reached.
//
// p4c-bm2-ss --arch v1model --p4runtime-files value_sets.p4info.txtpb -o value_sets.json value_sets.p4

#include <core.p4>
#include <v1model.p4>

header choice_t {
    bit<8> selector;
    bit<8> kind;
    bit<16> port;
    bit<3> tag;
    bit<5> rank;
    bit<8> color;
}

struct headers_t {
    choice_t choice;
}

struct metadata_t {
    bit<8> state;
}

struct flow_t {
    bit<16> port;
    @match(ternary) bit<3> tag;
    @match(range) bit<5> rank;
    @match(lpm) bit<8> color;
}

struct maybe_t {
    @match(optional) bit<8> kind;
    @match(optional) bit<16> port;
}

parser Read(packet_in packet, out headers_t hdr, inout metadata_t meta,
            inout standard_metadata_t standard) {
    value_set<bit<8>>(3) kinds;
    value_set<flow_t>(4) flows;
    value_set<maybe_t>(2) maybes;

    state start {
        packet.extract(hdr.choice);
        transition select(hdr.choice.selector) {
            1: by_kind;
            2: by_flow;
            3: by_maybe;
            4 &&& 0xfe: by_order;
            default: accept;
        }
    }

    state by_kind {
        transition select(hdr.choice.kind) {
            kinds: found_kind;
            default: missed;
        }
    }

    state by_flow {
        transition select(hdr.choice.port, hdr.choice.tag, hdr.choice.rank, hdr.choice.color) {
            flows: found_flow;
            default: missed;
        }
    }

    state by_maybe {
        transition select(hdr.choice.kind, hdr.choice.port) {
            maybes: found_maybe;
            default: missed;
        }
    }

    // A literal before the set and one after it: the first case that matches is taken.
    state by_order {
        transition select(hdr.choice.kind) {
            7: found_literal;
            kinds: found_kind;
            8: found_literal;
            default: missed;
        }
    }

    state found_kind { meta.state = 1; transition accept; }
    state found_flow { meta.state = 2; transition accept; }
    state found_maybe { meta.state = 3; transition accept; }
    state found_literal { meta.state = 4; transition accept; }
    state missed { meta.state = 0xee; transition accept; }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Answer(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // The P4Info of a program without tables would be empty.
    action back() {
        hdr.choice.selector = meta.state;
        standard.egress_spec = standard.ingress_port;
    }
    table answers {
        key = { standard.ingress_port: exact; }
        actions = { back; }
        const default_action = back();
    }
    apply { answers.apply(); }
}

control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Write(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.choice); }
}

V1Switch(Read(), Verify(), Answer(), Leave(), Update(), Write()) main;
