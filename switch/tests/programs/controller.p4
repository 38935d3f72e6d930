/* -*- P4_16 -*- */
// Messages between programs and controllers: packets with controller headers, digests,
// notifications of idle entries.
//
//   p4c-bm2-ss --arch v1model --p4runtime-files controller.p4info.txtpb -o controller.json controller.p4

#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 64;

@controller_header("packet_in")
header to_controller_t {
    bit<9>  ingress_port;
    bit<1>  is_clone;
    bit<14> reason;
}

@controller_header("packet_out")
header from_controller_t {
    bit<9>  egress_port;
    bit<7>  padding;
    bit<40> cookie;
}

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

struct headers_t {
    to_controller_t   to_controller;
    from_controller_t from_controller;
    ethernet_t        ethernet;
}

// The digest of a source address.
struct sighting_t {
    bit<48> address;
    bit<9>  port;
}

// The digest of a frame that leaves.
struct departure_t {
    bit<16> type;
    bit<9>  port;
}

struct metadata_t {
    @field_list(1)
    bit<9> from;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        transition select(standard.ingress_port) {
            CPU_PORT: from_controller;
            default: ethernet;
        }
    }
    state from_controller {
        packet.extract(hdr.from_controller);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control IngressPipe(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets) hits;

    action drop() {
        mark_to_drop(standard);
    }
    action send(bit<9> port) {
        standard.egress_spec = port;
    }
    // Sends the frame to the controller.
    action punt(bit<14> reason) {
        hdr.to_controller.setValid();
        hdr.to_controller.reason = reason;
        standard.egress_spec = CPU_PORT;
    }
    // Sends the frame to a port and a copy to the controller.
    action watch(bit<9> port, bit<32> session) {
        standard.egress_spec = port;
        meta.from = standard.ingress_port;
        clone_preserving_field_list(CloneType.I2E, session, 1);
    }
    table forward {
        key = { hdr.ethernet.dst: exact; }
        actions = { send; punt; watch; drop; }
        counters = hits;
        support_timeout = true;
        size = 65536;
        default_action = drop();
    }

    action known() { }
    action learn() {
        digest<sighting_t>(1, { hdr.ethernet.src, standard.ingress_port });
    }
    table sources {
        key = { hdr.ethernet.src: exact; }
        actions = { known; learn; }
        support_timeout = true;
        size = 1024;
        default_action = known();
    }

    apply {
        if (hdr.from_controller.isValid()) {
            standard.egress_spec = hdr.from_controller.egress_port;
            hdr.from_controller.setInvalid();
        } else {
            sources.apply();
            forward.apply();
        }
    }
}

control EgressPipe(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (standard.egress_port == CPU_PORT) {
            hdr.to_controller.setValid();
            hdr.to_controller.ingress_port = standard.ingress_port;
            if (standard.instance_type == 1) {
                hdr.to_controller.is_clone = 1;
                hdr.to_controller.reason = (bit<14>) meta.from;
            }
        } else if (hdr.ethernet.type == 0x88B6) {
            digest<departure_t>(1, { hdr.ethernet.type, standard.egress_port });
        }
    }
}

control Compute(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.to_controller);
        packet.emit(hdr.from_controller);
        packet.emit(hdr.ethernet);
    }
}

V1Switch(Parse(), Verify(), IngressPipe(), EgressPipe(), Compute(), Deparse()) main;
