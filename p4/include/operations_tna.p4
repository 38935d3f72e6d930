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
    Register<bit<32>, bit<16>>(MAX_SHARES << WINDOW_BITS) membership;   // job and epoch of the counted operation
    Register<int<32>, bit<16>>(MAX_SHARES << WINDOW_BITS) operation;    // its step and bucket
    Register<bit<32>, bit<16>>(MAX_SHARES << WINDOW_BITS) sent;         // data packets that left, whole or trimmed
    Register<bit<32>, bit<16>>(MAX_SHARES << WINDOW_BITS) trimmed;
    Register<bit<32>, bit<16>>(MAX_SHARES << WINDOW_BITS) late;

    bit<1>  is_new_member = 0;
    int<32> ahead = 0;
    bit<32> sent_now = 0;

    // Only data changes the cell; a PROBE does not.
    RegisterAction<bit<32>, bit<16>, bit<1>>(membership) swap_membership = {
        void apply(inout bit<32> value, out bit<1> is_new) {
            if (value != meta.member) {
                is_new = 1;
            } else {
                is_new = 0;
            }
            if (meta.is_data == 1) {
                value = meta.member;
            }
        }
    };

    // These return how far the packet's operation is ahead of the counted one, a number that wraps.
    RegisterAction<int<32>, bit<16>, int<32>>(operation) read_operation = {
        void apply(inout int<32> value, out int<32> distance) {
            distance = meta.operation_id - value;
        }
    };
    RegisterAction<int<32>, bit<16>, int<32>>(operation) replace_operation = {
        void apply(inout int<32> value, out int<32> distance) {
            distance = meta.operation_id - value;
            value = meta.operation_id;
        }
    };
    // An operation that is at most a window of steps older does not change the cell.
    RegisterAction<int<32>, bit<16>, int<32>>(operation) advance_operation = {
        void apply(inout int<32> value, out int<32> distance) {
            distance = meta.operation_id - value;
            if (meta.operation_id - value >= 0 || meta.operation_id - value < -(1 << (16 + WINDOW_BITS))) {
                value = meta.operation_id;
            }
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(sent) add_sent = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + (bit<32>)meta.is_data;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(sent) set_sent = {
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
    RegisterAction<bit<32>, bit<16>, bit<32>>(trimmed) set_trimmed = {
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
    RegisterAction<bit<32>, bit<16>, bit<32>>(late) set_late = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = (bit<32>)meta.cause[0:0];
            now = value;
        }
    };

    action identify_operation() {
        meta.member = hdr.ultima.job ++ hdr.ultima.epoch;
        meta.operation_id = (int<32>)(hdr.ultima.step[15:0] ++ hdr.ultima.bucket);
    }

    action report(bit<16> known) {
        hdr.report.known = known;
        hdr.report.port = (bit<16>)meta.egress_port;
        hdr.report.upstream_lost = meta.upstream_lost;
    }

    action report_no_counts() {
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
        identify_operation();
        is_new_member = swap_membership.execute(OPERATION_CELL);
        if (meta.is_data == 0) {
            ahead = read_operation.execute(OPERATION_CELL);
        } else if (is_new_member == 1) {
            ahead = replace_operation.execute(OPERATION_CELL);
        } else {
            ahead = advance_operation.execute(OPERATION_CELL);
        }
        if (is_new_member == 0 && ahead == 0) {
            meta.cell_matches = 1;
        } else if (meta.is_data == 1 && (is_new_member == 1 || ahead[31:20] != 0xFFF)) {
            meta.cell_claimed = 1;
        }
        if (meta.cell_matches == 1) {
            sent_now = add_sent.execute(OPERATION_CELL);
        } else if (meta.cell_claimed == 1) {
            sent_now = set_sent.execute(OPERATION_CELL);
        }
        if (meta.cell_matches == 1) {
            meta.trimmed_now = add_trimmed.execute(OPERATION_CELL);
        } else if (meta.cell_claimed == 1) {
            meta.trimmed_now = set_trimmed.execute(OPERATION_CELL);
        }
        if (meta.cell_matches == 1) {
            meta.late_now = add_late.execute(OPERATION_CELL);
        } else if (meta.cell_claimed == 1) {
            meta.late_now = set_late.execute(OPERATION_CELL);
        }
        if (meta.share != 0 && (meta.cell_matches == 1 || meta.cell_claimed == 1)) {
            meta.notify_threshold = meta.loss_threshold;
        }
        if (meta.reflected == 1) {
            if (meta.share != 0 && meta.cell_matches == 1) {
                report_counts();
            } else {
                report_no_counts();
            }
        }
    }
}
