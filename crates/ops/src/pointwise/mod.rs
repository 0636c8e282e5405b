//! Pointwise operators. Each is one expression, which every backend computes for all dtypes and layouts. The
//! kernel for Meta takes the result's dtype from it, and the overload `out` writes its value into a tensor of
//! the caller's.

mod activation;
mod batching;
mod binary;
mod definition;
mod expression;
mod gradients;
mod implement;
pub(crate) mod jvp;
mod masked;
mod pow;
mod unary;
pub(crate) mod vjp;
mod where_;

use std::borrow::Borrow;
use std::sync::Arc;

use keyfold_backend::PointwiseKernel;
use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar, Shape, layout};
use keyfold_expr::{Binary, Expr, Lowered, Names, Signature, Specialized, StepOp};
use keyfold_layers::autograd::TensorMeta;
use keyfold_layers::pipeline::Evaluated;
use keyfold_tensor::{Overlap, Tensor, ValueRef, overlap};
use smallvec::SmallVec;

use crate::convert;
use crate::infer::{CallPlan, Run, positions};
use crate::op::Op;
use crate::row::Row;

pub use definition::out_schema;
pub use expression::{
    ComplexText, ELEMENTWISE, Expression, OUT_ARGUMENT, cached_expression, from_text, to_text,
};
pub use implement::{Implemented, implement};

/// Parses an expression of inputs and parameters of these names.
///
/// # Errors
/// As [`Expr::parse_with`].
pub(crate) fn parse(text: &str, inputs: &[&str], params: &[&str]) -> Result<Expr> {
    let names = inputs.iter().fold(Names::new(), |names, name| names.input(*name));
    let names = params.iter().fold(names, |names, name| names.param(*name));
    Expr::parse_with(text, &names)
}

/// Returns the dtypes of tensors.
fn dtypes(tensors: &[&Tensor]) -> SmallVec<[DType; 4]> {
    tensors.iter().map(|tensor| tensor.dtype()).collect()
}

/// The size of a result that doesn't follow from the shapes of the inputs.
#[derive(Clone, Copy)]
pub(crate) enum Size<'a> {
    /// No size is given.
    Unknown,
    /// The argument `shape`.
    Explicit(&'a [usize]),
    /// The size of the tensor to write into.
    OfOut(&'a Tensor),
}

/// Returns the shape in the argument `shape`; `None` if that is absent.
fn shape_argument(op: &Op, value: ValueRef<'_>) -> Result<Option<Shape>> {
    if matches!(value, ValueRef::None) {
        return Ok(None);
    }
    let sizes: SmallVec<[i64; 6]> =
        value.items().filter_map(ValueRef::scalar).filter_map(|size| size.as_i64()).collect();
    let negative = sizes.iter().find(|size| **size < 0);
    if let Some(size) = negative {
        let message = format!("argument 'shape': size {size} in {sizes:?} is negative");
        return Err(op.error(ErrorKind::Shape, message));
    }
    op.shape(&sizes).map(Some)
}

/// An expression that is specialized for dtypes: its signature, and the backend's kernel.
pub(crate) struct Prepared {
    signature: Signature,
    /// Whether integers are raised to a power that is a parameter.
    has_uniform_power: bool,
    /// None on Meta.
    pub(crate) kernel: Option<Arc<dyn PointwiseKernel>>,
}

/// A pointwise operator on a backend or on Meta.
pub(crate) struct Pointwise {
    op: Op,
    prepared: Specialized<Prepared>,
}

impl Pointwise {
    /// Makes the operator. Kernels are prepared at the first call with each combination of dtypes.
    pub(crate) fn new(op: Op, expr: Expr) -> Pointwise {
        Pointwise { op, prepared: Specialized::new(expr) }
    }

    /// Returns the operator.
    #[inline]
    pub(crate) fn op(&self) -> &Op {
        &self.op
    }

    /// Returns the expression.
    pub(crate) fn expr(&self) -> &Arc<Expr> {
        self.prepared.expr()
    }

    #[inline]
    fn prepare(
        &self,
        inputs: &[&Tensor],
        params: &[Scalar],
        out: Option<DType>,
    ) -> Result<Arc<Prepared>> {
        let make = |lowered| prepare(&self.op, &lowered);
        self.op.at(self.prepared.get(&dtypes(inputs), params, out, make))
    }

    /// Returns the result's shape, which the pointwise inputs broadcast to. Without pointwise inputs the caller
    /// has to give it, unless all elements are equal: then the result is one element.
    fn shape(&self, signature: &Signature, inputs: &[&Tensor], size: Size<'_>) -> Result<Shape> {
        let shapes: SmallVec<[&[usize]; 4]> =
            inputs.iter().map(|input| &input.shape()[..]).collect();
        let own = self.op.at(signature.broadcast_shape(&shapes))?;
        let free = signature.is_shapeless();
        match size {
            Size::OfOut(out) if free => Ok(out.shape().clone()),
            Size::Explicit(given) if free => self.op.at(Shape::new(given)),
            Size::Explicit(given) if *given != own[..] => Err(self.op.error(
                ErrorKind::Shape,
                format!(
                    "argument 'shape' is {given:?}, but the inputs broadcast to {own:?}, which is \
                     the result's shape; leave it away"
                ),
            )),
            Size::Unknown if free && self.prepared.expr().depends_on_index() => Err(self.op.error(
                ErrorKind::Shape,
                "nothing says which shape the result has: no input is read element by element; \
                 give shape=, which is () for one element, or out=",
            )),
            _ => Ok(own),
        }
    }

    /// Computes the expression's value into a new tensor.
    pub(crate) fn compute<'t>(
        &self,
        inputs: impl AsRef<[&'t Tensor]>,
        params: impl AsRef<[Scalar]>,
    ) -> Result<Tensor> {
        self.plan(inputs, params, Size::Unknown)?.fresh(&self.op)
    }

    /// Plans the expression of these inputs and numbers, on the device of the inputs.
    #[inline(always)]
    pub(crate) fn plan<'t, I, P>(
        &self,
        inputs: I,
        params: P,
        size: Size<'_>,
    ) -> Result<CallPlan<Evaluate<&Self, I, P>>>
    where
        I: AsRef<[&'t Tensor]>,
        P: AsRef<[Scalar]>,
    {
        let device = self.device_of(inputs.as_ref());
        Pointwise::plan_on(self, inputs, params, None, (device, size))
    }

    /// Returns the device of the result of these inputs.
    #[inline]
    pub(crate) fn device_of(&self, inputs: &[&Tensor]) -> Device {
        match inputs.first() {
            Some(input) => self.op.device_of(input),
            None => self.op.device(None),
        }
    }

    /// As [`Pointwise::plan`], for a borrowed or shared operator, on a device, and perhaps with another result
    /// dtype.
    #[inline(always)]
    pub(crate) fn plan_on<'t, W, I, P>(
        row: W,
        inputs: I,
        params: P,
        dtype: Option<DType>,
        (device, size): (Device, Size<'_>),
    ) -> Result<CallPlan<Evaluate<W, I, P>>>
    where
        W: Borrow<Pointwise>,
        I: AsRef<[&'t Tensor]>,
        P: AsRef<[Scalar]>,
    {
        let own = row.borrow();
        let prepared = own.prepare(inputs.as_ref(), params.as_ref(), dtype)?;
        let shape = own.shape(&prepared.signature, inputs.as_ref(), size)?;
        if prepared.kernel.is_none() {
            own.check_numbers(&prepared, inputs.as_ref(), params.as_ref())?;
        }
        let (result, chosen) = (prepared.signature.result(), dtype.is_some());
        let run = Evaluate { row, prepared, inputs, params, chosen };
        Ok(CallPlan::new(device, shape, result, run))
    }

    /// Checks numbers on Meta as a computation does: the promoted dtypes must hold them, and integers can't be
    /// raised to negative powers.
    fn check_numbers(
        &self,
        prepared: &Prepared,
        inputs: &[&Tensor],
        params: &[Scalar],
    ) -> Result<()> {
        self.op.at(prepared.signature.check_params(params))?;
        if prepared.has_uniform_power {
            self.op.at(self.prepared.check_powers(&dtypes(inputs), params))?;
        }
        Ok(())
    }
}

/// The computation of an expression of inputs and numbers.
pub(crate) struct Evaluate<W, I, P> {
    row: W,
    prepared: Arc<Prepared>,
    inputs: I,
    params: P,
    /// Whether the caller chose the result's dtype.
    chosen: bool,
}

impl<'t, W, I, P> Run for Evaluate<W, I, P>
where
    W: Borrow<Pointwise>,
    I: AsRef<[&'t Tensor]>,
    P: AsRef<[Scalar]>,
{
    #[inline(always)]
    unsafe fn run(self, op: &Op, out: &Tensor) -> Result<()> {
        let Some(kernel) = &self.prepared.kernel else { return Ok(()) };
        // SAFETY: the caller's promise.
        op.at(unsafe { kernel.run(self.inputs.as_ref(), self.params.as_ref(), out) })
    }

    fn evaluates(&self, args: &[ValueRef<'_>]) -> Option<Box<Evaluated>> {
        Some(Box::new(Evaluated {
            expr: self.row.borrow().expr().clone(),
            inputs: positions(self.inputs.as_ref(), args)?,
            params: self.params.as_ref().into(),
            out: self.chosen.then(|| self.prepared.signature.result()),
        }))
    }

    /// Computes in place if an input is `out`, and converts each element to the dtype of `out`.
    unsafe fn write(
        self,
        op: &Op,
        form: &TensorMeta,
        out: &Tensor,
        _: &[ValueRef<'_>],
    ) -> Result<()> {
        if self.chosen && form.dtype != out.dtype() {
            let own = self.fresh(op, form)?;
            // SAFETY: the caller's promise.
            return unsafe { convert::write_converted(op, &own, out) };
        }
        let (inputs, params) = (self.inputs.as_ref(), self.params.as_ref());
        let prepared = match form.dtype == out.dtype() {
            true => self.prepared,
            false => self.row.borrow().prepare(inputs, params, Some(out.dtype()))?,
        };
        let ranks = prepared.signature.ranks();
        // An input that partly overlaps `out` is read from a copy.
        let mut copies: SmallVec<[(usize, Tensor); 1]> = SmallVec::new();
        for (at, input) in inputs.iter().enumerate() {
            let meets = op.at(overlap(out, input))?;
            if meets == Overlap::Partial || ranks[at].is_some() && meets == Overlap::Exact {
                copies.push((at, op.at(input.copy())?));
            }
        }
        let mut inputs: SmallVec<[&Tensor; 4]> = inputs.into();
        for (at, copy) in &copies {
            inputs[*at] = copy;
        }
        let Some(kernel) = &prepared.kernel else { return Ok(()) };
        // SAFETY: the caller's promise; an input that shares the memory is `out` itself, or a copy.
        op.at(unsafe { kernel.run(&inputs, params, out) })
    }
}

/// Prepares the kernel of a specialized expression.
///
/// # Errors
/// [`ErrorKind::NotSupported`] where the backend doesn't offer it.
#[cold]
pub(crate) fn prepare(op: &Op, lowered: &Lowered) -> Result<Prepared> {
    let kernel = match op.runner() {
        None => None,
        Some(runner) => match keyfold_backend::prepare(&runner.backend, lowered).kernel() {
            Ok(kernel) => Some(kernel),
            Err(reason) => return Err(op.not_supported(&reason)),
        },
    };
    let has_uniform_power = lowered.steps().iter().any(|step| {
        let power = matches!(step.op, StepOp::Binary(Binary::Pow, ..));
        step.uniform && power && step.dtype.is_integral()
    });
    Ok(Prepared { signature: lowered.signature().clone(), has_uniform_power, kernel })
}

/// Refuses a written argument of another shape than the result, of a dtype that can't hold it, or that isn't
/// writable.
pub(crate) fn check_written(
    op: &Op,
    name: &str,
    out: &Tensor,
    shape: &[usize],
    dtype: DType,
) -> Result<()> {
    if out.shape()[..] != *shape {
        return Err(op.error(
            ErrorKind::Shape,
            format!(
                "argument '{name}' has shape {:?}, but the result has {shape:?}; give a tensor of \
                 that shape",
                out.shape()
            ),
        ));
    }
    if dtype != out.dtype() && dtype.promote(out.dtype()).kind() != out.dtype().kind() {
        return Err(op.error(
            ErrorKind::DType,
            format!(
                "argument '{name}': can't write {dtype} elements into a {} tensor without losing \
                 what they are; convert them with aten::to",
                out.dtype()
            ),
        ));
    }
    check_apart(op.name, name, out)?;
    if op.is_meta() { Ok(()) } else { op.at_argument(name, out.check_writable()) }
}

/// Refuses a written argument whose elements share memory.
pub(crate) fn check_apart(op: &str, name: &str, out: &Tensor) -> Result<()> {
    if layout::may_overlap(out.shape(), out.strides()) {
        return Err(Error::new(
            ErrorKind::Value,
            format!(
                "{op}: argument '{name}' has elements that share memory (shape {:?}, strides {:?}); give \
                 one whose elements are apart",
                out.shape(),
                out.strides()
            ),
        ));
    }
    Ok(())
}

/// Returns the rows of the pointwise operators.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let families = [
        binary::rows,
        where_::rows,
        unary::rows,
        pow::rows,
        activation::rows,
        masked::rows,
        expression::rows,
    ];
    let rows = families.map(|family| family());
    Ok(rows.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}
