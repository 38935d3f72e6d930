// Subtracts the time in this switch from a packet's budget. Data whose budget is used up is late.

control Budget(inout headers_t hdr, inout metadata_t meta) {
    apply {
        if (meta.is_ultima == 1 && hdr.ultima.budget != NO_LIMIT) {
            bit<32> left = hdr.ultima.budget |-| meta.residence;
            hdr.ultima.budget = left;
        }
        // An earlier switch has reported why a trimmed packet is lost.
        if (hdr.ultima.budget == 0 && meta.is_data == 1 && hdr.ultima.trimmed == 0) {
            meta.late = 1;
        }
        // A packet without payload loses nothing.
        if (hdr.ultima.budget == 0 && meta.is_trimmable == 1) {
            meta.cause = CAUSE_LATE;
        }
    }
}
