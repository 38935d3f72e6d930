// Constants of packet formats and of controls. Table sizes are in sizes.p4. The controller reads table and counter sizes from P4Info,
// and the trunk RID from ultima_p4::names.

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<8>  PROTOCOL_UDP   = 17;
// Bytes of an IPv4 header without options.
const bit<16> IPV4_LENGTH     = 20;

const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY   = 2;

// docs/packet.md: bytes 0 to 2 of the Ultima header.
const bit<16> ULTIMA_MAGIC   = 0x554C;
const bit<4>  ULTIMA_VERSION = 1;
// UDP header and Ultima header: no Ultima datagram is shorter.
const bit<16> ULTIMA_MIN_UDP_LENGTH = 8 + 52;
// IPv4 header, UDP header and 8 bytes of payload: fragments end at multiples of 8 bytes.
const bit<16> MIN_FIRST_FRAGMENT_LENGTH = IPV4_LENGTH + 8 + 8;
// Payload digest and header tag, which AUTH puts behind the header.
const bit<16> AUTH_LENGTH = 16;
// Length of report_h. A PROBE has this much room.
const bit<16> REPORT_LENGTH = 20;

const bit<4> KIND_SCATTER  = 1;
const bit<4> KIND_GATHER   = 2;
const bit<4> KIND_FEEDBACK = 3;
const bit<4> KIND_PROBE    = 4;
const bit<4> KIND_REPORT   = 5;
const bit<4> KIND_REPAIR   = 6;

// The highest hop count.
const bit<8> MAX_HOPS = 31;

// The budget of a packet without a deadline.
const bit<32> NO_LIMIT = 0xFFFFFFFF;

// 224.0.0.0/4
const bit<4> IPV4_MULTICAST = 0xE;

// The RID of a copy that goes to another switch. Every other RID is the receiving rank.
const bit<16> TRUNK_RID = 0xFFFF;
// The group of an unknown job, and of a job without a group.
const bit<16> NO_GROUP = 0;

// The ECN field, the lowest two bits of the type of service (RFC 3168).
const bit<2> ECN_NOT_CAPABLE = 0;
const bit<2> ECN_CONGESTION  = 3;

// Why a packet's values are lost.
const bit<2> CAUSE_NONE    = 0;
const bit<2> CAUSE_LATE    = 1;
const bit<2> CAUSE_TRIMMED = 2;

// log2 of the number of a job's operations for which a port, or a source's switch, keeps counts.
const bit<8> WINDOW_BITS = 4;
// log2 of the first gap in a source's packet numbers that is no loss. A number further off, in either direction, starts a new
// numbering.
const bit<8> GAP_BITS = 12;
// log2 of the number of a source's latest packet numbers that the switch remembers.
const bit<8> SEEN_BITS = 6;
