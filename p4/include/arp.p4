// The switch answers ARP for every host of the fabric itself, so that nothing is ever flooded.

control AddressResolution(inout headers_t hdr, inout metadata_t meta) {
    action answer(bit<48> mac) {
        hdr.ethernet.dst_mac = hdr.arp.sender_mac;
        hdr.ethernet.src_mac = mac;
        bit<32> asked = hdr.arp.target_ip;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_mac = mac;
        hdr.arp.sender_ip = asked;
        meta.egress_port = meta.ingress_port;
    }

    action ignore() {
        meta.drop = 1;
        meta.unrouted = 1;
    }

    table neighbor {
        key = { hdr.arp.target_ip: exact @name("target_ip"); }
        actions = { answer; ignore; }
        const default_action = ignore();
        size = MAX_NEIGHBORS;
    }

    apply {
        // A host that asks for its own address detects conflicts (RFC 5227): no answer means that there is none.
        if (hdr.arp.operation == ARP_REQUEST && hdr.arp.sender_ip != 0
                && hdr.arp.sender_ip != hdr.arp.target_ip) {
            neighbor.apply();
        } else {
            ignore();
        }
    }
}
