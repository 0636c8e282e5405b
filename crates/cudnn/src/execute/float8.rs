//! 8-bit floats, which tensors hold as bytes.

use keyfold_core::{DType, Result, Scalar};
use keyfold_tensor::Tensor;

use super::calls::Calls;
use crate::DataType;

/// The bits of an 8-bit float's mantissa, and its exponent's bias.
fn parts(dtype: DataType) -> (i32, i32) {
    if dtype == DataType::E4M3 { (3, 7) } else { (2, 15) }
}

/// Returns the number of each byte.
pub(super) fn table(dtype: DataType) -> [f32; 256] {
    let (mantissa_bits, bias) = parts(dtype);
    let ones = (1 << mantissa_bits) - 1;
    std::array::from_fn(|byte| {
        let (exponent, mantissa) = ((byte as i32 & 0x7f) >> mantissa_bits, byte as i32 & ones);
        let sign = if byte < 128 { 1.0 } else { -1.0 };
        let magnitude = match (dtype, exponent, mantissa) {
            (DataType::E4M3, 15, 7) => f32::NAN,
            (DataType::E5M2, 31, 0) => f32::INFINITY,
            (DataType::E5M2, 31, _) => f32::NAN,
            (_, 0, _) => mantissa as f32 * 2.0_f32.powi(1 - bias - mantissa_bits),
            _ => (mantissa + ones + 1) as f32 * 2.0_f32.powi(exponent - bias - mantissa_bits),
        };
        sign * magnitude
    })
}

/// Returns the numbers of bytes as float32, of the table of [`table`] on their device.
pub(super) fn decode(calls: &Calls, bytes: &Tensor, table: &Tensor) -> Result<Tensor> {
    calls.map("x, t[1]: t[int64(x)]", &[bytes, table], &[])
}

/// Returns the bytes of floats: the nearest ones, ties to even, saturated at the greatest finite
/// number.
///
/// A number is counted in steps of its power of two's spacing; the count and the power are the
/// byte, and a count that rounds up to the next power is that power's first.
pub(super) fn encode(calls: &Calls, x: &Tensor, dtype: DataType) -> Result<Tensor> {
    let text = "x; most, least, bits, steps, none: a = min(abs(x), most); \
                power = max(floor(log2(max(a, 1e-30))), least); \
                n = round(a * 2.0 ** (bits - power)) + (power - least) * steps; \
                s = where(x < 0 or 1.0 / x < 0, 128, 0); \
                uint8(s + where(isnan(x), none, int32(where(isnan(n), 0.0, n))))";
    let (mantissa_bits, bias) = parts(dtype);
    let (most, none) = if dtype == DataType::E4M3 { (448.0, 0x7f) } else { (57344.0, 0x7e) };
    let numbers = [
        Scalar::Float(most),
        Scalar::Float(f64::from(1 - bias)),
        Scalar::Float(f64::from(mantissa_bits)),
        Scalar::Float(f64::from(1 << mantissa_bits)),
        Scalar::Int(none),
    ];
    // Halves have room for neither the steps nor the powers.
    let wide = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    calls.map(text, &[&calls.to(x, wide)?], &numbers)
}
