//! The built-in operators that layers compute with, called through the process's dispatcher: so
//! that what a layer does is seen by the layers below it (a derivative of a derivative), and by
//! those of users.

use std::sync::{Arc, OnceLock};

use keyfold_core::{DType, Device, Error, Result, Scalar};
use keyfold_dispatch::Operator;
use keyfold_tensor::{Tensor, Value, ValueRef};

/// A built-in operator, looked up when it is first called.
pub struct Aten {
    name: &'static str,
    operator: OnceLock<Arc<Operator<Value>>>,
}

impl Aten {
    /// The operator of that name, overload included.
    pub const fn new(name: &'static str) -> Self {
        Aten { name, operator: OnceLock::new() }
    }

    /// The operator itself.
    ///
    /// # Errors
    /// When the process's dispatcher doesn't have it: `keyfold::init()` wasn't called, or it was removed.
    pub fn operator(&self) -> Result<&Arc<Operator<Value>>> {
        if let Some(operator) = self.operator.get() {
            return Ok(operator);
        }
        let operator = crate::dispatcher().operator(self.name).map_err(|error| {
            let message =
                format!("{} (keyfold::init() defines the built-in ones)", error.message());
            Error::new(error.kind(), message)
        })?;
        Ok(self.operator.get_or_init(|| operator))
    }

    /// Calls it; trailing arguments may be left out where they have defaults.
    ///
    /// # Errors
    /// Those of the call.
    pub fn call(&self, args: &[ValueRef<'_>]) -> Result<Tensor> {
        self.operator()?.call(args)?.into_tensor()
    }
}

macro_rules! unary {
    // One function per operator of one tensor: the name says it all.
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
    real, "aten::real";
    imag, "aten::imag";
    sin, "aten::sin";
    cos, "aten::cos";
    tanh, "aten::tanh";
    sigmoid, "aten::sigmoid";
    logical_not, "aten::logical_not";
    clone, "aten::clone";
    contiguous, "aten::contiguous";
    detach, "aten::detach";
    alias, "aten::alias";
}

macro_rules! binary {
    // As above, of two tensors.
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
    add, "aten::add";
    sub, "aten::sub";
    mul, "aten::mul";
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
}

macro_rules! scalar {
    // As above, of a tensor and a number.
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

macro_rules! sized {
    // As above, of a tensor and a list of whole numbers.
    ($($name:ident, $aten:literal;)*) => {$(
        #[doc = concat!("`", $aten, "`")]
        ///
        /// # Errors
        /// Those of the call.
        pub fn $name(x: &Tensor, numbers: &[i64]) -> Result<Tensor> {
            static OP: Aten = Aten::new($aten);
            OP.call(&[x.into(), numbers.into()])
        }
    )*};
}

sized! {
    reshape, "aten::reshape";
    permute, "aten::permute";
    expand, "aten::expand";
    flip, "aten::flip";
}

/// `aten::sum`, of all elements.
///
/// # Errors
/// Those of the call.
pub fn sum_all(x: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::sum");
    OP.call(&[x.into()])
}

/// `aten::sum.dim`.
///
/// # Errors
/// Those of the call.
pub fn sum(x: &Tensor, dims: &[i64], keepdim: bool) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::sum.dim");
    OP.call(&[x.into(), dims.into(), keepdim.into()])
}

/// `aten::to`: the same elements in another dtype.
///
/// # Errors
/// Those of the call.
pub fn to(x: &Tensor, dtype: DType) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::to");
    OP.call(&[x.into(), dtype.into()])
}

/// `aten::to.device`: a copy on a device.
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
pub fn choose(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::where");
    OP.call(&[condition.into(), a.into(), b.into()])
}

/// `aten::where.ScalarOther`: a tensor where the condition holds, else a number.
///
/// # Errors
/// Those of the call.
pub fn choose_or(condition: &Tensor, a: &Tensor, b: impl Into<Scalar>) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::where.ScalarOther");
    OP.call(&[condition.into(), a.into(), b.into().into()])
}

/// `aten::where.ScalarSelf`: a number where the condition holds, else a tensor.
///
/// # Errors
/// Those of the call.
pub fn choose_number(condition: &Tensor, a: impl Into<Scalar>, b: &Tensor) -> Result<Tensor> {
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

/// `aten::select.int`.
///
/// # Errors
/// Those of the call.
pub fn select(x: &Tensor, dim: i64, index: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::select.int");
    OP.call(&[x.into(), dim.into(), index.into()])
}

/// `aten::stack`.
///
/// # Errors
/// Those of the call.
pub fn stack(items: &[Tensor], dim: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::stack");
    OP.call(&[items.into(), dim.into()])
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

/// `aten::slice_scatter`: a copy of `x` with `source` in the part that [`slice`] gives.
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

/// `aten::select_scatter`: a copy of `x` with `source` in the part that [`select`] gives.
///
/// # Errors
/// Those of the call.
pub fn select_scatter(x: &Tensor, source: &Tensor, dim: i64, index: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::select_scatter");
    OP.call(&[x.into(), source.into(), dim.into(), index.into()])
}

/// A list of indices as an argument.
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

/// `aten::arange`: the whole numbers from 0 up to `end`, which is excluded.
///
/// # Errors
/// Those of the call.
pub fn arange(end: i64, device: Device) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::arange");
    let (start, step) = (ValueRef::Int(0), ValueRef::Int(1));
    OP.call(&[start, end.into(), step, DType::I64.into(), device.into()])
}

/// A shape as an argument.
pub(crate) fn sizes(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|n| *n as i64).collect()
}

/// `aten::full`.
///
/// # Errors
/// Those of the call.
pub fn full(
    shape: &[usize],
    value: impl Into<Scalar>,
    dtype: DType,
    device: Device,
) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::full");
    OP.call(&[sizes(shape).as_slice().into(), value.into().into(), dtype.into(), device.into()])
}

/// Zeros like another tensor: its shape, dtype and device.
///
/// # Errors
/// Those of the call.
pub fn zeros_like(x: &Tensor) -> Result<Tensor> {
    full(x.shape(), false, x.dtype(), x.device())
}

/// Sums over the dimensions that broadcasting added or stretched, so that the result has `shape`.
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
