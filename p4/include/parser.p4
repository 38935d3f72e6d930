// Ethernet, ARP, IPv4, UDP, Ultima. An Ultima packet is known by magic and version, not by its port.

// The target says what is to be summed of each header on the way.

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta) {
    CHECKSUMS

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
    // refuses it.
    state ipv4 {
        packet.extract(hdr.ipv4);
        CHECKSUM_OF_IPV4
        transition select(hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (5, 0, PROTOCOL_UDP): udp;
            default: accept;
        }
    }

    state udp {
        packet.extract(hdr.udp);
        CHECKSUM_OF_UDP
        transition select(packet.lookahead<bit<20>>()) {
            ULTIMA_MAGIC ++ ULTIMA_VERSION: ultima;
            default: accept;
        }
    }

    // The mark is set first: a header that is cut short must not pass as another protocol's.
    state ultima {
        meta.is_ultima = 1;
        packet.extract(hdr.ultima);
        CHECKSUM_OF_ULTIMA
        transition select(hdr.ultima.kind, hdr.ultima.auth) {
            (KIND_SCATTER, 0): data;
            (KIND_GATHER, 0): data;
            (KIND_REPAIR, 0): data;
            (KIND_SCATTER, 1): sealed_data;
            (KIND_GATHER, 1): sealed_data;
            (KIND_REPAIR, 1): sealed_data;
            (KIND_FEEDBACK, _): feedback;
            (KIND_PROBE, 0): report;
            default: end;
        }
    }

    state data {
        meta.is_data = 1;
        meta.names_operation = 1;
        meta.header_length = ULTIMA_MIN_UDP_LENGTH;
        transition end;
    }

    state sealed_data {
        meta.is_data = 1;
        meta.names_operation = 1;
        meta.header_length = ULTIMA_MIN_UDP_LENGTH + AUTH_LENGTH;
        transition end;
    }

    state feedback {
        meta.names_operation = 1;
        transition end;
    }

    state report {
        packet.extract(hdr.report);
        CHECKSUM_OF_REPORT
        transition accept;
    }

    state end {
        CHECKSUM_WITHOUT_REPORT
        transition accept;
    }
}

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.ultima);
        packet.emit(hdr.report);
    }
}
