// Plain IPv4 forwarding, for Ultima's unicast and for everything else that shares the fabric.

// Decrements the time to live of all forwarded packets, copies included, so that loops end.
control TimeToLive(inout headers_t hdr, inout metadata_t meta) {
    action expire() {
        meta.drop = 1;
        meta.unrouted = 1;
    }

    apply {
        if (meta.drop == 0 && hdr.ipv4.ttl <= 1) {
            expire();
        } else {
            hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        }
    }
}

control Routing(inout headers_t hdr, inout metadata_t meta) {
    counter_t(MAX_JOBS, PACKETS_AND_BYTES) unicast;   // a job's packets that have a route, by job index

    action forward(bit<9> port, bit<48> dst_mac) {
        meta.egress_port = port;
        hdr.ethernet.dst_mac = dst_mac;
    }

    action unrouted() {
        meta.drop = 1;
        meta.unrouted = 1;
    }

    table route {
        key = { hdr.ipv4.dst_addr: lpm @name("dst_addr"); }
        actions = { forward; unrouted; }
        const default_action = unrouted();
        size = MAX_ROUTES;
    }

    apply {
        route.apply();
        if (meta.drop == 0 && meta.is_ultima == 1) {
            CountAtIngress.apply(unicast, meta.job_index);
        }
    }
}
