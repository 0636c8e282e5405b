//! Factories, and random numbers: Philox4x32-10 (J. Salmon and others, "Parallel random numbers: as
//! easy as 1, 2, 3", 2011).

use keyfold_core::{DType, Scalar};
use keyfold_tensor::Value;

use super::{Expected, Given, accumulator};
use crate::array::Array;
use crate::number::{Number, unit};

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Expected> {
    let constant = |value: Scalar, at: usize, dtype: DType| {
        let dtype = given.dtype(at).unwrap_or(dtype);
        let value = Number::of(value).cast(dtype);
        Expected::copied(Array::from_fn(dtype, &given.sizes(0), |_| value))
    };
    Some(match name {
        "aten::empty" => Expected::any(given.dtype(1).unwrap_or(DType::F64), &given.sizes(0)),
        "aten::zeros" => constant(Scalar::Int(0), 1, DType::F64),
        "aten::ones" => constant(Scalar::Int(1), 1, DType::F64),
        "aten::full" => constant(given.scalar(1), 2, given.scalar(1).dtype()),
        "aten::arange" => arange(given),
        "aten::rand" => random(given, given.sizes(0), given.dtype(1).unwrap_or(DType::F64), false),
        "aten::randn" => random(given, given.sizes(0), given.dtype(1).unwrap_or(DType::F64), true),
        "aten::dropout" => dropout(given),
        _ => return None,
    })
}

/// The samples count in steps of a whole number, so every element is exact.
fn arange(given: &Given<'_>) -> Expected {
    let (start, step) = (given.scalar(0).as_f64(), given.scalar(2).as_f64());
    let (start, end) = match given.value(1) {
        Value::None => (0.0, start),
        _ => (start, given.scalar(1).as_f64()),
    };
    let count = ((end - start) / step).ceil().max(0.0) as usize;
    let is_whole = given.scalar(0).as_i64().is_some();
    let dtype = given.dtype(3).unwrap_or(if is_whole { DType::I64 } else { DType::F64 });
    let item = |at: &[usize]| Number::Float(start + step * at[0] as f64).cast(dtype);
    Expected::copied(Array::from_fn(dtype, &[count], item))
}

/// Returns a block of a stream.
pub(super) fn philox(seed: u64, block: u64) -> [u32; 4] {
    let (mut key, mut c) =
        ([seed as u32, (seed >> 32) as u32], [block as u32, (block >> 32) as u32, 0, 0]);
    for _ in 0..10 {
        let (a, b) = (0xD251_1F53 * u64::from(c[0]), 0xCD9E_8D57 * u64::from(c[2]));
        c = [
            (b >> 32) as u32 ^ c[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

/// Returns the numbers of a block: four, or two of float64.
fn numbers([a, b, c, d]: [u32; 4], dtype: DType, normal: bool) -> Vec<f64> {
    let wide = |low: u32, high: u32| ((u64::from(high) << 32 | u64::from(low)) >> 11) as f64;
    let normals = |u: f64, v: f64| {
        let (radius, angle) = ((-2.0 * u.ln()).sqrt(), std::f64::consts::TAU * v);
        vec![radius * angle.cos(), radius * angle.sin()]
    };
    let bits = match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    };
    match (dtype, normal) {
        (DType::F64, false) => [wide(a, b), wide(c, d)].map(|x| x * 2f64.powi(-53)).to_vec(),
        (DType::F64, true) => {
            normals(1.0 - wide(a, b) * 2f64.powi(-53), wide(c, d) * 2f64.powi(-53))
        }
        (_, false) => {
            let number = |word: u32| f64::from(word >> (32 - bits)) * 2f64.powi(-bits);
            [a, b, c, d].map(number).to_vec()
        }
        (_, true) => {
            let unit = 2f64.powi(-32);
            let pair = |a: u32, b: u32| normals((f64::from(a) + 1.0) * unit, f64::from(b) * unit);
            [pair(a, b), pair(c, d)].concat()
        }
    }
}

/// Uniform numbers are exact; the functions of normal ones may have errors as a function of an
/// expression.
fn random(given: &Given<'_>, shape: Vec<usize>, dtype: DType, normal: bool) -> Expected {
    let count: usize = shape.iter().product();
    let mut expected = Expected::empty(dtype, &shape);
    let mut block = given.state.offset;
    while expected.array.items.len() < count {
        for number in numbers(philox(given.state.seed, block), dtype, normal) {
            if expected.array.items.len() < count {
                let error = if normal {
                    16.0 * unit(accumulator(dtype)) * number.abs().max(1.0)
                } else {
                    0.0
                };
                expected.push(Number::Float(number), error);
            }
        }
        block = block.wrapping_add(1);
    }
    expected
}

fn dropout(given: &Given<'_>) -> Expected {
    let (x, p) = (given.array(0), given.float(1));
    if !given.flag(2) || p == 0.0 {
        return Expected::copied(x.clone());
    }
    let drawn = random(given, x.shape.clone(), DType::F32, false);
    let mut expected = Expected::empty(x.dtype, &x.shape);
    let limit = f64::from(p as f32);
    for (item, drawn) in x.items.iter().zip(drawn.array.items) {
        let value = if drawn.float() >= limit { item.float() / (1.0 - p) } else { 0.0 };
        // A product, which is rounded to the dtype, and the factor.
        let error = 4.0 * unit(x.dtype) * value.abs();
        expected.push(Number::Float(value), error);
    }
    expected
}
