// The losses of each operation at each port, as in operations_v1model.p4, in registers of Tofino: a packet accesses each
// register once, in the order of the stages, and each access is atomic.
//
// An operation is known by the lower 16 bits of its step, and its bucket. The chip compares the difference of two such numbers
// without wrapping. So where the step passes a multiple of 65,536, the newer operation counts as much older and takes the cell, and
// late packets of the older one do the same.

// The operation's cell.
#define OPERATION_CELL (meta.share[11:0] ++ (hdr.ultima.step[3:0] ^ hdr.ultima.bucket[3:0]))

control Operations(inout headers_t hdr, inout metadata_t meta) {
    // By share and slot.
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) membership;   // job and epoch of the counted operation
    REGISTER(int<32>, MAX_SHARES << WINDOW_BITS) operation;    // its step and bucket
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) sent;         // data packets that left, whole or cut
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) trimmed;
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) late;

    bit<1>  other_member = 0;
    int<32> ahead = 0;
    bit<32> sent_now = 0;

    // Only data changes the cell; a PROBE does not.
    RegisterAction<bit<32>, bit<16>, bit<1>>(membership) take_membership = {
        void apply(inout bit<32> value, out bit<1> other) {
            if (value != meta.member) {
                other = 1;
            } else {
                other = 0;
            }
            if (meta.is_data == 1) {
                value = meta.member;
            }
        }
    };

    // These return how far the packet's operation is ahead of the counted one, a number that wraps.
    RegisterAction<int<32>, bit<16>, int<32>>(operation) look_at_operation = {
        void apply(inout int<32> value, out int<32> beyond) {
            beyond = meta.named - value;
        }
    };
    RegisterAction<int<32>, bit<16>, int<32>>(operation) begin_operation = {
        void apply(inout int<32> value, out int<32> beyond) {
            beyond = meta.named - value;
            value = meta.named;
        }
    };
    // An operation that is at most a window of steps older does not change the cell.
    RegisterAction<int<32>, bit<16>, int<32>>(operation) take_operation = {
        void apply(inout int<32> value, out int<32> beyond) {
            beyond = meta.named - value;
            if (meta.named - value >= 0 || meta.named - value < -(1 << (16 + WINDOW_BITS))) {
                value = meta.named;
            }
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(sent) add_sent = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + (bit<32>)meta.is_data;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(sent) begin_sent = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = 1;
            now = value;
        }
    };

    // CAUSE_TRIMMED is the second bit, CAUSE_LATE the first.
    RegisterAction<bit<32>, bit<16>, bit<32>>(trimmed) add_trimmed = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + (bit<32>)meta.cause[1:1];
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(trimmed) begin_trimmed = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = (bit<32>)meta.cause[1:1];
            now = value;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(late) add_late = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + (bit<32>)meta.cause[0:0];
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(late) begin_late = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = (bit<32>)meta.cause[0:0];
            now = value;
        }
    };

    action name_operation() {
        meta.member = hdr.ultima.job ++ hdr.ultima.epoch;
        meta.named = (int<32>)(hdr.ultima.step[15:0] ++ hdr.ultima.bucket);
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
        // No program reads the window of share 0, and counting there saves a condition for each step.
        name_operation();
        other_member = take_membership.execute(OPERATION_CELL);
        if (meta.is_data == 0) {
            ahead = look_at_operation.execute(OPERATION_CELL);
        } else if (other_member == 1) {
            ahead = begin_operation.execute(OPERATION_CELL);
        } else {
            ahead = take_operation.execute(OPERATION_CELL);
        }
        if (other_member == 0 && ahead == 0) {
            meta.counted = 1;
        } else if (meta.is_data == 1 && (other_member == 1 || ahead[31:20] != 0xFFF)) {
            meta.begun = 1;
        }
        if (meta.counted == 1) {
            sent_now = add_sent.execute(OPERATION_CELL);
        } else if (meta.begun == 1) {
            sent_now = begin_sent.execute(OPERATION_CELL);
        }
        if (meta.counted == 1) {
            meta.trimmed_now = add_trimmed.execute(OPERATION_CELL);
        } else if (meta.begun == 1) {
            meta.trimmed_now = begin_trimmed.execute(OPERATION_CELL);
        }
        if (meta.counted == 1) {
            meta.late_now = add_late.execute(OPERATION_CELL);
        } else if (meta.begun == 1) {
            meta.late_now = begin_late.execute(OPERATION_CELL);
        }
        if (meta.share != 0 && (meta.counted == 1 || meta.begun == 1)) {
            meta.notify_threshold = meta.loss_threshold;
        }
        if (meta.reflected == 1) {
            if (meta.share != 0 && meta.counted == 1) {
                report_counts();
            } else {
                report_nothing();
            }
        }
    }
}
