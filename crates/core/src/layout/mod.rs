//! Arithmetic on shapes and strides: sizes, broadcasting, bounds, reshaping without a copy.
//!
//! Strides and offsets count elements. Nothing here overflows silently: a layout that a machine
//! word can't describe is an error.

use crate::error::{Error, ErrorKind, Result};
use crate::shape::{Shape, Strides};

/// Returns the number of elements of a shape, checked to fit in memory for elements of
/// `element_size` bytes.
///
/// # Errors
/// [`ErrorKind::Shape`] when the count or the bytes exceed `isize::MAX`. A size of 0 doesn't hide
/// an overflow in the other dimensions, so that strides can always be computed.
#[inline]
pub fn numel(shape: &[usize], element_size: usize) -> Result<usize> {
    let (mut bytes, mut count) = (element_size.max(1), 1_usize);
    for &size in shape {
        // At most as many as bytes, which are checked. There is no division, which costs as much as the rest.
        count = count.wrapping_mul(size);
        bytes = match bytes.checked_mul(size.max(1)) {
            Some(bytes) if bytes <= isize::MAX as usize => bytes,
            _ => return Err(too_large(shape, element_size)),
        };
    }
    Ok(count)
}

#[cold]
fn too_large(shape: &[usize], element_size: usize) -> Error {
    Error::new(
        ErrorKind::Shape,
        format!(
            "shape {shape:?} with elements of {element_size} bytes is too large: its size in bytes \
             must be below 2^{}",
            isize::BITS - 1
        ),
    )
}

/// Returns the strides of a row-major layout without gaps.
///
/// The shape must have passed [`numel`], else strides saturate.
#[inline]
pub fn contiguous_strides(shape: &[usize]) -> Strides {
    // A shape has at most MAX_DIMS dimensions, checked by its constructor.
    let mut strides = Strides::filled(1, shape.len()).unwrap_or_default();
    let mut step = 1_isize;
    for (stride, &size) in strides.iter_mut().zip(shape).rev() {
        *stride = step;
        step = step.saturating_mul(isize::try_from(size.max(1)).unwrap_or(isize::MAX));
    }
    strides
}

/// Returns whether the elements lie in row-major order without gaps.
///
/// The strides of dimensions of size 1 don't matter, and a layout without elements is contiguous.
#[inline]
pub fn is_contiguous(shape: &[usize], strides: &[isize]) -> bool {
    let mut step = 1_isize;
    let mut contiguous = true;
    for (&size, &stride) in shape.iter().zip(strides).rev() {
        if size == 0 {
            return true;
        }
        contiguous &= size == 1 || stride == step;
        step = step.wrapping_mul(size as isize);
    }
    contiguous
}

/// Returns the shape that two shapes broadcast to, by NumPy's rule: aligned at the last dimension,
/// sizes must be equal or 1.
///
/// ```
/// use keyfold_core::layout::broadcast_shapes;
/// assert_eq!(&broadcast_shapes(&[3, 1], &[2])?[..], &[3, 2]);
/// # Ok::<(), keyfold_core::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Shape`] that names both shapes.
pub fn broadcast_shapes(a: &[usize], b: &[usize]) -> Result<Shape> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut shape = Shape::new(long)?;
    let start = long.len() - short.len();
    for (i, (size, &other)) in shape[start..].iter_mut().zip(short).enumerate() {
        if *size == 1 {
            *size = other;
        } else if other != 1 && other != *size {
            let axis = -((short.len() - i) as isize);
            let (at_a, at_b) = (a[a.len() + i - short.len()], b[b.len() + i - short.len()]);
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "shapes {a:?} and {b:?} don't broadcast: at axis {axis} the sizes are {at_a} \
                     and {at_b}, which must be equal or one of them 1"
                ),
            ));
        }
    }
    Ok(shape)
}

/// Returns the strides that broadcast a tensor of `shape` to `target`: 0 along repeated dimensions.
///
/// # Errors
/// [`ErrorKind::Shape`] when `shape` doesn't broadcast to exactly `target`.
pub fn broadcast_strides(shape: &[usize], strides: &[isize], target: &[usize]) -> Result<Strides> {
    let refuse = || {
        Error::new(ErrorKind::Shape, format!("shape {shape:?} can't be broadcast to {target:?}"))
    };
    let start = target.len().checked_sub(shape.len()).ok_or_else(refuse)?;
    let mut wide = Strides::filled(0, target.len())?;
    for (i, (&size, &stride)) in shape.iter().zip(strides).enumerate() {
        if size == target[start + i] {
            wide[start + i] = stride;
        } else if size != 1 {
            return Err(refuse());
        }
    }
    Ok(wide)
}

/// Returns the axis as an index from 0; a negative axis counts from the last dimension.
///
/// # Errors
/// [`ErrorKind::Index`] with the range of valid axes.
pub fn normalize_axis(axis: i64, ndim: usize) -> Result<usize> {
    let n = ndim as i64;
    if (-n..n).contains(&axis) {
        return Ok((if axis < 0 { axis + n } else { axis }) as usize);
    }
    let right = match ndim {
        0 => "it has no axes".to_owned(),
        _ => format!("use {} to {}", -n, n - 1),
    };
    let plural = if ndim == 1 { "" } else { "s" };
    Err(Error::new(
        ErrorKind::Index,
        format!("axis {axis} is out of range for a tensor of {ndim} dimension{plural}; {right}"),
    ))
}

/// Returns the shape of a reshape, with a size of `-1` inferred from `numel`.
///
/// ```
/// use keyfold_core::layout::infer_shape;
/// assert_eq!(&infer_shape(&[2, -1], 6)?[..], &[2, 3]);
/// # Ok::<(), keyfold_core::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Shape`] when the product of the sizes isn't `numel`, when there are several `-1` or
/// other negative sizes, or when `-1` is ambiguous beside a size of 0.
pub fn infer_shape(sizes: &[i64], numel: usize) -> Result<Shape> {
    let refuse = |why: String| {
        let elements = if numel == 1 { "element" } else { "elements" };
        Error::new(
            ErrorKind::Shape,
            format!("can't reshape a tensor of {numel} {elements} to {sizes:?}: {why}"),
        )
    };
    let mut shape = Shape::filled(0, sizes.len())?;
    let mut unknown = None;
    let mut known = 1_usize;
    let mut empty = false;
    for (i, &size) in sizes.iter().enumerate() {
        if size == -1 {
            if unknown.replace(i).is_some() {
                return Err(refuse("only one size can be -1".to_owned()));
            }
            continue;
        }
        let size = usize::try_from(size)
            .map_err(|_| refuse(format!("size {size} is negative; only -1 has a meaning")))?;
        shape[i] = size;
        empty |= size == 0;
        known = known
            .checked_mul(size.max(1))
            .ok_or_else(|| refuse("its element count overflows".to_owned()))?;
    }
    let product = if empty { 0 } else { known };
    match unknown {
        None if product == numel => {}
        None => return Err(refuse(format!("it has {product}"))),
        Some(_) if empty => {
            return Err(refuse("-1 could be any size beside a size of 0".to_owned()));
        }
        Some(_) if !numel.is_multiple_of(known) => {
            return Err(refuse(format!("{numel} isn't a multiple of {known}")));
        }
        Some(i) => shape[i] = numel / known,
    }
    Ok(shape)
}

/// Returns the offsets of the lowest (at most 0) and the highest (at least 0) element of a strided
/// view, relative to its first element. `None` for a view without elements.
///
/// # Errors
/// [`ErrorKind::Shape`] when an index overflows.
#[inline]
pub fn reach(shape: &[usize], strides: &[isize]) -> Result<Option<(isize, isize)>> {
    let (mut low, mut high) = (0_isize, 0_isize);
    for (&size, &stride) in shape.iter().zip(strides) {
        if size == 0 {
            return Ok(None);
        }
        let steps = isize::try_from(size - 1).ok();
        let Some(far) = steps.and_then(|steps| steps.checked_mul(stride)) else {
            return empty_or_overflow(shape, strides);
        };
        let end = if far < 0 { &mut low } else { &mut high };
        match end.checked_add(far) {
            Some(sum) => *end = sum,
            None => return empty_or_overflow(shape, strides),
        }
    }
    Ok(Some((low, high)))
}

/// Returns `None` for a view with a dimension of size 0, and an overflow error for any other.
#[cold]
fn empty_or_overflow(shape: &[usize], strides: &[isize]) -> Result<Option<(isize, isize)>> {
    if shape.contains(&0) {
        return Ok(None);
    }
    Err(Error::new(
        ErrorKind::Shape,
        format!("a view of shape {shape:?} and strides {strides:?} overflows the address space"),
    ))
}

/// Returns the offsets in the buffer of the lowest and the highest element of a strided view;
/// `None` for a view without elements.
///
/// # Errors
/// [`ErrorKind::Shape`] when the view begins before the buffer or an index overflows.
#[inline]
pub fn bounds(shape: &[usize], strides: &[isize], offset: usize) -> Result<Option<(usize, usize)>> {
    let Some((low, high)) = reach(shape, strides)? else { return Ok(None) };
    let first = offset.checked_sub(low.unsigned_abs());
    match (first, offset.checked_add(high as usize)) {
        (Some(first), Some(last)) if last <= isize::MAX as usize => Ok(Some((first, last))),
        (first, _) => {
            let what = if first.is_none() {
                "begins before its buffer"
            } else {
                "overflows the address space"
            };
            Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "a view of shape {shape:?}, strides {strides:?} and offset {offset} {what}"
                ),
            ))
        }
    }
}

/// Returns the strides that view the same elements, in the same order, under another shape; `None`
/// if only a copy can.
///
/// The algorithm is NumPy's: old and new dimensions are matched in groups of equal product, and
/// each group of old dimensions must be evenly spaced. The element counts must be equal.
///
/// ```
/// use keyfold_core::layout::reshape_strides;
/// assert_eq!(&reshape_strides(&[2, 6], &[6, 1], &[4, 3]).unwrap()[..], &[3, 1]);
/// assert!(reshape_strides(&[6, 2], &[1, 6], &[12]).is_none());
/// ```
pub fn reshape_strides(shape: &[usize], strides: &[isize], target: &[usize]) -> Option<Strides> {
    let mut result = contiguous_strides(target);
    if shape.contains(&0) {
        return Some(result);
    }
    // Dimensions of size 1 can have any stride, so they are left out on the old side.
    let mut old: Vec<(usize, isize)> = Vec::with_capacity(shape.len());
    old.extend(shape.iter().copied().zip(strides.iter().copied()).filter(|(size, _)| *size != 1));
    let (mut i, mut j) = (0, 0);
    while i < old.len() && j < target.len() {
        let (first_old, first_new) = (i, j);
        let (mut old_count, mut new_count) = (old[i].0, target[j]);
        while old_count != new_count {
            if new_count < old_count {
                j += 1;
                new_count = new_count.checked_mul(*target.get(j)?)?;
            } else {
                i += 1;
                old_count = old_count.checked_mul(old.get(i)?.0)?;
            }
        }
        for pair in old[first_old..=i].windows(2) {
            if Some(pair[0].1) != pair[1].1.checked_mul(pair[1].0 as isize) {
                return None;
            }
        }
        let mut step = old[i].1;
        for k in (first_new..=j).rev() {
            result[k] = step;
            step = step.checked_mul(target[k] as isize)?;
        }
        i += 1;
        j += 1;
    }
    // All remaining dimensions on either side must have size 1.
    (i == old.len() && target[j..].iter().all(|&size| size == 1)).then_some(result)
}

/// Returns strides of the same kind that leave smaller gaps between elements, for a copy that kernels compute
/// with as with the original: signs and zeros, the order of the dimensions, steps of 1, and which dimensions
/// continue each other are the same. Strides of dimensions that overlap or interleave are divided by what they have
/// in common, and may leave large gaps. `None` without elements.
///
/// ```
/// use keyfold_core::layout::compact_strides;
/// let column = compact_strides(&[64, 3], &[1000, -10]).unwrap();
/// assert_eq!(&column[..], &[7, -2]);
/// let windows = compact_strides(&[64, 3], &[10, 10]).unwrap();
/// assert_eq!(&windows[..], &[2, 2]);
/// ```
pub fn compact_strides(shape: &[usize], strides: &[isize]) -> Option<Strides> {
    if shape.contains(&0) {
        return None;
    }
    let mut order: Vec<usize> = (0..shape.len()).filter(|d| strides[*d] != 0).collect();
    order.sort_by_key(|d| strides[*d].unsigned_abs());
    let mut compact = Strides::filled(0, shape.len()).ok()?;
    // The end of the dimension before, in the old layout and in the new one.
    let mut end: Option<(usize, usize)> = None;
    for d in &order {
        let old = strides[*d].unsigned_abs();
        let new = match end {
            None => old.min(2),
            Some((before, end)) if old == before => end,
            Some((before, end)) if old > before => end + 1,
            // A step that is never taken.
            Some((_, end)) if shape[*d] == 1 => old.min(end),
            Some(_) => return divided(strides, &order),
        };
        compact[*d] = strides[*d].signum() * new as isize;
        if shape[*d] > 1 {
            end = Some((old.checked_mul(shape[*d])?, new.checked_mul(shape[*d])?));
        }
    }
    Some(compact)
}

/// Divides strides by what those of some dimensions have in common; steps of more than 1 stay so.
fn divided(strides: &[isize], dims: &[usize]) -> Option<Strides> {
    let common = dims.iter().fold(0, |common, d| {
        let (mut a, mut b) = (common, strides[*d].unsigned_abs());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    });
    let mut new = Strides::new(strides).ok()?;
    let common = isize::try_from(common).ok()?;
    new.iter_mut().for_each(|stride| *stride = *stride / common * common.min(2));
    Some(new)
}

/// Returns whether two indices of a view may refer to the same element, so that the result of
/// writing through it depends on the order.
///
/// The test is exact for strides of 0 and for layouts made by slicing, transposing and
/// broadcasting. It may report an overlap for an interleaved layout that has none, never the
/// reverse.
pub fn may_overlap(shape: &[usize], strides: &[isize]) -> bool {
    // No elements, or each at a place of its own: most tensors.
    if is_contiguous(shape, strides) {
        return false;
    }
    let mut dims: Vec<(usize, usize)> = shape
        .iter()
        .zip(strides)
        .filter(|(size, _)| **size > 1)
        .map(|(&size, &stride)| (stride.unsigned_abs(), size))
        .collect();
    dims.sort_unstable();
    // Each stride must exceed the range of the smaller ones.
    let mut reach = 0_usize;
    dims.into_iter().any(|(stride, size)| {
        let overlaps = stride <= reach;
        reach = reach.saturating_add(stride.saturating_mul(size - 1));
        overlaps
    })
}

#[cfg(test)]
mod tests;
