// A PROBE returns to its source through its ingress port. Egress writes that port's counts into it.

control Reflection(inout headers_t hdr, inout metadata_t meta) {
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) reflected;   // by job index

    // Swapping changes no checksum.
    action turn_back() {
        bit<48> mac = hdr.ethernet.dst_mac;
        hdr.ethernet.dst_mac = hdr.ethernet.src_mac;
        hdr.ethernet.src_mac = mac;
        bit<32> addr = hdr.ipv4.dst_addr;
        hdr.ipv4.dst_addr = hdr.ipv4.src_addr;
        hdr.ipv4.src_addr = addr;
        bit<16> port = hdr.udp.dst_port;
        hdr.udp.dst_port = hdr.udp.src_port;
        hdr.udp.src_port = port;

        meta.egress_port = meta.ingress_port;
        meta.reflected = 1;
    }

    apply {
        turn_back();
        CountAtIngress.apply(reflected, meta.job_index);
    }
}
