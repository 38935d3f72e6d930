// Types that the control plane sees otherwise than the packet: a port number of 32 bits, and a
// zone that has a name.
//
// p4c-bm2-ss --arch v1model --p4runtime-files translated.p4info.txtpb -o translated.json translated.p4

#include <core.p4>
#include <v1model.p4>

@p4runtime_translation("example.org/port", bit<32>)
type bit<9> outside_port_t;

@p4runtime_translation("example.org/zone", string)
type bit<2> zone_t;

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
    zone_t zone;
    outside_port_t port;
}

parser Read(packet_in packet, out headers_t hdr, inout metadata_t meta,
            inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ask);
        meta.zone = (zone_t)hdr.ask.zone[1:0];
        meta.port = (outside_port_t)hdr.ask.port[8:0];
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Translate(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action enter(zone_t zone) {
        hdr.ask.zone = 6w0 ++ (bit<2>)zone;
    }

    action answer(bit<8> number) {
        hdr.ask.answer = number;
    }

    action leave(outside_port_t port) {
        hdr.ask.port = 7w0 ++ (bit<9>)port;
    }

    // A zone for each port: the value that the switch chose for its name comes back.
    table zone_of {
        key = { meta.port: exact @name("port"); }
        actions = { enter; NoAction; }
        default_action = NoAction();
    }

    table of_zone {
        key = { meta.zone: exact @name("zone"); }
        actions = { answer; NoAction; }
        default_action = NoAction();
    }

    table perhaps_zone {
        key = { meta.zone: optional @name("zone"); }
        actions = { answer; leave; NoAction; }
        default_action = NoAction();
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
        if (hdr.ask.table_number == 1) {
            zone_of.apply();
        } else if (hdr.ask.table_number == 2) {
            of_zone.apply();
        } else if (hdr.ask.table_number == 3) {
            perhaps_zone.apply();
        } else if (hdr.ask.table_number == 4) {
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
