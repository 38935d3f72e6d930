// The UDP checksum after egress has rewritten fields (RFC 1624, equation 3: HC' = ~(~HC + ~m + m')). The other bytes
// stay covered, so the receiver detects corruption anywhere on the path.

// The sum of the words that egress may rewrite.
control RewrittenWords(inout headers_t hdr, inout metadata_t meta, out bit<32> sum) {
    apply {
        sum = (bit<32>)hdr.ipv4.dst_addr[31:16] + (bit<32>)hdr.ipv4.dst_addr[15:0] + (bit<32>)hdr.udp.dst_port
            + (bit<32>)(hdr.ultima.version ++ hdr.ultima.kind ++ hdr.ultima.trimmed ++ hdr.ultima.late
                ++ hdr.ultima.congestion ++ hdr.ultima.hops)
            + (bit<32>)hdr.ultima.budget[31:16] + (bit<32>)hdr.ultima.budget[15:0]
            + (bit<32>)hdr.ultima.path_queue[31:16] + (bit<32>)hdr.ultima.path_queue[15:0];
        if (meta.reflected == 1) {
            sum = sum + (bit<32>)hdr.report.port + (bit<32>)hdr.report.known
                + (bit<32>)hdr.report.sent[31:16] + (bit<32>)hdr.report.sent[15:0]
                + (bit<32>)hdr.report.trimmed[31:16] + (bit<32>)hdr.report.trimmed[15:0]
                + (bit<32>)hdr.report.late[31:16] + (bit<32>)hdr.report.late[15:0]
                + (bit<32>)hdr.report.upstream_lost[31:16] + (bit<32>)hdr.report.upstream_lost[15:0];
        }
    }
}

// A checksum after words with the sum `before` became words with the sum `after`: at most 18 words.
bit<16> checksum_after(in bit<16> checksum, in bit<32> before, in bit<32> after) {
    // A multiple of 0xFFFF, which is 0 in ones' complement arithmetic, keeps the difference positive.
    bit<32> sum = (bit<32>)(~checksum) + after + 18 * 0xFFFF - before;
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    // UDP's 0 means that there is no checksum.
    return sum == 0xFFFF ? 0xFFFF : ~(bit<16>)sum;
}
