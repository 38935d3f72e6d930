// The fields that every switch writes into the Ultima header.
//
// Each field has a condition of its own, so that a chip can write it in the first stage that has its inputs.
control Stamps(inout headers_t hdr, inout metadata_t meta) {
    apply {
        if (meta.reflected == 1) {
            hdr.ultima.kind = KIND_REPORT;
        }
        if (meta.cause != CAUSE_NONE) {
            hdr.ultima.trimmed = 1;
        }
        if (meta.late == 1) {
            hdr.ultima.late = 1;
        }
        if (meta.is_ultima == 1 && meta.marked == 1) {
            hdr.ultima.congestion = 1;
        }
        // Chips add in whole bytes only.
        bit<8> hops = (bit<8>)hdr.ultima.hops;
        if (hops != MAX_HOPS) {
            hops = hops + 1;
        }
        if (meta.is_ultima == 1) {
            hdr.ultima.hops = hops[4:0];
        }

        if (meta.is_ultima == 1) {
            bit<32> longest = max(meta.queue_time, hdr.ultima.path_queue);
            hdr.ultima.path_queue = longest;
        }
    }
}
