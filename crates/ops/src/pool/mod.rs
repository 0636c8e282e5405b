//! Max, average and adaptive average pooling over windows of one to three dimensions.

mod average;
mod derivatives;
mod max;
mod one_dim;

use keyfold_backend::{Operation, PoolParams};
use keyfold_core::{DType, ErrorKind, Result, Shape};
use keyfold_tensor::{IntList, Tensor};

use crate::op::Op;
use crate::row::Row;

/// The dtypes of pooling, except that max pooling also takes integers.
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// The windows of a call, as its arguments give them.
pub(crate) struct Windows<'a> {
    pub(crate) kernel: &'a IntList,
    pub(crate) stride: &'a IntList,
    pub(crate) padding: &'a IntList,
    /// The distance between a window's elements; none for averages.
    pub(crate) dilation: Option<&'a IntList>,
    pub(crate) ceil_mode: bool,
}

/// The pooled dimensions of a tensor.
struct Pooled<'a> {
    /// The number of pooled dimensions.
    dims: usize,
    planes: &'a [usize],
    sizes: &'a [usize],
}

impl<'a> Pooled<'a> {
    /// Divides the dimensions of an argument, with or without a batch dimension in front of the channels.
    fn new(op: &Op, name: &str, x: &'a Tensor, dims: usize) -> Result<Pooled<'a>> {
        let rank = x.ndim();
        if rank != dims + 1 && rank != dims + 2 {
            let places = ["length", "height, width", "depth, height, width"][dims - 1];
            let message = format!(
                "argument '{name}': shape {:?} has {rank} dimensions; give [channels, {places}] or \
                 [batch, channels, {places}]",
                x.shape()
            );
            return Err(op.error(ErrorKind::Shape, message));
        }
        let (planes, sizes) = x.shape().split_at(rank - dims);
        Ok(Pooled { dims, planes, sizes })
    }

    /// Makes the shape with other sizes of the pooled dimensions.
    fn with(&self, op: &Op, sizes: &[usize]) -> Result<Shape> {
        let mut shape = op.at(Shape::new(self.planes))?;
        for size in sizes {
            op.at(shape.insert(shape.len(), *size))?;
        }
        Ok(shape)
    }
}

/// Returns an argument with one item for each dimension, each at least `least`; a list of one item is for all.
fn each(op: &Op, name: &str, given: &[i64], dims: usize, least: i64) -> Result<[i64; 3]> {
    let mut all = [least; 3];
    match given {
        [one] => all[..dims].fill(*one),
        list if list.len() == dims => all[..dims].copy_from_slice(list),
        list => {
            let message = format!(
                "argument '{name}' is {list:?}; give one number, or one for each of {dims} dimensions"
            );
            return Err(op.error(ErrorKind::Value, message));
        }
    }
    if let Some(bad) = all[..dims].iter().find(|item| **item < least) {
        let message = format!("argument '{name}' is {given:?}, but {bad} must be at least {least}");
        return Err(op.error(ErrorKind::Value, message));
    }
    Ok(all)
}

/// Checks the windows of a call, and returns the parameters and the sizes of its result.
fn windows(
    op: &Op,
    which: &'static Operation,
    pooled: &Pooled<'_>,
    windows: &Windows<'_>,
) -> Result<(PoolParams, Vec<usize>)> {
    let dims = pooled.dims;
    let kernel = each(op, "kernel_size", windows.kernel, dims, 1)?;
    let stride = match windows.stride.is_empty() {
        true => kernel,
        false => each(op, "stride", windows.stride, dims, 1)?,
    };
    let padding = each(op, "padding", windows.padding, dims, 0)?;
    let dilation = match windows.dilation {
        Some(dilation) => each(op, "dilation", dilation, dims, 1)?,
        None => [1; 3],
    };
    let outs = (0..dims).map(|d| {
        let axis = Axis {
            name: ["depth", "height", "width"][3 - dims + d],
            size: pooled.sizes[d],
            kernel: kernel[d],
            stride: stride[d],
            padding: padding[d],
            dilation: dilation[d],
        };
        axis.windows(op, windows.ceil_mode)
    });
    let outs = outs.collect::<Result<Vec<_>>>()?;
    check_reach(op, pooled, &kernel, &dilation)?;
    let params = PoolParams {
        op: which,
        dims: dims as u32,
        count_include_pad: 0,
        kernel,
        stride,
        padding,
        dilation,
        divisor: 0,
    };
    Ok((params, outs))
}

/// Refuses windows from whose first element to their last one there are more than 2^31 others.
fn check_reach(op: &Op, pooled: &Pooled<'_>, kernel: &[i64; 3], dilation: &[i64; 3]) -> Result<()> {
    let mut reach = 0_i128;
    for (d, size) in pooled.sizes.iter().enumerate() {
        reach = reach * *size as i128 + i128::from(kernel[d] - 1) * i128::from(dilation[d]);
    }
    if reach < i128::from(i32::MAX) {
        return Ok(());
    }
    let message = format!(
        "a window of {:?} elements spans {reach} elements of shape {:?}; at most 2^31 are supported",
        &kernel[..pooled.dims],
        pooled.sizes
    );
    Err(op.error(ErrorKind::NotSupported, message))
}

/// A pooled dimension.
struct Axis {
    name: &'static str,
    size: usize,
    kernel: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
}

impl Axis {
    /// Checks the windows along the dimension, and returns their number. A window that begins in the padding
    /// behind the elements doesn't count.
    fn windows(&self, op: &Op, ceil_mode: bool) -> Result<usize> {
        let Axis { name, kernel, stride, padding, dilation, .. } = *self;
        let refuse = |kind, message: String| Err(op.error(kind, message));
        let size = self.size as i128;
        let (k, s, p, d) =
            (i128::from(kernel), i128::from(stride), i128::from(padding), i128::from(dilation));
        let reach = (k - 1) * d + 1;
        if 2 * p > reach {
            return refuse(
                ErrorKind::Value,
                format!(
                    "argument 'padding' is {padding} along the {name}, more than half of the window \
                     of {reach}: windows would have no element; at most {} is right",
                    reach / 2
                ),
            );
        }
        if size == 0 {
            return refuse(
                ErrorKind::Shape,
                format!("argument 'self' has size 0 along the {name}, so no window has an element"),
            );
        }
        let padded = size + 2 * p;
        let rest = padded - reach;
        // The first window may reach behind the padding as the last one may.
        if rest < 0 && !(ceil_mode && rest + s > 0) {
            return refuse(
                ErrorKind::Shape,
                format!(
                    "a window of {reach} elements along the {name} is larger than the input of \
                     {padded} with its padding; use a smaller kernel_size or more padding"
                ),
            );
        }
        let mut count = rest.div_euclid(s) + 1;
        if ceil_mode && rest.rem_euclid(s) != 0 && count * s < size + p {
            count += 1;
        }
        // A dilated window may begin in the padding and step over all elements.
        let in_padding = (p + s - 1) / s;
        for window in 0..count.min(in_padding) {
            let start = window * s - p;
            let first = start + (-start + d - 1) / d * d;
            if start < 0 && (first >= size || first - start >= reach) {
                return refuse(
                    ErrorKind::Value,
                    format!(
                        "window {window} along the {name} has no element: it begins at {start}, and \
                         dilation {dilation} steps over all {size} elements; use less padding or \
                         dilation"
                    ),
                );
            }
        }
        // There are at most as many windows as elements with padding.
        match usize::try_from(count) {
            Ok(count) => Ok(count),
            Err(_) => refuse(
                ErrorKind::Shape,
                format!("{count} windows along the {name} overflow the size of a dimension"),
            ),
        }
    }
}

/// Refuses dtypes other than floats.
fn check_float(op: &Op, name: &str, dtype: DType) -> Result<()> {
    if FLOATS.contains(&dtype) { Ok(()) } else { Err(op.unsupported(name, dtype, &FLOATS)) }
}

/// Refuses a gradient whose shape or dtype isn't that of the results.
fn check_gradient(op: &Op, grad: &Tensor, shape: &Shape) -> Result<()> {
    check_float(op, "grad_output", grad.dtype())?;
    if grad.shape() != shape {
        let message = format!(
            "argument 'grad_output': shape {:?} isn't that of the results, {shape:?}",
            grad.shape()
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    Ok(())
}

/// Returns the rows of pooling.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let mut rows = max::rows()?;
    rows.extend(average::rows()?);
    rows.extend(one_dim::rows()?);
    Ok(rows)
}
