//! Loops over blocks: one function per operation and type, all with one signature.

use std::marker::PhantomData;

use keyfold_core::DType;

use super::streaming::StreamingRun;
use crate::isa::{Isa, Work, dispatch};

/// A loop over a block: `dst[i] = f(a[i], b[i], c[i])` for `len` elements; operands that the
/// operation lacks are ignored. It returns whether an element was at fault (whole powers only).
///
/// # Safety
/// The pointers are valid for `len` elements of the types it was made for, aligned and initialised;
/// `dst` overlaps no operand.
pub(crate) type Run = unsafe fn(*mut u8, *const u8, *const u8, *const u8, usize) -> bool;

/// The loops of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// The loop that every operation has.
    pub(crate) run: Run,
    /// The same with work for the memory, for operations that are used often enough to be worth the code.
    pub(crate) streaming: Option<StreamingRun>,
}

impl From<Run> for Kernel {
    fn from(run: Run) -> Kernel {
        Kernel { run, streaming: None }
    }
}

/// A function of one number, compiled for a level.
pub(crate) trait Map1<A: Copy, R>: 'static {
    fn apply<I: Isa>(a: A) -> R;

    /// Of all of them; the slices are of one length.
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [R], a: &[A]) {
        for (dst, a) in dst.iter_mut().zip(a) {
            *dst = Self::apply::<I>(*a);
        }
    }
}

/// A function of two numbers.
pub(crate) trait Map2<A: Copy, R>: 'static {
    fn apply<I: Isa>(a: A, b: A) -> R;

    /// Of all of them; the slices are of one length.
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [R], a: &[A], b: &[A]) {
        for ((dst, a), b) in dst.iter_mut().zip(a).zip(b) {
            *dst = Self::apply::<I>(*a, *b);
        }
    }
}

/// A function of three.
pub(crate) trait Map3<A>: 'static {
    fn apply(a: A, b: A, c: A) -> A;
}

/// One loop, about to be run with the best instructions.
struct Loop<F, A, R> {
    dst: *mut R,
    a: *const A,
    b: *const A,
    len: usize,
    f: PhantomData<F>,
}

struct One<F, A, R>(Loop<F, A, R>);
struct Two<F, A, R>(Loop<F, A, R>);

impl<A: Copy, R, F: Map1<A, R>> Work for One<F, A, R> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Loop { dst, a, len, .. } = self.0;
        // SAFETY: the promise of whoever calls the kernel.
        let (dst, a) = unsafe {
            (std::slice::from_raw_parts_mut(dst, len), std::slice::from_raw_parts(a, len))
        };
        F::all::<I>(dst, a);
    }
}

impl<A: Copy, R, F: Map2<A, R>> Work for Two<F, A, R> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Loop { dst, a, b, len, .. } = self.0;
        // SAFETY: the promise of whoever calls the kernel; the operands may be the same.
        let (dst, a, b) = unsafe {
            (
                std::slice::from_raw_parts_mut(dst, len),
                std::slice::from_raw_parts(a, len),
                std::slice::from_raw_parts(b, len),
            )
        };
        F::all::<I>(dst, a, b);
    }
}

/// # Safety
/// As [`Run`].
unsafe fn run_one<F: Map1<A, R>, A: Copy, R>(
    dst: *mut u8,
    a: *const u8,
    _: *const u8,
    _: *const u8,
    len: usize,
) -> bool {
    let (dst, a) = (dst.cast(), a.cast());
    dispatch(One(Loop { dst, a, b: a, len, f: PhantomData::<F> }));
    false
}

/// # Safety
/// As [`Run`].
unsafe fn run_two<F: Map2<A, R>, A: Copy, R>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    _: *const u8,
    len: usize,
) -> bool {
    let (dst, a, b) = (dst.cast(), a.cast(), b.cast());
    dispatch(Two(Loop { dst, a, b, len, f: PhantomData::<F> }));
    false
}

/// # Safety
/// As [`Run`].
unsafe fn run_one_plain<F: Map1<A, R>, A: Copy, R>(
    dst: *mut u8,
    a: *const u8,
    _: *const u8,
    _: *const u8,
    len: usize,
) -> bool {
    let (dst, a) = (dst.cast(), a.cast());
    One(Loop { dst, a, b: a, len, f: PhantomData::<F> }).run::<crate::isa::Baseline>();
    false
}

/// # Safety
/// As [`Run`].
unsafe fn run_two_plain<F: Map2<A, R>, A: Copy, R>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    _: *const u8,
    len: usize,
) -> bool {
    let (dst, a, b) = (dst.cast(), a.cast(), b.cast());
    Two(Loop { dst, a, b, len, f: PhantomData::<F> }).run::<crate::isa::Baseline>();
    false
}

/// The kernel of a function of one number.
pub(crate) fn one<F: Map1<A, R>, A: Copy, R>(_: F) -> Kernel {
    Kernel { run: run_one::<F, A, R>, streaming: None }
}

/// The kernel of a function of two.
pub(crate) fn two<F: Map2<A, R>, A: Copy, R>(_: F) -> Kernel {
    Kernel { run: run_two::<F, A, R>, streaming: None }
}

/// As [`one`], for functions that gain nothing from vector instructions: compiled once.
pub(crate) fn one_plain<F: Map1<A, R>, A: Copy, R>(_: F) -> Kernel {
    Kernel { run: run_one_plain::<F, A, R>, streaming: None }
}

/// As [`two`], likewise.
pub(crate) fn two_plain<F: Map2<A, R>, A: Copy, R>(_: F) -> Kernel {
    Kernel { run: run_two_plain::<F, A, R>, streaming: None }
}

/// `dst = if a { b } else { c }`.
struct Choose<T> {
    dst: *mut T,
    a: *const u8,
    b: *const T,
    c: *const T,
    len: usize,
}

impl<T: Copy> Work for Choose<T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let len = self.len;
        // SAFETY: the promise of whoever calls the kernel.
        let (dst, a, b, c) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.dst, len),
                std::slice::from_raw_parts(self.a, len),
                std::slice::from_raw_parts(self.b, len),
                std::slice::from_raw_parts(self.c, len),
            )
        };
        for (((dst, a), b), c) in dst.iter_mut().zip(a).zip(b).zip(c) {
            *dst = if *a != 0 { *b } else { *c };
        }
    }
}

/// # Safety
/// As [`Run`]; `a` are bools.
unsafe fn run_choose<T: Copy>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    c: *const u8,
    len: usize,
) -> bool {
    dispatch(Choose::<T> { dst: dst.cast(), a, b: b.cast(), c: c.cast(), len });
    false
}

/// The kernel of "where", for elements of a dtype.
pub(crate) fn choose(dtype: DType) -> Kernel {
    let run: Run = match dtype.size() {
        1 => run_choose::<u8>,
        2 => run_choose::<u16>,
        4 => run_choose::<u32>,
        // Aligned like their parts.
        8 if dtype == DType::C64 => run_choose::<[u32; 2]>,
        8 => run_choose::<u64>,
        _ => run_choose::<[u64; 2]>,
    };
    run.into()
}
