//! Random numbers of Philox4x32-10: the same as on every other device of keyfold.

use keyfold_plugin::{DType, Number, Result};

use crate::memory::View;

pub fn has(name: &str, dtypes: &[DType]) -> bool {
    matches!(name, "uniform" | "normal") && dtypes.iter().all(|dtype| dtype.is_floating())
}

/// Returns block `index` of the stream of a seed (J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel
/// random numbers: as easy as 1, 2, 3", 2011).
pub fn block(seed: u64, index: u64) -> [u32; 4] {
    let [mut a, mut b, mut c, mut d] = [index as u32, (index >> 32) as u32, 0, 0];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let first = 0xD251_1F53 * u64::from(a);
        let second = 0xCD9E_8D57 * u64::from(c);
        (a, c) = ((second >> 32) as u32 ^ b ^ key[0], (first >> 32) as u32 ^ d ^ key[1]);
        (b, d) = (second as u32, first as u32);
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    [a, b, c, d]
}

/// Returns two normal numbers of two uniform ones, the first above 0.
fn box_muller(u: f64, v: f64) -> [f64; 2] {
    let radius = (-2.0 * u.ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * v).sin_cos();
    [radius * cos, radius * sin]
}

/// Writes the numbers from a block on: float64 takes two words for each, others one.
pub fn run(name: &str, seed: u64, offset: u64, out: &View) -> Result<()> {
    let dtype = out.layout.dtype();
    let unit = |bits: u32| (-f64::from(bits)).exp2();
    let long = |low: u32, high: u32| (u64::from(high) << 32 | u64::from(low)) >> 11;
    let of = |words: [u32; 4]| -> Vec<f64> {
        let [a, b, c, d] = words;
        let wide = [long(a, b), long(c, d)].map(|word| word as f64 * unit(53));
        match (name, dtype) {
            ("uniform", DType::F64) => wide.to_vec(),
            ("uniform", _) => {
                // As many bits as the dtype has, so that none is rounded up to 1.
                let bits = match dtype {
                    DType::F16 => 11,
                    DType::BF16 => 8,
                    _ => 24,
                };
                words.map(|word| f64::from(word >> (32 - bits)) * unit(bits)).to_vec()
            }
            (_, DType::F64) => box_muller(1.0 - wide[0], wide[1]).to_vec(),
            _ => {
                let pair = |a: u32, b: u32| {
                    box_muller((f64::from(a) + 1.0) * unit(32), f64::from(b) * unit(32))
                };
                // A half is rounded from float32.
                [pair(a, b), pair(c, d)].concat().iter().map(|x| f64::from(*x as f32)).collect()
            }
        }
    };
    let blocks = (0..).flat_map(|at: u64| of(block(seed, offset.wrapping_add(at))));
    out.set(blocks.map(Number::Float));
    Ok(())
}
