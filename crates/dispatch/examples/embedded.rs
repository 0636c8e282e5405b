//! A library that embeds the dispatcher. A test closes it while a thread that called operators is
//! alive (`tests/unloading.rs`).

use std::sync::OnceLock;

use keyfold_dispatch::DispatchKey as K;
use support::{D, list, says};

#[path = "../tests/support/mod.rs"]
mod support;

/// Calls an operator and returns whether that worked.
#[unsafe(no_mangle)]
extern "C" fn embedded_call() -> bool {
    static D: OnceLock<D> = OnceLock::new();
    let d = D.get_or_init(|| {
        let d = D::new();
        d.register("op", K::CPU, says("cpu")).unwrap();
        d
    });
    d.call("op", &[list(K::CPU).r()]).is_ok()
}
