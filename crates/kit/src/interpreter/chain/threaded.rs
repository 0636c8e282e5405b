//! The operations of a chain as functions that call each other.
//!
//! The vectors of a tile are arguments, which System V's calling convention passes in registers, and each function
//! ends with the call of the next one, which an optimising compiler makes a jump. A loop that looks operations up
//! jumps three times for each, and takes up to twice as long. Elsewhere, and without optimisation, the results are the
//! same: vectors are passed in memory, and calls are as deep as the chain is long.

use super::Combine;
use super::vector::Vector;

/// The vectors of a tile: as many as are passed in registers.
const VECTORS: usize = 8;

/// The number of copies of each operation's function. A chain takes another copy each time that it has an operation
/// again, so that the jump of each copy goes to one place, which a processor predicts: one that alternates between
/// two places costs as much as ten operations whenever it is mispredicted.
pub(super) const COPIES: usize = 4;

/// Makes functions of different copies differ, since the compiler joins equal ones.
#[inline(always)]
fn distinguish<V: Vector, const COPY: usize>() {
    #[cfg(target_arch = "x86_64")]
    if V::LEN > 1 {
        // SAFETY: the text is a comment of the assembler's: no instruction.
        unsafe {
            std::arch::asm!("/* copy {} */", const COPY, options(nomem, nostack, preserves_flags));
        }
    }
}

/// Returns the number of elements of a tile.
pub(super) const fn tile<V: Vector>() -> usize {
    VECTORS * V::LEN
}

/// Computes an operation on the vectors of a tile that begins at this element of the block, and all operations
/// behind it.
///
/// # Safety
/// As all methods of [`Vector`]. The link is one of an array whose last one [stores](Registers::last); its operand
/// and those behind can be read for the tile, and the stored one can be written.
pub(in crate::interpreter) type Run<V> =
    unsafe extern "C" fn(*const Link<V>, usize, V, V, V, V, V, V, V, V);

/// An operation, with the address of its operand: the block's, one element for all, or the place of the results.
#[repr(C)]
pub(in crate::interpreter) struct Link<V: Vector> {
    pub(super) run: Run<V>,
    pub(super) at: *const V::Element,
}

/// Vectors of registers, with the functions that are compiled for their level.
pub(in crate::interpreter) trait Registers: Vector {
    /// The function of an operation. `UNIFORM`: its operand is one element. There are several copies.
    fn link<C: Combine, const UNIFORM: bool, const COPY: usize>() -> Run<Self>;

    /// The function that stores a tile at its place in a block.
    fn last() -> Run<Self>;

    /// The function that stores a tile at the beginning of its operand.
    fn last_at_start() -> Run<Self>;

    /// Runs links on the tile with these elements; operands of blocks are read from the element `at` on.
    ///
    /// # Safety
    /// As [`Run`], for the first one; the elements can be read.
    unsafe fn begin(links: *const Link<Self>, at: usize, elements: *const Self::Element);
}

/// Applies an operation to the vectors of a tile.
///
/// # Safety
/// As [`Run`].
#[inline(always)]
unsafe fn apply<V: Vector, C: Combine, const UNIFORM: bool>(
    operand: *const V::Element,
    at: usize,
    values: [V; VECTORS],
) -> [V; VECTORS] {
    let mut results = values;
    // SAFETY: the caller's promise.
    unsafe {
        if UNIFORM {
            let operand = V::splat(*operand);
            for result in &mut results {
                *result = C::of(*result, operand);
            }
        } else {
            for (i, result) in results.iter_mut().enumerate() {
                *result = C::of(*result, V::load(operand.add(at + i * V::LEN)));
            }
        }
    }
    results
}

/// Implements [`Registers`] by functions of a level: a macro, since the level is an attribute.
macro_rules! registers {
    ($($level:literal)?: $link:ident $store:ident $begin:ident, $($vector:ty)*) => {
        $(#[target_feature(enable = $level)])?
        unsafe extern "C" fn $link<V: Vector, C: Combine, const UNIFORM: bool, const COPY: usize>(
            link: *const Link<V>, at: usize, a: V, b: V, c: V, d: V, e: V, f: V, g: V, h: V,
        ) {
            distinguish::<V, COPY>();
            // SAFETY: the caller's promise; another link is behind this one.
            unsafe {
                let values = [a, b, c, d, e, f, g, h];
                let [a, b, c, d, e, f, g, h] = apply::<V, C, UNIFORM>((*link).at, at, values);
                let next = link.add(1);
                ((*next).run)(next, at, a, b, c, d, e, f, g, h);
            }
        }

        $(#[target_feature(enable = $level)])?
        unsafe extern "C" fn $store<V: Vector, const AT_START: bool>(
            link: *const Link<V>, at: usize, a: V, b: V, c: V, d: V, e: V, f: V, g: V, h: V,
        ) {
            // SAFETY: the caller's promise.
            unsafe {
                let to = (*link).at.cast_mut().add(if AT_START { 0 } else { at });
                for (i, value) in [a, b, c, d, e, f, g, h].into_iter().enumerate() {
                    value.store(to.add(i * V::LEN));
                }
            }
        }

        $(#[target_feature(enable = $level)])?
        unsafe fn $begin<V: Vector>(links: *const Link<V>, at: usize, elements: *const V::Element) {
            // SAFETY: the caller's promise.
            unsafe {
                let load = |i: usize| V::load(elements.add(i * V::LEN));
                ((*links).run)(
                    links, at, load(0), load(1), load(2), load(3), load(4), load(5), load(6), load(7),
                );
            }
        }

        $(impl Registers for $vector {
            fn link<C: Combine, const UNIFORM: bool, const COPY: usize>() -> Run<Self> {
                $link::<Self, C, UNIFORM, COPY>
            }

            fn last() -> Run<Self> {
                $store::<Self, false>
            }

            fn last_at_start() -> Run<Self> {
                $store::<Self, true>
            }

            #[inline(always)]
            unsafe fn begin(links: *const Link<Self>, at: usize, elements: *const Self::Element) {
                // SAFETY: the caller's promise.
                unsafe { $begin(links, at, elements) }
            }
        })*
    };
}

registers! { : link_one store_one begin_one, f32 f64 }

#[cfg(target_arch = "x86_64")]
mod levels {
    use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};

    use super::*;

    registers! {
        "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,movbe": link_avx2 store_avx2 begin_avx2, __m256 __m256d
    }
    registers! {
        "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,movbe":
        link_avx512 store_avx512 begin_avx512, __m512 __m512d
    }
}
