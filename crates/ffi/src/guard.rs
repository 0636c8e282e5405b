//! C++ exceptions that leave a kernel, which the ABI forbids and authors forget.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use crate::abi::{Any, SafeCall};

unsafe extern "C-unwind" {
    /// In `shim/guard.cc`: the call, and in `thrown` the text of what was thrown, from malloc.
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
/// The function keeps to the ABI (but for exceptions); `args` are `count` values that are good for
/// the call, and `result` is None.
#[inline]
pub unsafe fn call(
    function: SafeCall,
    handle: *mut c_void,
    args: &[Any],
    result: &mut Any,
) -> Result<c_int, String> {
    let mut thrown: *mut c_char = null_mut();
    // SAFETY: the caller's promise.
    let code = unsafe {
        let (values, count) = (args.as_ptr(), args.len() as i32);
        keyfold_ffi_guarded_call(function, handle, values, count, result, &raw mut thrown)
    };
    if thrown.is_null() { Ok(code) } else { Err(text_of(thrown)) }
}

#[cold]
fn text_of(thrown: *mut c_char) -> String {
    // SAFETY: the shim made the text with malloc and gives it away.
    unsafe {
        let text = CStr::from_ptr(thrown).to_string_lossy().into_owned();
        libc::free(thrown.cast());
        text
    }
}
