//! Elementwise passes over strided operands into a fresh, contiguous result.

use std::borrow::Cow;

use keyfold_core::{DType, ErrorKind, Result, Shape, Strides, layout};
use keyfold_tensor::{Tensor, Walk};

use crate::cast_any::cast_any;
use crate::element::{Number, SUPPORTED, for_dtype};
use crate::half::{cast_half, is_half};
use crate::op::Op;

/// An operand's elements, broadcast to the shape of the result.
struct Source<'a, T: Number> {
    data: &'a [T::Stored],
    origin: isize,
    strides: Strides,
}

impl<'a, T: Number> Source<'a, T> {
    fn new(tensor: &'a Tensor, shape: &[usize]) -> Result<Self> {
        let strides = layout::broadcast_strides(tensor.shape(), tensor.strides(), shape)?;
        let (data, origin) = tensor.as_strided_slice::<T::Stored>()?;
        Ok(Source { data, origin: origin as isize, strides })
    }

    /// The elements of one run.
    #[inline]
    fn run(&self, start: isize, step: isize, len: usize) -> Run<'a, T> {
        let start = (self.origin + start) as usize;
        match step {
            1 => Run::Dense(&self.data[start..start + len]),
            0 => Run::Same(T::load(self.data[start])),
            _ => Run::Strided { data: self.data, start, step },
        }
    }
}

/// The elements of one operand along one run of the result.
#[derive(Clone, Copy)]
enum Run<'a, T: Number> {
    Dense(&'a [T::Stored]),
    Same(T),
    Strided { data: &'a [T::Stored], start: usize, step: isize },
}

impl<T: Number> Run<'_, T> {
    #[inline]
    fn get(&self, k: usize) -> T {
        match self {
            Run::Dense(data) => T::load(data[k]),
            Run::Same(value) => *value,
            Run::Strided { data, start, step } => {
                T::load(data[start.wrapping_add_signed(k as isize * step)])
            }
        }
    }
}

/// Writes `f` of each element of `x`.
pub(crate) fn map<A: Number, R: Number>(
    out: &mut Tensor,
    x: &Tensor,
    f: impl Fn(A) -> R,
) -> Result<()> {
    let shape = out.shape().clone();
    let x = Source::<A>::new(x, &shape)?;
    let walk = Walk::new(&shape, [&x.strides])?;
    let (len, [step]) = (walk.run_len(), walk.run_steps());
    let mut runs = out.as_mut_slice::<R::Stored>()?.chunks_exact_mut(len.max(1));
    walk.runs(|[at]| {
        let Some(out) = runs.next() else { return };
        match x.run(at, step, len) {
            Run::Dense(x) => {
                for (out, x) in out.iter_mut().zip(x) {
                    *out = f(A::load(*x)).store();
                }
            }
            x => {
                for (k, out) in out.iter_mut().enumerate() {
                    *out = f(x.get(k)).store();
                }
            }
        }
    });
    Ok(())
}

/// Writes `f` of each pair of elements of `x` and `y`.
pub(crate) fn zip<A: Number, B: Number, R: Number>(
    out: &mut Tensor,
    x: &Tensor,
    y: &Tensor,
    f: impl Fn(A, B) -> R,
) -> Result<()> {
    let shape = out.shape().clone();
    let (x, y) = (Source::<A>::new(x, &shape)?, Source::<B>::new(y, &shape)?);
    let walk = Walk::new(&shape, [&x.strides, &y.strides])?;
    let (len, [step_x, step_y]) = (walk.run_len(), walk.run_steps());
    let mut runs = out.as_mut_slice::<R::Stored>()?.chunks_exact_mut(len.max(1));
    walk.runs(|[at_x, at_y]| {
        let Some(out) = runs.next() else { return };
        // The usual cases, each a loop that the compiler can vectorise; then all others.
        match (x.run(at_x, step_x, len), y.run(at_y, step_y, len)) {
            (Run::Dense(x), Run::Dense(y)) => {
                for ((out, x), y) in out.iter_mut().zip(x).zip(y) {
                    *out = f(A::load(*x), B::load(*y)).store();
                }
            }
            (Run::Dense(x), Run::Same(y)) => {
                for (out, x) in out.iter_mut().zip(x) {
                    *out = f(A::load(*x), y).store();
                }
            }
            (Run::Same(x), Run::Dense(y)) => {
                for (out, y) in out.iter_mut().zip(y) {
                    *out = f(x, B::load(*y)).store();
                }
            }
            (x, y) => {
                for (k, out) in out.iter_mut().enumerate() {
                    *out = f(x.get(k), y.get(k)).store();
                }
            }
        }
    });
    Ok(())
}

/// Writes the element of `x` where the condition holds, and that of `y` elsewhere.
pub(crate) fn choose<T: Number>(
    out: &mut Tensor,
    condition: &Tensor,
    x: &Tensor,
    y: &Tensor,
) -> Result<()> {
    let shape = out.shape().clone();
    let condition = Source::<bool>::new(condition, &shape)?;
    let (x, y) = (Source::<T>::new(x, &shape)?, Source::<T>::new(y, &shape)?);
    let walk = Walk::new(&shape, [&condition.strides, &x.strides, &y.strides])?;
    let (len, steps) = (walk.run_len(), walk.run_steps());
    let mut runs = out.as_mut_slice::<T::Stored>()?.chunks_exact_mut(len.max(1));
    walk.runs(|at| {
        let Some(out) = runs.next() else { return };
        let condition = condition.run(at[0], steps[0], len);
        let (x, y) = (x.run(at[1], steps[1], len), y.run(at[2], steps[2], len));
        for (k, out) in out.iter_mut().enumerate() {
            *out = if condition.get(k) { x.get(k) } else { y.get(k) }.store();
        }
    });
    Ok(())
}

/// A fresh, contiguous tensor with the elements converted to another dtype.
///
/// Floats to whole numbers truncate towards zero and saturate; anything but zero is true.
///
/// # Errors
/// [`ErrorKind::DType`] from complex to real numbers, which would drop the imaginary parts.
pub(crate) fn cast(op: Op, x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype().is_complex() && !dtype.is_complex() && dtype != DType::Bool {
        let message = format!("{} to {dtype} would drop the imaginary parts", x.dtype());
        return Err(op.error(ErrorKind::DType, message));
    }
    if x.dtype() == dtype && x.device() == op.device {
        return op.at(x.copy());
    }
    let mut out = op.output(x.shape(), dtype)?;
    if op.is_meta() {
        return Ok(out);
    }
    if !SUPPORTED.contains(&x.dtype()) || !SUPPORTED.contains(&dtype) {
        op.at(cast_any(x, &mut out))?;
        return Ok(out);
    }
    if is_half(x.dtype()) || is_half(dtype) {
        cast_half(op, x, &mut out)?;
        return Ok(out);
    }
    for_dtype!(all: op, x.dtype(), A => for_dtype!(all: op, dtype, R => {
        op.at(map(&mut out, x, |x: A| R::from_number(x)))?;
    }));
    Ok(out)
}

/// The tensor with its elements converted, itself where there is nothing to convert.
///
/// # Errors
/// As [`cast`].
pub(crate) fn converted<'a>(op: Op, x: &'a Tensor, dtype: DType) -> Result<Cow<'a, Tensor>> {
    if x.dtype() == dtype { Ok(Cow::Borrowed(x)) } else { cast(op, x, dtype).map(Cow::Owned) }
}

/// The shape of the result of operands that broadcast together.
pub(crate) fn broadcast(op: Op, shapes: &[&[usize]]) -> Result<Shape> {
    let mut all = Shape::empty();
    for shape in shapes {
        all = op.at(layout::broadcast_shapes(&all, shape))?;
    }
    Ok(all)
}
