//! An operation while it runs: what it reads, and what it writes.

use std::borrow::Cow;

use keyfold_core::{DType, Device, Error, ErrorKind, Result, Scalar};
use keyfold_tensor::Tensor;

use super::calls::Calls;
use super::pointwise::Expression;
use super::program::Program;
use super::{Precision, float8};
use crate::{DataType, OpSpec, Port, TensorSpec};

/// The results of an operation at their ports; those that were written in place aren't among them.
pub(super) type Results = Vec<(Port, Tensor)>;

/// An operation with the tensors of a run.
pub(super) struct Node<'a> {
    pub(super) program: &'a Program,
    pub(super) op: &'a OpSpec,
    /// The dtype that it computes in.
    pub(super) dtype: DType,
    /// The expression that it evaluates, if it is a pointwise one.
    pub(super) expression: Option<&'a Expression>,
    /// The tensors of the graph that are there, by their place in its list.
    pub(super) memory: &'a [Option<Tensor>],
}

impl Node<'_> {
    pub(super) fn calls(&self) -> &Calls {
        self.program.calls()
    }

    pub(super) fn precision(&self) -> Precision {
        self.program.precision()
    }

    /// Returns a tensor that it reads, in the dtype that it computes in.
    pub(super) fn read(&self, port: Port) -> Result<Tensor> {
        self.read_as(port, self.dtype)
    }

    /// Returns a tensor that it reads, in a dtype.
    pub(super) fn read_as(&self, port: Port, dtype: DType) -> Result<Tensor> {
        self.find_as(port, dtype)?.ok_or_else(|| missing(port))
    }

    /// Returns a tensor that it may read, in the dtype that it computes in.
    pub(super) fn find(&self, port: Port) -> Result<Option<Tensor>> {
        self.find_as(port, self.dtype)
    }

    /// Returns a tensor that it may read, in a dtype.
    pub(super) fn find_as(&self, port: Port, dtype: DType) -> Result<Option<Tensor>> {
        Ok(self.look_as(port, dtype)?.map(Cow::into_owned))
    }

    /// Returns a tensor that it may read, in a dtype; the one of the run where that has it.
    pub(super) fn look_as(&self, port: Port, dtype: DType) -> Result<Option<Cow<'_, Tensor>>> {
        let Some(uid) = self.op.input(port) else { return Ok(None) };
        self.program.load(self.memory, self.program.place(uid), dtype).map(Some)
    }

    /// Returns the number of a tensor of one element.
    pub(super) fn scalar(&self, port: Port) -> Result<Option<Scalar>> {
        let dtype = match self.input_spec(port).and_then(|spec| spec.dtype) {
            None => return Ok(None),
            Some(dtype) if dtype.is_float() => DType::F64,
            Some(_) => DType::I64,
        };
        let Some(x) = self.find_as(port, dtype)? else { return Ok(None) };
        self.calls().reshape(&x, &[])?.to_device(Device::CPU)?.item().map(Some)
    }

    /// Returns the number of a tensor of one element as a float.
    pub(super) fn number(&self, port: Port) -> Result<Option<f64>> {
        Ok(self.scalar(port)?.map(Scalar::as_f64))
    }

    /// Returns the specification of a tensor that it reads.
    pub(super) fn input_spec(&self, port: Port) -> Option<&TensorSpec> {
        self.op.input(port).map(|uid| self.program.spec(self.program.place(uid)))
    }

    /// Returns the specification of a tensor that it writes.
    pub(super) fn output_spec(&self, port: Port) -> Option<&TensorSpec> {
        self.op.output(port).map(|uid| self.program.spec(self.program.place(uid)))
    }

    /// Returns the sizes of a tensor that it must write.
    pub(super) fn output_dims(&self, port: Port) -> Result<&[i64]> {
        self.output_spec(port).map(|spec| &spec.dims[..]).ok_or_else(|| missing(port))
    }

    /// Returns the tensor of the caller that a result in a dtype can be written to directly.
    pub(super) fn target(&self, port: Port, dtype: DType) -> Option<&Tensor> {
        let uid = self.op.output(port)?;
        self.program.target(self.memory, self.program.place(uid), dtype)
    }

    /// Returns a result, unless it was written to [`Node::target`].
    pub(super) fn done(&self, port: Port, result: Tensor, dtype: DType) -> Results {
        match self.target(port, dtype) {
            Some(_) => Vec::new(),
            None => vec![(port, result)],
        }
    }

    /// Returns whether it writes a tensor at a port.
    pub(super) fn wants(&self, port: Port) -> bool {
        self.op.output(port).is_some()
    }
}

fn missing(port: Port) -> Error {
    Error::new(ErrorKind::Value, format!("it has no tensor at its port {port}"))
}

/// Returns a result in the dtype that its tensor is held in.
pub(super) fn converted(
    calls: &Calls,
    result: &Tensor,
    dtype: DataType,
    held: DType,
) -> Result<Tensor> {
    if dtype.is_f8() && held == DType::U8 {
        return match result.dtype() {
            DType::U8 => Ok(result.clone()),
            _ => float8::encode(calls, result, dtype),
        };
    }
    if result.dtype() == held || held == DType::Bool || !held.is_integral() {
        return calls.to(result, held);
    }
    if result.dtype() == DType::Bool {
        return calls.to(result, held);
    }
    let (least, most) = held.int_range().expect("it is a whole number's");
    if result.dtype().is_integral() {
        let wide = calls.to(result, DType::I64)?;
        let limits = [Scalar::Int(least.max(i64::MIN.into()) as i64), Scalar::Int(most as i64)];
        let clamped = calls.map("x; a, b: clamp(x, a, b)", &[&wide], &limits)?;
        return calls.to(&clamped, held);
    }
    // The greatest number may not be a float: what is as great is chosen, and no more converted.
    let text = format!(
        "x; a, b, c: r = round(where(isnan(x), 0.0, x)); \
         where(r >= b, c, {}(where(r >= b, 0.0, max(r, a))))",
        held.name()
    );
    let wide = if result.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let numbers =
        [Scalar::Float(least as f64), Scalar::Float((most + 1) as f64), Scalar::Int(most as i64)];
    calls.map(&text, &[&calls.to(result, wide)?], &numbers)
}
