//! Dense elements of any float dtype, read and written as blocks of the float type that is computed in:
//! float32 for the halves.

use std::any::TypeId;
use std::ops::{Add, Mul, Sub};

use keyfold_kit::isa::{self, Isa, Work};

use crate::reduce::convert::To;
use crate::reduce::monoid::Addend;

/// The most elements of a block. Two inputs and an output of as many float32 take half of a cache of 48 KiB.
pub(super) const BLOCK: usize = 2048;

/// A float type that norms are computed in.
pub(super) trait Float:
    Addend + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    const ONE: Self;

    fn from_f64(x: f64) -> Self;
    fn to_f64(self) -> f64;
    /// `self * b + c`, rounded once if the level has fused multiply-add.
    fn mul_add<I: Isa>(self, b: Self, c: Self) -> Self;
    fn exp<I: Isa>(self) -> Self;
}

macro_rules! float {
    // The same methods for both floats; no trait of the standard library has them.
    ($($type:ident, $mul_add:ident;)*) => {$(
        impl Float for $type {
            const ONE: Self = 1.0;

            #[inline(always)]
            fn from_f64(x: f64) -> Self {
                x as $type
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn mul_add<I: Isa>(self, b: Self, c: Self) -> Self {
                I::$mul_add(self, b, c)
            }
            #[inline(always)]
            fn exp<I: Isa>(self) -> Self {
                keyfold_kit::math::Real::exp::<I>(self)
            }
        }
    )*};
}

float! {
    f32, mul_add_f32;
    f64, mul_add_f64;
}

/// Converts as many stored elements as the destination has.
///
/// # Safety
/// The elements can be read.
type Load<A> = unsafe fn(*const u8, &mut [A]);

/// Converts numbers to stored elements.
///
/// # Safety
/// As many elements can be written.
type Store<A> = unsafe fn(&[A], *mut u8);

struct LoadAll<'a, S, A>(&'a [S], &'a mut [A]);

impl<S: To<A> + Copy, A> Work for LoadAll<'_, S, A> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        S::convert_all::<I>(self.0, self.1);
    }
}

unsafe fn load<S: To<A> + Copy, A>(from: *const u8, to: &mut [A]) {
    // SAFETY: the caller's promise.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<S>(), to.len()) };
    isa::dispatch(LoadAll(from, to));
}

unsafe fn store<A: To<S> + Copy, S>(from: &[A], to: *mut u8) {
    // SAFETY: the caller's promise.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<S>(), from.len()) };
    isa::dispatch(LoadAll(from, to));
}

/// A tensor's dense elements.
#[derive(Clone, Copy)]
pub(super) struct Source<A> {
    base: *const u8,
    size: usize,
    /// None if the elements are stored as type `A`.
    load: Option<Load<A>>,
}

// SAFETY: it is only read through, and the tensor outlives the kernel.
unsafe impl<A> Sync for Source<A> {}

impl<A: Float> Source<A> {
    /// The elements of type `S` at an address.
    pub(super) fn plain<S: To<A> + Copy + 'static>(base: *const S) -> Self {
        let is_same = TypeId::of::<S>() == TypeId::of::<A>();
        let load = (!is_same).then_some(load::<S, A> as Load<A>);
        Source { base: base.cast(), size: size_of::<S>(), load }
    }

    /// Makes a buffer for conversions; an empty one if there are none.
    pub(super) fn buffer(&self) -> Vec<A> {
        vec![A::ZERO; if self.load.is_some() { BLOCK } else { 0 }]
    }

    /// Returns a block's elements: in place, or converted into the buffer, which [`Source::buffer`] made.
    ///
    /// # Safety
    /// These elements, at most [`BLOCK`], lie inside the tensor, and no code writes to them.
    #[inline(always)]
    pub(super) unsafe fn read<'b>(&self, start: usize, len: usize, buffer: &'b mut [A]) -> &'b [A] {
        let from = self.base.wrapping_add(start * self.size);
        match self.load {
            // SAFETY: the caller's promise.
            None => unsafe { std::slice::from_raw_parts(from.cast(), len) },
            Some(load) => {
                let buffer = &mut buffer[..len];
                // SAFETY: the caller's promise.
                unsafe { load(from, buffer) };
                buffer
            }
        }
    }
}

/// A result's dense elements.
#[derive(Clone, Copy)]
pub(super) struct Target<A> {
    base: *mut u8,
    size: usize,
    /// None if the elements are stored as type `A`.
    store: Option<Store<A>>,
}

// SAFETY: threads write to different elements of a tensor that outlives the kernel.
unsafe impl<A> Sync for Target<A> {}

impl<A: Float> Target<A> {
    /// The elements of type `S` at an address.
    pub(super) fn plain<S>(base: *mut S) -> Self
    where
        A: To<S>,
        S: 'static,
    {
        let is_same = TypeId::of::<S>() == TypeId::of::<A>();
        let store = (!is_same).then_some(store::<A, S> as Store<A>);
        Target { base: base.cast(), size: size_of::<S>(), store }
    }

    /// As [`Source::buffer`].
    pub(super) fn buffer(&self) -> Vec<A> {
        vec![A::ZERO; if self.store.is_some() { BLOCK } else { 0 }]
    }

    /// Returns where to write a block's elements: in place, or in the buffer. [`Target::end`] follows.
    ///
    /// Both are apart, not one function of a closure, since a closure that isn't inlined is compiled for the
    /// baseline.
    ///
    /// # Safety
    /// These elements, at most [`BLOCK`], lie inside the tensor, and no other code accesses them.
    #[inline(always)]
    pub(super) unsafe fn begin<'b>(
        &self,
        start: usize,
        len: usize,
        buffer: &'b mut [A],
    ) -> &'b mut [A] {
        match self.store {
            // SAFETY: the caller's promise.
            None => unsafe { std::slice::from_raw_parts_mut(self.at(start).cast(), len) },
            Some(_) => &mut buffer[..len],
        }
    }

    /// Ends the write of a block that [`Target::begin`] began.
    ///
    /// # Safety
    /// As for [`Target::begin`].
    #[inline(always)]
    pub(super) unsafe fn end(&self, start: usize, len: usize, buffer: &[A]) {
        if let Some(store) = self.store {
            // SAFETY: the caller's promise.
            unsafe { store(&buffer[..len], self.at(start)) };
        }
    }

    #[inline(always)]
    fn at(&self, start: usize) -> *mut u8 {
        self.base.wrapping_add(start * self.size)
    }
}
