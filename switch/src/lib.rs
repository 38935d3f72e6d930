//! Embedded v1model switch: runs p4c's BMv2 JSON and serves P4Runtime

pub mod config;
pub mod engine;
mod pcap;
mod port;
pub mod stats;
pub mod tm;
