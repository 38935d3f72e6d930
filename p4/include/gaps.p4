// Gaps in the packet numbers of a source. A counter adds one at a time, so that a gap is counted once for each of its hexadecimal digits
// that is not 0: in the digit's array, by source index and digit. There it weighs the digit times what the array's name says.

// Bits of a digit.
const bit<8> DIGIT_BITS = 4;

control Gaps(inout headers_t hdr, inout metadata_t meta) {
    COUNTER_OF_PACKETS(MAX_HOST_SOURCES << DIGIT_BITS) of_1;
    COUNTER_OF_PACKETS(MAX_HOST_SOURCES << DIGIT_BITS) of_16;
    COUNTER_OF_PACKETS(MAX_HOST_SOURCES << DIGIT_BITS) of_256;

    apply {
        if (meta.gap[3:0] != 0) {
            COUNT_PACKET(of_1, meta.source_index[11:0] ++ meta.gap[3:0]);
        }
        if (meta.gap[7:4] != 0) {
            COUNT_PACKET(of_16, meta.source_index[11:0] ++ meta.gap[7:4]);
        }
        if (meta.gap[11:8] != 0) {
            COUNT_PACKET(of_256, meta.source_index[11:0] ++ meta.gap[11:8]);
        }
    }
}
