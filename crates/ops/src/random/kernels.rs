//! Uniform and normal numbers.

use keyfold_core::{DType, Device, Result, Shape};
use keyfold_dispatch::Kernel;
use keyfold_tensor::device::random::take;
use keyfold_tensor::{IntList, Tensor, Value};

use super::philox::block;
use crate::op::{Op, Registrar};
use crate::promote::{computed, rounded};

/// The floats, which random numbers are.
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// 2 to the power of -32, -53.
const UNIT_32: f64 = 1.0 / (1_u64 << 32) as f64;
const UNIT_53: f64 = 1.0 / (1_u64 << 53) as f64;

/// Two words as one.
fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// A block as uniform numbers in [0, 1), as exact as a float64 can be.
fn uniform_f64([a, b, c, d]: [u32; 4]) -> [f64; 2] {
    [join(a, b), join(c, d)].map(|word| (word >> 11) as f64 * UNIT_53)
}

/// A block as uniform numbers in [0, 1) of so many bits, which the dtype holds, so that none is
/// rounded up to 1.
fn uniform_f32(words: [u32; 4], bits: u32) -> [f32; 4] {
    words.map(|word| (word >> (32 - bits)) as f32 / (1_u32 << bits) as f32)
}

/// Two independent normal numbers of two uniform ones, the first in (0, 1] (G. Box, M. Muller, "A
/// note on the generation of random normal deviates", 1958).
fn box_muller(u: f64, v: f64) -> [f64; 2] {
    let radius = (-2.0 * u.ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * v).sin_cos();
    [radius * cos, radius * sin]
}

fn normal_f64(words: [u32; 4]) -> [f64; 2] {
    let [u, v] = uniform_f64(words);
    box_muller(1.0 - u, v)
}

fn normal_f32([a, b, c, d]: [u32; 4]) -> [f32; 4] {
    let pair = |a: u32, b: u32| {
        box_muller((f64::from(a) + 1.0) * UNIT_32, f64::from(b) * UNIT_32).map(|x| x as f32)
    };
    let ([a, b], [c, d]) = (pair(a, b), pair(c, d));
    [a, b, c, d]
}

/// Fills a slice from the host's stream, `N` numbers a block.
fn fill<T: Copy, const N: usize>(
    items: &mut [T],
    numbers: impl Fn([u32; 4]) -> [T; N],
) -> Result<()> {
    let begin = take(Device::CPU, items.len().div_ceil(N) as u64)?;
    for (i, chunk) in (0_u64..).zip(items.chunks_mut(N)) {
        let made = numbers(block(begin.seed, begin.offset.wrapping_add(i)));
        chunk.copy_from_slice(&made[..chunk.len()]);
    }
    Ok(())
}

/// Which numbers.
#[derive(Clone, Copy)]
enum Distribution {
    Uniform,
    Normal,
}

fn random(
    op: Op,
    size: &[i64],
    dtype: Option<DType>,
    device: Option<Device>,
    distribution: Distribution,
) -> Result<Tensor> {
    let dtype = dtype.unwrap_or(DType::DEFAULT_FLOAT);
    if !FLOATS.contains(&dtype) {
        return Err(op.unsupported("dtype", dtype, &FLOATS));
    }
    let shape: Shape = op.shape(size)?;
    let op = Op { device: device.unwrap_or(op.device), ..op };
    let mut out = op.output(&shape, computed(dtype))?;
    if op.is_meta() {
        return rounded(op, out, dtype);
    }
    if dtype == DType::F64 {
        let items = op.at(out.as_mut_slice::<f64>())?;
        op.at(match distribution {
            Distribution::Uniform => fill(items, uniform_f64),
            Distribution::Normal => fill(items, normal_f64),
        })?;
        return Ok(out);
    }
    let bits = match dtype {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    };
    let items = op.at(out.as_mut_slice::<f32>())?;
    op.at(match distribution {
        Distribution::Uniform => fill(items, |words| uniform_f32(words, bits)),
        Distribution::Normal => fill(items, normal_f32),
    })?;
    rounded(op, out, dtype)
}

/// Defines these operators in a dispatcher.
pub(crate) fn register(ops: &Registrar<'_>) -> Result<()> {
    let kernel = |distribution| {
        move |op: Op| -> Kernel<Value> {
            Kernel::typed(move |size: IntList, dtype: Option<DType>, device: Option<Device>| {
                random(op, &size, dtype, device, distribution)
            })
        }
    };
    ops.view(
        "aten::rand(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
        kernel(Distribution::Uniform),
    )?;
    ops.view(
        "aten::randn(int[] size, *, ScalarType? dtype=None, Device? device=None) -> Tensor",
        kernel(Distribution::Normal),
    )?;
    super::dropout::register(ops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_words_stay_below_one_and_the_smallest_are_finite() {
        let (most, least) = ([u32::MAX; 4], [0; 4]);
        assert!(uniform_f64(most)[0] < 1.0 && uniform_f64(least)[0] == 0.0);
        for bits in [8, 11, 24] {
            assert_eq!(uniform_f32(most, bits)[0], 1.0 - 0.5_f32.powi(bits as i32));
        }
        for words in [most, least] {
            assert!(normal_f64(words).iter().all(|x| x.is_finite()));
            assert!(normal_f32(words).iter().all(|x| x.is_finite()));
        }
    }
}
