//! Tests of a running switch, over sockets, interfaces and P4Runtime.

mod arbitration;
mod authority;
mod bounds;
mod common;
mod digests;
mod drop_in;
mod entities;
mod forwarding;
mod gnmi;
mod idle_timeouts;
mod interfaces;
mod link;
mod load;
mod packet_io;
mod pipeline_config;
mod ports;
mod setup;
mod tls;
mod trace;
mod traffic_manager;
