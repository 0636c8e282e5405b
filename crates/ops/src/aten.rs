//! The built-in operators as Rust functions. They call the process's dispatcher, so every layer sees the
//! calls. Derivatives and batching rules are written with these functions.
//!
//! ```
//! use keyfold_ops::aten;
//! use keyfold_tensor::Tensor;
//! keyfold::init();
//!
//! let x = Tensor::from_slice(&[1.0, 2.0, 3.0], &[3])?;
//! assert_eq!(aten::sum_all(&aten::mul(&x, &x)?)?.get::<f64>(&[])?, 14.0);
//! # Ok::<(), keyfold_core::Error>(())
//! ```

use keyfold_core::{DType, Device, Result, Scalar};
use keyfold_tensor::{Tensor, ValueRef};

pub use keyfold_layers::aten::*;

macro_rules! unary {
    // One function per operator of one tensor.
    ($($name:ident, $aten:literal;)*) => {$(
        #[doc = concat!("`", $aten, "`")]
        ///
        /// # Errors
        /// Those of the call.
        pub fn $name(x: &Tensor) -> Result<Tensor> {
            static OP: Aten = Aten::new($aten);
            OP.call(&[x.into()])
        }
    )*};
}

unary! {
    neg, "aten::neg";
    exp, "aten::exp";
    log, "aten::log";
    sqrt, "aten::sqrt";
    abs, "aten::abs";
    sign, "aten::sign";
    conj, "aten::conj";
    imag, "aten::imag";
    sin, "aten::sin";
    cos, "aten::cos";
    tanh, "aten::tanh";
    sigmoid, "aten::sigmoid";
    logical_not, "aten::logical_not";
    contiguous, "aten::contiguous";
    detach, "aten::detach";
}

macro_rules! binary {
    // One function per operator of two tensors.
    ($($name:ident, $aten:literal;)*) => {$(
        #[doc = concat!("`", $aten, "`")]
        ///
        /// # Errors
        /// Those of the call.
        pub fn $name(a: &Tensor, b: &Tensor) -> Result<Tensor> {
            static OP: Aten = Aten::new($aten);
            OP.call(&[a.into(), b.into()])
        }
    )*};
}

binary! {
    sub, "aten::sub";
    div, "aten::div";
    pow, "aten::pow";
    maximum, "aten::maximum";
    minimum, "aten::minimum";
    matmul, "aten::matmul";
    eq, "aten::eq";
    ne, "aten::ne";
    lt, "aten::lt";
    le, "aten::le";
    gt, "aten::gt";
    ge, "aten::ge";
    copy_, "aten::copy_";
    sigmoid_backward, "aten::sigmoid_backward";
    tanh_backward, "aten::tanh_backward";
    gelu_backward, "aten::gelu_backward";
    gelu_tanh_backward, "aten::gelu_tanh_backward";
    gelu_sigmoid_backward, "aten::gelu_sigmoid_backward";
    masked_zero, "keyfold::masked_zero";
}

macro_rules! scalar {
    // One function per operator of a tensor and a number.
    ($($name:ident, $aten:literal;)*) => {$(
        #[doc = concat!("`", $aten, "`")]
        ///
        /// # Errors
        /// Those of the call.
        pub fn $name(a: &Tensor, b: impl Into<Scalar>) -> Result<Tensor> {
            static OP: Aten = Aten::new($aten);
            OP.call(&[a.into(), b.into().into()])
        }
    )*};
}

scalar! {
    add_scalar, "aten::add.Scalar";
    sub_scalar, "aten::sub.Scalar";
    mul_scalar, "aten::mul.Scalar";
    div_scalar, "aten::div.Scalar";
    rsub_scalar, "aten::rsub.Scalar";
    rdiv_scalar, "aten::rdiv.Scalar";
    pow_scalar, "aten::pow.Scalar";
    rpow_scalar, "aten::rpow.Scalar";
    eq_scalar, "aten::eq.Scalar";
    ne_scalar, "aten::ne.Scalar";
    gt_scalar, "aten::gt.Scalar";
    ge_scalar, "aten::ge.Scalar";
    lt_scalar, "aten::lt.Scalar";
    le_scalar, "aten::le.Scalar";
    fill_, "aten::fill_.Scalar";
}

/// `aten::threshold_backward`: the gradient, and 0 where `x` isn't above the threshold.
///
/// # Errors
/// Those of the call.
pub fn threshold_backward(
    grad: &Tensor,
    x: &Tensor,
    threshold: impl Into<Scalar>,
) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::threshold_backward");
    OP.call(&[grad.into(), x.into(), threshold.into().into()])
}

/// `aten::_softmax_backward_data`: the gradient of softmax from its result.
///
/// # Errors
/// Those of the call.
pub fn softmax_backward(grad: &Tensor, output: &Tensor, dim: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::_softmax_backward_data");
    OP.call(&[grad.into(), output.into(), dim.into(), output.dtype().into()])
}

/// `aten::_log_softmax_backward_data`: as [`softmax_backward`], of its logarithm.
///
/// # Errors
/// Those of the call.
pub fn log_softmax_backward(grad: &Tensor, output: &Tensor, dim: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::_log_softmax_backward_data");
    OP.call(&[grad.into(), output.into(), dim.into(), output.dtype().into()])
}

/// `aten::select.int`.
///
/// # Errors
/// Those of the call.
pub fn select(x: &Tensor, dim: i64, index: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::select.int");
    OP.call(&[x.into(), dim.into(), index.into()])
}

/// `aten::flip`
///
/// # Errors
/// Those of the call.
pub fn flip(x: &Tensor, dims: &[i64]) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::flip");
    OP.call(&[x.into(), dims.into()])
}

/// `aten::sum.dim`.
///
/// # Errors
/// Those of the call.
pub fn sum(x: &Tensor, dims: &[i64], keepdim: bool) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::sum.dim");
    OP.call(&[x.into(), dims.into(), keepdim.into()])
}

/// `aten::cumsum`.
///
/// # Errors
/// Those of the call.
pub fn cumsum(x: &Tensor, dim: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::cumsum");
    OP.call(&[x.into(), dim.into()])
}

/// `aten::cumprod`.
///
/// # Errors
/// Those of the call.
pub fn cumprod(x: &Tensor, dim: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::cumprod");
    OP.call(&[x.into(), dim.into()])
}

/// `aten::cat`.
///
/// # Errors
/// Those of the call.
pub fn cat(items: &[Tensor], dim: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::cat");
    OP.call(&[items.into(), dim.into()])
}

/// `aten::to.device`: copies a tensor to a device.
///
/// # Errors
/// Those of the call.
pub fn to_device(x: &Tensor, device: Device) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::to.device");
    OP.call(&[x.into(), device.into()])
}

/// `aten::where`.
///
/// # Errors
/// Those of the call.
pub fn where_(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::where");
    OP.call(&[condition.into(), a.into(), b.into()])
}

/// `aten::where.ScalarOther`: a tensor where the condition holds, else a number.
///
/// # Errors
/// Those of the call.
pub fn where_scalar_other(condition: &Tensor, a: &Tensor, b: impl Into<Scalar>) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::where.ScalarOther");
    OP.call(&[condition.into(), a.into(), b.into().into()])
}

/// `aten::where.ScalarSelf`: a number where the condition holds, else a tensor.
///
/// # Errors
/// Those of the call.
pub fn where_scalar_self(condition: &Tensor, a: impl Into<Scalar>, b: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::where.ScalarSelf");
    OP.call(&[condition.into(), a.into().into(), b.into()])
}

/// `aten::unsqueeze`.
///
/// # Errors
/// Those of the call.
pub fn unsqueeze(x: &Tensor, dim: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::unsqueeze");
    OP.call(&[x.into(), dim.into()])
}

/// `aten::squeeze.dim`.
///
/// # Errors
/// Those of the call.
pub fn squeeze(x: &Tensor, dim: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::squeeze.dim");
    OP.call(&[x.into(), dim.into()])
}

/// `aten::transpose`.
///
/// # Errors
/// Those of the call.
pub fn transpose(x: &Tensor, a: i64, b: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::transpose");
    OP.call(&[x.into(), a.into(), b.into()])
}

/// `aten::slice.Tensor`; `start` and `end` may be `None`.
///
/// # Errors
/// Those of the call.
pub fn slice(
    x: &Tensor,
    dim: i64,
    start: ValueRef<'_>,
    end: ValueRef<'_>,
    step: i64,
) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::slice.Tensor");
    OP.call(&[x.into(), dim.into(), start, end, step.into()])
}

/// `aten::slice_scatter`: copies `x` and replaces the part that [`slice`] selects by `source`.
///
/// # Errors
/// Those of the call.
pub fn slice_scatter(
    x: &Tensor,
    source: &Tensor,
    dim: i64,
    start: ValueRef<'_>,
    end: ValueRef<'_>,
    step: i64,
) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::slice_scatter");
    OP.call(&[x.into(), source.into(), dim.into(), start, end, step.into()])
}

/// `aten::select_scatter`: copies `x` and replaces the part that [`select`] selects by `source`.
///
/// # Errors
/// Those of the call.
pub fn select_scatter(x: &Tensor, source: &Tensor, dim: i64, index: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::select_scatter");
    OP.call(&[x.into(), source.into(), dim.into(), index.into()])
}

/// Converts a list of indices to an argument.
fn optional_tensors(indices: &[Option<Tensor>]) -> Vec<ValueRef<'_>> {
    indices.iter().map(|index| index.as_ref().map_or(ValueRef::None, ValueRef::Tensor)).collect()
}

/// `aten::index.Tensor`.
///
/// # Errors
/// Those of the call.
pub fn index(x: &Tensor, indices: &[Option<Tensor>]) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::index.Tensor");
    OP.call(&[x.into(), optional_tensors(indices).as_slice().into()])
}

/// `aten::index_put`.
///
/// # Errors
/// Those of the call.
pub fn index_put(
    x: &Tensor,
    indices: &[Option<Tensor>],
    values: &Tensor,
    accumulate: bool,
) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::index_put");
    let indices = optional_tensors(indices);
    OP.call(&[x.into(), indices.as_slice().into(), values.into(), accumulate.into()])
}

/// `aten::index_select`.
///
/// # Errors
/// Those of the call.
pub fn index_select(x: &Tensor, dim: i64, index: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::index_select");
    OP.call(&[x.into(), dim.into(), index.into()])
}

/// `aten::index_add`.
///
/// # Errors
/// Those of the call.
pub fn index_add(x: &Tensor, dim: i64, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::index_add");
    OP.call(&[x.into(), dim.into(), index.into(), source.into()])
}

/// `aten::gather`.
///
/// # Errors
/// Those of the call.
pub fn gather(x: &Tensor, dim: i64, index: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::gather");
    OP.call(&[x.into(), dim.into(), index.into()])
}

/// `aten::scatter_add`.
///
/// # Errors
/// Those of the call.
pub fn scatter_add(x: &Tensor, dim: i64, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::scatter_add");
    OP.call(&[x.into(), dim.into(), index.into(), source.into()])
}

/// `aten::embedding` without a row for padding.
///
/// # Errors
/// Those of the call.
pub fn embedding(weight: &Tensor, indices: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::embedding");
    OP.call(&[weight.into(), indices.into()])
}

/// `aten::embedding_dense_backward`; a `padding` of -1 is none.
///
/// # Errors
/// Those of the call.
pub fn embedding_dense_backward(
    grad: &Tensor,
    indices: &Tensor,
    rows: i64,
    padding: i64,
) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::embedding_dense_backward");
    OP.call(&[grad.into(), indices.into(), rows.into(), padding.into(), false.into()])
}

/// `aten::arange`: the integers from 0 to `end`, exclusive.
///
/// # Errors
/// Those of the call.
pub fn arange(end: i64, device: Device) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::arange");
    let (start, step) = (ValueRef::Int(0), ValueRef::Int(1));
    OP.call(&[start, end.into(), step, DType::I64.into(), device.into()])
}

/// Sums over the dimensions that broadcasting added or expanded, so that the result has `shape`.
///
/// # Errors
/// Those of the calls.
pub fn sum_to(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if **x.shape() == *shape {
        return Ok(x.clone());
    }
    let added = x.ndim().saturating_sub(shape.len());
    let stretched = (0..shape.len()).filter(|d| shape[*d] == 1 && x.shape()[added + d] != 1);
    let dims: Vec<i64> = (0..added).chain(stretched.map(|d| added + d)).map(|d| d as i64).collect();
    let summed = sum(x, &dims, true)?;
    if added == 0 { Ok(summed) } else { reshape(&summed, &sizes(shape)) }
}

/// `aten::native_dropout_backward`
///
/// # Errors
/// Those of the call.
pub fn native_dropout_backward(grad: &Tensor, mask: &Tensor, scale: f64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::native_dropout_backward");
    OP.call(&[grad.into(), mask.into(), ValueRef::Float(scale)])
}
