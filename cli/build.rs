//! Packs the addresses in the binary that the loader relocates (DT_RELR), which makes it about a megabyte smaller.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name, value: &str| env::var(name).is_ok_and(|it| it == value);
    let is_native = env::var("HOST") == env::var("TARGET");
    let is_glibc = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if is_native && is_glibc && loader_reads_packed_addresses() {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// True if this machine has glibc 2.36 or newer. The binary would not start with an older one.
fn loader_reads_packed_addresses() -> bool {
    let version = || {
        let output = Command::new("getconf")
            .arg("GNU_LIBC_VERSION")
            .output()
            .ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    version().is_some_and(|version: (u32, u32)| version >= (2, 36))
}
