//! Worked example: relu, written by hand and with `map`.
//!
//! [`by_hand`] is the code without views: a match over dtypes, a loop for contiguous elements, nested
//! counters for strided ones, and one more loop for in place. It runs on one thread, and only for
//! contiguous outputs. [`with_map`] handles all layouts on all threads in a third of the lines.

use keyfold_core::{DType, Element, Error, ErrorKind, Result};
use keyfold_kit::for_each::{Compute, map};
use keyfold_kit::math::Real;
use keyfold_kit::view::{FlatView, FlatViewMut, Strided};
use keyfold_tensor::Tensor;

/// Writes `max(x, 0)` to `out`, or without `x` over `out`'s own elements: the "before".
///
/// # Errors
/// For tensors of different dtypes or shapes, for other dtypes than floats of 4 and 8 bytes, and for
/// an `out` that isn't contiguous.
pub(crate) fn by_hand(out: &mut Tensor, x: Option<&Tensor>) -> Result<()> {
    match out.dtype() {
        DType::F32 => by_hand_for(out, x, |x: f32| if x < 0.0 { 0.0 } else { x }),
        DType::F64 => by_hand_for(out, x, |x: f64| if x < 0.0 { 0.0 } else { x }),
        other => Err(Error::new(
            ErrorKind::DType,
            format!("relu: argument 'out' is {other}; float32 or float64 is needed"),
        )),
    }
}

fn by_hand_for<T: Element>(out: &mut Tensor, x: Option<&Tensor>, f: impl Fn(T) -> T) -> Result<()> {
    let Some(x) = x else {
        for item in out.as_mut_slice::<T>()? {
            *item = f(*item);
        }
        return Ok(());
    };
    if **x.shape() != **out.shape() {
        return Err(Error::new(
            ErrorKind::Shape,
            format!("relu: 'x' has shape {:?} and 'out' {:?}", x.shape(), out.shape()),
        ));
    }
    if x.is_contiguous() {
        for (out, x) in out.as_mut_slice::<T>()?.iter_mut().zip(x.as_slice::<T>()?) {
            *out = f(*x);
        }
        return Ok(());
    }
    // Any strides: an index per dimension, incremented with carry.
    let (data, first) = x.as_strided_slice::<T>()?;
    let (shape, strides) = (x.shape(), x.strides());
    let mut index = vec![0_usize; shape.len()];
    let mut place = first as isize;
    for item in out.as_mut_slice::<T>()? {
        *item = f(data[place as usize]);
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            place += strides[d];
            if index[d] < shape[d] {
                break;
            }
            place -= strides[d] * shape[d] as isize;
            index[d] = 0;
        }
    }
    Ok(())
}

/// The same for every float dtype and every layout, on all threads: the "after".
///
/// # Errors
/// As [`map`] and the views.
pub(crate) fn with_map<T: Compute>(out: &mut Tensor, x: Option<&Tensor>) -> Result<()> {
    let relu = |x: T| if x.widen() < T::Real::ZERO { T::default() } else { x };
    let out = FlatViewMut::<T, Strided>::from_tensor(out)?;
    match x {
        Some(x) => map((), out, FlatView::<T, Strided>::from_tensor(x)?, relu),
        None => map((), out, out, relu),
    }
}

fn main() -> Result<()> {
    let x = Tensor::from_vec(vec![-1.0_f32, 2.0, -3.0, 4.0], &[2, 2])?.transpose(0, 1)?;
    let (mut before, mut after) = (x.copy()?, x.copy()?);
    by_hand(&mut before, Some(&x))?;
    with_map::<f32>(&mut after, Some(&x))?;
    assert_eq!(before.to_vec::<f32>()?, [0.0, 0.0, 2.0, 4.0]);
    assert_eq!(before.to_vec::<f32>()?, after.to_vec::<f32>()?);
    Ok(())
}
