//! The plugins of the tests: in C, compiled here, and in Rust, built with the examples.

use std::path::{Path, PathBuf};
use std::process::Command;

use keyfold_core::{Error, ErrorKind};
use keyfold_dispatch::Dispatcher;
use keyfold_ffi::plugin;

/// Returns the folder of keyfold's headers.
pub(crate) fn headers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/keyfold/include")
}

/// Compiles a C file into a shared library, with `cc` or `$CC`.
pub(crate) fn compile(source: &Path, library: &Path, flags: &[&str]) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut words = compiler.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["-shared", "-fPIC", "-Wall", "-Werror", "-I"]).arg(headers());
    command.args(flags).arg("-o").arg(library).arg(source);
    assert!(command.status().unwrap().success(), "{source:?} doesn't compile");
}

/// Compiles a source of this folder with one mistake.
pub(crate) fn compiled(source: &str, case: &str) -> PathBuf {
    compiled_as(source, case, &[])
}

/// As [`compiled`], with further flags.
pub(crate) fn compiled_as(source: &str, case: &str, flags: &[&str]) -> PathBuf {
    let stem = Path::new(source).file_stem().unwrap().to_str().unwrap();
    let name = format!("lib{stem}_{case}{}.so", if flags.is_empty() { "" } else { "_other" });
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
    // The shim that CUDA C compiles with as C++, for devices that compile expressions.
    let shim = concat!("-DSHIM=\"", env!("CARGO_MANIFEST_DIR"), "/../expr/tests/shim\"");
    compile(&source, &library, &[&[&*format!("-DCASE={case}"), shim], flags].concat());
    library
}

/// Returns the path of an example of this crate, which `cargo test` builds.
pub(crate) fn example(name: &str) -> PathBuf {
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    let tests = std::env::current_exe().unwrap();
    let name = format!("{DLL_PREFIX}{name}{DLL_SUFFIX}");
    let path = tests.parent().unwrap().with_file_name("examples").join(name);
    assert!(path.exists(), "{path:?} is missing: run `cargo test`, or `cargo build --examples`");
    path
}

/// Returns the error of loading a file; nothing may be registered afterwards.
pub(crate) fn refused(path: &Path) -> Error {
    let dispatcher = Dispatcher::new();
    let error = plugin::load(path, &dispatcher).unwrap_err();
    assert!(dispatcher.operators().is_empty() && dispatcher.kernel_count() == 0, "{error}");
    error
}

#[track_caller]
pub(crate) fn says(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.message().contains(part), "{part:?} is not in: {error}");
    }
}
