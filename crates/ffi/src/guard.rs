//! Catches C++ exceptions of kernels, which the ABI forbids.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::abi::{Any, SafeCall};

unsafe extern "C-unwind" {
    /// In `shim/guard.cc`: calls the function; `thrown` gets the text of an exception, from malloc.
    fn keyfold_ffi_guarded_call(
        function: SafeCall,
        handle: *mut c_void,
        args: *const Any,
        count: i32,
        result: *mut Any,
        thrown: *mut *mut c_char,
    ) -> c_int;
}

/// Calls a function of the ABI.
///
/// # Errors
/// The text of a C++ exception that left the function.
///
/// # Safety
/// The function keeps to the ABI, except that it may throw. `args` are valid for the call, and
/// `result` is None.
#[inline]
pub unsafe fn call(
    function: SafeCall,
    handle: *mut c_void,
    args: &[Any],
    result: &mut Any,
) -> Result<c_int, String> {
    let mut thrown: *mut c_char = null_mut();
    // SAFETY: the caller's contract.
    let code = unsafe {
        let (values, count) = (args.as_ptr(), args.len() as i32);
        keyfold_ffi_guarded_call(function, handle, values, count, result, &raw mut thrown)
    };
    if thrown.is_null() { Ok(code) } else { Err(text_of(thrown)) }
}

#[cold]
fn text_of(thrown: *mut c_char) -> String {
    // SAFETY: the text is zero-terminated, from malloc, and owned here.
    unsafe {
        let text = CStr::from_ptr(thrown).to_string_lossy().into_owned();
        libc::free(thrown.cast());
        text
    }
}
