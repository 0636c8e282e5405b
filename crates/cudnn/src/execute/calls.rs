//! Calls of built-in operators.

use std::fmt::Write as _;
use std::sync::Arc;

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::{Dispatcher, Operator};
use keyfold_tensor::{Tensor, Value, ValueRef};

/// The operator that most steps call.
const ELEMENTWISE: &str = "keyfold::elementwise.out";

/// The operators of a dispatcher, on a device.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    dispatcher: Dispatcher<Value>,
    device: Device,
    /// [`ELEMENTWISE`], so that a run needn't look for it.
    elementwise: Option<Arc<Operator<Value>>>,
}

/// Returns sizes as operators take them.
pub(super) fn sizes(tensor: &Tensor) -> Vec<i64> {
    tensor.shape().iter().map(|&size| size as i64).collect()
}

/// Returns the sizes of images with elements before and behind them in each dimension of space.
///
/// # Errors
/// [`ErrorKind::Shape`] for a size that overflows 64 bits.
pub(super) fn padded(dims: &[i64], pre: &[i64], post: &[i64]) -> Result<Vec<i64>> {
    let mut shape = dims.to_vec();
    for ((size, &pre), &post) in shape[2..].iter_mut().zip(pre).zip(post) {
        let sum = size.checked_add(pre).and_then(|size| size.checked_add(post));
        *size = sum.ok_or_else(|| {
            let message =
                format!("the size {size} of {dims:?} with padding {pre} and {post} overflows");
            Error::new(ErrorKind::Shape, message)
        })?;
    }
    Ok(shape)
}

impl Calls {
    pub(super) fn new(dispatcher: Dispatcher<Value>, device: Device) -> Calls {
        let elementwise = dispatcher.operator(ELEMENTWISE).ok();
        Calls { dispatcher, device, elementwise }
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// Calls an operator with one result.
    pub(super) fn one(&self, name: &str, args: &[ValueRef<'_>]) -> Result<Tensor> {
        self.dispatcher.call(name, args)?.into_tensor()
    }

    /// Calls an operator with several results, of which those that it didn't compute are `None`.
    pub(super) fn several(&self, name: &str, args: &[ValueRef<'_>]) -> Result<Vec<Option<Tensor>>> {
        let values = match self.dispatcher.call(name, args)? {
            Value::Tuple(values) | Value::List(values) => values,
            one => vec![one],
        };
        let tensor = |value: Value| match value {
            Value::None => Ok(None),
            value => value.into_tensor().map(Some),
        };
        values.into_iter().map(tensor).collect()
    }

    /// Evaluates an expression with its arguments at the beginning, `x, y; beta: x + beta * y`.
    pub(super) fn map(&self, text: &str, inputs: &[&Tensor], numbers: &[Scalar]) -> Result<Tensor> {
        self.map_to(text, inputs, numbers, None, None)
    }

    /// Evaluates an expression of a shape.
    pub(super) fn shaped(
        &self,
        text: &str,
        inputs: &[&Tensor],
        numbers: &[Scalar],
        shape: &[i64],
    ) -> Result<Tensor> {
        self.map_to(text, inputs, numbers, Some(shape), None)
    }

    /// Evaluates an expression, into a tensor where one is given.
    pub(super) fn map_to(
        &self,
        text: &str,
        inputs: &[&Tensor],
        numbers: &[Scalar],
        shape: Option<&[i64]>,
        out: Option<&Tensor>,
    ) -> Result<Tensor> {
        let inputs: smallvec::SmallVec<[ValueRef<'_>; 4]> =
            inputs.iter().map(|input| ValueRef::Tensor(input)).collect();
        let numbers: smallvec::SmallVec<[ValueRef<'_>; 8]> =
            numbers.iter().map(|&number| ValueRef::from(number)).collect();
        let shape = shape.map_or(ValueRef::None, ValueRef::Ints);
        let args = [ValueRef::Refs(&inputs), ValueRef::Refs(&numbers), text.into(), shape];
        self.into(ELEMENTWISE, &args, out)
    }

    /// Calls an operator's overload `.out` with a tensor for its result, or the one without `.out` where none
    /// is given.
    pub(super) fn into(
        &self,
        name: &str,
        args: &[ValueRef<'_>],
        out: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Some(out) = out else { return self.one(name.trim_end_matches(".out"), args) };
        let mut all: smallvec::SmallVec<[ValueRef<'_>; 12]> = args.into();
        all.push(ValueRef::Tensor(out));
        match &self.elementwise {
            Some(operator) if name == ELEMENTWISE && !operator.is_removed() => {
                operator.call(&all)?.into_tensor()
            }
            _ => self.one(name, &all),
        }
    }

    /// Returns a tensor in a dtype: itself where it has that.
    pub(super) fn to(&self, x: &Tensor, dtype: DType) -> Result<Tensor> {
        if x.dtype() == dtype {
            return Ok(x.clone());
        }
        self.one("aten::to", &[x.into(), dtype.into()])
    }

    pub(super) fn reshape(&self, x: &Tensor, shape: &[i64]) -> Result<Tensor> {
        self.one("aten::reshape", &[x.into(), shape.into()])
    }

    pub(super) fn matmul(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.one("aten::matmul", &[a.into(), b.into()])
    }

    /// Returns a tensor of a number, which a dtype of integers must have.
    pub(super) fn full(&self, shape: &[i64], number: f64, dtype: DType) -> Result<Tensor> {
        let number = if dtype.is_floating() { number.into() } else { (number as i64).into() };
        let args = [shape.into(), number, dtype.into(), self.device.into()];
        self.one("aten::full", &args)
    }

    /// Reduces dimensions, which stay as sizes of 1: `sum` or `mean`, `amax` or `amin`.
    pub(super) fn reduce(&self, name: &str, x: &Tensor, axes: &[i64]) -> Result<Tensor> {
        // Operators take an empty list as all dimensions.
        if axes.is_empty() {
            return Ok(x.clone());
        }
        let args = [x.into(), axes.into(), true.into()];
        match name {
            "sum" | "mean" => self.one(&format!("aten::{name}.dim"), &args),
            _ => self.one(&format!("aten::{name}"), &args),
        }
    }

    /// Sums a tensor up to a shape that broadcasts to it.
    pub(super) fn sum_to(&self, x: &Tensor, shape: &[i64]) -> Result<Tensor> {
        let axes: Vec<i64> = (0..shape.len())
            .filter(|&axis| shape[axis] == 1 && x.shape()[axis] != 1)
            .map(|axis| axis as i64)
            .collect();
        self.reduce("sum", x, &axes)
    }

    /// Returns a tensor with a number around it in the dimensions of space.
    pub(super) fn pad(&self, x: &Tensor, pre: &[i64], post: &[i64], with: f64) -> Result<Tensor> {
        if pre.iter().chain(post).all(|&size| size == 0) {
            return Ok(x.clone());
        }
        let (shape, rank) = (sizes(x), x.ndim());
        let mut numbers = vec![Scalar::Float(with)];
        let (mut header, mut lines) = (format!("x[{rank}]; v"), String::new());
        let (mut inside, mut place) = (Vec::new(), Vec::new());
        for (axis, &size) in shape.iter().enumerate() {
            let from_last = rank - 1 - axis;
            let Some(space) = axis.checked_sub(2) else {
                place.push(format!("index({from_last})"));
                continue;
            };
            let _ = write!(header, ", p{axis}, n{axis}");
            let _ = write!(lines, "i{axis} = index({from_last}) - p{axis}; ");
            inside.push(format!("i{axis} >= 0 and i{axis} < n{axis}"));
            place.push(format!("clamp(i{axis}, 0, n{axis} - 1)"));
            numbers.extend([Scalar::Int(pre[space]), Scalar::Int(size)]);
        }
        let shape = padded(&shape, pre, post)?;
        let (inside, place) = (inside.join(" and "), place.join(", "));
        let text = format!("{header}: {lines}where({inside}, x[{place}], v)");
        self.shaped(&text, &[x], &numbers, &shape)
    }

    /// Returns what [`Calls::pad`] was given, of sizes in space, as a view.
    pub(super) fn crop(&self, x: &Tensor, pre: &[i64], space: &[i64]) -> Result<Tensor> {
        let mut part = x.clone();
        for (axis, (&start, &size)) in pre.iter().zip(space).enumerate() {
            part = part.slice(axis as i64 + 2, Some(start), Some(start + size), 1)?;
        }
        Ok(part)
    }
}
