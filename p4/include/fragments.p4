// Rejects fragments that could hide magic and version of an Ultima header, the first bytes behind the UDP header.
//
// A first fragment with these bytes is treated like a whole packet: admission rejects it if they are Ultima's. Only a fragment that
// covers the same bytes could replace them (RFC 1858, RFC 3128).

control Fragments(inout headers_t hdr, inout metadata_t meta) {
    // A first fragment that ends before these bytes, or one that starts there.
    apply {
        if (hdr.ipv4.protocol == PROTOCOL_UDP && hdr.ipv4.fragment_offset == 1) {
            meta.malformed = 1;
        } else if (hdr.ipv4.protocol == PROTOCOL_UDP && hdr.ipv4.fragment_offset == 0
                && hdr.ipv4.more_fragments == 1) {
            // In two parts: Tofino's conditions compare numbers of at most 12 bits.
            if (hdr.ipv4.total_length[15:6] == 0 && hdr.ipv4.total_length[5:0] < MIN_FIRST_FRAGMENT_LENGTH[5:0]) {
                meta.malformed = 1;
            }
        }
    }
}
