// A type with another width for controllers than in packets: a port number of 32 bits.
//
// p4c-bm2-ss --arch v1model --p4runtime-files translated.p4info.txtpb -o translated.json translated.p4

#include <core.p4>
#include <v1model.p4>

@p4runtime_translation("example.org/port", bit<32>)
type bit<9> outside_port_t;

header ask_t {
    bit<8> table_number;
    bit<8> zone;
    bit<16> port;
    bit<8> answer;
}

struct headers_t {
    ask_t ask;
}

struct metadata_t {
    outside_port_t port;
}

parser Read(packet_in packet, out headers_t hdr, inout metadata_t meta,
            inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ask);
        meta.port = (outside_port_t)hdr.ask.port[8:0];
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Translate(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action answer(bit<8> number) {
        hdr.ask.answer = number;
    }

    action leave(outside_port_t port) {
        hdr.ask.port = 7w0 ++ (bit<9>)port;
    }

    table masked_port {
        key = { meta.port: ternary @name("port"); }
        actions = { answer; leave; NoAction; }
        default_action = NoAction();
    }

    table prefix_port {
        key = { meta.port: lpm @name("port"); }
        actions = { answer; NoAction; }
        default_action = NoAction();
    }

    table range_port {
        key = { meta.port: range @name("port"); }
        actions = { answer; NoAction; }
        default_action = NoAction();
    }

    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.ask.answer = 0;
        if (hdr.ask.table_number == 4) {
            masked_port.apply();
        } else if (hdr.ask.table_number == 5) {
            prefix_port.apply();
        } else if (hdr.ask.table_number == 6) {
            range_port.apply();
        }
    }
}

control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Write(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.ask); }
}

V1Switch(Read(), Verify(), Translate(), Leave(), Update(), Write()) main;
