// Gaps in the packet numbers of a source. Counters add one at a time. So each hexadecimal digit of a gap, unless it is 0, is counted
// once in its own array, by source index and digit. A count stands for the digit times the array's weight.

// Bits of a digit.
const bit<8> DIGIT_BITS = 4;

control Gaps(inout headers_t hdr, inout metadata_t meta) {
    packet_counter_t(MAX_HOST_SOURCES << DIGIT_BITS, PACKETS) weight_1;
    packet_counter_t(MAX_HOST_SOURCES << DIGIT_BITS, PACKETS) weight_16;
    packet_counter_t(MAX_HOST_SOURCES << DIGIT_BITS, PACKETS) weight_256;

    apply {
        if (meta.gap[3:0] != 0) {
            weight_1.count(meta.source_index[11:0] ++ meta.gap[3:0]);
        }
        if (meta.gap[7:4] != 0) {
            weight_16.count(meta.source_index[11:0] ++ meta.gap[7:4]);
        }
        if (meta.gap[11:8] != 0) {
            weight_256.count(meta.source_index[11:0] ++ meta.gap[11:8]);
        }
    }
}
