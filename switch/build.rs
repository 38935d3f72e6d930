//! Compiles `proto/` to Rust with protox: no protoc is needed.

use std::error::Error;

const FILES: [&str; 4] = [
    "ultima/switch/v1/port_control.proto",
    "ultima/switch/v1/ports.proto",
    "ultima/switch/v1/trace.proto",
    "ultima/switch/v1/traffic_manager.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
