//! Compiles `proto/` to Rust with protox: no protoc is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["gnmi/gnmi.proto"], ["proto"])?;
    // Ordered maps make equal messages print equally.
    let mut config = tonic_prost_build::Config::new();
    config.btree_map(["."]);
    tonic_prost_build::configure().compile_fds_with_config(files, config)?;
    Ok(())
}
