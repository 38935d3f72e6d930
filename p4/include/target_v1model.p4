// How v1model spells what control blocks use, and its numbers. target_tna.p4 has the same macros, but for those that read and write
// registers, which only control blocks of v1model's own use.

#define COUNTER(SIZE) counter(SIZE, CounterType.packets_and_bytes)
#define COUNT(NAME, INDEX) NAME.count((bit<32>)(INDEX))

#define COUNTER_OF_PACKETS(SIZE) counter(SIZE, CounterType.packets)
#define COUNT_PACKET(NAME, INDEX) NAME.count((bit<32>)(INDEX))

// Two-rate, three-colour, colour-blind (RFC 2698); bytes of the frame as it came in. One that nobody
// configured says green.
#define METER_COLOR bit<2>
#define METER(SIZE) meter(SIZE, MeterType.bytes)
#define METER_EXECUTE(NAME, INDEX, COLOR) NAME.execute_meter<bit<2>>((bit<32>)(INDEX), COLOR)

const bit<2> METER_GREEN = 0;
const bit<2> METER_RED   = 2;

// What replaces words that the checksums cover adds up, and is added to them where it is known (RFC 1624).
#define IPV4_CHANGED(WORDS) hdr.ipv4.checksum = checksum_after(hdr.ipv4.checksum, WORDS)
#define UDP_CHANGED(WORDS) meta.change = meta.change + (WORDS)
#define UDP_CHECKSUM_AFTER_CHANGES \
    hdr.udp.checksum = checksum_after(hdr.udp.checksum, meta.change); \
    if (hdr.udp.checksum == 0) { \
        hdr.udp.checksum = 0xFFFF; \
    }

#define REGISTER(TYPE, SIZE) register<TYPE>(SIZE)
#define REGISTER_READ(NAME, INDEX, VALUE) NAME.read(VALUE, (bit<32>)(INDEX))
#define REGISTER_WRITE(NAME, INDEX, VALUE) NAME.write((bit<32>)(INDEX), VALUE)

#define LARGER(A, B) ((A) > (B) ? (A) : (B))

// standard_metadata.instance_type of simple_switch: a copy of a packet in egress, a packet that is through
// ingress again.
const bit<32> INSTANCE_EGRESS_CLONE = 2;
const bit<32> INSTANCE_RECIRCULATED = 4;

// The clone session of packets that tell the controller of a loss, and its field list. The controller gives the
// session a port that no link has: what it sends there is recirculated.
const bit<32> LOSS_SESSION = 1;
#define LOSS_FIELDS 1
#define LOSS_FIELD @field_list(LOSS_FIELDS)

// A packet that is cut goes on as it would have.
#define CUT_HAS_A_WAY true

// What headers.p4 and the parser leave to the target.
#define TARGET_METADATA \
    bit<32> change;   /* egress: what is to be added to the sum of the UDP checksum */
#define CHECKSUMS
#define CHECKSUM_OF_IPV4
#define CHECKSUM_OF_UDP
#define CHECKSUM_OF_ULTIMA
#define CHECKSUM_OF_REPORT
#define CHECKSUM_WITHOUT_REPORT

// Bytes of an Ethernet header.
const bit<32> ETHERNET_LENGTH = 14;
