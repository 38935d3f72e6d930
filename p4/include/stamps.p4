// What every switch writes into the header of what it sends on.

// Version, kind, flags and hops: the header's second 16 bits.
#define FLAGS_WORD (hdr.ultima.version ++ hdr.ultima.kind ++ hdr.ultima.trimmed ++ hdr.ultima.late \
    ++ hdr.ultima.congestion ++ hdr.ultima.hops)

control Stamps(inout headers_t hdr, inout metadata_t meta) {
    apply {
        bit<16> was = FLAGS_WORD;
        if (meta.reflected == 1) {
            hdr.ultima.kind = KIND_REPORT;
        }
        hdr.ultima.trimmed = hdr.ultima.trimmed | meta.cut;
        hdr.ultima.late = hdr.ultima.late | meta.late;
        hdr.ultima.congestion = hdr.ultima.congestion | meta.marked;
        hdr.ultima.hops = hdr.ultima.hops |+| 1;
        meta.change = meta.change + replaced(was, FLAGS_WORD);

        if (meta.queue_time > hdr.ultima.path_queue) {
            meta.change = meta.change + replaced_addr(hdr.ultima.path_queue, meta.queue_time);
            hdr.ultima.path_queue = meta.queue_time;
        }

        // 0 means that there is none; a sum that comes out as 0 is sent as 0xFFFF (RFC 768).
        if (hdr.udp.checksum != 0) {
            hdr.udp.checksum = checksum_after(hdr.udp.checksum, meta.change);
            if (hdr.udp.checksum == 0) {
                hdr.udp.checksum = 0xFFFF;
            }
        }
    }
}
