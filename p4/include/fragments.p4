// Fragments of UDP datagrams, none of which may hide what Ultima is known by: the first bytes behind the UDP header.
//
// A first fragment that shows them is judged like a whole packet, and admission refuses it if they are Ultima's. No
// other part can change what it shows, except one that covers the same bytes: RFC 1858, RFC 3128.

// Whether a packet is a fragment from which the receiver could take those bytes without this switch's having seen
// them: a first one that ends before they do, or one that starts there.
bool hides_magic(in ipv4_h ipv4) {
    // Lengths are subtracted and not compared here and in admission: a chip cannot.
    bit<16> lacking = SHORTEST_FIRST_FRAGMENT |-| ipv4.total_length;
    return ipv4.protocol == PROTOCOL_UDP
        && ((ipv4.fragment_offset == 0 && ipv4.more_fragments == 1 && lacking != 0)
            || ipv4.fragment_offset == 1);
}
