// What each operation lost at each port that its job uses, as operations_v1model.p4 has it, in registers of Tofino: each
// is touched once by a packet, in the order of the stages, and each such step cannot be interrupted.
//
// An operation is known by the lower 16 bits of its step and its bucket, compared as a number that wraps.

control Operations(inout headers_t hdr, inout metadata_t meta) {
    // By share and slot.
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) membership;   // job and epoch whose operation is counted
    REGISTER(int<32>, MAX_SHARES << WINDOW_BITS) operation;    // its step and bucket
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) sent;         // data packets that left, cut ones too
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) trimmed;
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) late;

    bit<4>  slot = 0;
    bit<16> cell = 0;
    bit<1>  other_member = 0;
    int<32> held = 0;
    int<32> ahead = 0;
    bit<32> sent_now = 0;

    Hash<bit<4>>(HashAlgorithm_t.XOR8) slot_of_operation;

    RegisterAction<bit<32>, bit<16>, bit<1>>(membership) is_other_member = {
        void apply(inout bit<32> value, out bit<1> other) {
            if (value != meta.member) {
                other = 1;
            } else {
                other = 0;
            }
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<1>>(membership) take_membership = {
        void apply(inout bit<32> value, out bit<1> other) {
            if (value != meta.member) {
                other = 1;
            } else {
                other = 0;
            }
            value = meta.member;
        }
    };

    RegisterAction<int<32>, bit<16>, int<32>>(operation) held_operation = {
        void apply(inout int<32> value, out int<32> before) {
            before = value;
        }
    };
    RegisterAction<int<32>, bit<16>, int<32>>(operation) begin_operation = {
        void apply(inout int<32> value, out int<32> before) {
            before = value;
            value = meta.counts.named;
        }
    };
    // One that is up to a window of steps older leaves the cell as it is.
    RegisterAction<int<32>, bit<16>, int<32>>(operation) take_operation = {
        void apply(inout int<32> value, out int<32> before) {
            before = value;
            if (meta.counts.named - value >= 0 || meta.counts.named - value < -(1 << (16 + WINDOW_BITS))) {
                value = meta.counts.named;
            }
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(sent) add_sent = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + meta.counts.sent_one;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(sent) begin_sent = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = meta.counts.sent_one;
            now = value;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(trimmed) add_trimmed = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + meta.counts.trimmed_one;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(trimmed) begin_trimmed = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = meta.counts.trimmed_one;
            now = value;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(late) add_late = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + meta.counts.late_one;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(late) begin_late = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = meta.counts.late_one;
            now = value;
        }
    };

    action name_operation() {
        meta.member = hdr.ultima.job ++ hdr.ultima.epoch;
        meta.counts.named = (int<32>)(hdr.ultima.step[15:0] ++ hdr.ultima.bucket);
        slot = slot_of_operation.get({ hdr.ultima.step, hdr.ultima.bucket });
    }

    action report(bit<16> known) {
        hdr.report.known = known;
        hdr.report.port = (bit<16>)meta.egress_port;
        hdr.report.upstream_lost = meta.upstream_lost;
    }

    action report_nothing() {
        report(0);
        hdr.report.sent = 0;
        hdr.report.trimmed = 0;
        hdr.report.late = 0;
    }

    action report_counts() {
        report(1);
        hdr.report.sent = sent_now;
        hdr.report.trimmed = meta.trimmed_now;
        hdr.report.late = meta.late_now;
    }

    apply {
        name_operation();
        cell = meta.share[11:0] ++ slot;
        if (meta.share != 0) {
            if (meta.reflected == 1) {
                other_member = is_other_member.execute(cell);
                held = held_operation.execute(cell);
            } else if (is_data(hdr.ultima.kind)) {
                meta.counts.sent_one = 1;
                other_member = take_membership.execute(cell);
                if (other_member == 1) {
                    held = begin_operation.execute(cell);
                } else {
                    held = take_operation.execute(cell);
                }
            }
            ahead = meta.counts.named - held;
            if (meta.cause == CAUSE_TRIMMED) {
                meta.counts.trimmed_one = 1;
            }
            if (meta.cause == CAUSE_LATE) {
                meta.counts.late_one = 1;
            }
            if (other_member == 0 && ahead == 0) {
                meta.counted = 1;
            } else if (meta.counts.sent_one == 1 && (other_member == 1 || ahead[31:20] != 0xFFF)) {
                meta.begun = 1;
            }
            if (meta.counted == 1) {
                sent_now = add_sent.execute(cell);
                meta.trimmed_now = add_trimmed.execute(cell);
                meta.late_now = add_late.execute(cell);
            } else if (meta.begun == 1) {
                sent_now = begin_sent.execute(cell);
                meta.trimmed_now = begin_trimmed.execute(cell);
                meta.late_now = begin_late.execute(cell);
            }
            if (meta.counted == 1 || meta.begun == 1) {
                meta.told_threshold = meta.loss_threshold;
            }
        }
        if (meta.reflected == 1) {
            if (meta.counted == 1) {
                report_counts();
            } else {
                report_nothing();
            }
        }
    }
}
