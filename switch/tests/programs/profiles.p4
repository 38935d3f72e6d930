// Tables that share actions: an action profile, a selector of two tables, one with direct
// resources, one with size limits. A packet selects a table and has the inputs of the selectors'
// hashes. The program returns it with the number of the action that ran.
//
// p4c-bm2-ss --arch v1model --p4runtime-files profiles.p4info.txtpb -o profiles.json profiles.p4

#include <core.p4>
#include <v1model.p4>

header ask_t {
    bit<8> table_number;
    bit<8> key;
    bit<16> flow;
    bit<12> label;
    bit<4> rest;
    bit<8> answer;
    bit<8> hit;
}

struct headers_t {
    ask_t ask;
}

struct metadata_t {
    bit<8> color;
}

parser Read(packet_in packet, out headers_t hdr, inout metadata_t meta,
            inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ask);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Choose(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets_and_bytes) used;
    direct_meter<bit<8>>(MeterType.packets) paced;

    action answer(bit<8> number) {
        hdr.ask.answer = number;
    }

    action answer_more(bit<8> number, bit<4> rest) {
        hdr.ask.answer = number;
        hdr.ask.rest = rest;
    }

    table shared_action {
        key = { hdr.ask.key: exact; }
        actions = { answer; answer_more; NoAction; }
        const default_action = NoAction();
        @name("members") implementation = action_profile(4);
    }

    action_selector(HashAlgorithm.crc16, 32w64, 32w16) spread;

    // Two tables with one selector must have one list of actions and one selector key.
    table spread_exact {
        key = {
            hdr.ask.key: exact;
            hdr.ask.flow: selector;
            hdr.ask.label: selector;
        }
        actions = { answer; NoAction; }
        const default_action = NoAction();
        implementation = spread;
    }

    table spread_ternary {
        key = {
            hdr.ask.key: ternary;
            hdr.ask.flow: selector;
            hdr.ask.label: selector;
        }
        actions = { answer; NoAction; }
        const default_action = NoAction();
        implementation = spread;
    }

    table counted {
        key = {
            hdr.ask.key: lpm;
            hdr.ask.flow: selector;
        }
        actions = { answer; NoAction; }
        const default_action = NoAction();
        @name("counted_selector") implementation =
            action_selector(HashAlgorithm.identity, 32w16, 32w8);
        counters = used;
    }

    action pace() {
        paced.read(meta.color);
    }

    table metered {
        key = { hdr.ask.key: exact; }
        actions = { pace; NoAction; }
        default_action = NoAction();
        meters = paced;
        support_timeout = true;
    }

    @max_group_size(3)
    action_selector(HashAlgorithm.crc32, 32w5, 32w32) narrow;

    table limited {
        key = {
            hdr.ask.key: exact;
            hdr.ask.flow: selector;
        }
        actions = { answer; NoAction; }
        const default_action = NoAction();
        implementation = narrow;
    }

    // A group has a weight of at most 3,
    // all groups together of at most 6.
    @max_group_size(3)
    action_selector(HashAlgorithm.csum16, 32w6, 32w16) heavy;

    table weighted {
        key = {
            hdr.ask.key: exact;
            hdr.ask.flow: selector;
        }
        actions = { answer; NoAction; }
        const default_action = NoAction();
        implementation = heavy;
    }

    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.ask.answer = 0;
        bool hit = false;
        if (hdr.ask.table_number == 1) {
            hit = shared_action.apply().hit;
        } else if (hdr.ask.table_number == 2) {
            hit = spread_exact.apply().hit;
        } else if (hdr.ask.table_number == 3) {
            // The branch depends on the action, not on the member.
            switch (spread_ternary.apply().action_run) {
                answer: { hit = true; }
                default: { hdr.ask.rest = 0xf; }
            }
        } else if (hdr.ask.table_number == 4) {
            hit = counted.apply().hit;
        } else if (hdr.ask.table_number == 5) {
            hit = limited.apply().hit;
        } else if (hdr.ask.table_number == 6) {
            hit = weighted.apply().hit;
        } else if (hdr.ask.table_number == 7) {
            hit = metered.apply().hit;
            hdr.ask.answer = meta.color;
        }
        hdr.ask.hit = hit ? 8w1 : 8w0;
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

V1Switch(Read(), Verify(), Choose(), Leave(), Update(), Write()) main;
