// Numbers that packets have and controls compare with; how large tables are is in sizes.p4. What the controller must know it reads
// from P4Info (table and counter sizes) or from ultima_p4::names (the trunk RID).

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
// IPv4 header, UDP header and 8 bytes of its payload, as fragments are cut at multiples of 8.
const bit<16> SHORTEST_FIRST_FRAGMENT = IPV4_LENGTH + 8 + 8;
// Payload digest and header tag, which AUTH puts behind the header.
const bit<16> AUTH_LENGTH = 16;
// What a REPORT says at least (report_h): a PROBE has this much room.
const bit<16> REPORT_LENGTH = 20;

const bit<4> KIND_SCATTER  = 1;
const bit<4> KIND_GATHER   = 2;
const bit<4> KIND_FEEDBACK = 3;
const bit<4> KIND_PROBE    = 4;
const bit<4> KIND_REPORT   = 5;
const bit<4> KIND_REPAIR   = 6;

// Switches that a packet counts at most.
const bit<8> MAX_HOPS = 31;

// A budget of a packet whose receivers' limit the sender does not know.
const bit<32> NO_LIMIT = 0xFFFFFFFF;

// 224.0.0.0/4
const bit<4> IPV4_MULTICAST = 0xE;

// The RID of a copy that goes to another switch. Every other RID is the receiving rank.
const bit<16> TRUNK_RID = 0xFFFF;
// "No group": what a job that this switch does not know, or has no group for, is given.
const bit<16> NO_GROUP = 0;

// The two bits of ECN in the type of service (RFC 3168): 1 and 2 say that the transport is capable of it.
const bit<2> ECN_NOT_CAPABLE = 0;
const bit<2> ECN_CONGESTION  = 3;

// Where a packet is cut or late: why.
const bit<2> CAUSE_NONE    = 0;
const bit<2> CAUSE_LATE    = 1;
const bit<2> CAUSE_TRIMMED = 2;

// Operations of a job that a port, or a source's switch, remembers at a time: 2 to the power of this.
const bit<8> WINDOW_BITS = 4;
// A gap in a source's packet numbers is a loss if it is less than 2 to the power of this; a number that is further
// off, either way, is of a numbering that has begun anew.
const bit<8> GAP_BITS = 12;
// The latest packet numbers of a source that are remembered one by one: 2 to the power of this.
const bit<8> SEEN_BITS = 6;
