//! Uniform and normal numbers.

mod philox;

use std::sync::LazyLock;

use keyfold_backend::{Launch, Offer, Random, RandomOp, RandomParams};
use keyfold_core::{DType, Element, Result, bf16, f16};
use keyfold_kit::axes::{BF16, DispatchTable, Dtype, F16, F32, F64, plain};
use keyfold_tensor::Tensor;

use self::philox::block;
use crate::HostBackend;
use crate::kernel::{HostKernel, offer};

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

/// Fills a contiguous output, `N` numbers a block of the stream.
fn fill<T: Element, const N: usize>(
    params: &RandomParams,
    out: &Tensor,
    numbers: impl Fn([u32; 4]) -> [T; N],
) -> Result<()> {
    let to = out.data_mut_ptr::<T>()?;
    // SAFETY: the output is contiguous, and nobody else uses it (`Launch::launch`).
    let items = unsafe { std::slice::from_raw_parts_mut(to, out.numel()) };
    for (i, chunk) in (0_u64..).zip(items.chunks_mut(N)) {
        let made = numbers(block(params.seed, params.offset.wrapping_add(i)));
        chunk.copy_from_slice(&made[..chunk.len()]);
    }
    Ok(())
}

type Kernels = DispatchTable<(Dtype,), HostKernel<RandomParams>>;

static UNIFORM: LazyLock<Kernels> = LazyLock::new(|| {
    DispatchTable::builder("uniform")
        .cover(
            (F64,),
            plain("float64", HostKernel::new(|params, _, out| fill(params, out, uniform_f64))),
        )
        .cover(
            (F32,),
            plain(
                "float32",
                HostKernel::new(|params, _, out| fill(params, out, |words| uniform_f32(words, 24))),
            ),
        )
        .cover(
            (F16,),
            plain(
                "float16",
                HostKernel::new(|params, _, out| {
                    fill(params, out, |words| uniform_f32(words, 11).map(f16::from_f32))
                }),
            ),
        )
        .cover(
            (BF16,),
            plain(
                "bfloat16",
                HostKernel::new(|params, _, out| {
                    fill(params, out, |words| uniform_f32(words, 8).map(bf16::from_f32))
                }),
            ),
        )
        .build()
        .expect("each dtype is covered once")
});

static NORMAL: LazyLock<Kernels> = LazyLock::new(|| {
    DispatchTable::builder("normal")
        .cover(
            (F64,),
            plain("float64", HostKernel::new(|params, _, out| fill(params, out, normal_f64))),
        )
        .cover(
            (F32,),
            plain("float32", HostKernel::new(|params, _, out| fill(params, out, normal_f32))),
        )
        .cover(
            (F16,),
            plain(
                "float16",
                HostKernel::new(|params, _, out| {
                    fill(params, out, |words| normal_f32(words).map(f16::from_f32))
                }),
            ),
        )
        .cover(
            (BF16,),
            plain(
                "bfloat16",
                HostKernel::new(|params, _, out| {
                    fill(params, out, |words| normal_f32(words).map(bf16::from_f32))
                }),
            ),
        )
        .build()
        .expect("each dtype is covered once")
});

impl Random for HostBackend {
    fn random(&self, op: RandomOp, output: DType) -> Offer<&dyn Launch<RandomParams>> {
        let table = match op {
            RandomOp::Uniform => &UNIFORM,
            RandomOp::Normal => &NORMAL,
        };
        offer(table, output)
    }
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
