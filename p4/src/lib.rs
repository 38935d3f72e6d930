//! Ultima's P4 programs as p4c compiled them, the names that they give to things, and the manifest
//! that ties the compiled files to their sources.
//!
//! The sources are `ultima_v1model.p4` and `include/`; [`v1model`] is what p4c printed for them,
//! embedded, so that a binary needs no checkout. `cargo run -p ultima-p4 --bin p4-recompile` prints
//! it anew where p4c is on the PATH.

pub mod manifest;
pub mod names;

/// A compiled program, in the form that P4Runtime's SetForwardingPipelineConfig takes.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The target's device configuration: for v1model p4c's BMv2 JSON.
    pub device_config: &'static [u8],
    /// P4Info in protobuf text format.
    pub p4info: &'static str,
}

/// Ultima for v1model: BMv2's simple_switch_grpc and the embedded switch.
pub fn v1model() -> Program {
    Program {
        device_config: include_bytes!("../compiled/v1model/ultima.json"),
        p4info: include_str!("../compiled/v1model/ultima.p4info.txtpb"),
    }
}
