// Loss before the switch, as upstream_v1model.p4 has it, in registers of Tofino: each is touched once by a packet, in the
// order of the stages, and each such step cannot be interrupted.
//
// Which of the latest numbers have come is known by the latest of each remainder modulo 64: a number that stands there
// has come before; numbers of that remainder between it and this one never came, and are lost for good.

const bit<3> IN_TURN    = 0;
const bit<3> BEGINS     = 1;
const bit<3> RENUMBERED = 2;
const bit<3> OVERTAKEN  = 3;
const bit<3> AGAIN      = 4;

struct operation_losses_t {
    bit<32> tag;
    bit<32> lost;
}

control Upstream(inout headers_t hdr, inout metadata_t meta) {
    // By source index.
    REGISTER(bit<32>, MAX_HOST_SOURCES) membership;    // the job and epoch whose source it is
    REGISTER(int<32>, MAX_HOST_SOURCES) expected;      // the number that it sends next
    REGISTER(bit<32>, MAX_HOST_SOURCES) lost;
    REGISTER(bit<32>, MAX_HOST_SOURCES) gaps;          // numbers that were skipped, whether or not they came later
    // Whose packet showed the latest gap: its step; 2^16 and its bucket, or 0 if it is of no operation.
    REGISTER(bit<32>, MAX_HOST_SOURCES) shown_step;
    REGISTER(bit<32>, MAX_HOST_SOURCES) shown_bucket;
    // By source index and the number's remainder modulo 64.
    Register<bit<32>, bit<32>>(MAX_HOST_SOURCES << SEEN_BITS) latest;
    // By source index and slot of the operation that losses count for: a digest of job, epoch, step and bucket, and
    // the losses.
    Register<operation_losses_t, bit<16>>(MAX_HOST_SOURCES << WINDOW_BITS) lost_of_operation;

    COUNTER(MAX_HOST_SOURCES) overtaken;    // by source index
    COUNTER(MAX_HOST_SOURCES) duplicated;   // by source index: came a second time
    COUNTER(MAX_HOST_SOURCES) renumbered;   // by source index: the numbering began anew

    Hash<bit<32>>(HashAlgorithm_t.CRC32) digest_of_operation;
    Hash<bit<4>>(HashAlgorithm_t.XOR8) slot_of_operation;

    bit<1>  other_member = 0;
    int<32> next = 0;
    bit<32> start_gap = 0;
    bit<32> before = 0;
    bit<32> apart = 0;
    bit<32> step = 0;
    bit<32> bucket = 0;
    bit<4>  slot = 0;
    bit<32> lost_now = 0;
    bit<32> limit = 0;
    bit<32> below_limit = 0;
    bit<32> below_threshold = 0;
    bit<3>  came = IN_TURN;

    RegisterAction<bit<32>, bit<16>, bit<1>>(membership) take_membership = {
        void apply(inout bit<32> value, out bit<1> other) {
            if (value != meta.member) {
                other = 1;
            } else {
                other = 0;
            }
            value = meta.member;
        }
    };
    RegisterAction<int<32>, bit<16>, int<32>>(expected) begin = {
        void apply(inout int<32> value, out int<32> was) {
            was = value;
            value = meta.source.number + 1;
        }
    };
    // One that is a little behind was overtaken: it changes nothing.
    RegisterAction<int<32>, bit<16>, int<32>>(expected) go_on = {
        void apply(inout int<32> value, out int<32> was) {
            was = value;
            if (meta.source.number - value >= 0 || meta.source.number - value < -(1 << GAP_BITS)) {
                value = meta.source.number + 1;
            }
        }
    };
    RegisterAction<bit<32>, bit<32>, bit<32>>(latest) take_latest = {
        void apply(inout bit<32> value, out bit<32> was) {
            was = value;
            value = hdr.ultima.packet_number;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(lost) begin_lost = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = meta.source.gap;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(lost) add_lost = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value + meta.source.gap;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(lost) one_found = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = value |-| 1;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(gaps) add_gap = {
        void apply(inout bit<32> value) {
            value = value + meta.source.gap;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(shown_step) show_step = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = hdr.ultima.step;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(shown_step) step_shown = {
        void apply(inout bit<32> value, out bit<32> now) {
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(shown_bucket) show_bucket = {
        void apply(inout bit<32> value, out bit<32> now) {
            value = meta.source.shows;
            now = value;
        }
    };
    RegisterAction<bit<32>, bit<16>, bit<32>>(shown_bucket) bucket_shown = {
        void apply(inout bit<32> value, out bit<32> now) {
            now = value;
        }
    };
    RegisterAction<operation_losses_t, bit<16>, bit<32>>(lost_of_operation) add_loss = {
        void apply(inout operation_losses_t cell, out bit<32> now) {
            if (cell.tag == meta.source.tag) {
                cell.lost = cell.lost + meta.source.settled;
            } else {
                cell.lost = meta.source.settled;
                cell.tag = meta.source.tag;
            }
            now = cell.lost;
        }
    };

    action prepare() {
        meta.member = hdr.ultima.job ++ hdr.ultima.epoch;
        meta.source.number = (int<32>)hdr.ultima.packet_number;
        start_gap = hdr.ultima.packet_number & ((1 << GAP_BITS) - 1);
    }

    apply {
        prepare();
        if (hdr.ultima.packet_number[19:12] != 0) {
            start_gap = 0;
        }
        if (is_of_operation(hdr.ultima.kind)) {
            meta.source.shows = 15w0 ++ 1w1 ++ hdr.ultima.bucket;
        }
        other_member = take_membership.execute(meta.source_index);
        before = take_latest.execute(10w0 ++ meta.source_index ++ hdr.ultima.packet_number[5:0]);
        if (other_member == 1) {
            next = begin.execute(meta.source_index);
        } else {
            next = go_on.execute(meta.source_index);
        }
        apart = hdr.ultima.packet_number - before;
        meta.source.gap = (bit<32>)(meta.source.number - next);

        if (other_member == 1) {
            came = BEGINS;
            meta.source.gap = start_gap;
        } else if (meta.source.gap[31:GAP_BITS] == 0xFFFFF) {
            meta.source.gap = 0;
            if (apart == 0) {
                came = AGAIN;
            } else {
                came = OVERTAKEN;
            }
        } else if (meta.source.gap[31:GAP_BITS] != 0) {
            came = RENUMBERED;
            meta.source.gap = start_gap;
        }
        if (other_member == 0 && apart[31:13] == 0 && apart[12:7] != 0) {
            meta.source.settled = apart >> SEEN_BITS;
        }
        if (meta.source.settled != 0) {
            meta.source.settled = meta.source.settled - 1;
        }

        if (came == BEGINS) {
            meta.upstream_lost = begin_lost.execute(meta.source_index);
        } else if (came == OVERTAKEN) {
            meta.upstream_lost = one_found.execute(meta.source_index);
        } else {
            meta.upstream_lost = add_lost.execute(meta.source_index);
        }
        if (came == OVERTAKEN) {
            COUNT(overtaken, meta.source_index);
        }
        if (came == AGAIN) {
            COUNT(duplicated, meta.source_index);
        }
        if (came == RENUMBERED) {
            COUNT(renumbered, meta.source_index);
        }
        if (meta.source.gap != 0) {
            add_gap.execute(meta.source_index);
            step = show_step.execute(meta.source_index);
            bucket = show_bucket.execute(meta.source_index);
        } else if (meta.source.settled != 0) {
            step = step_shown.execute(meta.source_index);
            bucket = bucket_shown.execute(meta.source_index);
        }

        if (meta.source.settled != 0 && bucket[16:16] == 1) {
            meta.told_step = step;
            meta.told_bucket = bucket[15:0];
            slot = slot_of_operation.get({ step, bucket[15:0] });
            meta.source.tag = digest_of_operation.get({ meta.member, step, bucket });
            limit = meta.loss_threshold + meta.source.settled;
            lost_now = add_loss.execute(meta.source_index[11:0] ++ slot);
            below_limit = limit |-| lost_now;
            below_threshold = meta.loss_threshold |-| lost_now;
            // It was below before: so a threshold is met once.
            if (below_limit != 0 && below_threshold == 0) {
                meta.tell = 1;
                meta.told_port = (bit<16>)meta.ingress_port;
                meta.told_upstream = lost_now;
            }
        }
    }
}
