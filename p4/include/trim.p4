// Trims data packets that are late or that the port cannot carry: they continue without payload, so that the receiver knows at
// once which slot is lost.

// Finds packets with a payload that may be trimmed.
control Payload(inout headers_t hdr, inout metadata_t meta) {
    bit<16> payload = 0;

    action measure() {
        payload = hdr.udp.length |-| meta.header_length;
    }

    apply {
        measure();
        if (meta.is_data == 1 && hdr.ultima.trimmed == 0 && payload != 0 && CAN_TRIM) {
            meta.is_trimmable = 1;
        }
    }
}

control Trim(inout headers_t hdr, inout metadata_t meta) {
    // By job index. Bytes are those on arrival: each packet leaves with 94 bytes, and with 16 more if `cut_sealed` counts it.
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) late;
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) trimmed;
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) cut_sealed;   // those of both that keep payload digest and header tag

    apply {
        if (meta.cause == CAUSE_LATE) {
            CountAtEgress.apply(late, meta.job_index);
        }
        if (meta.cause == CAUSE_TRIMMED) {
            CountAtEgress.apply(trimmed, meta.job_index);
        }
        if (meta.cause != CAUSE_NONE && hdr.ultima.auth == 1) {
            CountAtEgress.apply(cut_sealed, meta.job_index);
        }
        if (meta.cause != CAUSE_NONE) {
            hdr.udp.length = meta.header_length;
            hdr.udp.checksum = 0;
            hdr.ipv4.total_length = IPV4_LENGTH + meta.header_length;
        }
    }
}
