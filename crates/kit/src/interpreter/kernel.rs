//! Loops over blocks: one function per operation and type, all with the same signature.

use std::marker::PhantomData;

use keyfold_core::DType;

use super::streaming::StreamingRun;
use crate::isa::{Isa, Work, dispatch};

/// A loop over a block: `dst[i] = f(a[i], b[i], c[i])` for `len` elements; operands that the operation
/// lacks are ignored. Returns whether an element was at fault (integer powers only).
///
/// # Safety
/// The pointers are valid for `len` elements of the types that the loop was made for, aligned and
/// initialised; `dst` overlaps no operand.
pub(crate) type Run = unsafe fn(*mut u8, *const u8, *const u8, *const u8, usize) -> bool;

/// The loops of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// The loop that every operation has.
    pub(crate) run: Run,
    /// The loop with prefetches and non-temporal stores, for operations that are used often enough to be
    /// worth the code.
    pub(crate) streaming: Option<StreamingRun>,
}

impl From<Run> for Kernel {
    fn from(run: Run) -> Kernel {
        Kernel { run, streaming: None }
    }
}

/// A unary function, compiled for an instruction level.
pub(crate) trait Map1<A: Copy, R>: 'static {
    fn apply<I: Isa>(a: A) -> R;

    /// Applies the function to slices of equal length.
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [R], a: &[A]) {
        for (dst, a) in dst.iter_mut().zip(a) {
            *dst = Self::apply::<I>(*a);
        }
    }
}

/// A binary function.
pub(crate) trait Map2<A: Copy, R>: 'static {
    fn apply<I: Isa>(a: A, b: A) -> R;

    /// Applies the function to slices of equal length.
    #[inline(always)]
    fn all<I: Isa>(dst: &mut [R], a: &[A], b: &[A]) {
        for ((dst, a), b) in dst.iter_mut().zip(a).zip(b) {
            *dst = Self::apply::<I>(*a, *b);
        }
    }
}

/// A ternary function.
pub(crate) trait Map3<A>: 'static {
    fn apply(a: A, b: A, c: A) -> A;
}

/// The arguments of a loop, to be run at the best instruction level.
struct Loop<F, A, R> {
    dst: *mut R,
    a: *const A,
    b: *const A,
    len: usize,
    f: PhantomData<F>,
}

struct UnaryLoop<F, A, R>(Loop<F, A, R>);
struct BinaryLoop<F, A, R>(Loop<F, A, R>);

impl<A: Copy, R, F: Map1<A, R>> Work for UnaryLoop<F, A, R> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Loop { dst, a, len, .. } = self.0;
        // SAFETY: the contract of `Run`, which the kernel's caller upholds.
        let (dst, a) = unsafe {
            (std::slice::from_raw_parts_mut(dst, len), std::slice::from_raw_parts(a, len))
        };
        F::all::<I>(dst, a);
    }
}

impl<A: Copy, R, F: Map2<A, R>> Work for BinaryLoop<F, A, R> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Loop { dst, a, b, len, .. } = self.0;
        // SAFETY: the contract of `Run`, which the kernel's caller upholds; the operands may be the
        // same.
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
unsafe fn run_unary<F: Map1<A, R>, A: Copy, R>(
    dst: *mut u8,
    a: *const u8,
    _: *const u8,
    _: *const u8,
    len: usize,
) -> bool {
    let (dst, a) = (dst.cast(), a.cast());
    dispatch(UnaryLoop(Loop { dst, a, b: a, len, f: PhantomData::<F> }));
    false
}

/// # Safety
/// As [`Run`].
unsafe fn run_binary<F: Map2<A, R>, A: Copy, R>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    _: *const u8,
    len: usize,
) -> bool {
    let (dst, a, b) = (dst.cast(), a.cast(), b.cast());
    dispatch(BinaryLoop(Loop { dst, a, b, len, f: PhantomData::<F> }));
    false
}

/// # Safety
/// As [`Run`].
unsafe fn run_unary_scalar<F: Map1<A, R>, A: Copy, R>(
    dst: *mut u8,
    a: *const u8,
    _: *const u8,
    _: *const u8,
    len: usize,
) -> bool {
    let (dst, a) = (dst.cast(), a.cast());
    UnaryLoop(Loop { dst, a, b: a, len, f: PhantomData::<F> }).run::<crate::isa::Baseline>();
    false
}

/// # Safety
/// As [`Run`].
unsafe fn run_binary_scalar<F: Map2<A, R>, A: Copy, R>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    _: *const u8,
    len: usize,
) -> bool {
    let (dst, a, b) = (dst.cast(), a.cast(), b.cast());
    BinaryLoop(Loop { dst, a, b, len, f: PhantomData::<F> }).run::<crate::isa::Baseline>();
    false
}

/// The kernel of a unary function.
pub(crate) fn unary_kernel<F: Map1<A, R>, A: Copy, R>(_: F) -> Kernel {
    Kernel { run: run_unary::<F, A, R>, streaming: None }
}

/// The kernel of a binary function.
pub(crate) fn binary_kernel<F: Map2<A, R>, A: Copy, R>(_: F) -> Kernel {
    Kernel { run: run_binary::<F, A, R>, streaming: None }
}

/// As [`unary_kernel`], for functions that gain nothing from vector instructions: compiled once.
pub(crate) fn unary_scalar_kernel<F: Map1<A, R>, A: Copy, R>(_: F) -> Kernel {
    Kernel { run: run_unary_scalar::<F, A, R>, streaming: None }
}

/// As [`binary_kernel`], for functions that gain nothing from vector instructions.
pub(crate) fn binary_scalar_kernel<F: Map2<A, R>, A: Copy, R>(_: F) -> Kernel {
    Kernel { run: run_binary_scalar::<F, A, R>, streaming: None }
}

/// `dst = if a { b } else { c }`.
struct WhereLoop<T> {
    dst: *mut T,
    a: *const u8,
    b: *const T,
    c: *const T,
    len: usize,
}

impl<T: Copy> Work for WhereLoop<T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let len = self.len;
        // SAFETY: the contract of `Run`, which the kernel's caller upholds.
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
unsafe fn run_where<T: Copy>(
    dst: *mut u8,
    a: *const u8,
    b: *const u8,
    c: *const u8,
    len: usize,
) -> bool {
    dispatch(WhereLoop::<T> { dst: dst.cast(), a, b: b.cast(), c: c.cast(), len });
    false
}

/// The kernel of `where`, for elements of a dtype.
pub(crate) fn where_kernel(dtype: DType) -> Kernel {
    let run: Run = match dtype.size() {
        1 => run_where::<u8>,
        2 => run_where::<u16>,
        4 => run_where::<u32>,
        // A C64 is aligned like its parts, not like a u64.
        8 if dtype == DType::C64 => run_where::<[u32; 2]>,
        8 => run_where::<u64>,
        _ => run_where::<[u64; 2]>,
    };
    run.into()
}
