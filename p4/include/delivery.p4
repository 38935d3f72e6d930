// Egress: every copy is addressed to its rank (RID = rank); the sender's own copy is dropped here.

control Delivery(inout headers_t hdr, inout metadata_t meta) {
    COUNTER(MAX_JOBS) delivered;   // copies and unicast packets sent out, by job index
    COUNTER(MAX_JOBS) own_copy;    // copies dropped because they would return to their sender

    // The UDP checksum covers the addresses of the pseudo-header (RFC 768); 0 means that there is none,
    // and a sum that comes out as 0 is sent as 0xFFFF.
    action readdress(bit<48> dst_mac, bit<32> dst_addr, bit<16> dst_port) {
        hdr.ethernet.dst_mac = dst_mac;

        bit<32> change = replaced_addr(hdr.ipv4.dst_addr, dst_addr);
        hdr.ipv4.checksum = checksum_after(hdr.ipv4.checksum, change);
        hdr.ipv4.dst_addr = dst_addr;

        change = change + replaced(hdr.udp.dst_port, dst_port);
        if (hdr.udp.checksum != 0) {
            hdr.udp.checksum = checksum_after(hdr.udp.checksum, change);
            if (hdr.udp.checksum == 0) {
                hdr.udp.checksum = 0xFFFF;
            }
        }
        hdr.udp.dst_port = dst_port;
    }

    // A copy whose rank this switch doesn't know has no address to go to.
    action unknown_rank() {
        meta.drop = 1;
    }

    table replica {
        key = {
            hdr.ultima.job: exact @name("job");
            meta.rid: exact @name("rid");
        }
        actions = { readdress; unknown_rank; }
        const default_action = unknown_rank();
        size = MAX_REPLICAS;
    }

    apply {
        if (meta.replicated == 1) {
            if (meta.rid == TRUNK_RID) {
                // Only trunks prune by port: several ranks may sit behind one of an edge switch.
                meta.drop = (bit<1>)(meta.egress_port == meta.ingress_port);
            } else if (meta.rid == hdr.ultima.source_rank) {
                meta.drop = 1;
                COUNT(own_copy, meta.job_index);
            } else {
                replica.apply();
            }
        }
        if (meta.drop == 0) {
            COUNT(delivered, meta.job_index);
        }
    }
}
