//! The built-in operators that the layers call. They call the process's dispatcher, so that the other layers,
//! also those of users, see the calls: this makes derivatives of derivatives. All other operators are
//! functions of crate `keyfold-ops`.

use std::sync::{Arc, OnceLock};

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Operator;
use keyfold_tensor::{Tensor, Value, ValueRef};

/// A built-in operator, which is looked up at the first call.
pub struct Aten {
    name: &'static str,
    operator: OnceLock<Arc<Operator<Value>>>,
}

impl Aten {
    /// Names an operator, with its overload.
    pub const fn new(name: &'static str) -> Self {
        Aten { name, operator: OnceLock::new() }
    }

    /// Returns the operator.
    ///
    /// # Errors
    /// If the process's dispatcher doesn't have the operator: `keyfold::init()` wasn't called, or the operator was
    /// removed.
    pub fn operator(&self) -> Result<&Arc<Operator<Value>>> {
        if let Some(operator) = self.operator.get() {
            return Ok(operator);
        }
        let operator = keyfold_tensor::dispatcher().operator(self.name).map_err(|error| {
            let message =
                format!("{} (keyfold::init() defines the built-in ones)", error.message());
            Error::new(error.kind(), message)
        })?;
        Ok(self.operator.get_or_init(|| operator))
    }

    /// Calls the operator. Trailing arguments with defaults may be omitted.
    ///
    /// # Errors
    /// Those of the call.
    pub fn call(&self, args: &[ValueRef<'_>]) -> Result<Tensor> {
        // A tensor is moved once, since it is large.
        match self.operator()?.call(args) {
            Ok(Value::Tensor(tensor)) => Ok(tensor),
            Ok(other) => other.into_tensor(),
            Err(error) => Err(error),
        }
    }
}

/// `aten::alias`
///
/// # Errors
/// Those of the call.
pub fn alias(x: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::alias");
    OP.call(&[x.into()])
}

/// `aten::clone`
///
/// # Errors
/// Those of the call.
pub fn clone(x: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::clone");
    OP.call(&[x.into()])
}

/// `aten::real`
///
/// # Errors
/// Those of the call.
pub fn real(x: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::real");
    OP.call(&[x.into()])
}

/// `aten::add`
///
/// # Errors
/// Those of the call.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::add");
    OP.call(&[a.into(), b.into()])
}

/// `aten::mul`
///
/// # Errors
/// Those of the call.
pub fn mul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::mul");
    OP.call(&[a.into(), b.into()])
}

/// `aten::reshape`
///
/// # Errors
/// Those of the call.
pub fn reshape(x: &Tensor, numbers: &[i64]) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::reshape");
    OP.call(&[x.into(), numbers.into()])
}

/// `aten::permute`
///
/// # Errors
/// Those of the call.
pub fn permute(x: &Tensor, numbers: &[i64]) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::permute");
    OP.call(&[x.into(), numbers.into()])
}

/// `aten::expand`
///
/// # Errors
/// Those of the call.
pub fn expand(x: &Tensor, numbers: &[i64]) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::expand");
    OP.call(&[x.into(), numbers.into()])
}

/// `aten::sum`, of all elements.
///
/// # Errors
/// Those of the call.
pub fn sum_all(x: &Tensor) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::sum");
    OP.call(&[x.into()])
}

/// `aten::to`: converts the elements to another dtype.
///
/// # Errors
/// Those of the call.
pub fn to(x: &Tensor, dtype: DType) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::to");
    OP.call(&[x.into(), dtype.into()])
}

/// `aten::unbind.int`.
///
/// # Errors
/// Those of the call; [`ErrorKind::Return`] if a kernel returns no list of tensors.
pub fn unbind(x: &Tensor, dim: i64) -> Result<Vec<Tensor>> {
    static OP: Aten = Aten::new("aten::unbind.int");
    match OP.operator()?.call(&[x.into(), dim.into()])? {
        Value::List(views) => views.into_iter().map(Value::into_tensor).collect(),
        _ => Err(Error::new(ErrorKind::Return, "aten::unbind.int: a kernel returned no list")),
    }
}

/// `aten::stack`.
///
/// # Errors
/// Those of the call.
pub fn stack(items: &[Tensor], dim: i64) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::stack");
    OP.call(&[items.into(), dim.into()])
}

/// Converts a shape to an argument.
pub fn sizes(shape: &[usize]) -> Vec<i64> {
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

/// Makes zeros of another tensor's shape, dtype and device.
///
/// # Errors
/// Those of the call.
pub fn zeros_like(x: &Tensor) -> Result<Tensor> {
    full(x.shape(), false, x.dtype(), x.device())
}
