//! Writing past the caches.

/// Copies bytes to memory that won't be read soon: without reading the lines that are written
/// first, which ordinary stores do.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline]
pub(crate) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; every x86-64 has SSE2.
    unsafe {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        let head = dst.align_offset(64).min(len);
        std::ptr::copy_nonoverlapping(src, dst, head);
        let lines = (len - head) / 64;
        for line in 0..lines {
            let from = src.add(head + line * 64).cast::<__m128i>();
            let to = dst.add(head + line * 64).cast::<__m128i>();
            let parts = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, part) in parts.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), part);
            }
        }
        let done = head + lines * 64;
        std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done);
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, len);
    }
}

/// Makes what was streamed visible to other threads before anything that follows.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
