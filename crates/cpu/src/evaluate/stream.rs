//! Writing past the caches.

use keyfold_expr::eval::memory::prefetch;

/// Bytes of a line of the cache.
pub(super) const LINE: usize = 64;

/// Shorter runs are written as usual: their first and last lines, which are shared with other runs,
/// would cost more than is saved.
pub(super) const SHORTEST: usize = 1024;

/// Copies bytes to memory that won't be read soon: without reading the lines that are written
/// first, which ordinary stores do. Meanwhile it asks for the operands' next blocks: each pointer
/// with how many bytes are wanted for a line of `dst`.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`]; the pointers of operands may be any.
#[inline]
pub(crate) unsafe fn copy(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    next: impl Iterator<Item = (*const u8, usize)> + Clone,
) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; every x86-64 has SSE2.
    unsafe {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
        let head = dst.align_offset(LINE).min(len);
        if head > 0 {
            std::ptr::copy_nonoverlapping(src, dst, head);
        }
        let lines = (len - head) / LINE;
        for line in 0..lines {
            for (operand, bytes) in next.clone() {
                for at in (0..bytes).step_by(LINE) {
                    prefetch(operand.wrapping_add(line * bytes + at));
                }
            }
            let from = src.add(head + line * LINE).cast::<__m128i>();
            let to = dst.add(head + line * LINE).cast::<__m128i>();
            let parts = [0, 1, 2, 3].map(|i| _mm_loadu_si128(from.add(i)));
            for (i, part) in parts.into_iter().enumerate() {
                _mm_stream_si128(to.add(i), part);
            }
        }
        let done = head + lines * LINE;
        if done < len {
            std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        let _ = (next, LINE);
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
