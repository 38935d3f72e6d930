//! The binary `ultima`, run as a user runs it.

mod common;

mod access;
mod agent;
mod apply;
mod bad_input;
mod bench;
mod completions;
mod demo;
mod docs;
mod fabric;
mod get;
mod job;
mod keys;
mod lab;
mod metrics;
mod operation_trace;
mod simple_switch_grpc;
mod standby;
mod switch_port;
mod switch_trace;
mod telemetry;
mod tls;
mod traffic_manager;
mod wire;
