//! Ultima's compiled P4 programs, the names of their tables and fields, and the manifests that tie them to their sources.
//!
//! The sources are `ultima_v1model.p4`, `ultima_tna.p4` and `include/`. [`v1model`], [`tofino`] and [`tofino2`] return the
//! compiled programs, which are embedded: a binary needs no checkout. `cargo run -p ultima-p4 --bin p4-recompile` compiles
//! them with the p4c on the PATH.

use std::io::Read as _;
use std::sync::LazyLock;

use flate2::read::DeflateDecoder;

pub mod manifest;
pub mod names;
pub mod normal;
mod schema;

/// Embeds a compiled file that the build script compressed; returns its content.
macro_rules! embedded {
    ($file:literal) => {
        inflate(include_bytes!(concat!(
            env!("OUT_DIR"),
            "/",
            $file,
            ".deflate"
        )))
    };
}

/// A compiled program in the form of P4Runtime's SetForwardingPipelineConfig.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// The target's device configuration. For v1model: p4c's BMv2 JSON.
    pub device_config: &'static [u8],
    /// P4Info in protobuf text format.
    pub p4info: &'static str,
}

/// Returns the program for v1model: BMv2's simple_switch_grpc and the embedded switch.
pub fn v1model() -> Program {
    static JSON: LazyLock<Vec<u8>> = LazyLock::new(|| embedded!("v1model/ultima.json"));
    Program {
        device_config: &JSON,
        p4info: include_str!("../compiled/v1model/ultima.p4info.txtpb"),
    }
}

/// A program that is compiled and assembled for a Tofino: the parts of its P4Runtime device configuration.
#[derive(Clone, Debug)]
pub struct TofinoProgram {
    /// P4Info in protobuf text format.
    pub p4info: &'static str,
    /// The compiler's `bfrt.json`.
    pub bfrt: Vec<u8>,
    /// The assembler's `context.json`.
    pub context: Vec<u8>,
    /// The assembler's `tofino.bin` or `tofino2.bin`.
    pub binary: Vec<u8>,
}

/// Returns the program for Tofino.
pub fn tofino() -> TofinoProgram {
    TofinoProgram {
        p4info: include_str!("../compiled/tofino/ultima.p4info.txtpb"),
        bfrt: embedded!("tofino/bfrt.json"),
        context: embedded!("tofino/pipe/context.json"),
        binary: embedded!("tofino/pipe/tofino.bin"),
    }
}

/// Returns the program for Tofino 2.
pub fn tofino2() -> TofinoProgram {
    TofinoProgram {
        p4info: include_str!("../compiled/tofino2/ultima.p4info.txtpb"),
        bfrt: embedded!("tofino2/bfrt.json"),
        context: embedded!("tofino2/pipe/context.json"),
        binary: embedded!("tofino2/pipe/tofino2.bin"),
    }
}

/// Decompresses an embedded file.
fn inflate(compressed: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    DeflateDecoder::new(compressed)
        .read_to_end(&mut content)
        .expect("the build script compressed it");
    content
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    #[test]
    fn embedded_programs_are_the_compiled_files() {
        let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("compiled");
        for (program, target) in [(super::tofino(), "tofino"), (super::tofino2(), "tofino2")] {
            let binary = format!("pipe/{target}.bin");
            for (content, file) in [
                (program.bfrt, "bfrt.json"),
                (program.context, "pipe/context.json"),
                (program.binary, &binary),
            ] {
                let file = compiled.join(target).join(file);
                assert!(content == fs::read(&file).unwrap(), "{}", file.display());
            }
        }
    }
}
