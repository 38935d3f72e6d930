// The parser for Tofino: the states of parser_v1model.p4, and checksums.
//
// Parser and deparser update the UDP checksum: the parser subtracts the words that egress may rewrite, and the deparser adds their
// new values. The other words stay covered.

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta) {
    Checksum() ipv4_sum;
    Checksum() udp_sum;

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
        ipv4_sum.add(hdr.ipv4);
        meta.bad_checksum = (bit<1>)ipv4_sum.verify();
        udp_sum.subtract({ hdr.ipv4.dst_addr });
        transition select(hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (5, 0, PROTOCOL_UDP): udp;
            default: accept;
        }
    }

    state udp {
        packet.extract(hdr.udp);
        udp_sum.subtract({ hdr.udp.dst_port, hdr.udp.checksum });
        transition select(packet.lookahead<bit<20>>()) {
            ULTIMA_MAGIC ++ ULTIMA_VERSION: ultima;
            default: accept;
        }
    }

    // The mark is set first: a truncated header must not pass as another protocol's.
    state ultima {
        meta.is_ultima = 1;
        packet.extract(hdr.ultima);
        udp_sum.subtract({ hdr.ultima.version, hdr.ultima.kind, hdr.ultima.trimmed, hdr.ultima.late,
            hdr.ultima.congestion, hdr.ultima.hops, hdr.ultima.budget, hdr.ultima.path_queue });
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
        meta.has_operation = 1;
        meta.header_length = ULTIMA_MIN_UDP_LENGTH;
        transition end;
    }

    state sealed_data {
        meta.is_data = 1;
        meta.has_operation = 1;
        meta.header_length = ULTIMA_MIN_UDP_LENGTH + AUTH_LENGTH;
        transition end;
    }

    state feedback {
        meta.has_operation = 1;
        transition end;
    }

    state report {
        packet.extract(hdr.report);
        udp_sum.subtract({ hdr.report.port, hdr.report.known, hdr.report.sent, hdr.report.trimmed,
            hdr.report.late, hdr.report.upstream_lost });
        udp_sum.subtract_all_and_deposit(meta.unchanged_sum);
        transition accept;
    }

    state end {
        udp_sum.subtract_all_and_deposit(meta.unchanged_sum);
        transition accept;
    }
}
