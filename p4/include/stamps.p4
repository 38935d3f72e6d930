// What every switch writes into the header of what it sends on.

// Version, kind, flags and hops: the header's second 16 bits.
#define FLAGS_WORD (hdr.ultima.version ++ hdr.ultima.kind ++ hdr.ultima.trimmed ++ hdr.ultima.late \
    ++ hdr.ultima.congestion ++ hdr.ultima.hops)

// Each is done by itself, and asks by itself whether the packet is Ultima's, so that a chip can do it as soon as it has what it takes.
control Stamps(inout headers_t hdr, inout metadata_t meta) {
    apply {
        UDP_CHANGED(taken(FLAGS_WORD));
        if (meta.reflected == 1) {
            hdr.ultima.kind = KIND_REPORT;
        }
        if (meta.cause != CAUSE_NONE) {
            hdr.ultima.trimmed = 1;
        }
        if (meta.late == 1) {
            hdr.ultima.late = 1;
        }
        if (meta.claims_ultima == 1 && meta.marked == 1) {
            hdr.ultima.congestion = 1;
        }
        // In a byte of its own, as chips add only in such.
        bit<8> hops = (bit<8>)hdr.ultima.hops;
        if (hops != MAX_HOPS) {
            hops = hops + 1;
        }
        if (meta.claims_ultima == 1) {
            hdr.ultima.hops = hops[4:0];
        }
        UDP_CHANGED(put(FLAGS_WORD));

        if (meta.claims_ultima == 1) {
            bit<32> longest = LARGER(meta.queue_time, hdr.ultima.path_queue);
            UDP_CHANGED(replaced_addr(hdr.ultima.path_queue, longest));
            hdr.ultima.path_queue = longest;
        }

        // 0 means that there is none; a sum that comes out as 0 is sent as 0xFFFF (RFC 768).
        if (meta.claims_ultima == 1 && hdr.udp.checksum != 0 && meta.cause == CAUSE_NONE) {
            UDP_CHECKSUM_AFTER_CHANGES;
        }
    }
}
