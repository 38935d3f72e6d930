// Losses before the switch: gaps in the packet numbers of a source whose host is linked here.
//
// A source numbers the packets of its job, from a multiple of 2^20 on. The switch expects the number after the highest one:
//     a higher number      the numbers between are lost, until they come
//     a lower number       is one of these: overtaken, not lost; or a duplicate
//     a number far off     starts a new numbering
// so that lost = gaps - overtaken, and a source sent = received + lost - duplicated.
//
// Networks reorder packets, so the alarm about an operation waits: a missing number is lost for good when the number 64
// higher comes, or a later one with the same remainder modulo 64. It counts for the operation of the packet behind the
// latest gap, if that packet belongs to an operation.

// Registers start with 0. With this offset, no number at the beginning of a numbering equals a register's initial value.
const bit<32> OFFSET = 1 << 19;
// A number that comes so late does not replace a later one.
const bit<32> MAX_LATE = 512;
// A number further from the latest one of its remainder belongs to another numbering.
const bit<32> MAX_SKIPPED = 8192;

control Upstream(inout headers_t hdr, inout metadata_t meta) {
    // By source index: job, epoch and the packet number that the switch expects.
    register<bit<64>, bit<32>>(MAX_HOST_SOURCES) expected;
    register<bit<32>, bit<32>>(MAX_HOST_SOURCES) lost;
    // By source index: 1, step and bucket of the packet behind the latest gap; 0 if it belongs to no operation.
    register<bit<49>, bit<32>>(MAX_HOST_SOURCES) gap_operation;
    // By source index and number modulo 64: the latest such number, plus OFFSET.
    register<bit<32>, bit<32>>(MAX_HOST_SOURCES << SEEN_BITS) latest;
    // By source index and slot: job, epoch, step and bucket of an operation, and its losses.
    register<bit<80>, bit<32>>(MAX_HOST_SOURCES << WINDOW_BITS) lossy_operation;
    register<bit<32>, bit<32>>(MAX_HOST_SOURCES << WINDOW_BITS) lost_of_operation;

    Gaps() gaps;
    // By source index.
    counter_t(MAX_HOST_SOURCES, PACKETS_AND_BYTES) overtaken;
    counter_t(MAX_HOST_SOURCES, PACKETS_AND_BYTES) duplicated;
    counter_t(MAX_HOST_SOURCES, PACKETS_AND_BYTES) renumbered;

    apply {
        bit<32> source = (bit<32>)meta.source_index;
        bit<32> number = hdr.ultima.packet_number;
        bit<32> member = hdr.ultima.job ++ hdr.ultima.epoch;
        bit<64> state;
        expected.read(state, source);
        bool is_new = state[63:32] != member;
        bit<32> gap = number - state[31:0];
        bit<32> behind = state[31:0] - number;

        bit<32> cell = (source << SEEN_BITS) + (bit<32>)number[SEEN_BITS - 1:0];
        bit<32> shifted = number + OFFSET;
        bit<32> before;
        latest.read(before, cell);
        bit<32> late = before - shifted;
        bit<32> skipped = shifted - before;
        if (late > MAX_LATE) {
            latest.write(cell, shifted);
        }

        bit<32> recovered = 0;   // packets that counted as lost
        if (!is_new && behind != 0 && behind <= 1 << GAP_BITS) {
            gap = 0;
            if (late == 0) {
                duplicated.count(meta.source_index);
            } else {
                overtaken.count(meta.source_index);
                recovered = 1;
            }
        } else {
            if (is_new || gap >= 1 << GAP_BITS) {
                if (!is_new) {
                    renumbered.count(meta.source_index);
                }
                // A numbering that does not start at its beginning has no known gap.
                gap = number[19:12] == 0 ? (bit<32>)number[11:0] : 0;
            }
            expected.write(source, member ++ (number + 1));
        }

        if (is_new) {
            meta.upstream_lost = gap;
            lost.write(source, gap);
        } else if (gap != 0 || recovered != 0 || hdr.ultima.kind == KIND_PROBE) {
            lost.read(meta.upstream_lost, source);
            meta.upstream_lost = (meta.upstream_lost |-| recovered) + gap;
            lost.write(source, meta.upstream_lost);
        }
        if (is_new || gap != 0) {
            bit<49> operation = 0;
            if (gap != 0 && meta.has_operation == 1) {
                operation = 1w1 ++ hdr.ultima.step ++ hdr.ultima.bucket;
            }
            gap_operation.write(source, operation);
        }
        if (gap != 0) {
            meta.gap = gap;
            gaps.apply(hdr, meta);
        }

        bit<32> confirmed = 0;   // numbers that are lost for good
        if (is_new || (late > MAX_SKIPPED && skipped > MAX_SKIPPED)) {
            // The first of its remainder.
            confirmed = number[19:12] == 0 ? (bit<32>)number[11:SEEN_BITS] : 0;
        } else if (late > MAX_SKIPPED) {
            confirmed = (skipped >> SEEN_BITS) - 1;
        }
        if (confirmed != 0) {
            bit<49> operation;
            gap_operation.read(operation, source);
            if (operation[48:48] == 1) {
                bit<32> slot = (source << WINDOW_BITS) + (bit<32>)(operation[19:16] ^ operation[3:0]);
                bit<80> lossy = member ++ operation[47:0];
                bit<80> counted;
                lossy_operation.read(counted, slot);
                bit<32> lost_before = 0;
                if (counted == lossy) {
                    lost_of_operation.read(lost_before, slot);
                } else {
                    lossy_operation.write(slot, lossy);
                }
                bit<32> lost_now = lost_before + confirmed;
                lost_of_operation.write(slot, lost_now);
                if (lost_before < meta.loss_threshold && lost_now >= meta.loss_threshold) {
                    meta.notify = 1;
                    meta.notify_step = operation[47:16];
                    meta.notify_bucket = operation[15:0];
                    meta.notify_port = (bit<16>)meta.ingress_port;
                    meta.notify_upstream = lost_now;
                }
            }
        }
    }
}
