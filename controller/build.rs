//! Compiles the control API's proto with a compiler written in Rust, so that no protoc is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(
        [
            "ultima/control/v1/control.proto",
            "ultima/control/v1/replication.proto",
        ],
        ["proto"],
    )?;
    tonic_prost_build::configure()
        // They have jobs' keys, which nothing must print: `src/api.rs` says what is shown.
        .skip_debug([
            "ultima.control.v1.JoinResponse",
            "ultima.control.v1.Changed",
            "ultima.control.v1.Copy",
        ])
        .compile_fds(files)?;
    Ok(())
}
