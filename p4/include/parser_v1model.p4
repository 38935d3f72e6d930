// The parser for v1model: Ethernet, ARP, IPv4, UDP, Ultima. Magic and version identify an Ultima packet, not its port.

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: ipv4;
            ETHERTYPE_ARP: arp;
            default: accept;
        }
    }

    state arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    // A later fragment has no UDP header. The first has, and shows whether it is Ultima's (fragments.p4): then admission
    // rejects it.
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (5, 0, PROTOCOL_UDP): udp;
            default: accept;
        }
    }

    state udp {
        packet.extract(hdr.udp);
        transition select(packet.lookahead<bit<20>>()) {
            ULTIMA_MAGIC ++ ULTIMA_VERSION: ultima;
            default: accept;
        }
    }

    // The mark is set first: a truncated header must not pass as another protocol's.
    state ultima {
        meta.is_ultima = 1;
        packet.extract(hdr.ultima);
        transition select(hdr.ultima.kind, hdr.ultima.auth) {
            (KIND_SCATTER, 0): data;
            (KIND_GATHER, 0): data;
            (KIND_REPAIR, 0): data;
            (KIND_SCATTER, 1): sealed_data;
            (KIND_GATHER, 1): sealed_data;
            (KIND_REPAIR, 1): sealed_data;
            (KIND_FEEDBACK, _): feedback;
            (KIND_PROBE, 0): report;
            default: accept;
        }
    }

    state data {
        meta.is_data = 1;
        meta.has_operation = 1;
        meta.header_length = ULTIMA_MIN_UDP_LENGTH;
        transition accept;
    }

    state sealed_data {
        meta.is_data = 1;
        meta.has_operation = 1;
        meta.header_length = ULTIMA_MIN_UDP_LENGTH + AUTH_LENGTH;
        transition accept;
    }

    state feedback {
        meta.has_operation = 1;
        transition accept;
    }

    state report {
        packet.extract(hdr.report);
        transition accept;
    }
}
