// A data packet that is late, or that its port cannot carry, goes on without its payload: its receiver knows at once
// that this slot will not come, and which it is.

// Whether there is a payload to cut.
control Payload(inout headers_t hdr, inout metadata_t meta) {
    bit<16> payload = 0;

    action measure() {
        payload = hdr.udp.length |-| meta.header_length;
    }

    apply {
        measure();
        if (meta.is_data == 1 && hdr.ultima.trimmed == 0 && payload != 0 && CUT_HAS_A_WAY) {
            meta.can_be_cut = 1;
        }
    }
}

control Trim(inout headers_t hdr, inout metadata_t meta) {
    // By job index. Bytes are those that came in: of each packet here 94 leave, and 16 more of those that
    // `cut_sealed` counts.
    COUNTER(MAX_JOBS) late;
    COUNTER(MAX_JOBS) trimmed;
    COUNTER(MAX_JOBS) cut_sealed;   // those of both that were cut behind digest and tag

    apply {
        if (meta.cause == CAUSE_LATE) {
            COUNT(late, meta.job_index);
        }
        if (meta.cause == CAUSE_TRIMMED) {
            COUNT(trimmed, meta.job_index);
        }
        if (meta.cause != CAUSE_NONE && hdr.ultima.auth == 1) {
            COUNT(cut_sealed, meta.job_index);
        }
        if (meta.cause != CAUSE_NONE) {
            hdr.udp.length = meta.header_length;
            hdr.udp.checksum = 0;
            hdr.ipv4.total_length = IPV4_LENGTH + meta.header_length;
        }
    }
}
