//! Embedded v1model switch: runs p4c's BMv2 JSON and serves P4Runtime
