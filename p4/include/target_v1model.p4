// Macros for externs that shared control blocks use, and constants, for v1model. target_tna.p4 has the same macros for Tofino.

#define COUNTER(SIZE) counter(SIZE, CounterType.packets_and_bytes)
#define COUNT(NAME, INDEX) NAME.count((bit<32>)(INDEX))

#define COUNTER_OF_PACKETS(SIZE) counter(SIZE, CounterType.packets)
#define COUNT_PACKET(NAME, INDEX) NAME.count((bit<32>)(INDEX))

// Two-rate, three-colour, colour-blind (RFC 2698), in bytes of the received frame. A cell without a configuration
// returns green.
#define METER_COLOR bit<2>
#define METER(SIZE) meter(SIZE, MeterType.bytes)
#define METER_EXECUTE(NAME, INDEX, COLOR) NAME.execute_meter((bit<32>)(INDEX), COLOR)

const bit<2> METER_GREEN = 0;
const bit<2> METER_RED   = 2;

#define MAX(A, B) ((A) > (B) ? (A) : (B))

// standard_metadata.instance_type of simple_switch.
const bit<32> INSTANCE_EGRESS_CLONE = 2;
const bit<32> INSTANCE_RECIRCULATED = 4;

// The clone session for losses that egress reports. The controller gives it a port without a link, whose packets egress
// recirculates.
const bit<32> LOSS_SESSION = 1;
#define LOSS_FIELDS 1
#define LOSS_FIELD @field_list(LOSS_FIELDS)

// v1model truncates a packet in place.
#define CAN_TRIM true

// metadata_t has no fields for this target alone.
#define TARGET_METADATA

// Bytes of an Ethernet header.
const bit<32> ETHERNET_LENGTH = 14;
