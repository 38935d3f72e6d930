// How Tofino spells what control blocks use, and its numbers. What differs between Tofino 1 and 2 is here, and nowhere else.

#if __TARGET_TOFINO__ == 1
#include <tna.p4>
#else
#include <t2na.p4>
#endif

// Bytes of the frame check sequence, which the chip counts and v1model's frames do not have. BYTES_BESIDE_FRAME, which the top file
// sets for ingress and for egress, is what is not to be counted: in egress also what ingress has put in front.
#define FCS_LENGTH 4

#define COUNTER(SIZE) Counter<bit<64>, bit<16>>(SIZE, CounterType_t.PACKETS_AND_BYTES)
#define COUNT(NAME, INDEX) NAME.count(index = (bit<16>)(INDEX), adjust_byte_count = BYTES_BESIDE_FRAME)

#define COUNTER_OF_PACKETS(SIZE) Counter<bit<32>, bit<16>>(SIZE, CounterType_t.PACKETS)
#define COUNT_PACKET(NAME, INDEX) NAME.count(INDEX)

// Two-rate, three-colour, colour-blind (RFC 2698). One that nobody configured says green.
#define METER_COLOR bit<8>
#define METER(SIZE) Meter<bit<16>>(SIZE, MeterType_t.BYTES)
#define METER_EXECUTE(NAME, INDEX, COLOR) \
    COLOR = NAME.execute(index = (bit<16>)(INDEX), adjust_byte_count = BYTES_BESIDE_FRAME)

const bit<8> METER_GREEN = 0;
const bit<8> METER_RED   = 3;

#define REGISTER(TYPE, SIZE) Register<TYPE, bit<16>>(SIZE)

#define LARGER(A, B) max(A, B)

// Checksums are the parser's and the deparser's: what the parser subtracted of a datagram's words the deparser adds
// again as they have become. So what was not changed stays covered.
#define IPV4_CHANGED(WORDS)
#define UDP_CHANGED(WORDS)
#define UDP_CHECKSUM_AFTER_CHANGES meta.summed = 1

#define CHECKSUMS Checksum() ipv4_sum; Checksum() udp_sum;
#define CHECKSUM_OF_IPV4 \
    ipv4_sum.add(hdr.ipv4); \
    meta.bad_checksum = (bit<1>)ipv4_sum.verify(); \
    udp_sum.subtract({ hdr.ipv4.dst_addr });
#define CHECKSUM_OF_UDP udp_sum.subtract({ hdr.udp.dst_port, hdr.udp.checksum });
#define CHECKSUM_OF_ULTIMA \
    udp_sum.subtract({ hdr.ultima.version, hdr.ultima.kind, hdr.ultima.trimmed, hdr.ultima.late, \
        hdr.ultima.congestion, hdr.ultima.hops, hdr.ultima.budget, hdr.ultima.path_queue });
#define CHECKSUM_OF_REPORT \
    udp_sum.subtract({ hdr.report.port, hdr.report.known, hdr.report.sent, hdr.report.trimmed, \
        hdr.report.late, hdr.report.upstream_lost }); \
    udp_sum.subtract_all_and_deposit(meta.rest_of_sum);
#define CHECKSUM_WITHOUT_REPORT udp_sum.subtract_all_and_deposit(meta.rest_of_sum);

// What register actions take of upstream_tna.p4.
struct source_numbers_t {
    int<32> number;    // the packet's
    bit<32> round;     // those of the same remainder modulo 64 that were before it
    bit<32> settled;   // numbers that are missing for good
    bit<32> shows;     // 2^16 and its bucket if it is of an operation, else 0
    bit<32> step;      // of the operation whose packet showed the latest gap
    bit<32> bucket;    // as `shows`
    bit<32> tag;       // of the operation that they count for
}

#define LOSS_FIELD
#define TARGET_METADATA \
    bit<1>  summed;        /* egress: the datagram has a checksum, which the deparser writes anew */ \
    bit<16> rest_of_sum;   /* egress: the sum of what is not changed here */ \
    bit<32> member;        /* job and epoch */ \
    source_numbers_t source;    /* ingress */ \
    int<32> named;         /* egress: its operation: the lower half of its step, and its bucket */ \
    bit<1>  counted;       /* egress: its operation's counts stand in the cell */ \
    bit<1>  begun;         /* egress: they begin with it */ \
    bit<32> trimmed_now;   /* egress: what the operation lost here until now */ \
    bit<32> late_now; \
    bit<32> told_threshold; \
    bit<8>  mirrored_as;   /* egress: CUT or LOSS */ \
    MirrorId_t session;    /* egress: where to */

// What ingress tells egress: nothing else of metadata_t goes from one to the other.
header bridge_h {
    bit<8>  what;            // PACKET
    bit<1>  replicated;
    bit<1>  reflected;
    @padding bit<5> pad;
    bit<9>  ingress_port;
    bit<16> job_index;
    bit<32> loss_threshold;
    bit<32> upstream_lost;
    bit<32> came_in;         // ns
}

#define BRIDGE_LENGTH 17

// In front of a mirrored packet: what its operation lost at the port that it left by.
header loss_h {
    bit<8>  what;            // CUT or LOSS
    bit<16> port;
    bit<32> trimmed;
    bit<32> late;
    bit<32> threshold;       // the job's; 0: no loss to tell of
}

// What comes to egress: the first byte in front of the frame.
const bit<8> PACKET = 1;   // from ingress
const bit<8> CUT    = 2;   // mirrored, without its payload: its own way out
const bit<8> LOSS   = 3;   // mirrored once more, on its way to ingress, which tells the controller

const MirrorType_t MIRROR_CUT  = 1;
const MirrorType_t MIRROR_LOSS = 2;
const DigestType_t DIGEST_LOSS = 1;

// For how many nanoseconds a packet was queued. Tofino 1's own count of them wraps after 262 us: there it is all of the time between
// the parsers of ingress and egress.
#if __TARGET_TOFINO__ == 1
#define QUEUED(INTRINSIC, BETWEEN_PARSERS) BETWEEN_PARSERS
#else
#define QUEUED(INTRINSIC, BETWEEN_PARSERS) INTRINSIC.deq_timedelta
#endif

// What is mirrored is the packet as egress leaves it: Tofino 1 does no other, Tofino 2 has to be told.
#if __TARGET_TOFINO__ == 1
#define MIRROR_AS_IT_LEAVES(TO_DEPARSER)
#else
#define MIRROR_AS_IT_LEAVES(TO_DEPARSER) TO_DEPARSER.mirror_io_select = 1
#endif

// A packet is cut where its port has a session for it.
#define CUT_HAS_A_WAY (meta.session != 0)

// The mirror session of packets that tell the controller of a loss. The controller gives it a recirculating port.
const MirrorId_t LOSS_SESSION = 1;

// Of each pipe's ports, the one that brings losses back into ingress.
#if __TARGET_TOFINO__ == 1
const bit<7> RECIRCULATING_PORT = 68;
#else
const bit<7> RECIRCULATING_PORT = 6;
#endif
