// Types of externs that shared control blocks use, and constants, for v1model. target_tna.p4 has the same names for Tofino.

typedef counter<bit<16>> counter_t;
typedef counter<bit<16>> packet_counter_t;
const CounterType PACKETS_AND_BYTES = CounterType.packets_and_bytes;
const CounterType PACKETS = CounterType.packets;

// Counts a frame. Tofino subtracts other bytes at egress than at ingress; v1model's frames have none to subtract.
control CountAtIngress(counter_t cells, in bit<16> index) {
    apply {
        cells.count(index);
    }
}

control CountAtEgress(counter_t cells, in bit<16> index) {
    apply {
        cells.count(index);
    }
}

// Two-rate, three-colour, colour-blind (RFC 2698), in bytes of the received frame. A cell without a configuration
// returns green.
typedef meter<bit<16>> meter_t;
typedef bit<2> meter_color_t;
const MeterType BYTES = MeterType.bytes;
const meter_color_t METER_GREEN = 0;
const meter_color_t METER_RED   = 2;

// Charges a meter with a frame.
control ExecuteAtEgress(meter_t cells, in bit<16> index, out meter_color_t color) {
    apply {
        cells.execute_meter(index, color);
    }
}

bit<32> max(in bit<32> a, in bit<32> b) {
    return a > b ? a : b;
}

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
