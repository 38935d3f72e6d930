// The losses of each operation at each port. A PROBE reads them; the controller gets a digest when they reach the job's
// threshold.
//
// The registers need no lock: a share is one job at one port, and BMv2 runs all packets of an egress port in one thread.

control Operations(inout headers_t hdr, inout metadata_t meta) {
    // By share and slot: the operation that the cell counts, and its data packets that left the port.
    register<bit<64>, bit<32>>(MAX_SHARES << WINDOW_BITS) operation;
    register<bit<32>, bit<32>>(MAX_SHARES << WINDOW_BITS) sent;
    register<bit<32>, bit<32>>(MAX_SHARES << WINDOW_BITS) trimmed;
    register<bit<32>, bit<32>>(MAX_SHARES << WINDOW_BITS) late;

    action report(bit<16> known, bit<32> packets, bit<32> packets_trimmed, bit<32> packets_late) {
        hdr.report.port = (bit<16>)meta.egress_port;
        hdr.report.known = known;
        hdr.report.sent = packets;
        hdr.report.trimmed = packets_trimmed;
        hdr.report.late = packets_late;
        hdr.report.upstream_lost = meta.upstream_lost;
    }

    apply {
        if (meta.share != 0 && (meta.is_data == 1 || meta.reflected == 1)) {
            bit<32> cell = ((bit<32>)meta.share << WINDOW_BITS) + (bit<32>)(hdr.ultima.step[3:0] ^ hdr.ultima.bucket[3:0]);
            // The lower half of the step is enough to tell the operations of a window apart.
            bit<64> id = hdr.ultima.job ++ hdr.ultima.epoch ++ hdr.ultima.step[15:0] ++ hdr.ultima.bucket;
            bit<64> counted;
            operation.read(counted, cell);
            bit<32> packets = 0;
            bit<32> packets_trimmed = 0;
            bit<32> packets_late = 0;
            // A newer operation takes the cell, and so does one more than a window of steps older: its job has started again.
            // Late packets of an older operation do not count.
            bool is_new = meta.is_data == 1 && (counted[63:32] != id[63:32]
                || counted[31:0] - id[31:0] > 32w1 << (16 + WINDOW_BITS));
            if (counted == id) {
                sent.read(packets, cell);
                if (meta.reflected == 1 || meta.cause != CAUSE_NONE) {
                    trimmed.read(packets_trimmed, cell);
                    late.read(packets_late, cell);
                }
            }
            if (is_new) {
                operation.write(cell, id);
                trimmed.write(cell, 0);
                late.write(cell, 0);
                counted = id;
            }
            if (meta.reflected == 1) {
                report(counted == id ? 16w1 : 0, packets, packets_trimmed, packets_late);
            } else if (counted == id) {
                sent.write(cell, packets + 1);
                if (meta.cause == CAUSE_LATE) {
                    packets_late = packets_late + 1;
                    late.write(cell, packets_late);
                } else if (meta.cause == CAUSE_TRIMMED) {
                    packets_trimmed = packets_trimmed + 1;
                    trimmed.write(cell, packets_trimmed);
                }
                // Losses grow by one, so they meet the threshold once.
                if (meta.cause != CAUSE_NONE && packets_trimmed + packets_late == meta.loss_threshold) {
                    meta.notify = 1;
                    meta.notify_port = (bit<16>)meta.egress_port;
                    meta.notify_trimmed = packets_trimmed;
                    meta.notify_late = packets_late;
                }
            }
        } else if (meta.reflected == 1) {
            report(0, 0, 0, 0);
        }
    }
}
