// Fragments of UDP datagrams, none of which may hide what Ultima is known by: the first bytes behind the UDP header.
//
// A first fragment that shows them is judged like a whole packet, and admission refuses it if they are Ultima's. No
// other part can change what it shows, except one that covers the same bytes: RFC 1858, RFC 3128.

control Fragments(inout headers_t hdr, inout metadata_t meta) {
    // A fragment from which the receiver could take those bytes without this switch's having seen them: a first one that
    // ends before they do, or one that starts there.
    apply {
        if (hdr.ipv4.protocol == PROTOCOL_UDP && hdr.ipv4.fragment_offset == 1) {
            meta.malformed = 1;
        } else if (hdr.ipv4.protocol == PROTOCOL_UDP && hdr.ipv4.fragment_offset == 0
                && hdr.ipv4.more_fragments == 1) {
            // In parts, as a chip's conditions have a few bytes each, and compare numbers of no more than 12 bits.
            if (hdr.ipv4.total_length[15:6] == 0 && hdr.ipv4.total_length[5:0] < SHORTEST_FIRST_FRAGMENT[5:0]) {
                meta.malformed = 1;
            }
        }
    }
}
