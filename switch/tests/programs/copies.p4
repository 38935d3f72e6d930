// Clones from ingress and egress, multicast, resubmission, recirculation, truncation, exit; and
// the externs of actions: counters, meters, registers, hashes, random numbers. The header `orders`
// of each frame selects one of them.
//
// p4c-bm2-ss --arch v1model --p4runtime-files copies.p4info.txtpb -o copies.json copies.p4

#include <core.p4>
#include <v1model.p4>

header orders_t {
    bit<8> order;
    bit<8> argument;
    bit<16> port;
    bit<32> value;
}

// Egress fills in this report about the copy.
header copy_t {
    bit<8> instance_type;
    bit<16> rid;
    bit<8> kept;
    bit<8> lost;
    bit<32> length;
    bit<8> passes;
}

struct headers_t {
    orders_t orders;
    copy_t copy;
}

struct metadata_t {
    @field_list(1)
    bit<8> kept;
    bit<8> lost;
    @field_list(1, 2)
    bit<8> passes;
    bit<2> color;
    @field_list(1, 2)
    bit<1> from_egress;
}

parser Orders(packet_in packet, out headers_t hdr, inout metadata_t meta,
              inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.orders);
        transition accept;
    }
}

control Nothing(inout headers_t hdr, inout metadata_t meta) {
    apply { }
}

control Serve(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    counter(8, CounterType.packets_and_bytes) seen;
    meter(4, MeterType.packets) speed;
    register<bit<32>>(4) memory;
    direct_counter(CounterType.packets_and_bytes) matched;
    direct_meter<bit<2>>(MeterType.packets) pace;

    action truncate_frame() {
        truncate((bit<32>)hdr.orders.argument);
    }

    action measure() {
        speed.execute_meter((bit<32>)hdr.orders.argument, meta.color);
        hdr.orders.value = (bit<32>)meta.color;
    }

    action add() {
        bit<32> old;
        memory.read(old, (bit<32>)hdr.orders.argument);
        memory.write((bit<32>)hdr.orders.argument, old + hdr.orders.value);
        hdr.orders.value = old;
    }

    action digest_of_value() {
        hash(hdr.orders.value, HashAlgorithm.crc32, 32w100, { hdr.orders.argument, hdr.orders.port }, 32w50);
    }

    action draw() {
        random(hdr.orders.value, 32w10, 32w19);
    }

    action mark(bit<8> kept) {
        pace.read(meta.color);
        meta.kept = kept;
        hdr.orders.value = (bit<32>)meta.color;
    }

    action sum_up() {
        bit<32> sum = 0;
        for (bit<8> i = 0; i < hdr.orders.argument; i = i + 1) {
            for (bit<32> j = 0; j < hdr.orders.value; j = j + 1) {
                sum = sum + 1;
            }
        }
        hdr.orders.value = sum;
    }

    table marks {
        key = { hdr.orders.argument: exact; }
        actions = { mark; NoAction; }
        counters = matched;
        meters = pace;
        size = 4;
    }

    apply {
        standard.egress_spec = (bit<9>)hdr.orders.port;
        seen.count((bit<32>)hdr.orders.order);
        meta.kept = 0x11;
        meta.lost = 0x22;
        if (!hdr.orders.isValid() || hdr.orders.order == 0) {
            mark_to_drop(standard);
        } else if (hdr.orders.order == 2) {
            clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.orders.argument, 1);
            hdr.orders.value = 0;
        } else if (hdr.orders.order == 3) {
            standard.mcast_grp = (bit<16>)hdr.orders.argument;
        } else if (hdr.orders.order == 4) {
            if (meta.passes < hdr.orders.argument) {
                meta.passes = meta.passes + 1;
                resubmit_preserving_field_list(2);
            }
        } else if (hdr.orders.order == 5) {
            truncate_frame();
        } else if (hdr.orders.order == 6) {
            measure();
        } else if (hdr.orders.order == 7) {
            add();
        } else if (hdr.orders.order == 8) {
            digest_of_value();
        } else if (hdr.orders.order == 9) {
            draw();
        } else if (hdr.orders.order == 10) {
            marks.apply();
        } else if (hdr.orders.order == 11) {
            if (hdr.orders.argument == 1) {
                exit;
            }
            hdr.orders.value = 0xffffffff;
        } else if (hdr.orders.order == 12) {
            assert(hdr.orders.argument != 0);
        } else if (hdr.orders.order == 13) {
            sum_up();
        } else if (hdr.orders.order == 14) {
            log_msg("value {} of port {}", { hdr.orders.value, hdr.orders.port });
        } else if (hdr.orders.order == 24) {
            standard.mcast_grp = (bit<16>)hdr.orders.argument;
        } else if (hdr.orders.order == 25) {
            clone(CloneType.I2E, (bit<32>)hdr.orders.argument);
            resubmit_preserving_field_list(2);
        }
    }
}

control Describe(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        bool again = false;
        if (hdr.orders.order == 20 && meta.from_egress == 0) {
            meta.from_egress = 1;
            clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.orders.argument, 1);
        } else if (hdr.orders.order == 21 && meta.passes < hdr.orders.argument) {
            meta.passes = meta.passes + 1;
            hdr.orders.value = hdr.orders.value + 1;
            recirculate_preserving_field_list(2);
            again = true;
        } else if (hdr.orders.order == 22) {
            mark_to_drop(standard);
        } else if (hdr.orders.order == 23) {
            clone(CloneType.E2E, (bit<32>)hdr.orders.argument);
        } else if (hdr.orders.order == 24) {
            // Every replica is replicated to the group again.
            recirculate_preserving_field_list(2);
            again = true;
        } else if (hdr.orders.order == 26 && meta.passes == 0) {
            meta.passes = 1;
            truncate(4);
            recirculate_preserving_field_list(2);
            again = true;
        }
        if (!again) {
            hdr.copy.setValid();
            hdr.copy.instance_type = (bit<8>)standard.instance_type;
            hdr.copy.rid = standard.egress_rid;
            hdr.copy.kept = meta.kept;
            hdr.copy.lost = meta.lost;
            hdr.copy.length = standard.packet_length;
            hdr.copy.passes = meta.passes;
        }
    }
}

control Emit(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(Orders(), Nothing(), Serve(), Describe(), Nothing(), Emit()) main;
