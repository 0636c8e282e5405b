//! Distances of results.

use keyfold_core::{Complex, DType, Scalar};
use keyfold_tensor::Tensor;

/// Returns the distance of two numbers: for floats in units in the last place, counted in numbers
/// of the dtype; for complex numbers in units of the modulus; infinite if only one is special.
pub(crate) fn distance(got: Scalar, wanted: Scalar, dtype: DType) -> f64 {
    match (got, wanted) {
        (Scalar::Float(got), Scalar::Float(wanted)) => between(got, wanted, dtype),
        (Scalar::Complex(got), Scalar::Complex(wanted)) => of_complex(got, wanted, dtype),
        _ if got == wanted => 0.0,
        _ => f64::INFINITY,
    }
}

/// Returns the index of a number among all of its dtype, 0 at 0.
fn rank(x: f64, dtype: DType) -> i64 {
    let size = match dtype {
        DType::F64 => x.abs().to_bits() as i64,
        DType::F32 => i64::from((x.abs() as f32).to_bits()),
        DType::F16 => i64::from(keyfold_core::f16::from_f64(x.abs()).to_bits()),
        _ => i64::from(keyfold_core::bf16::from_f64(x.abs()).to_bits()),
    };
    if x.is_sign_negative() { -size } else { size }
}

fn between(got: f64, wanted: f64, dtype: DType) -> f64 {
    if got.is_nan() || wanted.is_nan() {
        return if got.is_nan() && wanted.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got == 0.0 && wanted == 0.0 && got.is_sign_negative() != wanted.is_sign_negative() {
        return f64::INFINITY;
    }
    // Infinity follows the greatest finite number.
    (i128::from(rank(got, dtype)) - i128::from(rank(wanted, dtype))).unsigned_abs() as f64
}

fn of_complex(got: Complex<f64>, wanted: Complex<f64>, dtype: DType) -> f64 {
    let real = dtype.real();
    let finite = |z: Complex<f64>| z.re.is_finite() && z.im.is_finite();
    if !finite(got) || !finite(wanted) || wanted.re == 0.0 && wanted.im == 0.0 {
        let parts = [between(got.re, wanted.re, real), between(got.im, wanted.im, real)];
        return parts[0].max(parts[1]);
    }
    let (epsilon, least) = match real {
        DType::F32 => (f64::from(f32::EPSILON), f64::from(f32::MIN_POSITIVE)),
        _ => (f64::EPSILON, f64::MIN_POSITIVE),
    };
    // Quartered, since the modulus of the greatest numbers overflows.
    let length = |z: Complex<f64>| (z.re * 0.25).hypot(z.im * 0.25);
    let apart = Complex::new(got.re * 0.5 - wanted.re * 0.5, got.im * 0.5 - wanted.im * 0.5);
    (2.0 * length(apart) / (epsilon * length(wanted).max(least))).ceil()
}

/// Returns every element of a tensor, in row-major order.
pub(crate) fn elements(tensor: &Tensor) -> Vec<Scalar> {
    let mut indices = vec![vec![]];
    for size in tensor.shape().iter() {
        let along = |index: Vec<usize>| {
            (0..*size).map(move |i| index.iter().copied().chain([i]).collect::<Vec<usize>>())
        };
        indices = indices.into_iter().flat_map(along).collect();
    }
    indices.iter().map(|index| tensor.get_scalar(index).unwrap()).collect()
}

/// Returns the greatest distance of two tensors' elements, and its position.
pub(crate) fn worst(got: &Tensor, wanted: &Tensor) -> (f64, usize) {
    assert_eq!((got.dtype(), got.shape()), (wanted.dtype(), wanted.shape()));
    let dtype = got.dtype();
    let pairs = elements(got).into_iter().zip(elements(wanted)).enumerate();
    let distances = pairs.map(|(at, (got, wanted))| (distance(got, wanted, dtype), at));
    distances.fold((0.0, 0), |worst, next| if next.0 > worst.0 { next } else { worst })
}
