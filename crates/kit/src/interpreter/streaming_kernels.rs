//! The chunk computations that streaming loops are instantiated with.

use std::marker::PhantomData;

use super::kernel::{Kernel, Map1, Map2, Map3};
use super::streaming::{CHUNK, Chunk, kernel};
use super::value::Value;
use crate::isa::Isa;
use crate::math::slices::map_at;
use crate::math::{Function, Real, Scaling};

struct One<F, A, R>(PhantomData<(F, A, R)>);
struct Two<F, A, R>(PhantomData<(F, A, R)>);
struct Three<F, A>(PhantomData<(F, A)>);
struct Mapped<F, T>(PhantomData<(F, T)>);
/// `(F(a * before) + behind) * (max(b, least) * times)`, with four constants.
struct ScaledFunction<F, T>(PhantomData<(F, T)>);

impl<F: Map1<A, R>, A: Copy + 'static, R: Copy + 'static> Chunk<1> for One<F, A, R> {
    type From = A;
    type To = R;
    type Workspace = ();

    #[inline(always)]
    unsafe fn compute<I: Isa>(dst: &mut [R], [a]: [&[A]; 1], _: *const u8, (): &mut ()) {
        F::all::<I>(dst, a);
    }
}

impl<F: Map2<A, R>, A: Copy + 'static, R: Copy + 'static> Chunk<2> for Two<F, A, R> {
    type From = A;
    type To = R;
    type Workspace = ();

    #[inline(always)]
    unsafe fn compute<I: Isa>(dst: &mut [R], [a, b]: [&[A]; 2], _: *const u8, (): &mut ()) {
        F::all::<I>(dst, a, b);
    }
}

impl<F: Map3<A>, A: Copy + 'static> Chunk<3> for Three<F, A> {
    type From = A;
    type To = A;
    type Workspace = ();

    #[inline(always)]
    unsafe fn compute<I: Isa>(dst: &mut [A], [a, b, c]: [&[A]; 3], _: *const u8, (): &mut ()) {
        for (((dst, a), b), c) in dst.iter_mut().zip(a).zip(b).zip(c) {
            *dst = F::apply(*a, *b, *c);
        }
    }
}

impl<F: Function, T: Real> Chunk<1> for Mapped<F, T> {
    type From = T;
    type To = T;
    type Workspace = ();

    #[inline(always)]
    unsafe fn compute<I: Isa>(dst: &mut [T], [a]: [&[T]; 1], _: *const u8, (): &mut ()) {
        map_at::<F, T, I>(a, dst);
    }
}

/// A chunk of arguments.
#[repr(C, align(64))]
struct Arguments<T>([T; CHUNK]);

impl<T: Real> Default for Arguments<T> {
    fn default() -> Arguments<T> {
        Arguments([T::ZERO; CHUNK])
    }
}

impl<F: Function, T: Real> Chunk<2> for ScaledFunction<F, T> {
    type From = T;
    type To = T;
    type Workspace = Arguments<T>;
    const ANY_LENGTH: bool = false;

    #[inline(always)]
    unsafe fn compute<I: Isa>(
        dst: &mut [T],
        [a, b]: [&[T]; 2],
        constants: *const u8,
        workspace: &mut Arguments<T>,
    ) {
        // SAFETY: the caller's promise: they are four values, each with room for any element.
        let [before, behind, least, times] =
            unsafe { [0, 1, 2, 3].map(|i| *constants.cast::<Value>().add(i).cast::<T>()) };
        let scaling = Scaling { before, behind, least, times };
        if F::apply_scaled::<T, I>(a, b, scaling, dst) {
            return;
        }
        let arguments = &mut workspace.0[..a.len()];
        for (argument, a) in arguments.iter_mut().zip(a) {
            *argument = *a * before;
        }
        map_at::<F, T, I>(arguments, dst);
        for (dst, b) in dst.iter_mut().zip(b) {
            *dst = (*dst + behind) * (b.max(least) * times);
        }
    }
}

/// The kernel of a unary function.
pub(crate) fn one<F: Map1<A, R>, A: Copy + 'static, R: Copy + 'static>(_: F) -> Kernel {
    kernel::<One<F, A, R>, 1>()
}

/// The kernel of a binary function.
pub(crate) fn two<F: Map2<A, R>, A: Copy + 'static, R: Copy + 'static>(_: F) -> Kernel {
    kernel::<Two<F, A, R>, 2>()
}

/// The kernel of a ternary function.
pub(crate) fn three<F: Map3<A>, A: Copy + 'static>(_: F) -> Kernel {
    kernel::<Three<F, A>, 3>()
}

/// The kernel of an elementary function.
pub(crate) fn function<F: Function, T: Real>() -> Kernel {
    kernel::<Mapped<F, T>, 1>()
}

/// The kernel of `(F(a * before) + behind) * (max(b, least) * times)`; its third operand points to the
/// four constants, as [`Value`]s.
pub(crate) fn scaled_function<F: Function, T: Real>() -> Kernel {
    kernel::<ScaledFunction<F, T>, 2>()
}
