//! Conversions of dense elements from any dtype to any other, by the evaluator's loops: for kernels that read
//! tensors of other dtypes than they compute in, so that no kernel compiles a loop for each pair of dtypes.
//!
//! ```
//! use keyfold_core::{DType, f16};
//! use keyfold_kit::interpreter::conversion::Conversion;
//!
//! let (x, mut y) = ([1.5, -2.0].map(f16::from_f32), [0_i64; 2]);
//! let convert = Conversion::between(DType::F16, DType::I64).expect("halves convert to integers");
//! // SAFETY: both have two elements of these dtypes.
//! unsafe { convert.run(x.as_ptr().cast(), 2, y.as_mut_ptr().cast()) };
//! assert_eq!(y, [1, -2]);
//! ```

use std::mem::MaybeUninit;
use std::ptr::null;

use keyfold_core::{DType, bf16, f16};
use smallvec::SmallVec;

use super::cast::cast;
use super::kernel::{Map1, Run, unary_kernel};
use crate::half::Half;
use crate::isa::Isa;

/// The loops of a conversion. A half is widened first, and a bool's byte made 0 or 1.
#[derive(Clone, Copy, Debug)]
pub struct Conversion {
    /// Bytes of an element.
    size: usize,
    first: Loop,
    /// The others, if there are any.
    rest: [Option<Loop>; 2],
}

/// A loop, and the size of the elements that it writes.
#[derive(Clone, Copy, Debug)]
struct Loop {
    run: Run,
    size: usize,
}

/// Elements that are converted at a time where there are several loops.
const CHUNK: usize = 512;

impl Conversion {
    /// Returns the conversion between two dtypes, with the semantics of Rust's `as`; `None` to a half, and from a
    /// complex number to a real one.
    pub fn between(from: DType, to: DType) -> Option<Conversion> {
        Conversion::along(from, &[to])
    }

    /// As [`Conversion::between`], by way of a third dtype, at whose limits a float saturates.
    pub fn by_way_of(middle: DType, from: DType, to: DType) -> Option<Conversion> {
        Conversion::along(from, &[middle, to])
    }

    fn along(from: DType, path: &[DType]) -> Option<Conversion> {
        let (size, mut from) = (from.size(), from);
        let mut loops = SmallVec::<[Loop; 3]>::new();
        let first = match from {
            DType::F16 | DType::BF16 => Some(DType::F32),
            DType::Bool => Some(DType::Bool),
            _ => None,
        };
        for to in first.into_iter().chain(path.iter().copied()) {
            if loops.is_empty() || from != to {
                loops.push(Loop { run: one_loop(from, to)?, size: to.size() });
            }
            from = to;
        }
        let mut loops = loops.into_iter();
        Some(Conversion { size, first: loops.next()?, rest: [loops.next(), loops.next()] })
    }

    /// Converts `len` elements.
    ///
    /// # Safety
    /// They are of the first dtype, aligned and readable; there is room for as many of the last one, and the two
    /// don't overlap.
    pub unsafe fn run(&self, from: *const u8, len: usize, to: *mut u8) {
        let [Some(second), third] = self.rest else {
            // SAFETY: the caller's promise.
            return unsafe { self.first.run(from, len, to) };
        };
        let last = third.unwrap_or(second);
        let mut chunks = [[MaybeUninit::<u64>::uninit(); CHUNK]; 2];
        let [a, b] = chunks.each_mut().map(|chunk| chunk.as_mut_ptr().cast::<u8>());
        for start in (0..len).step_by(CHUNK) {
            let count = CHUNK.min(len - start);
            // SAFETY: the caller's promise; no element between two loops is complex, so the chunks have room.
            unsafe {
                self.first.run(from.add(start * self.size), count, a);
                let between = if third.is_some() {
                    second.run(a, count, b);
                    b
                } else {
                    a
                };
                last.run(between, count, to.add(start * last.size));
            }
        }
    }
}

impl Loop {
    /// # Safety
    /// As [`Conversion::run`].
    #[inline]
    unsafe fn run(self, from: *const u8, len: usize, to: *mut u8) {
        // SAFETY: the caller's promise. A conversion has one operand, and no element is at fault.
        unsafe { (self.run)(to, from, null(), null(), len) };
    }
}

fn one_loop(from: DType, to: DType) -> Option<Run> {
    let kernel = match from {
        DType::F16 => unary_kernel::<_, f16, f32>(Widened),
        DType::BF16 => unary_kernel::<_, bf16, f32>(Widened),
        _ => cast(from, to)?,
    };
    Some(kernel.run)
}

struct Widened;
impl<H: Half> Map1<H, f32> for Widened {
    #[inline(always)]
    fn apply<I: Isa>(a: H) -> f32 {
        a.widen()
    }
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [f32], a: &[H]) {
        H::widen_all::<I>(a, dst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Converts elements of type `A` to type `B`.
    fn converted<A, B: Default + Clone>(conversion: Option<Conversion>, from: &[A]) -> Vec<B> {
        let mut to = vec![B::default(); from.len()];
        let conversion = conversion.expect("there is a conversion");
        // SAFETY: the callers name the dtypes of these types.
        unsafe { conversion.run(from.as_ptr().cast(), from.len(), to.as_mut_ptr().cast()) };
        to
    }

    #[test]
    fn elements_convert_as_by_as_in_chunks_of_every_length() {
        for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7] {
            let halves: Vec<f16> =
                (0..len).map(|i| f16::from_f32(i as f32 * 7.25 - 900.0)).collect();
            let whole: Vec<u64> = halves.iter().map(|x| x.to_f32() as u8 as u64).collect();
            let conversion = Conversion::by_way_of(DType::U8, DType::F16, DType::U64);
            assert_eq!(converted::<_, u64>(conversion, &halves), whole);
            let whole: Vec<i64> = halves.iter().map(|x| x.to_f32() as i64).collect();
            let conversion = Conversion::between(DType::F16, DType::I64);
            assert_eq!(converted::<_, i64>(conversion, &halves), whole);
            let floats: Vec<f64> = halves.iter().map(|x| x.to_f64()).collect();
            let conversion = Conversion::between(DType::F16, DType::F64);
            assert_eq!(converted::<_, f64>(conversion, &halves), floats);
        }
    }

    #[test]
    fn a_bool_is_any_byte_but_zero() {
        let conversion = Conversion::between(DType::Bool, DType::I64);
        assert_eq!(converted::<_, i64>(conversion, &[0_u8, 1, 2, 255]), [0, 1, 1, 1]);
    }

    #[test]
    fn nothing_converts_to_a_half_or_drops_an_imaginary_part() {
        assert!(Conversion::between(DType::F32, DType::F16).is_none());
        assert!(Conversion::between(DType::C64, DType::F32).is_none());
        assert!(Conversion::between(DType::C64, DType::C128).is_some());
    }
}
