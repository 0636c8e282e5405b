//! Tensors of sample values, and access to their elements.

use keyfold_core::{Complex, DType, Element, Scalar, bf16, f16};
use keyfold_tensor::Tensor;

use super::naive::{Value, limits};

/// Returns an element of a tensor as a value.
pub(super) fn get(tensor: &Tensor, index: &[usize]) -> Value {
    Value::of(tensor.get_scalar(index).unwrap())
}

/// Every index of a shape, in row-major order.
pub(super) fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for size in shape {
        all = all
            .iter()
            .flat_map(|index: &Vec<usize>| {
                (0..*size).map(move |i| index.iter().copied().chain([i]).collect())
            })
            .collect();
    }
    all
}

/// A sample value of a dtype; limits, zeros and other special values among them.
pub(super) fn sample(dtype: DType, seed: u64) -> Scalar {
    let bits = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31) ^ (seed << 7);
    let small = (bits >> 20) as i64 % 9 - 4;
    let wild = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e30, -1e-30, 65505.0];
    let float = |bits: u64| match bits % 11 {
        0 => wild[(bits >> 8) as usize % wild.len()],
        1..=4 => small as f64,
        _ => ((bits >> 11) as f64 / (1_u64 << 53) as f64 - 0.5) * 12.0,
    };
    match dtype {
        DType::Bool => Scalar::Bool(bits & 64 == 0),
        DType::C64 | DType::C128 => {
            Scalar::Complex(Complex::new(float(bits), float(bits.rotate_left(17))))
        }
        _ if dtype.is_floating() => Scalar::Float(float(bits)),
        _ => {
            let (low, high) = limits(dtype);
            let value = match bits % 5 {
                0 => low + i128::from(bits >> 60),
                1 => high - i128::from(bits >> 60),
                _ => (small as i128).clamp(low, high),
            };
            i64::try_from(value).map_or(Scalar::UInt(value as u64), Scalar::Int)
        }
    }
}

/// A contiguous tensor of samples.
pub(super) fn samples(shape: &[usize], dtype: DType, seed: u64) -> Tensor {
    fn make<T: Element>(count: usize, shape: &[usize], seed: u64) -> Tensor {
        let items = (0..count).map(|i| sample(T::DTYPE, seed + i as u64 * 77).to::<T>()).collect();
        Tensor::from_vec::<T>(items, shape).unwrap()
    }
    let n = shape.iter().product();
    match dtype {
        DType::Bool => make::<bool>(n, shape, seed),
        DType::U8 => make::<u8>(n, shape, seed),
        DType::U16 => make::<u16>(n, shape, seed),
        DType::U32 => make::<u32>(n, shape, seed),
        DType::U64 => make::<u64>(n, shape, seed),
        DType::I8 => make::<i8>(n, shape, seed),
        DType::I16 => make::<i16>(n, shape, seed),
        DType::I32 => make::<i32>(n, shape, seed),
        DType::I64 => make::<i64>(n, shape, seed),
        DType::F16 => make::<f16>(n, shape, seed),
        DType::BF16 => make::<bf16>(n, shape, seed),
        DType::F32 => make::<f32>(n, shape, seed),
        DType::F64 => make::<f64>(n, shape, seed),
        DType::C64 => make::<Complex<f32>>(n, shape, seed),
        DType::C128 => make::<Complex<f64>>(n, shape, seed),
    }
}
