//! The elements of inputs and outputs, which threads access by their offsets.

use std::marker::PhantomData;

use keyfold_core::Result;
use keyfold_tensor::Tensor;

use crate::bits::{self, Bits};

/// The address of an input's first element.
pub(super) struct Elements<B>(*const B);

impl<B> Clone for Elements<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Elements<B> {}

// SAFETY: the elements are only read.
unsafe impl<B: Bits> Sync for Elements<B> {}

impl<B: Bits> Elements<B> {
    /// # Errors
    /// As [`bits::strided_slice`].
    pub(super) fn of(x: &Tensor) -> Result<Self> {
        let (data, origin) = bits::strided_slice::<B>(x)?;
        Ok(Elements(data.as_ptr().wrapping_add(origin)))
    }

    /// The address of the element at an offset from the first.
    #[inline(always)]
    pub(super) fn address(self, offset: isize) -> *const B {
        self.0.wrapping_offset(offset)
    }

    /// # Safety
    /// The offset is that of an element, from the first.
    #[inline(always)]
    pub(super) unsafe fn at(self, offset: isize) -> B {
        // SAFETY: the caller's promise.
        unsafe { *self.address(offset) }
    }
}

/// The elements of a contiguous output, of which each thread writes its own.
pub(super) struct Targets<'a, B> {
    first: *mut B,
    lent: PhantomData<&'a mut [B]>,
}

// SAFETY: callers of the unsafe methods promise to access separate elements.
unsafe impl<B: Bits> Sync for Targets<'_, B> {}

impl<'a, B: Bits> Targets<'a, B> {
    pub(super) fn new(items: &'a mut [B]) -> Self {
        Targets { first: items.as_mut_ptr(), lent: PhantomData }
    }

    #[inline(always)]
    pub(super) fn address(&self, offset: isize) -> *mut B {
        self.first.wrapping_offset(offset)
    }

    /// # Safety
    /// These elements are inside, and no other thread accesses them.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "callers promise that the rows don't overlap")]
    pub(super) unsafe fn row(&self, offset: isize, len: usize) -> &mut [B] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.address(offset), len) }
    }
}

/// Fetches the first lines of a row into the cache; the processor fetches the others itself.
#[inline(always)]
pub(super) fn prefetch<B>(row: *const B, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..(len * size_of::<B>()).min(256)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch accesses no memory that the program can observe.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(row.cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (row, len);
}
