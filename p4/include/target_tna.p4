// Types of externs that shared control blocks use, constants and metadata, for Tofino. target_v1model.p4 has the same names.
// All differences between Tofino 1 and 2 are in this file.

#if __TARGET_TOFINO__ == 1
#include <tna.p4>
#else
#include <t2na.p4>
#endif

// Bytes that the chip counts and v1model's frames do not have: the frame check sequence; at egress also the header that ingress
// puts in front (bridge_h).
const bit<32> INGRESS_OVERHEAD = 4;
const bit<32> EGRESS_OVERHEAD  = 4 + 17;

typedef Counter<bit<64>, bit<16>> counter_t;
typedef Counter<bit<32>, bit<16>> packet_counter_t;
const CounterType_t PACKETS_AND_BYTES = CounterType_t.PACKETS_AND_BYTES;
const CounterType_t PACKETS = CounterType_t.PACKETS;

// Counts a frame. These are controls, because the compiler copies a function's arguments and result, each in a stage of its own.
control CountAtIngress(counter_t cells, in bit<16> index) {
    apply {
        cells.count(index = index, adjust_byte_count = INGRESS_OVERHEAD);
    }
}

control CountAtEgress(counter_t cells, in bit<16> index) {
    apply {
        cells.count(index = index, adjust_byte_count = EGRESS_OVERHEAD);
    }
}

// Two-rate, three-colour, colour-blind (RFC 2698). A cell without a configuration returns green.
typedef Meter<bit<16>> meter_t;
typedef bit<8> meter_color_t;
const MeterType_t BYTES = MeterType_t.BYTES;
const meter_color_t METER_GREEN = 0;
const meter_color_t METER_RED   = 3;

// Charges a meter with a frame.
control ExecuteAtEgress(meter_t cells, in bit<16> index, out meter_color_t color) {
    apply {
        color = cells.execute(index = index, adjust_byte_count = EGRESS_OVERHEAD);
    }
}

// Inputs of register actions in upstream_tna.p4.
struct source_numbers_t {
    int<32> number;             // the packet's
    bit<32> round;              // number / 64
    bit<32> confirmed;          // numbers that are lost for good
    bit<32> flagged_bucket;     // 2^16 and the packet's bucket if it belongs to an operation, else 0
    bit<32> gap_step;           // the step of the packet behind the latest gap
    bit<32> gap_bucket;         // the flagged bucket of that packet
    bit<32> operation_digest;   // of the operation that lost the confirmed numbers
}

#define LOSS_FIELD
#define TARGET_METADATA \
    bit<1>  has_checksum;  /* egress: the datagram has a checksum, which the deparser updates */ \
    bit<16> unchanged_sum; /* egress: the sum of the words that egress does not rewrite */ \
    bit<32> member;        /* job and epoch */ \
    source_numbers_t source;   /* ingress */ \
    int<32> operation_id;  /* egress: the lower half of the step, and the bucket */ \
    bit<1>  cell_matches;  /* egress: the cell has this operation's counts */ \
    bit<1>  cell_claimed;  /* egress: this packet is the first that the cell counts */ \
    bit<32> trimmed_now;   /* egress: the operation's losses here so far */ \
    bit<32> late_now; \
    bit<32> notify_threshold; \
    bit<8>  mirror_kind;   /* egress: EGRESS_TRIMMED or EGRESS_LOSS */ \
    MirrorId_t session;    /* egress: the mirror session */

// The metadata that egress gets from ingress; metadata_t itself does not cross.
header bridge_h {
    bit<8>  kind;            // EGRESS_PACKET
    bit<1>  replicated;
    bit<1>  reflected;
    @padding bit<5> pad;
    bit<9>  ingress_port;
    bit<16> job_index;
    bit<32> loss_threshold;
    bit<32> upstream_lost;
    bit<32> arrived_at;      // ns
}

// In front of a mirrored packet: its operation's losses at the egress port.
header loss_h {
    bit<8>  kind;            // EGRESS_TRIMMED or EGRESS_LOSS
    bit<16> port;
    bit<32> trimmed;
    bit<32> late;
    bit<32> threshold;       // the job's; 0: no digest
}

// Kinds of packets in egress: the first byte in front of the frame.
const bit<8> EGRESS_PACKET  = 1;   // from ingress
const bit<8> EGRESS_TRIMMED = 2;   // mirrored without its payload, on its way out
const bit<8> EGRESS_LOSS    = 3;   // mirrored again, on its way to ingress, which sends the digest

const MirrorType_t MIRROR_TRIMMED  = 1;
const MirrorType_t MIRROR_LOSS = 2;
const DigestType_t DIGEST_LOSS = 1;

// The queue time of a packet in nanoseconds. Tofino 1's own value wraps after 262 us, so there it is the whole time between the
// parsers of ingress and egress.
#if __TARGET_TOFINO__ == 1
#define QUEUE_TIME(INTRINSIC, BETWEEN_PARSERS) BETWEEN_PARSERS
#else
#define QUEUE_TIME(INTRINSIC, BETWEEN_PARSERS) INTRINSIC.deq_timedelta
#endif

// Mirrors the packet with the changes that egress has made. Tofino 1 always does; Tofino 2 needs a flag.
#if __TARGET_TOFINO__ == 1
#define MIRROR_REWRITTEN(TO_DEPARSER)
#else
#define MIRROR_REWRITTEN(TO_DEPARSER) TO_DEPARSER.mirror_io_select = 1
#endif

// A port without a mirror session trims nothing.
#define CAN_TRIM (meta.session != 0)

// The mirror session of packets that report a loss. The controller gives it a recirculating port.
const MirrorId_t LOSS_SESSION = 1;

// The port of each pipe that brings loss reports back into ingress.
#if __TARGET_TOFINO__ == 1
const bit<7> RECIRCULATION_PORT = 68;
#else
const bit<7> RECIRCULATION_PORT = 6;
#endif
