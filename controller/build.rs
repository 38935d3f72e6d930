//! Compiles the part of etcd's proto that the controller uses, with a compiler written in Rust, so that no protoc is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        // They have a password, a token, or jobs' keys, which nothing must print.
        .skip_debug([
            "etcdserverpb.AuthenticateRequest",
            "etcdserverpb.AuthenticateResponse",
            "etcdserverpb.KeyValue",
            "etcdserverpb.PutRequest",
            "etcdserverpb.Compare",
        ])
        .compile_fds(files)?;
    Ok(())
}
