// Egress: every copy is addressed to its rank (RID = rank); the sender's own copy is dropped here.
//
// Each packet counts once here, sent or dropped. If no queue drops packets, each job has
//     delivered + own_copy + unknown_rank = replicated * replicas of the group + unicast + reflected
// A difference is the number of packets dropped between ingress and egress.

control Delivery(inout headers_t hdr, inout metadata_t meta) {
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) delivered;      // copies and unicast packets sent out, by job index
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) own_copy;       // copies dropped because they would return to their source
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) unknown_rank;   // copies dropped because this switch doesn't know their rank

    // The UDP checksum covers the addresses of the pseudo-header (RFC 768).
    action readdress(bit<48> dst_mac, bit<32> dst_addr, bit<16> dst_port) {
        hdr.ethernet.dst_mac = dst_mac;
        hdr.ipv4.dst_addr = dst_addr;
        hdr.udp.dst_port = dst_port;
    }

    // The switch does not know the copy's rank.
    action no_address() {
        meta.drop = 1;
    }

    table replica {
        key = {
            hdr.ultima.job: exact @name("job");
            meta.rid: exact @name("rid");
        }
        actions = { readdress; no_address; }
        const default_action = no_address();
        size = MAX_REPLICAS;
    }

    apply {
        if (meta.replicated == 1) {
            // Only trunks prune by port: several ranks may sit behind one of an edge switch.
            if (meta.rid == hdr.ultima.source_rank
                    || (meta.rid == TRUNK_RID && meta.egress_port == meta.ingress_port)) {
                meta.drop = 1;
                CountAtEgress.apply(own_copy, meta.job_index);
            } else if (meta.rid != TRUNK_RID) {
                replica.apply();
                if (meta.drop == 1) {
                    CountAtEgress.apply(unknown_rank, meta.job_index);
                }
            }
        }
        if (meta.drop == 0) {
            CountAtEgress.apply(delivered, meta.job_index);
        }
    }
}
