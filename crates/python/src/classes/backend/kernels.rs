//! Kernels that are methods of a backend in Python.

use std::ops::ControlFlow;
use std::sync::Arc;

use keyfold_backend::primitives::{Primitive, PrimitiveParams, Primitives, fault};
use keyfold_backend::{
    Execute, Field, Index, IndexParams, Launch, Linalg, Offer, Operation, Params, Positions,
    Random, RandomParams, Reduce, ReduceParams, RowParams, Rows, Scan, ScanParams,
};
use keyfold_core::{DType, ErrorKind, Result, layout};
use keyfold_tensor::Tensor;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::object::{Object, Outputs};
use crate::marshal::arrays::numpy_array;

/// The methods of an object.
pub(super) struct Kernels(Arc<Object>);

impl Kernels {
    pub(super) fn new(object: Arc<Object>) -> Self {
        Kernels(object)
    }

    /// The kernel for an operation, if the object takes it.
    fn offer<P: 'static>(
        &self,
        (method, operation): (&str, &str),
        inputs: &[DType],
        output: DType,
    ) -> Offer<&dyn Launch<P>>
    where
        Kernels: Launch<P>,
    {
        match self.0.refusal(method, operation, inputs, Outputs::One(output)) {
            ControlFlow::Continue(()) => Offer::Native(self),
            ControlFlow::Break(reason) => Offer::No(reason.into()),
        }
    }
}

impl Kernels {
    /// Runs an operation on the lanes along one dimension.
    fn along(
        &self,
        method: &'static str,
        op: &'static Operation,
        (x, out): (&Tensor, &Tensor),
        axis: u32,
    ) -> Result<()> {
        self.0.run(method, |py| {
            let x = self.0.array(py, x, false)?;
            (op.name(), x, self.0.array(py, out, true)?, axis).into_pyobject(py)
        })
    }
}

/// The numbers of the bits that are set.
fn places(bits: u64) -> Vec<u32> {
    (0..u64::BITS).filter(|place| bits >> place & 1 == 1).collect()
}

impl Primitives for Kernels {
    fn primitive(
        &self,
        primitive: Primitive,
        inputs: &[DType],
        output: DType,
    ) -> Offer<&dyn Launch<PrimitiveParams>> {
        self.offer(("pointwise", primitive.name()), inputs, output)
    }
}

impl Launch<PrimitiveParams> for Kernels {
    unsafe fn launch(
        &self,
        params: &PrimitiveParams,
        inputs: &[&Tensor],
        out: &Tensor,
    ) -> Result<()> {
        if params.primitive == Primitive::Check {
            // The error is keyfold's, and what there is to find out is on the device.
            let fine = inputs[0].to_vec::<bool>()?.into_iter().all(|fine| fine);
            return if fine { Ok(()) } else { Err(fault(params.fault)) };
        }
        self.0.run("pointwise", |py| {
            let name = params.primitive.name();
            (name, self.0.arrays(py, inputs)?, self.0.array(py, out, true)?).into_pyobject(py)
        })
    }
}

impl Reduce for Kernels {
    fn reduce(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>> {
        self.offer(("reduce", op.name()), &[input], output)
    }
}

impl Launch<ReduceParams> for Kernels {
    unsafe fn launch(&self, params: &ReduceParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        self.0.run("reduce", |py| {
            let x = self.0.array(py, inputs[0], false)?;
            let dims = PyTuple::new(py, places(params.dims))?;
            let name = params.op.name();
            (name, x, self.0.array(py, out, true)?, dims, params.keepdim != 0).into_pyobject(py)
        })
    }
}

impl Rows for Kernels {
    fn rows(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<RowParams>> {
        self.offer(("rows", op.name()), &[input], output)
    }
}

impl Launch<RowParams> for Kernels {
    unsafe fn launch(&self, params: &RowParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        self.along("rows", params.op, (inputs[0], out), params.axis)
    }
}

impl Scan for Kernels {
    fn scan(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ScanParams>> {
        self.offer(("scan", op.name()), &[input], output)
    }
}

impl Launch<ScanParams> for Kernels {
    unsafe fn launch(&self, params: &ScanParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        self.along("scan", params.op, (inputs[0], out), params.axis)
    }
}

impl Linalg for Kernels {
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>> {
        self.offer(("matmul", "matmul"), &[input, input], output)
    }
}

impl Launch<()> for Kernels {
    unsafe fn launch(&self, (): &(), inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let [a, b] = [inputs[0], inputs[1]].map(|x| x.shape().split_at(x.ndim() - 2));
        // The product of vectors has fewer dimensions; methods see matrices.
        let batch = layout::broadcast_shapes(a.0, b.0)?;
        let sizes = batch.iter().chain([&a.1[0], &b.1[1]]);
        let out = out.reshape(&sizes.map(|size| *size as i64).collect::<Vec<_>>())?;
        self.0.run("matmul", |py| {
            let (a, b) = (self.0.array(py, inputs[0], false)?, self.0.array(py, inputs[1], false)?);
            (a, b, self.0.array(py, &out, true)?).into_pyobject(py)
        })
    }
}

impl Index for Kernels {
    fn index(&self, op: &'static Operation, elements: DType) -> Offer<&dyn Launch<IndexParams>> {
        self.offer(("index", op.name()), &[elements, DType::I64], elements)
    }

    fn positions(&self) -> Offer<&dyn Positions> {
        let output = Outputs::One(DType::I64);
        match self.0.refusal("positions", "positions", &[DType::Bool], output) {
            ControlFlow::Continue(()) => Offer::Native(self),
            ControlFlow::Break(reason) => Offer::No(reason.into()),
        }
    }
}

impl Launch<IndexParams> for Kernels {
    unsafe fn launch(&self, params: &IndexParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        self.0.run("index", |py| {
            let (name, dims) = (params.op.name(), PyTuple::new(py, places(params.dims))?);
            (name, self.0.arrays(py, inputs)?, self.0.array(py, out, true)?, dims, params.at)
                .into_pyobject(py)
        })
    }
}

impl Positions for Kernels {
    fn positions(&self, mask: &Tensor) -> Result<Vec<Tensor>> {
        const METHOD: &str = "positions";
        let wrong = |why: &str| self.0.error(ErrorKind::Return, METHOD, why);
        let read = |result: Bound<'_, PyAny>| {
            let arrays: Vec<Bound<'_, PyAny>> = result
                .extract()
                .map_err(|_| wrong("it returns a tuple of int64 arrays, one for each dimension"))?;
            let view = |array| match numpy_array::is_array(array) {
                true => numpy_array::view(array),
                false => Err(wrong("it returns NumPy arrays")),
            };
            arrays.iter().map(view).collect::<Result<Vec<Tensor>>>()
        };
        let found =
            self.0.call(METHOD, |py| PyTuple::new(py, [self.0.array(py, mask, false)?]), read)?;
        let count = found.first().map_or(0, Tensor::numel);
        let fits = |x: &Tensor| x.dtype() == DType::I64 && x.ndim() == 1 && x.numel() == count;
        if found.len() != mask.ndim() || !found.iter().all(fits) {
            let rank = mask.ndim();
            let why = format!("it returns {rank} int64 arrays of one dimension and of one length");
            return Err(wrong(&why));
        }
        found.iter().map(|positions| positions.to_device(mask.device())).collect()
    }
}

impl Random for Kernels {
    fn random(&self, op: &'static Operation, output: DType) -> Offer<&dyn Launch<RandomParams>> {
        self.offer(("random", op.name()), &[], output)
    }
}

impl Launch<RandomParams> for Kernels {
    unsafe fn launch(&self, params: &RandomParams, _: &[&Tensor], out: &Tensor) -> Result<()> {
        self.0.run("random", |py| {
            let out = self.0.array(py, out, true)?;
            (params.op.name(), params.seed, params.offset, out).into_pyobject(py)
        })
    }
}

impl<P: Params> keyfold_backend::Kernels<P> for Kernels {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<P>> {
        match self.0.refusal(P::GROUP.name(), op.name(), inputs, Outputs::All(outputs)) {
            ControlFlow::Continue(()) => Offer::Native(self),
            ControlFlow::Break(reason) => Offer::No(reason.into()),
        }
    }
}

/// Returns the parameters by name.
fn as_dict<'py>(
    py: Python<'py>,
    fields: Vec<(&'static str, Field)>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, field) in fields {
        match field {
            Field::Int(number) => dict.set_item(name, number)?,
            Field::Bits(bits) => dict.set_item(name, bits)?,
            Field::Float(number) => dict.set_item(name, number)?,
            Field::Ints(numbers) => dict.set_item(name, PyTuple::new(py, numbers)?)?,
            Field::Text(text) => dict.set_item(name, text)?,
        }
    }
    Ok(dict)
}

impl<P: Params> Execute<P> for Kernels {
    unsafe fn execute(&self, params: &P, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
        self.0.run(P::GROUP.name(), |py| {
            let (name, fields) = (params.operation().name(), as_dict(py, params.fields())?);
            let written = outputs.iter().map(|out| self.0.array(py, out, true));
            let written = PyTuple::new(py, written.collect::<PyResult<Vec<_>>>()?)?;
            (name, self.0.arrays(py, inputs)?, written, fields).into_pyobject(py)
        })
    }
}
