//! Memory that threads share.

use super::lanes::Real;

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
