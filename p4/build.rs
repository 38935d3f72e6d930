//! Compresses the compiled programs, 11 MB of them, so that a binary embeds 0.4 MB.

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;

use flate2::Compression;
use flate2::write::DeflateEncoder;

const FILES: [&str; 7] = [
    "tofino/bfrt.json",
    "tofino/pipe/context.json",
    "tofino/pipe/tofino.bin",
    "tofino2/bfrt.json",
    "tofino2/pipe/context.json",
    "tofino2/pipe/tofino2.bin",
    "v1model/ultima.json",
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    for file in FILES {
        let source = Path::new("compiled").join(file);
        println!("cargo::rerun-if-changed={}", source.display());
        let compressed = Path::new(&out).join(format!("{file}.deflate"));
        fs::create_dir_all(compressed.parent().ok_or("a file without a folder")?)?;
        let mut encoder = DeflateEncoder::new(File::create(compressed)?, Compression::default());
        std::io::copy(&mut File::open(source)?, &mut encoder)?;
        encoder.finish()?;
    }
    Ok(())
}
