// How v1model spells what the shared control blocks use: counters of packets and bytes.
// Another target brings a file with the same macros.

#define COUNTER(SIZE) counter(SIZE, CounterType.packets_and_bytes)
#define COUNT(NAME, INDEX) NAME.count((bit<32>)(INDEX))
