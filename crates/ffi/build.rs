//! Compiles the shim that keeps C++ exceptions from leaving foreign kernels.

fn main() {
    println!("cargo:rerun-if-changed=shim/guard.cc");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .flag_if_supported("-fexceptions")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(false)
        .file("shim/guard.cc")
        .compile("keyfold_ffi_guard");
}
