//! Compiles the control API's proto with a compiler written in Rust, so that no protoc is needed.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(
        [
            "ultima/control/v1/control.proto",
            "ultima/control/v1/leadership.proto",
        ],
        ["proto"],
    )?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), files.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_server(env::var_os("CARGO_FEATURE_SERVER").is_some())
        // They have jobs' keys and tokens of seats, which nothing must print: `src/v1.rs` says what is shown.
        .skip_debug([
            "ultima.control.v1.JoinRequest",
            "ultima.control.v1.JoinResponse",
            "ultima.control.v1.LeaveRequest",
            "ultima.control.v1.Attendance",
        ])
        .compile_fds(files)?;
    Ok(())
}
