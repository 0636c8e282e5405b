//! The elementary functions over slices, at the level in use.
//!
//! [`map`] and [`map2`] dispatch on the level; [`map_at`] and [`map2_at`] are their loops, for code that
//! runs at a known level. All panic if the lengths differ.

use std::marker::PhantomData;

use crate::isa::{self, Isa, Work};
use crate::math::Real;
use crate::math::function::{
    Abs, Ceil, Cos, Erf, Erfc, Exp, Exp2, Expm1, Floor, Function, Function2, Log, Log1p, Log2,
    Log10, Max, Min, Pow, Round, Rsqrt, Sigmoid, Sign, Sin, Sqrt, Tanh, Trunc,
};

/// `out[i] = F(x[i])`
pub fn map<F: Function, T: Real>(x: &[T], out: &mut [T]) {
    isa::dispatch(Map::<F, T> { x, out, function: PhantomData });
}

/// `x[i] = F(x[i])`
pub fn map_in_place<F: Function, T: Real>(x: &mut [T]) {
    isa::dispatch(MapInPlace::<F, T> { x, function: PhantomData });
}

/// `out[i] = F(x[i], y[i])`
pub fn map2<F: Function2, T: Real>(x: &[T], y: &[T], out: &mut [T]) {
    isa::dispatch(Map2::<F, T> { x, y, out, function: PhantomData });
}

/// [`map`] at the level `I`.
#[inline(always)]
pub fn map_at<F: Function, T: Real, I: Isa>(x: &[T], out: &mut [T]) {
    assert_eq!(x.len(), out.len());
    if F::apply_all::<T, I>(x, out) {
        return;
    }
    let mut near = true;
    for (out, x) in out.iter_mut().zip(x) {
        near &= F::is_in_range(*x);
        *out = F::apply_in_range::<T, I>(*x);
    }
    if !near {
        recompute_out_of_range::<F, T, I>(x, out);
    }
}

/// [`map2`] at the level `I`.
#[inline(always)]
pub fn map2_at<F: Function2, T: Real, I: Isa>(x: &[T], y: &[T], out: &mut [T]) {
    assert_eq!((x.len(), y.len()), (out.len(), out.len()));
    for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
        *out = F::apply::<T, I>(*x, *y);
    }
}

/// Recomputes the arguments that are out of the vector code's range.
#[cold]
#[inline(never)]
fn recompute_out_of_range<F: Function, T: Real, I: Isa>(x: &[T], out: &mut [T]) {
    for (out, x) in out.iter_mut().zip(x) {
        if !F::is_in_range(*x) {
            *out = F::apply::<T, I>(*x);
        }
    }
}

struct Map<'a, F, T> {
    x: &'a [T],
    out: &'a mut [T],
    function: PhantomData<F>,
}

impl<F: Function, T: Real> Work for Map<'_, F, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        map_at::<F, T, I>(self.x, self.out);
    }
}

struct MapInPlace<'a, F, T> {
    x: &'a mut [T],
    function: PhantomData<F>,
}

impl<F: Function, T: Real> Work for MapInPlace<'_, F, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        // In blocks that fit in the L1 cache: the arguments are needed again for those out of range.
        let mut kept = [T::ZERO; 256];
        for block in self.x.chunks_mut(256) {
            let kept = &mut kept[..block.len()];
            kept.copy_from_slice(block);
            map_at::<F, T, I>(kept, block);
        }
    }
}

struct Map2<'a, F, T> {
    x: &'a [T],
    y: &'a [T],
    out: &'a mut [T],
    function: PhantomData<F>,
}

impl<F: Function2, T: Real> Work for Map2<'_, F, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        map2_at::<F, T, I>(self.x, self.y, self.out);
    }
}

macro_rules! slices {
    // Named functions can be passed as function pointers.
    ($($name:ident $function:ident;)*) => {$(
        #[doc = concat!("[`Real::", stringify!($name), "`] of every element.")]
        pub fn $name<T: Real>(x: &[T], out: &mut [T]) {
            map::<$function, T>(x, out);
        }
    )*};
}

slices! {
    exp Exp;
    exp2 Exp2;
    expm1 Expm1;
    log Log;
    log2 Log2;
    log10 Log10;
    log1p Log1p;
    sqrt Sqrt;
    rsqrt Rsqrt;
    tanh Tanh;
    sigmoid Sigmoid;
    erf Erf;
    erfc Erfc;
    sin Sin;
    cos Cos;
    floor Floor;
    ceil Ceil;
    round Round;
    trunc Trunc;
    abs Abs;
    sign Sign;
}

/// [`Real::pow`] of every pair.
pub fn pow<T: Real>(x: &[T], y: &[T], out: &mut [T]) {
    map2::<Pow, T>(x, y, out);
}

/// [`Real::min`] of every pair.
pub fn min<T: Real>(x: &[T], y: &[T], out: &mut [T]) {
    map2::<Min, T>(x, y, out);
}

/// [`Real::max`] of every pair.
pub fn max<T: Real>(x: &[T], y: &[T], out: &mut [T]) {
    map2::<Max, T>(x, y, out);
}
