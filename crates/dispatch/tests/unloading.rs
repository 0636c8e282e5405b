//! A host closes a library with keyfold in it (`examples/embedded.rs`) while a thread that called
//! its operators is alive.

use std::ffi::CString;
use std::sync::{Arc, Barrier};

/// Returns the path of the example, which `cargo test` builds.
fn library() -> CString {
    let tests = std::env::current_exe().unwrap();
    let name = format!("{}embedded{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let path = tests.parent().unwrap().with_file_name("examples").join(name);
    assert!(path.exists(), "{path:?} is missing: run `cargo test`, or `cargo build --examples`");
    CString::new(path.to_str().unwrap()).unwrap()
}

#[test]
fn a_closed_library_stays_for_the_threads_that_end_later() {
    let name = library();
    // SAFETY: a library of this workspace, whose initialisation does nothing.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null());
    // SAFETY: an open library, and a name.
    let symbol = unsafe { libc::dlsym(library, c"embedded_call".as_ptr()) };
    assert!(!symbol.is_null());
    // SAFETY: the example's function, of this type.
    let call = unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> bool>(symbol) };
    let barrier = Arc::new(Barrier::new(2));
    let thread = std::thread::spawn({
        let barrier = Arc::clone(&barrier);
        move || {
            let worked = call();
            barrier.wait();
            barrier.wait();
            worked
        }
    });
    barrier.wait();
    // SAFETY: an open library, whose function isn't called any more.
    assert_eq!(unsafe { libc::dlclose(library) }, 0);
    // SAFETY: a name; nothing is loaded.
    let still = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    assert!(!still.is_null(), "the library was unloaded, and a thread of its lives");
    barrier.wait();
    assert!(thread.join().unwrap());
}
