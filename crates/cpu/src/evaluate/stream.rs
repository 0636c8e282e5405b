//! Writing past the caches.

use keyfold_expr::eval::memory::prefetch;
use keyfold_expr::isa::{Isa, Level, Work, dispatch};

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

/// Whole lines of the cache.
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
            // SAFETY: the promise of whoever calls `copy`; `to` begins a line.
            unsafe { stream_line::<I>(to, from) };
        }
    }
}

/// The widest stores there are: a store waits in the processor until the line is on its way, and
/// fewer of them leave more room for what is computed meanwhile.
///
/// # Safety
/// `from` can be read and `to` written for a line, which `to` begins; the processor has the level.
#[inline(always)]
unsafe fn stream_line<I: Isa>(to: *mut u8, from: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise; every x86-64 has SSE2.
    unsafe {
        use std::arch::x86_64::{
            __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_stream_si128, _mm256_loadu_si256,
            _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
        };
        match I::LEVEL {
            Level::Avx512 => _mm512_stream_si512(
                to.cast::<__m512i>(),
                _mm512_loadu_si512(from.cast::<__m512i>()),
            ),
            Level::Avx2 => {
                for half in 0..2 {
                    let part = _mm256_loadu_si256(from.cast::<__m256i>().add(half));
                    _mm256_stream_si256(to.cast::<__m256i>().add(half), part);
                }
            }
            Level::Baseline => {
                for quarter in 0..4 {
                    let part = _mm_loadu_si128(from.cast::<__m128i>().add(quarter));
                    _mm_stream_si128(to.cast::<__m128i>().add(quarter), part);
                }
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, LINE);
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
