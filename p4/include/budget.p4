// How long a packet's receivers will still wait for it: less by what it spent here. Data that nobody waits for any
// more is late.

control Budget(inout headers_t hdr, inout metadata_t meta) {
    apply {
        if (meta.is_ultima == 1 && hdr.ultima.budget != NO_LIMIT) {
            bit<32> left = hdr.ultima.budget |-| meta.residence;
            hdr.ultima.budget = left;
        }
        // What an earlier switch cut was lost there, and says why.
        if (hdr.ultima.budget == 0 && meta.is_data == 1 && hdr.ultima.trimmed == 0) {
            meta.late = 1;
        }
        // What came without values has none to lose.
        if (hdr.ultima.budget == 0 && meta.can_be_cut == 1) {
            meta.cause = CAUSE_LATE;
        }
    }
}
