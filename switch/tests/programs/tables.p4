// One large table of each match kind. The first byte of a packet selects the table; 0 selects none.
//
// p4c-bm2-ss --arch v1model --p4runtime-files tables.p4info.txtpb -o tables.json tables.p4

#include <core.p4>
#include <v1model.p4>

const bit<32> ENTRIES = 1 << 17;

header keys_t {
    bit<8> table_number;
    bit<48> mac;
    bit<32> address;
    bit<16> port;
    bit<8> kind;
}

struct headers_t {
    keys_t keys;
}

struct metadata_t { }

parser Keys(packet_in packet, out headers_t hdr, inout metadata_t meta,
            inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.keys);
        transition accept;
    }
}

control Nothing(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Tables(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action forward(bit<9> port) { standard.egress_spec = port; }

    table exact_one {
        key = { hdr.keys.mac: exact; }
        actions = { forward; }
        default_action = forward(0);
        size = ENTRIES;
    }

    table prefix {
        key = { hdr.keys.address: lpm; }
        actions = { forward; }
        default_action = forward(0);
        size = ENTRIES;
    }

    table masked {
        key = { hdr.keys.address: ternary; hdr.keys.port: ternary; }
        actions = { forward; }
        default_action = forward(0);
        size = ENTRIES;
    }

    table ranged {
        key = { hdr.keys.address: range; }
        actions = { forward; }
        default_action = forward(0);
        size = ENTRIES;
    }

    table mixed {
        key = {
            hdr.keys.kind: exact;
            hdr.keys.address: lpm;
            hdr.keys.mac: ternary;
            hdr.keys.port: range;
        }
        actions = { forward; }
        default_action = forward(0);
        size = ENTRIES;
    }

    apply {
        if (hdr.keys.table_number == 1) {
            exact_one.apply();
        } else if (hdr.keys.table_number == 2) {
            prefix.apply();
        } else if (hdr.keys.table_number == 3) {
            masked.apply();
        } else if (hdr.keys.table_number == 4) {
            ranged.apply();
        } else if (hdr.keys.table_number == 5) {
            mixed.apply();
        }
    }
}

control NothingMore(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}

control Packet(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.keys); }
}

V1Switch(Keys(), Nothing(), Tables(), NothingMore(), Nothing(), Packet()) main;
