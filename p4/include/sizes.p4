// Sizes of tables and arrays: the same on every target, so that a job that fits one fits the others. docs/tofino.md has the room
// of a Tofino.

const bit<32> MAX_PORTS        = 512;
const bit<32> MAX_JOBS         = 1024;
const bit<32> MAX_SOURCES      = 16384;
const bit<32> MAX_DESTINATIONS = 16384;
// Sources whose host is linked to this switch, from 1.
const bit<32> MAX_HOST_SOURCES = 2048;
// Pairs of a job and an egress port, from 1.
const bit<32> MAX_SHARES       = 2048;
const bit<32> MAX_REPLICAS     = 16384;
const bit<32> MAX_ROUTES       = 4096;
const bit<32> MAX_NEIGHBORS    = 4096;
