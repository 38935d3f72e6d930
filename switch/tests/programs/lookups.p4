// Every match kind, alone and combined, with constant and initial entries. The packet has the keys.
// Each table writes its verdict into its own byte.
//
// p4c-bm2-ss --arch v1model --p4runtime-files lookups.p4info.txtpb -o lookups.json lookups.p4

#include <core.p4>
#include <v1model.p4>

header keys_t {
    bit<32> address;
    bit<16> port;
    bit<8> kind;
    bit<8> flags;
    bit<128> long_address;
}

header verdicts_t {
    bit<8> exact_one;
    bit<8> prefix;
    bit<8> masked;
    bit<8> ranged;
    bit<8> optional_one;
    bit<8> mixed;
    bit<8> fixed;
    bit<8> initial;
    bit<8> long_prefix;
    bit<8> validity;
}

struct headers_t {
    keys_t keys;
    verdicts_t verdicts;
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

control Lookups(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action set_exact_one(bit<8> verdict) { hdr.verdicts.exact_one = verdict; }
    action set_prefix(bit<8> verdict) { hdr.verdicts.prefix = verdict; }
    action set_masked(bit<8> verdict) { hdr.verdicts.masked = verdict; }
    action set_ranged(bit<8> verdict) { hdr.verdicts.ranged = verdict; }
    action set_optional_one(bit<8> verdict) { hdr.verdicts.optional_one = verdict; }
    action set_mixed(bit<8> verdict) { hdr.verdicts.mixed = verdict; }
    action set_fixed(bit<8> verdict) { hdr.verdicts.fixed = verdict; }
    action set_initial(bit<8> verdict) { hdr.verdicts.initial = verdict; }
    action set_long_prefix(bit<8> verdict) { hdr.verdicts.long_prefix = verdict; }
    action set_validity(bit<8> verdict) { hdr.verdicts.validity = verdict; }

    table exact_one {
        key = { hdr.keys.address: exact; hdr.keys.port: exact; }
        actions = { set_exact_one; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 2;
    }

    table prefix {
        key = { hdr.keys.kind: exact; hdr.keys.address: lpm; }
        actions = { set_prefix; }
        default_action = set_prefix(0xee);
    }

    table masked {
        key = { hdr.keys.address: ternary; hdr.keys.flags: ternary; }
        actions = { set_masked; }
        default_action = set_masked(0);
    }

    table ranged {
        key = { hdr.keys.port: range; hdr.keys.flags: range; }
        actions = { set_ranged; }
        default_action = set_ranged(0);
    }

    table optional_one {
        key = { hdr.keys.port: optional; hdr.keys.kind: optional; }
        actions = { set_optional_one; }
        default_action = set_optional_one(0);
    }

    table mixed {
        key = {
            hdr.keys.kind: exact;
            hdr.keys.address: lpm;
            hdr.keys.flags: ternary;
            hdr.keys.port: range;
        }
        actions = { set_mixed; }
        default_action = set_mixed(0);
    }

    table fixed {
        key = { hdr.keys.kind: exact; hdr.keys.flags: ternary; }
        actions = { set_fixed; }
        default_action = set_fixed(0);
        const entries = {
            (1, 0x0f &&& 0x0f): set_fixed(1);
            (1, 0x01 &&& 0x01): set_fixed(2);
            (2, _): set_fixed(3);
        }
    }

    table initial {
        key = { hdr.keys.address: lpm; }
        actions = { set_initial; }
        default_action = set_initial(0);
        entries = {
            0x0a000000 &&& 0xff000000: set_initial(1);
            0x0a010000 &&& 0xffff0000: set_initial(2);
        }
        size = 4;
    }

    table long_prefix {
        key = { hdr.keys.long_address: lpm; }
        actions = { set_long_prefix; }
        default_action = set_long_prefix(0);
    }

    table validity {
        key = { hdr.keys.isValid(): exact; }
        actions = { set_validity; }
        default_action = set_validity(0);
    }

    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.verdicts.setValid();
        if (exact_one.apply().miss) {
            hdr.verdicts.exact_one = 0xdd;
        }
        prefix.apply();
        masked.apply();
        ranged.apply();
        optional_one.apply();
        mixed.apply();
        fixed.apply();
        switch (initial.apply().action_run) {
            set_initial: { long_prefix.apply(); }
        }
        validity.apply();
    }
}

control Pass(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}

control Emit(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.verdicts);
        packet.emit(hdr.keys);
    }
}

V1Switch(Keys(), Nothing(), Lookups(), Pass(), Nothing(), Emit()) main;
