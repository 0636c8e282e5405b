//! Compiles the shim of libcuda into a shared library, which the crate contains as bytes.

use std::path::PathBuf;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=shim/libcuda.c");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("libcuda.so.1");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        // libcudnn for other systems has no helper: the file says so by its size.
        fs::write(&out, []).expect("the build folder can be written");
        return;
    }
    let compiler = cc::Build::new().opt_level(2).debug(false).warnings(true).get_compiler();
    let mut command = compiler.to_command();
    command.args(["-shared", "-fPIC", "-nostdlib", "-s", "-Wl,-soname,libcuda.so.1", "-o"]);
    command.arg(&out).arg("shim/libcuda.c");
    let status = command.status().expect("a C compiler, which linking needs as well");
    assert!(status.success(), "the shim doesn't compile: {command:?}");
}
