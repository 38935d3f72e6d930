// Loss before the switch: gaps in the packet numbers of a source whose host is linked here.
//
// A source numbers all that it sends for its job, from a multiple of 2^20 on. The number after the highest so far is
// expected:
//     a higher one     what lies between is lost, until it comes
//     a lower one      is one of those: it was overtaken, not lost; or it has come before
//     far off          the source has begun anew
// so that lost = gaps - overtaken, and what a source sent is what came + lost - duplicated.
//
// Networks reorder, and no operation is lossy for that: a missing number counts as one's loss when it is none of the
// latest 64 any more. Which operation it was of nobody knows. It counts for the one whose packet showed the latest gap;
// if that packet is of no operation, for none.

// The latest packet numbers of a source, one bit each.
const bit<8> SEEN = 1 << SEEN_BITS;

// How many bits are 1: sums of two, four and eight beside each other, and the sum of all eights in the highest of them.
bit<32> ones(in bit<64> bits) {
    bit<64> twos = bits - ((bits >> 1) & 0x5555555555555555);
    bit<64> fours = (twos & 0x3333333333333333) + ((twos >> 2) & 0x3333333333333333);
    bit<64> eights = (fours + (fours >> 4)) & 0x0F0F0F0F0F0F0F0F;
    return (bit<32>)((eights * 0x0101010101010101) >> 56);
}

control Upstream(inout headers_t hdr, inout metadata_t meta) {
    // By source index. The job and epoch whose source it is, and the number that it sends next.
    REGISTER(bit<64>, MAX_HOST_SOURCES) expected;
    // Bit n: whether the number n + 1 before that one has come, or was never sent.
    REGISTER(bit<64>, MAX_HOST_SOURCES) seen;
    REGISTER(bit<32>, MAX_HOST_SOURCES) lost;
    // Whose packet showed the latest gap: 1 and its step and bucket, or 0 if it is of no operation.
    REGISTER(bit<49>, MAX_HOST_SOURCES) shown_by;

    // By source index and slot of the operation that losses count for.
    REGISTER(bit<32>, MAX_HOST_SOURCES << WINDOW_BITS) membership;
    REGISTER(bit<48>, MAX_HOST_SOURCES << WINDOW_BITS) operation;
    REGISTER(bit<32>, MAX_HOST_SOURCES << WINDOW_BITS) lost_of_operation;

    Gaps() gaps;
    COUNTER(MAX_HOST_SOURCES) overtaken;    // by source index
    COUNTER(MAX_HOST_SOURCES) duplicated;   // by source index: came a second time
    COUNTER(MAX_HOST_SOURCES) renumbered;   // by source index: the numbering began anew

    apply {
        bit<32> number = hdr.ultima.packet_number;
        bit<32> member = hdr.ultima.job ++ hdr.ultima.epoch;
        bit<64> before;
        REGISTER_READ(expected, meta.source_index, before);
        bit<64> come;
        REGISTER_READ(seen, meta.source_index, come);
        REGISTER_READ(lost, meta.source_index, meta.upstream_lost);
        bool is_known = before[63:32] == member;
        bit<32> next = before[31:0];
        bit<32> gap = number - next;
        bit<32> behind = next - number;
        bit<32> settled = 0;   // numbers that are missing for good

        if (is_known && gap >= 1 << GAP_BITS && behind < 1 << GAP_BITS) {
            gap = 0;
            bit<64> mark = 0;
            if (behind <= (bit<32>)SEEN) {
                mark = 64w1 << (bit<8>)(behind - 1);
            }
            if (come & mark != 0) {
                COUNT(duplicated, meta.source_index);
            } else {
                come = come | mark;
                COUNT(overtaken, meta.source_index);
                meta.upstream_lost = meta.upstream_lost |-| 1;
            }
        } else {
            if (!is_known || gap >= 1 << GAP_BITS) {
                if (is_known) {
                    COUNT(renumbered, meta.source_index);
                    settled = ones(~come);
                } else {
                    meta.upstream_lost = 0;
                }
                // Nothing is missing before its beginning; nor if it is under way for long, where nobody knows.
                come = ~64w0;
                gap = (bit<32>)number[19:0];
                if (gap >= 1 << GAP_BITS) {
                    gap = 0;
                }
            }
            bit<8> forward = SEEN;
            if (gap < (bit<32>)SEEN) {
                forward = (bit<8>)gap + 1;
            }
            settled = settled + (gap |-| (bit<32>)(SEEN - 1));
            bit<64> leaving = ~come >> (SEEN - forward);
            if (leaving != 0) {
                settled = settled + ones(leaving);
            }
            come = come << forward | 1;
            next = number + 1;
        }
        meta.upstream_lost = meta.upstream_lost + gap;
        REGISTER_WRITE(expected, meta.source_index, member ++ next);
        REGISTER_WRITE(seen, meta.source_index, come);
        REGISTER_WRITE(lost, meta.source_index, meta.upstream_lost);

        if (gap != 0) {
            meta.gap = gap;
            gaps.apply(hdr, meta);
            bit<49> shows = 0;
            if (meta.names_operation == 1) {
                shows = 1w1 ++ hdr.ultima.step ++ hdr.ultima.bucket;
            }
            REGISTER_WRITE(shown_by, meta.source_index, shows);
        }

        bit<49> shown = 0;
        if (settled != 0) {
            REGISTER_READ(shown_by, meta.source_index, shown);
        }
        if (shown[48:48] == 1) {
            bit<48> lossy = shown[47:0];
            bit<32> cell = cell_of(meta.source_index, lossy[47:16], lossy[15:0]);
            bit<32> held_member;
            REGISTER_READ(membership, cell, held_member);
            bit<48> held;
            REGISTER_READ(operation, cell, held);
            bit<32> lost_so_far;
            REGISTER_READ(lost_of_operation, cell, lost_so_far);
            if (takes_over(member, lossy, held_member, held)) {
                REGISTER_WRITE(membership, cell, member);
                REGISTER_WRITE(operation, cell, lossy);
                held = lossy;
                lost_so_far = 0;
            }
            if (held == lossy) {
                bit<32> lost_now = lost_so_far + settled;
                REGISTER_WRITE(lost_of_operation, cell, lost_now);
                if (lost_so_far < meta.loss_threshold && lost_now >= meta.loss_threshold) {
                    meta.tell = 1;
                    meta.told_step = lossy[47:16];
                    meta.told_bucket = lossy[15:0];
                    meta.told_port = (bit<16>)meta.ingress_port;
                    meta.told_upstream = lost_now;
                }
            }
        }
    }
}
