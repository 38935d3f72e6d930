// How v1model spells what the shared control blocks use: counters of packets and bytes, byte meters and
// registers. Another target brings a file with the same macros.

#define COUNTER(SIZE) counter(SIZE, CounterType.packets_and_bytes)
#define COUNT(NAME, INDEX) NAME.count((bit<32>)(INDEX))

// Two-rate, three-colour, colour-blind (RFC 2698); bytes of the frame as it came in. One that nobody
// configured says green.
#define METER(SIZE) meter(SIZE, MeterType.bytes)
#define METER_EXECUTE(NAME, INDEX, COLOR) NAME.execute_meter<bit<2>>((bit<32>)(INDEX), COLOR)

const bit<2> METER_GREEN = 0;
const bit<2> METER_RED   = 2;

#define REGISTER(TYPE, SIZE) register<TYPE>(SIZE)
#define REGISTER_READ(NAME, INDEX, VALUE) NAME.read(VALUE, (bit<32>)(INDEX))
#define REGISTER_WRITE(NAME, INDEX, VALUE) NAME.write((bit<32>)(INDEX), VALUE)

// standard_metadata.instance_type of simple_switch: a copy of a packet in egress, a packet that is through
// ingress again.
const bit<32> INSTANCE_EGRESS_CLONE = 2;
const bit<32> INSTANCE_RECIRCULATED = 4;

// The clone session of packets that tell the controller of a loss, and its field list. The controller gives the
// session a port that no link has: what it sends there is recirculated.
const bit<32> LOSS_SESSION = 1;
const bit<8>  LOSS_FIELDS  = 1;
