// Losses before the switch, as in upstream_v1model.p4, in registers of Tofino: a packet accesses each register once, in the order
// of the stages, and each access is atomic.
//
// The switch keeps the latest number of each remainder modulo 64. A number that equals it has come before. Numbers of that remainder
// between it and a later one are lost for good.

// How a packet arrives, compared with the expected number.
const bit<3> ARRIVAL_IN_ORDER   = 0;   // or behind a gap
const bit<3> ARRIVAL_FIRST      = 1;   // the first packet of this job and epoch
const bit<3> ARRIVAL_RENUMBERED = 2;
const bit<3> ARRIVAL_OVERTAKEN  = 3;
const bit<3> ARRIVAL_DUPLICATE  = 4;

// The initial round of a remainder, far from those of the multiples of 2^20, at which numberings begin.
const int<16> INITIAL_ROUND = 0x2000;
// A packet that is at most so many rounds late does not replace a later one. One further behind belongs to another numbering.
const int<16> MAX_LATE_ROUNDS = 8;

struct operation_losses_t {
    bit<32> digest;
    bit<32> lost;
}

control Upstream(inout headers_t hdr, inout metadata_t meta) {
    // By source index.
    Register<bit<32>, bit<16>>(MAX_HOST_SOURCES) membership;    // job and epoch of the source
    Register<int<32>, bit<16>>(MAX_HOST_SOURCES) expected;      // the next packet number
    Register<bit<32>, bit<16>>(MAX_HOST_SOURCES) lost;
    // Of the packet behind the latest gap: the step; 2^16 and the bucket, or 0 if it belongs to no operation.
    Register<bit<32>, bit<16>>(MAX_HOST_SOURCES) gap_step;
    Register<bit<32>, bit<16>>(MAX_HOST_SOURCES) gap_bucket;
    // By source index and number modulo 64: the round of the latest such number.
    Register<int<16>, bit<32>>(MAX_HOST_SOURCES << SEEN_BITS, INITIAL_ROUND) latest;
    // By source index and slot: a digest of an operation's job, epoch, step and bucket, and its losses.
    Register<operation_losses_t, bit<16>>(MAX_HOST_SOURCES << WINDOW_BITS) lost_of_operation;

    Gaps() gaps;
    // By source index.
    counter_t(MAX_HOST_SOURCES, PACKETS_AND_BYTES) overtaken;
    counter_t(MAX_HOST_SOURCES, PACKETS_AND_BYTES) duplicated;
    counter_t(MAX_HOST_SOURCES, PACKETS_AND_BYTES) renumbered;

    Hash<bit<32>>(HashAlgorithm_t.CRC32) digest_of_operation;

    bit<1>  is_new_member = 0;
    bit<32> start_gap = 0;
    bit<16> rounds = 0;
    bit<32> lost_now = 0;
    bit<32> limit = 0;
    bit<32> below_limit = 0;
    bit<32> below_threshold = 0;
    bit<3>  arrival = ARRIVAL_IN_ORDER;
    bit<1>  has_confirmed = 0;
    bit<1>  counts_losses = 0;

    RegisterAction<bit<32>, bit<16>, bit<1>>(membership) swap_membership = {
        void apply(inout bit<32> value, out bit<1> is_new) {
            if (value != meta.member) {
                is_new = 1;
            } else {
                is_new = 0;
            }
            value = meta.member;
        }
    };
    RegisterAction<int<32>, bit<16>, int<32>>(expected) start_numbering = {
        void apply(inout int<32> value, out int<32> gap) {
            gap = meta.source.number - value;
            value = meta.source.number + 1;
        }
    };
    // An overtaken packet, which is a little behind, changes nothing.
    RegisterAction<int<32>, bit<16>, int<32>>(expected) follow_numbering = {
        void apply(inout int<32> value, out int<32> gap) {
            gap = meta.source.number - value;
            if (meta.source.number - value >= 0 || meta.source.number - value < -(1 << GAP_BITS)) {
                value = meta.source.number + 1;
            }
        }
    };
    RegisterAction<int<16>, bit<32>, int<16>>(latest) update_latest = {
        void apply(inout int<16> value, out int<16> since) {
            int<16> round = (int<16>)meta.source.round[15:0];
            since = round - value;
            if (round - value >= 0 || round - value < -MAX_LATE_ROUNDS) {
                value = round;
            }
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(lost) set_lost = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = meta.gap;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(lost) add_lost = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + meta.gap;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(lost) subtract_recovered = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value |-| 1;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(gap_step) set_gap_step = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = hdr.ultima.step;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(gap_step) get_gap_step = {
        void apply(inout bit<32> value, out bit<32> now) {
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(gap_bucket) set_gap_bucket = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = meta.source.flagged_bucket;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(gap_bucket) get_gap_bucket = {
        void apply(inout bit<32> value, out bit<32> now) {
            now = value;
        }
    };
    RegisterAction<operation_losses_t, bit<16>, bit<32>>(lost_of_operation) add_confirmed = {
        void apply(inout operation_losses_t cell, out bit<32> now) {
            if (cell.digest == meta.source.operation_digest) {
                cell.lost = cell.lost + meta.source.confirmed;
            } else {
                cell.lost = meta.source.confirmed;
                cell.digest = meta.source.operation_digest;
            }
            now = cell.lost;
        }
    };

    action prepare() {
        meta.member = hdr.ultima.job ++ hdr.ultima.epoch;
        meta.source.number = (int<32>)hdr.ultima.packet_number;
        meta.source.round = hdr.ultima.packet_number >> SEEN_BITS;
        start_gap = hdr.ultima.packet_number & ((1 << GAP_BITS) - 1);
    }

    action confirm_losses() {
        meta.source.confirmed = (bit<32>)rounds;
        has_confirmed = 1;
    }

    action exclude_latest() {
        meta.source.confirmed = meta.source.confirmed |-| 1;
    }

    action select_operation() {
        meta.notify_step = meta.source.gap_step;
        meta.notify_bucket = meta.source.gap_bucket[15:0];
        limit = meta.loss_threshold + meta.source.confirmed;
        counts_losses = 1;
    }

    action digest_operation() {
        meta.source.operation_digest = digest_of_operation.get({ meta.member, meta.source.gap_step, meta.source.gap_bucket });
    }

    action compare() {
        below_limit = limit |-| lost_now;
        below_threshold = meta.loss_threshold |-| lost_now;
    }

    apply {
        // No program reads index 0, and counting there saves a condition for each step.
        prepare();
        if (hdr.ultima.packet_number[19:12] != 0) {
            start_gap = 0;
        }
        is_new_member = swap_membership.execute(meta.source_index);
        // A new source has no gap, unless this packet shows one.
        if (meta.has_operation == 1 && (is_new_member == 0 || start_gap != 0)) {
            meta.source.flagged_bucket = 15w0 ++ 1w1 ++ hdr.ultima.bucket;
        }
        rounds = (bit<16>)update_latest.execute(10w0 ++ meta.source_index ++ hdr.ultima.packet_number[5:0]);
        if (is_new_member == 1) {
            meta.gap = (bit<32>)start_numbering.execute(meta.source_index);
        } else {
            meta.gap = (bit<32>)follow_numbering.execute(meta.source_index);
        }

        if (is_new_member == 1) {
            arrival = ARRIVAL_FIRST;
            meta.gap = start_gap;
        } else if (meta.gap[31:GAP_BITS] == 0xFFFFF) {
            meta.gap = 0;
            if (rounds == 0) {
                arrival = ARRIVAL_DUPLICATE;
            } else {
                arrival = ARRIVAL_OVERTAKEN;
            }
        } else if (meta.gap[31:GAP_BITS] != 0) {
            arrival = ARRIVAL_RENUMBERED;
            meta.gap = start_gap;
        }
        if (is_new_member == 0 && rounds[15:7] == 0 && rounds[6:1] != 0) {
            confirm_losses();
        }
        exclude_latest();

        if (arrival == ARRIVAL_FIRST) {
            meta.upstream_lost = set_lost.execute(meta.source_index);
        } else if (arrival == ARRIVAL_OVERTAKEN) {
            meta.upstream_lost = subtract_recovered.execute(meta.source_index);
        } else {
            meta.upstream_lost = add_lost.execute(meta.source_index);
        }
        gaps.apply(hdr, meta);
        if (meta.gap != 0 || arrival == ARRIVAL_FIRST) {
            meta.source.gap_step = set_gap_step.execute(meta.source_index);
        } else {
            meta.source.gap_step = get_gap_step.execute(meta.source_index);
        }
        if (meta.gap != 0 || arrival == ARRIVAL_FIRST) {
            meta.source.gap_bucket = set_gap_bucket.execute(meta.source_index);
        } else {
            meta.source.gap_bucket = get_gap_bucket.execute(meta.source_index);
        }
        if (arrival == ARRIVAL_OVERTAKEN && meta.source_index != 0) {
            CountAtIngress.apply(overtaken, meta.source_index);
        }
        if (arrival == ARRIVAL_DUPLICATE && meta.source_index != 0) {
            CountAtIngress.apply(duplicated, meta.source_index);
        }
        if (arrival == ARRIVAL_RENUMBERED && meta.source_index != 0) {
            CountAtIngress.apply(renumbered, meta.source_index);
        }

        digest_operation();
        if (has_confirmed == 1 && meta.source.gap_bucket[16:16] == 1 && meta.source_index != 0) {
            select_operation();
        }
        if (counts_losses == 1) {
            lost_now = add_confirmed.execute(meta.source_index[11:0] ++ (meta.source.gap_step[3:0] ^ meta.source.gap_bucket[3:0]));
        }
        compare();
        // The losses were below the threshold before, so they reach it once.
        if (counts_losses == 1 && below_limit != 0 && below_threshold == 0) {
            meta.notify = 1;
            meta.notify_port = (bit<16>)meta.ingress_port;
            meta.notify_upstream = lost_now;
        }
    }
}
