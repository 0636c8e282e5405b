//! Memory that threads share.

use keyfold_core::{Error, ErrorKind, Result};

use super::lanes::Real;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// The address of numbers that threads write to, each to its own.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(pub(super) *mut T);

// SAFETY: an address alone accesses nothing; the code that uses it has to say why it may.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T> Shared<T> {
    /// The address of an element.
    pub(super) fn at(self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }
}

/// Makes memory of that many numbers, all 0.
pub(super) fn scratch<T: Real>(len: usize) -> Vec<T> {
    vec![T::ZERO; len]
}

/// Memory of one thread, which grows; it begins at a cache line, so that no register lies across two.
pub(super) struct Lines<T>(Vec<T>);

impl<T: Real> Lines<T> {
    /// Memory of no numbers.
    pub(super) fn new() -> Self {
        Lines(Vec::new())
    }

    /// Returns at least that many numbers; what they are is not defined.
    pub(super) fn of(&mut self, len: usize) -> &mut [T] {
        let whole = len + LINE / size_of::<T>();
        if self.0.len() < whole {
            self.0 = scratch(whole);
        }
        let first = self.0.as_ptr().align_offset(LINE);
        &mut self.0[first..][..len]
    }
}

/// Makes memory of as many numbers as the product of sizes, all 0.
///
/// # Errors
/// [`ErrorKind::Memory`] if there isn't as much.
pub(super) fn scratch_of<T: Real>(sizes: &[usize]) -> Result<Vec<T>> {
    let len = sizes.iter().try_fold(1_usize, |len, size| len.checked_mul(*size));
    match len.filter(|len| Vec::<T>::new().try_reserve_exact(*len).is_ok()) {
        Some(len) => Ok(scratch(len)),
        None => {
            let message =
                format!("can't allocate host memory for {sizes:?} numbers of the padded input");
            Err(Error::new(ErrorKind::Memory, message))
        }
    }
}
