//! Compiles `proto/` to Rust with a compiler written in Rust (protox), so that a machine with
//! nothing but the Rust toolchain builds the workspace.

use prost::Message as _;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");

    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files([
        "p4/v1/p4runtime.proto",
        "stratum/hal/barefoot/bf.proto",
        "stratum/hal/chassis.proto",
    ])?;
    let mut files = compiler.file_descriptor_set();

    // Messages of google.rpc and p4.config.v1 come along as imports: the set holds every file,
    // and prost generates one module for each package in it.
    let mut config = tonic_prost_build::Config::new();
    // Type names let messages travel in an `Any`; ordered maps make equal messages print equally.
    config
        .enable_type_names()
        .type_name_domain(["."], "type.googleapis.com")
        .btree_map(["."]);
    tonic_prost_build::configure()
        .codec_path("crate::bounded::BoundedCodec")
        .compile_fds_with_config(files.clone(), config)?;

    // Comments have become rustdoc; the descriptors embedded in the library need only the facts.
    for file in &mut files.file {
        file.source_code_info = None;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    std::fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    Ok(())
}
