//! Generates Rust code from the protocol without an installed `protoc`.

use std::{env, fs, path::PathBuf};

const FILES: [&str; 4] = [
    "djinn/v1/models.proto",
    "djinn/v1/server.proto",
    "djinn/v1/sessions.proto",
    "djinn/v1/tensor.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_source_info(true).include_imports(true);
    compiler.open_files(FILES)?;
    let files = compiler.file_descriptor_set();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    // The reference documentation is generated from the comments.
    fs::write(
        out.join("commented.binpb"),
        compiler.encode_file_descriptor_set(),
    )?;
    // Reflection and the Python package use the descriptors without comments.
    let bare = protox::Compiler::new(["proto"])?
        .include_imports(true)
        .open_files(FILES)?
        .encode_file_descriptor_set();
    fs::write(out.join("djinn.binpb"), bare)?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}
