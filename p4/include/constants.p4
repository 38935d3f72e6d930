// Numbers that every target shares. What the controller must know of them it reads from P4Info
// (table and counter sizes) or from ultima_p4::names (the trunk RID).

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<16> ETHERTYPE_ARP  = 0x0806;
const bit<8>  PROTOCOL_UDP   = 17;
// Bytes of an Ethernet header, and of an IPv4 header without options.
const bit<32> ETHERNET_LENGTH = 14;
const bit<16> IPV4_LENGTH     = 20;

const bit<16> ARP_REQUEST = 1;
const bit<16> ARP_REPLY   = 2;

// docs/packet.md: bytes 0 to 2 of the Ultima header.
const bit<16> ULTIMA_MAGIC   = 0x554C;
const bit<4>  ULTIMA_VERSION = 1;
// UDP header and Ultima header: no Ultima datagram is shorter.
const bit<16> ULTIMA_MIN_UDP_LENGTH = 8 + 52;

// 224.0.0.0/4
const bit<4> IPV4_MULTICAST = 0xE;

// The RID of a copy that goes to another switch. Every other RID is the receiving rank.
const bit<16> TRUNK_RID = 0xFFFF;
// "No group": what a job that this switch does not know, or has no group for, is given.
const bit<16> NO_GROUP = 0;

const bit<32> MAX_PORTS        = 512;
const bit<32> MAX_JOBS         = 1024;
const bit<32> MAX_SOURCES      = 16384;
const bit<32> MAX_DESTINATIONS = 16384;
const bit<32> MAX_REPLICAS     = 16384;
const bit<32> MAX_ROUTES       = 4096;
const bit<32> MAX_NEIGHBORS    = 4096;
