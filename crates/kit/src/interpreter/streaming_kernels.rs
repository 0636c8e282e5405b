//! The chunk computations that streaming loops are instantiated with.

use std::marker::PhantomData;

use super::kernel::{Kernel, Map1, Map2, Map3};
use super::streaming::{CHUNK, Chunk, kernel};
use super::value::Value;
use crate::isa::Isa;
use crate::math::slices::map_at;
use crate::math::{Function, Real, Scaling};

struct UnaryChunk<F, A, R>(PhantomData<(F, A, R)>);
struct BinaryChunk<F, A, R>(PhantomData<(F, A, R)>);
struct TernaryChunk<F, A>(PhantomData<(F, A)>);
struct MathChunk<F, T>(PhantomData<(F, T)>);
/// `(F(a * argument_scale) + value_offset) * (max(b, factor_min) * factor_scale)`, with four constants.
struct ScaledFunctionChunk<F, T>(PhantomData<(F, T)>);

impl<F: Map1<A, R>, A: Copy + 'static, R: Copy + 'static> Chunk<1> for UnaryChunk<F, A, R> {
    type From = A;
    type To = R;
    type Workspace = ();

    #[inline(always)]
    unsafe fn compute<I: Isa>(dst: &mut [R], [a]: [&[A]; 1], _: *const u8, (): &mut ()) {
        F::all::<I>(dst, a);
    }
}

impl<F: Map2<A, R>, A: Copy + 'static, R: Copy + 'static> Chunk<2> for BinaryChunk<F, A, R> {
    type From = A;
    type To = R;
    type Workspace = ();

    #[inline(always)]
    unsafe fn compute<I: Isa>(dst: &mut [R], [a, b]: [&[A]; 2], _: *const u8, (): &mut ()) {
        F::all::<I>(dst, a, b);
    }
}

impl<F: Map3<A>, A: Copy + 'static> Chunk<3> for TernaryChunk<F, A> {
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

impl<F: Function, T: Real> Chunk<1> for MathChunk<F, T> {
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
struct ScaledArguments<T>([T; CHUNK]);

impl<T: Real> Default for ScaledArguments<T> {
    fn default() -> ScaledArguments<T> {
        ScaledArguments([T::ZERO; CHUNK])
    }
}

impl<F: Function, T: Real> Chunk<2> for ScaledFunctionChunk<F, T> {
    type From = T;
    type To = T;
    type Workspace = ScaledArguments<T>;
    const ANY_LENGTH: bool = false;

    #[inline(always)]
    unsafe fn compute<I: Isa>(
        dst: &mut [T],
        [a, b]: [&[T]; 2],
        constants: *const u8,
        workspace: &mut ScaledArguments<T>,
    ) {
        // SAFETY: the caller's promise: they are four values, each with room for any element.
        let [argument_scale, value_offset, factor_min, factor_scale] =
            unsafe { [0, 1, 2, 3].map(|i| *constants.cast::<Value>().add(i).cast::<T>()) };
        let scaling = Scaling { argument_scale, value_offset, factor_min, factor_scale };
        if F::apply_scaled::<T, I>(a, b, scaling, dst) {
            return;
        }
        let arguments = &mut workspace.0[..a.len()];
        for (argument, a) in arguments.iter_mut().zip(a) {
            *argument = *a * argument_scale;
        }
        map_at::<F, T, I>(arguments, dst);
        for (dst, b) in dst.iter_mut().zip(b) {
            *dst = (*dst + value_offset) * (b.max(factor_min) * factor_scale);
        }
    }
}

/// The kernel of a unary function.
pub(crate) fn unary_kernel<F: Map1<A, R>, A: Copy + 'static, R: Copy + 'static>(_: F) -> Kernel {
    kernel::<UnaryChunk<F, A, R>, 1>()
}

/// The kernel of a binary function.
pub(crate) fn binary_kernel<F: Map2<A, R>, A: Copy + 'static, R: Copy + 'static>(_: F) -> Kernel {
    kernel::<BinaryChunk<F, A, R>, 2>()
}

/// The kernel of a ternary function.
pub(crate) fn ternary_kernel<F: Map3<A>, A: Copy + 'static>(_: F) -> Kernel {
    kernel::<TernaryChunk<F, A>, 3>()
}

/// The kernel of an elementary function.
pub(crate) fn math_kernel<F: Function, T: Real>() -> Kernel {
    kernel::<MathChunk<F, T>, 1>()
}

/// The kernel of [`ScaledFunctionChunk`]; its third operand points to the four constants, as [`Value`]s.
pub(crate) fn scaled_function<F: Function, T: Real>() -> Kernel {
    kernel::<ScaledFunctionChunk<F, T>, 2>()
}
