//! Sizes and strides as kernel arguments: 64-bit words, which any language can write.

use keyfold_core::{Error, ErrorKind, Result};

/// Returns `magic` and `shift` for quotients by `size`: `(mulhi(n, magic) + n) >> shift`, in 32
/// bits for n below 2^31, in 64 bits for n below 2^63 if `wide`.
///
/// Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994), figure 4.1.
fn division(size: u64, wide: bool) -> (u64, u64) {
    let size = u128::from(size.max(1));
    let shift = u128::BITS - (size - 1).leading_zeros();
    let bits = if wide { 64 } else { 32 };
    let magic = (((1_u128 << shift) - size) << bits) / size + 1;
    (magic as u64, u64::from(shift))
}

/// A dimension of the walk: its size, and the operands' strides.
type WalkedDim = (u64, Vec<i64>);

/// Returns whether `count` elements need 64-bit quotients.
fn is_wide(count: u64) -> bool {
    count > 1 << 31
}

fn count(shape: &[u64]) -> Result<u64> {
    let count = shape.iter().try_fold(1_u64, |all, size| all.checked_mul(*size));
    count.filter(|count| *count < 1 << 63).ok_or_else(|| {
        Error::new(ErrorKind::Shape, format!("kernel: {shape:?} has more elements than 2^63"))
    })
}

/// Returns the words of [`Argument::Strides`](super::Argument::Strides) for a result of this shape.
/// The strides, in elements, are those of the result and then of the elementwise inputs (without
/// the replaced one), 0 where an input is broadcast. `dims` is
/// [`KernelSource::dims`](super::KernelSource::dims).
///
/// Dimensions of size 1 are dropped, and neighbouring dimensions with one stride are merged.
///
/// Words: the number of dimensions; 1 for 64-bit quotients, else 0; then `dims` words each, the
/// last dimension first, of sizes, magic numbers, shifts, and the strides of each operand.
///
/// # Errors
/// [`ErrorKind::Shape`] if more than `dims` dimensions remain, if the numbers of strides and sizes
/// differ, or for 2^63 elements.
pub fn strides_words(shape: &[u64], strides: &[&[i64]], dims: u32) -> Result<Vec<u64>> {
    if let Some(wrong) = strides.iter().find(|strides| strides.len() != shape.len()) {
        return Err(Error::new(
            ErrorKind::Shape,
            format!("kernel: strides {wrong:?} for the {} dimensions of {shape:?}", shape.len()),
        ));
    }
    let wide = is_wide(count(shape)?);
    // The last dimension first.
    let mut walked: Vec<WalkedDim> = Vec::new();
    for (dim, &size) in shape.iter().enumerate().rev().filter(|(_, size)| **size != 1) {
        let steps: Vec<i64> = strides.iter().map(|strides| strides[dim]).collect();
        let joins = |(inner, step): &WalkedDim| {
            let joined = |(outer, step): (&i64, &i64)| {
                i128::from(*outer) == i128::from(*step) * i128::from(*inner)
            };
            steps.iter().zip(step).all(joined)
        };
        match walked.last_mut() {
            Some(last) if joins(last) => last.0 *= size,
            _ => walked.push((size, steps)),
        }
    }
    let capacity = dims as usize;
    if walked.len() > capacity {
        return Err(Error::new(
            ErrorKind::Shape,
            format!(
                "kernel: {} dimensions remain of {shape:?} after joining, but the kernel walks {dims}; \
                 emit it with more",
                walked.len()
            ),
        ));
    }
    let mut words = vec![walked.len() as u64, u64::from(wide)];
    let mut column = |value: &dyn Fn(&WalkedDim) -> u64, rest: u64| {
        words.extend((0..capacity).map(|dim| walked.get(dim).map_or(rest, value)));
    };
    column(&|(size, _)| *size, 1);
    column(&|(size, _)| division(*size, wide).0, 1);
    column(&|(size, _)| division(*size, wide).1, 0);
    for operand in 0..strides.len() {
        column(&|(_, steps)| steps[operand] as u64, 0);
    }
    Ok(words)
}

/// Returns the words of [`Argument::Shape`](super::Argument::Shape): 1 for 64-bit quotients, else
/// 0, then `dims` words each, the last dimension first, of sizes, magic numbers, shifts. Missing
/// dimensions have size 1.
///
/// # Errors
/// [`ErrorKind::Shape`] for 2^63 elements.
pub fn shape_words(shape: &[u64], dims: u32) -> Result<Vec<u64>> {
    let wide = is_wide(count(shape)?);
    let size = |dim: usize| shape.iter().rev().nth(dim).copied().unwrap_or(1);
    let dims = dims as usize;
    let mut words = vec![u64::from(wide)];
    words.extend((0..dims).map(size));
    words.extend((0..dims).map(|dim| division(size(dim), wide).0));
    words.extend((0..dims).map(|dim| division(size(dim), wide).1));
    Ok(words)
}

/// Returns the words of [`Argument::Ranked`](super::Argument::Ranked): sizes, then strides in
/// elements, the first dimension first.
pub fn ranked_words(shape: &[u64], strides: &[i64]) -> Vec<u64> {
    shape.iter().copied().chain(strides.iter().map(|stride| *stride as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotient(number: u64, size: u64, wide: bool) -> u64 {
        let (magic, shift) = division(size, wide);
        if wide {
            let high = (u128::from(number) * u128::from(magic)) >> 64;
            return (high as u64 + number) >> shift;
        }
        // As in the kernel, in 32 bits.
        let high = (number * u64::from(magic as u32)) >> 32;
        u64::from((high as u32).wrapping_add(number as u32) >> shift)
    }

    #[test]
    fn quotients_are_exact() {
        let sizes = [1, 2, 3, 5, 7, 10, 641, 1000, 4096, 65_535, 65_537, 999_983, (1 << 30) + 1];
        for size in sizes.into_iter().chain([1 << 30, (1 << 31) - 1]) {
            for k in [0, 1, 2, 3, 1000, (1_u64 << 31) / size] {
                for number in [(k * size).saturating_sub(1), k * size, k * size + 1] {
                    let wide = number.min((1 << 62) + 1) * 3;
                    assert_eq!(quotient(wide, size, true), wide / size, "{wide} / {size}");
                    if number < 1 << 31 {
                        assert_eq!(quotient(number, size, false), number / size);
                    }
                }
            }
        }
        for size in [3, 1 << 40, (1 << 62) - 1, (1 << 62) + 1] {
            let greatest = (1_u64 << 63) - 1;
            for number in [greatest, greatest / size * size, greatest / size * size - 1, size] {
                assert_eq!(quotient(number, size, true), number / size);
            }
        }
    }

    #[test]
    fn neighbours_are_joined() {
        let words = strides_words(&[4, 1, 5, 6], &[&[30, 9, 6, 1], &[30, 0, 6, 1]], 2).unwrap();
        assert_eq!(words[..4], [1, 0, 120, 1]);
        let transposed = strides_words(&[5, 6], &[&[6, 1], &[1, 5]], 2).unwrap();
        assert_eq!(transposed[..4], [2, 0, 6, 5]);
        assert_eq!(transposed[8..], [1, 6, 5, 1]);
        let error = strides_words(&[5, 6], &[&[1, 5], &[6, 1]], 1).unwrap_err();
        assert!(error.message().contains("2 dimensions remain"), "{error}");
        assert!(strides_words(&[5, 6], &[&[1]], 1).is_err());
        assert!(strides_words(&[1 << 40, 1 << 40], &[&[0, 0]], 2).is_err());
        let scalar = strides_words(&[], &[&[]], 1).unwrap();
        assert_eq!(scalar, [0, 0, 1, 1, 0, 0]);
    }
}
