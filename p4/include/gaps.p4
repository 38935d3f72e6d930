// Gaps in the packet numbers of a source. Counters add one at a time. So each hexadecimal digit of a gap, unless it is 0, is counted
// once in its own array, by source index and digit. A count stands for the digit times the array's weight.

// Bits of a digit.
const bit<8> DIGIT_BITS = 4;

control Gaps(inout headers_t hdr, inout metadata_t meta) {
    COUNTER_OF_PACKETS(MAX_HOST_SOURCES << DIGIT_BITS) weight_1;
    COUNTER_OF_PACKETS(MAX_HOST_SOURCES << DIGIT_BITS) weight_16;
    COUNTER_OF_PACKETS(MAX_HOST_SOURCES << DIGIT_BITS) weight_256;

    apply {
        if (meta.gap[3:0] != 0) {
            COUNT_PACKET(weight_1, meta.source_index[11:0] ++ meta.gap[3:0]);
        }
        if (meta.gap[7:4] != 0) {
            COUNT_PACKET(weight_16, meta.source_index[11:0] ++ meta.gap[7:4]);
        }
        if (meta.gap[11:8] != 0) {
            COUNT_PACKET(weight_256, meta.source_index[11:0] ++ meta.gap[11:8]);
        }
    }
}
