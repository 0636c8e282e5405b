//! Compiles the stand-in for TVM FFI's library, which the target `tvm_values` loads.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=standin/tvm_ffi.c");
    let library = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"))
        .join("libtvm_ffi_standin.so");
    let compiler = cc::Build::new().get_compiler();
    let done = Command::new(compiler.path())
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-o"])
        .arg(&library)
        .arg("standin/tvm_ffi.c")
        .status();
    assert!(done.is_ok_and(|status| status.success()), "the stand-in doesn't compile");
    println!("cargo:rustc-env=KEYFOLD_FUZZ_STANDIN={}", library.display());
}
