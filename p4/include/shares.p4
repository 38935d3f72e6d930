// A job's share of an egress port: the index of its counters, meter and operations.

control Shares(inout headers_t hdr, inout metadata_t meta) {
    action set_share(bit<16> index) {
        meta.share = index;
    }

    action no_share() {
        meta.share = 0;
    }

    table share {
        key = {
            hdr.ultima.job: exact @name("job");
            meta.egress_port: exact @name("egress_port");
        }
        actions = { set_share; no_share; }
        const default_action = no_share();
        size = MAX_SHARES;
    }

    apply {
        share.apply();
    }
}

// Counts a job's packets that left a port, and those that lost their payload there.
control ShareCounts(inout headers_t hdr, inout metadata_t meta) {
    counter_t(MAX_SHARES, PACKETS_AND_BYTES) sent;      // all that left, trimmed or not
    counter_t(MAX_SHARES, PACKETS_AND_BYTES) late;
    counter_t(MAX_SHARES, PACKETS_AND_BYTES) trimmed;
    counter_t(MAX_SHARES, PACKETS_AND_BYTES) cut_sealed;   // those of both that keep payload digest and header tag

    apply {
        CountAtEgress.apply(sent, meta.share);
        if (meta.cause == CAUSE_LATE) {
            CountAtEgress.apply(late, meta.share);
        }
        if (meta.cause == CAUSE_TRIMMED) {
            CountAtEgress.apply(trimmed, meta.share);
        }
        if (meta.cause != CAUSE_NONE && hdr.ultima.auth == 1) {
            CountAtEgress.apply(cut_sealed, meta.share);
        }
    }
}
