//! Text that a plugin passes. It is checked, since plugins in C pass texts of drivers, too.

use std::borrow::Cow;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_plugin::abi::Text;

/// # Safety
/// `text` points to `len` bytes, alive for `'a`, unless it is null.
unsafe fn bytes<'a>(text: Text) -> Option<&'a [u8]> {
    match (text.data.is_null(), text.len) {
        (_, 0) => Some(&[]),
        (true, _) => None,
        // SAFETY: the contract.
        (false, len) => Some(unsafe { std::slice::from_raw_parts(text.data, len) }),
    }
}

/// Returns a text. `what` names it in messages.
///
/// # Errors
/// [`ErrorKind::Registration`] if it is null or isn't UTF-8.
///
/// # Safety
/// As for the ABI: `text` points to `len` bytes, alive for `'a`, unless it is null.
pub(super) unsafe fn checked<'a>(text: Text, what: &str) -> Result<&'a str> {
    // SAFETY: the contract.
    let reason = match unsafe { bytes(text) }.map(std::str::from_utf8) {
        Some(Ok(text)) => return Ok(text),
        Some(Err(error)) => format!("it isn't UTF-8 from byte {} on", error.valid_up_to()),
        None => format!("it is null and has {} bytes", text.len),
    };
    Err(Error::new(ErrorKind::Registration, format!("{what} is at fault: {reason}")))
}

/// Returns a text for a message: bytes that aren't UTF-8 are replaced, and null is empty.
///
/// # Safety
/// As for [`checked`].
pub(super) unsafe fn shown<'a>(text: Text) -> Cow<'a, str> {
    // SAFETY: the contract.
    String::from_utf8_lossy(unsafe { bytes(text) }.unwrap_or_default())
}
