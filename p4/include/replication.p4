// An admitted packet to a multicast address goes to its job's group; all others are left to routing.

control Replication(inout headers_t hdr, inout metadata_t meta) {
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) replicated;   // packets handed to the group, by job index

    action no_group() {
        meta.drop = 1;
        meta.unrouted = 1;
    }

    apply {
        if (hdr.ipv4.dst_addr[31:28] == IPV4_MULTICAST) {
            if (meta.group == NO_GROUP) {
                no_group();
            } else {
                meta.replicated = 1;
                CountAtIngress.apply(replicated, meta.job_index);
            }
        }
    }
}
