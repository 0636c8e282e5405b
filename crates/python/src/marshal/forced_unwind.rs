//! Threads that the interpreter ends while they are inside Rust.
//!
//! Up to 3.13, a daemon thread that wants the GIL once the interpreter has begun to end is ended by
//! CPython with `pthread_exit`. That unwinds the thread's stack: a forced unwinding, which no frame may
//! stop. A Rust frame that catches panics, as each entry from Python does, or that mustn't unwind
//! answers it by ending the process. A thread can be ended so wherever Rust called Python, directly
//! or through PyO3, or gave the GIL away.
//!
//! The unwinder goes up the stack and asks the personality routine of each frame what the frame has
//! to do. The tables of all Rust frames in this library (PyO3's are among them) reach Rust's routine
//! through one pointer in memory; `init` puts the address of [`personality`] there, which stops the
//! thread for ever at the first Rust frame, as CPython itself does from 3.14 on. That frame and those
//! below it aren't unwound: what they lent to other threads stays valid, and locks that they hold stay
//! held. Frames above it, which Rust called, were unwound before: CPython's, which clean nothing up, and
//! those of C++ libraries, whose destructors ran. The thread doesn't hold the GIL.
//!
//! Exceptions and panics go to Rust's own routine, calls pay nothing, and no way into Python can be
//! forgotten. A library with Rust frames of its own, a plugin say, has its own pointer, which stays as it
//! is: it calls Python through this library, whose frames are asked first.
//!
//! Source: "Itanium C++ ABI: Exception Handling", 1.3 and 2.5; CPython's issue 87135.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// `_UA_FORCE_UNWIND`: the action of `pthread_exit` and of thread cancellation, and of no exception or
/// panic.
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

/// Stops a thread whose stack is being unwound by force; for exceptions and panics it does what Rust's
/// own routine does.
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

/// From now on, a thread that is ended with Rust frames on its stack stops at the first of them.
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
