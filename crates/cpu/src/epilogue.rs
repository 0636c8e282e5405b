//! The epilogue of fused kernels: the activation of results while they are in the cache.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use keyfold_backend::Activation;
use keyfold_kit::isa::Isa;
use keyfold_kit::math::function::{Erfc, Sigmoid, Tanh};
use keyfold_kit::math::slices::map_in_place;
use keyfold_kit::math::{Function, Real, Scaling};

/// Applies an activation to every element; halves are activated in float32, before they are rounded.
pub(crate) fn activate<T: Real>(activation: Activation, x: &mut [T]) {
    match activation {
        Activation::None => {}
        Activation::Relu => map_in_place::<Relu, T>(x),
        Activation::Gelu => map_in_place::<Gelu, T>(x),
        Activation::GeluTanh => map_in_place::<GeluTanh, T>(x),
        Activation::GeluSigmoid => map_in_place::<GeluSigmoid, T>(x),
        Activation::Sigmoid => map_in_place::<Sigmoid, T>(x),
        Activation::Tanh => map_in_place::<Tanh, T>(x),
    }
}

/// Below these bounds the gates of the forms of `gelu` are 0 in every format. `x` is bounded by them before
/// it is multiplied with the gate, since `-inf * 0` is NaN.
const GELU_ZERO_BELOW: f64 = -40.0;
const GELU_TANH_ZERO_BELOW: f64 = -24.0;
const GELU_SIGMOID_ZERO_BELOW: f64 = -1000.0;

/// The factor of `x` in `gelu`'s approximation by the logistic function.
const GELU_SIGMOID_SCALE: f64 = 1.702;

struct Relu;

impl Function for Relu {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T) -> T {
        // NaN isn't `<=`, so it stays; -0 becomes 0.
        if x <= T::ZERO { T::ZERO } else { x }
    }
}

/// By `erfc`, since `1 + erf` would cancel below 0.
struct Gelu;

impl Function for Gelu {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T) -> T {
        let gate = (x * T::from_f64(-FRAC_1_SQRT_2)).erfc::<I>();
        x.max(T::from_f64(GELU_ZERO_BELOW)) * T::HALF * gate
    }

    #[inline(always)]
    fn apply_all<T: Real, I: Isa>(x: &[T], out: &mut [T]) -> bool {
        let scaling = Scaling {
            argument_scale: T::from_f64(-FRAC_1_SQRT_2),
            value_offset: T::ZERO,
            factor_min: T::from_f64(GELU_ZERO_BELOW),
            factor_scale: T::HALF,
        };
        Erfc::apply_scaled::<T, I>(x, x, scaling, out)
    }
}

/// By `sigmoid(2 u)`, since `1 + tanh(u)` would cancel below 0.
struct GeluTanh;

impl Function for GeluTanh {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T) -> T {
        let bounded = x.max(T::from_f64(GELU_TANH_ZERO_BELOW));
        // Beyond the bounds the gate is 0 or 1, and the cubic could overflow.
        let near = bounded.min(T::from_f64(-GELU_TANH_ZERO_BELOW));
        let factor = (near * near).mul_add::<I>(T::from_f64(0.044_715), T::ONE);
        // 2 sqrt(2 / pi)
        let scale = T::from_f64(2.0 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
        bounded * (near * factor * scale).sigmoid::<I>()
    }
}

struct GeluSigmoid;

impl Function for GeluSigmoid {
    #[inline(always)]
    fn apply<T: Real, I: Isa>(x: T) -> T {
        let gate = (x * T::from_f64(GELU_SIGMOID_SCALE)).sigmoid::<I>();
        x.max(T::from_f64(GELU_SIGMOID_ZERO_BELOW)) * gate
    }

    #[inline(always)]
    fn apply_all<T: Real, I: Isa>(x: &[T], out: &mut [T]) -> bool {
        let scaling = Scaling {
            argument_scale: T::from_f64(GELU_SIGMOID_SCALE),
            value_offset: T::ZERO,
            factor_min: T::from_f64(GELU_SIGMOID_ZERO_BELOW),
            factor_scale: T::ONE,
        };
        Sigmoid::apply_scaled::<T, I>(x, x, scaling, out)
    }
}
