//! Counter-based random numbers: uniform and normal numbers from the blocks of a stream.
//!
//! The generator is Philox4x32-10, so element `i` of a result depends only on the seed and on `i`: any
//! thread, and any device, can generate any part of a stream.
//!
//! ```
//! use keyfold_kit::random::{block, normal_f32, uniform_f32};
//!
//! // Elements 40 to 43 of the stream of seed 7.
//! let words = block(7, 10);
//! assert!(uniform_f32(words, 24).iter().all(|x| (0.0..1.0).contains(x)));
//! assert!(normal_f32(words).iter().all(|x| x.is_finite()));
//! assert_eq!(words, block(7, 10));
//! ```

mod philox;

pub use philox::{block, fill_words};

/// 2^-32 and 2^-53.
const UNIT_32: f64 = 1.0 / (1_u64 << 32) as f64;
const UNIT_53: f64 = 1.0 / (1_u64 << 53) as f64;

/// Joins two words to one of 64 bits.
fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Converts a block to uniform numbers in [0, 1) with all bits of a float64.
pub fn uniform_f64([a, b, c, d]: [u32; 4]) -> [f64; 2] {
    [join(a, b), join(c, d)].map(|word| (word >> 11) as f64 * UNIT_53)
}

/// Converts a block to uniform numbers in [0, 1) of `bits` bits, at most 24: as many as the dtype that
/// they are stored in has, so that none is rounded up to 1.
pub fn uniform_f32(words: [u32; 4], bits: u32) -> [f32; 4] {
    words.map(|word| (word >> (32 - bits)) as f32 / (1_u32 << bits) as f32)
}

/// Two independent normal numbers from two uniform ones, the first in (0, 1] (G. Box, M. Muller, "A note
/// on the generation of random normal deviates", 1958).
fn box_muller(u: f64, v: f64) -> [f64; 2] {
    let radius = (-2.0 * u.ln()).sqrt();
    let (sin, cos) = (std::f64::consts::TAU * v).sin_cos();
    [radius * cos, radius * sin]
}

/// Converts a block to two independent normal numbers.
pub fn normal_f64(words: [u32; 4]) -> [f64; 2] {
    let [u, v] = uniform_f64(words);
    box_muller(1.0 - u, v)
}

/// Converts a block to four independent normal numbers.
pub fn normal_f32([a, b, c, d]: [u32; 4]) -> [f32; 4] {
    let pair = |a: u32, b: u32| {
        box_muller((f64::from(a) + 1.0) * UNIT_32, f64::from(b) * UNIT_32).map(|x| x as f32)
    };
    let ([a, b], [c, d]) = (pair(a, b), pair(c, d));
    [a, b, c, d]
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
