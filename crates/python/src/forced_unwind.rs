//! Threads that the interpreter ends while they are inside Rust.
//!
//! Up to 3.13, CPython ends a daemon thread that wants the GIL after the interpreter is gone with
//! `pthread_exit`, which unwinds the thread's stack: a forced unwinding, which nobody may stop and
//! which Rust's frames can't let pass. Rust answers it by ending the process. Wherever Rust called
//! Python, directly or through PyO3, or gave the GIL away, such a thread may be.
//!
//! The unwinder asks the personality routine of each frame what the frame has to do. Compilers reach
//! the routine through a pointer, one for all frames of Rust in this library; `init` puts a routine
//! there that stops the thread for ever at the first of them, as CPython itself does from 3.14 on.
//! Until then nothing was unwound: what other threads may see of this stack stays as it is. Calls
//! pay nothing, and no way into Python can be forgotten.
//!
//! Source: "Itanium C++ ABI: Exception Handling", 1.3 and 2.5; CPython's issue 87135.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `_UA_FORCE_UNWIND`: not an exception or a panic, which are looked for a handler first.
const FORCED: c_int = 8;

type Personality = unsafe extern "C" fn(
    version: c_int,
    actions: c_int,
    class: u64,
    exception: *mut c_void,
    context: *mut c_void,
) -> c_int;

unsafe extern "C" {
    /// Where the tables of this library's Rust frames find the personality routine.
    #[link_name = "DW.ref.rust_eh_personality"]
    static ROUTINE: AtomicPtr<()>;
}

/// Rust's own routine.
static RUST: OnceLock<Personality> = OnceLock::new();

/// Stops a thread whose stack is being unwound by force; all else is as Rust's own routine says.
unsafe extern "C" fn personality(
    version: c_int,
    actions: c_int,
    class: u64,
    exception: *mut c_void,
    context: *mut c_void,
) -> c_int {
    match RUST.get() {
        Some(rust) if actions & FORCED == 0 => {
            // SAFETY: the unwinder's own arguments.
            unsafe { rust(version, actions, class, exception, context) }
        }
        _ => loop {
            std::thread::park();
        },
    }
}

/// From now on, a thread that is ended inside Rust stops there.
pub(crate) fn init() {
    RUST.get_or_init(|| {
        // SAFETY: the compiler makes the variable, holding the address of a personality routine.
        let routine = unsafe { ROUTINE.load(Ordering::Relaxed) };
        // SAFETY: as above; the signature is the ABI's.
        unsafe { std::mem::transmute::<*mut (), Personality>(routine) }
    });
    // SAFETY: as above. It is in writable memory, and the unwinder reads it with one load.
    unsafe { ROUTINE.store(personality as Personality as *mut (), Ordering::Release) };
}
