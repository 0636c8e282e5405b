//! The counter-based generator Philox4x32-10.
//!
//! A bijection of 128-bit counters, parameterised by a 64-bit key: block `n` of a stream is a function
//! of the key and `n` alone, so any part of the stream can be generated without the parts before it (J.
//! Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011).

use crate::isa::{Isa, Work, dispatch};

/// The multipliers of the two halves of a counter.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];

/// The increments of the key's words after each round: the golden ratio and the square root of 3, minus
/// 1.
const STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

const ROUNDS: usize = 10;

/// Computes the block of four random words at a counter.
fn philox([mut a, mut b, mut c, mut d]: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(a);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(c);
        (a, c) = ((second >> 32) as u32 ^ b ^ key[0], (first >> 32) as u32 ^ d ^ key[1]);
        (b, d) = (second as u32, first as u32);
        key = [key[0].wrapping_add(STEPS[0]), key[1].wrapping_add(STEPS[1])];
    }
    [a, b, c, d]
}

/// Blocks that are computed together, in the lanes of vector registers.
const LANES: usize = 16;

/// Computes the blocks at consecutive counters: word `w` of block `l` is `[w][l]`.
#[inline(always)]
fn lanes(seed: u64, first: u64) -> [[u32; LANES]; 4] {
    let (mut a, mut b) = ([0; LANES], [0; LANES]);
    let (mut c, mut d) = ([0; LANES], [0; LANES]);
    for l in 0..LANES {
        let index = first.wrapping_add(l as u64);
        (a[l], b[l]) = (index as u32, (index >> 32) as u32);
    }
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..ROUNDS {
        for l in 0..LANES {
            let first = u64::from(MULTIPLIERS[0]) * u64::from(a[l]);
            let second = u64::from(MULTIPLIERS[1]) * u64::from(c[l]);
            a[l] = (second >> 32) as u32 ^ b[l] ^ key[0];
            c[l] = (first >> 32) as u32 ^ d[l] ^ key[1];
            (b[l], d[l]) = (second as u32, first as u32);
        }
        key = [key[0].wrapping_add(STEPS[0]), key[1].wrapping_add(STEPS[1])];
    }
    [a, b, c, d]
}

/// Words of consecutive blocks.
struct Words<'a> {
    seed: u64,
    first: u64,
    to: &'a mut [u32],
}

impl Work for Words<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (at, to) in (0_u64..).step_by(LANES).zip(self.to.chunks_mut(4 * LANES)) {
            let words = lanes(self.seed, self.first.wrapping_add(at));
            let mut all = [0; 4 * LANES];
            for (l, block) in all.chunks_exact_mut(4).enumerate() {
                for (word, words) in block.iter_mut().zip(&words) {
                    *word = words[l];
                }
            }
            to.copy_from_slice(&all[..to.len()]);
        }
    }
}

/// Writes the words of the blocks from `first` on of the stream of a seed: the same as those of [`block`], one
/// block after the other, and several times as fast.
pub fn fill_words(seed: u64, first: u64, to: &mut [u32]) {
    dispatch(Words { seed, first, to });
}

/// Returns block `index` of the stream of a seed.
pub fn block(seed: u64, index: u64) -> [u32; 4] {
    philox([index as u32, (index >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_random123() {
        // The three lines "philox4x32 10" of Random123's file kat_vectors.
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox(counter, key), expected, "{counter:x?} {key:x?}");
        }
    }

    #[test]
    fn words_are_those_of_the_blocks() {
        // The counter's lower half overflows in the last case.
        for (seed, first) in [(0, 0), (7, 3), (u64::MAX, u64::from(u32::MAX) - 5)] {
            for len in [0, 1, 4, 63, 64, 65, 300] {
                let mut words = vec![0; len];
                fill_words(seed, first, &mut words);
                let blocks = (0..len.div_ceil(4) as u64).flat_map(|i| block(seed, first + i));
                assert_eq!(words, blocks.take(len).collect::<Vec<_>>(), "{seed} {first} {len}");
            }
        }
    }
}
