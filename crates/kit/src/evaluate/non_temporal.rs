//! Copies by non-temporal stores.

use crate::interpreter::access::prefetch;
pub(super) use crate::interpreter::streaming::LINE;
use crate::interpreter::streaming::stream_line;
use crate::isa::{Isa, Work, dispatch};

/// Shorter runs are written by ordinary stores: their first and last lines, which are shared with other
/// runs, would cost more than non-temporal stores save.
pub(super) const MIN_RUN_BYTES: usize = 1024;

/// Copies bytes by non-temporal stores, which don't read the written lines first: for memory that won't
/// be read soon. Meanwhile it prefetches the operands' next blocks: `next` has each one's address and
/// the bytes to prefetch per line of `dst`.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`]; the operands' pointers may be any.
#[inline]
pub(crate) unsafe fn copy(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    next: impl Iterator<Item = (*const u8, usize)> + Clone,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let head = dst.align_offset(LINE).min(len);
        if head > 0 {
            std::ptr::copy_nonoverlapping(src, dst, head);
        }
        let lines = (len - head) / LINE;
        dispatch(Lines { dst: dst.add(head), src: src.add(head), lines, next });
        let done = head + lines * LINE;
        if done < len {
            std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), len - done);
        }
    }
}

/// A copy of whole cache lines.
struct Lines<N> {
    dst: *mut u8,
    src: *const u8,
    lines: usize,
    next: N,
}

impl<N: Iterator<Item = (*const u8, usize)> + Clone> Work for Lines<N> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for line in 0..self.lines {
            for (operand, bytes) in self.next.clone() {
                for at in (0..bytes).step_by(LINE) {
                    prefetch(operand.wrapping_add(line * bytes + at));
                }
            }
            let (to, from) =
                (self.dst.wrapping_add(line * LINE), self.src.wrapping_add(line * LINE));
            // SAFETY: the contract of `copy`; `to` begins a line.
            unsafe { stream_line::<I>(to, from) };
        }
    }
}

/// Orders non-temporal stores before all later stores, so that other threads see them.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
