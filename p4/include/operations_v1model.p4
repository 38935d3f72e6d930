// What each operation lost at each port that its job uses: told to whoever asks with a PROBE, and to the controller
// when it reaches the job's threshold.
//
// Cells are read and written one after the other without a lock. That is no race: a share is one job at one port, so
// only that port's packets touch its cells, and those run through egress in turn. BMv2 has several egress threads, and
// gives all packets of one port to the same.

control Operations(inout headers_t hdr, inout metadata_t meta) {
    // By share and slot.
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) membership;   // job and epoch whose operation is counted
    REGISTER(bit<48>, MAX_SHARES << WINDOW_BITS) operation;    // its step and bucket
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) sent;         // data packets that left, cut ones too
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) trimmed;
    REGISTER(bit<32>, MAX_SHARES << WINDOW_BITS) late;

    // What stood in a PROBE's room is covered by its checksum.
    action report(in bit<16> known, in bit<32> sent_now, in bit<32> trimmed_now, in bit<32> late_now) {
        bit<16> port = (bit<16>)meta.egress_port;
        meta.change = meta.change
            + replaced(hdr.report.port, port)
            + replaced(hdr.report.known, known)
            + replaced_addr(hdr.report.sent, sent_now)
            + replaced_addr(hdr.report.trimmed, trimmed_now)
            + replaced_addr(hdr.report.late, late_now)
            + replaced_addr(hdr.report.upstream_lost, meta.upstream_lost);
        hdr.report.port = port;
        hdr.report.known = known;
        hdr.report.sent = sent_now;
        hdr.report.trimmed = trimmed_now;
        hdr.report.late = late_now;
        hdr.report.upstream_lost = meta.upstream_lost;
    }

    apply {
        bit<32> cell = cell_of(meta.share, hdr.ultima.step, hdr.ultima.bucket);
        bit<32> member = hdr.ultima.job ++ hdr.ultima.epoch;
        bit<48> named = hdr.ultima.step ++ hdr.ultima.bucket;
        bit<32> held_member;
        REGISTER_READ(membership, cell, held_member);
        bit<48> held;
        REGISTER_READ(operation, cell, held);
        bit<32> sent_so_far;
        REGISTER_READ(sent, cell, sent_so_far);
        bit<32> trimmed_so_far;
        REGISTER_READ(trimmed, cell, trimmed_so_far);
        bit<32> late_so_far;
        REGISTER_READ(late, cell, late_so_far);

        if (meta.reflected == 1) {
            if (meta.share != 0 && held_member == member && held == named) {
                report(1, sent_so_far, trimmed_so_far, late_so_far);
            } else {
                report(0, 0, 0, 0);
            }
        } else if (meta.share != 0 && meta.is_data == 1) {
            if (takes_over(member, named, held_member, held)) {
                REGISTER_WRITE(membership, cell, member);
                REGISTER_WRITE(operation, cell, named);
                REGISTER_WRITE(trimmed, cell, 0);
                REGISTER_WRITE(late, cell, 0);
                held = named;
                sent_so_far = 0;
                trimmed_so_far = 0;
                late_so_far = 0;
            }
            if (held == named) {
                REGISTER_WRITE(sent, cell, sent_so_far + 1);
                if (meta.cause == CAUSE_LATE) {
                    late_so_far = late_so_far + 1;
                    REGISTER_WRITE(late, cell, late_so_far);
                } else if (meta.cause == CAUSE_TRIMMED) {
                    trimmed_so_far = trimmed_so_far + 1;
                    REGISTER_WRITE(trimmed, cell, trimmed_so_far);
                }
                // Losses grow by one: a threshold is met once.
                if (meta.cause != CAUSE_NONE && trimmed_so_far + late_so_far == meta.loss_threshold) {
                    meta.tell = 1;
                    meta.told_port = (bit<16>)meta.egress_port;
                    meta.told_trimmed = trimmed_so_far;
                    meta.told_late = late_so_far;
                }
            }
        }
    }
}
