//! Expressions on a device that has primitives only, against the evaluator of the CPU.

mod calls;
mod compare;
mod device;
mod expressions;
mod functions;
#[cfg(feature = "delayed")]
mod late;
mod offers;
mod samples;

use std::sync::Arc;

use keyfold_backend::{GpuBackend, PointwiseKernel, prepare};
use keyfold_core::{DType, Device, Result, Scalar};
use keyfold_expr::{Expr, Lowered};
use keyfold_kit::eval::Program;
use keyfold_kit::evaluate::evaluate;
use keyfold_tensor::Tensor;

/// The steps of a text for inputs x, y, z of these dtypes.
fn lowered(text: &str, inputs: &[DType]) -> Result<Lowered> {
    Lowered::new(&Expr::parse(text)?, inputs, &[], None)
}

/// A new output for inputs of a lowered expression.
fn output(lowered: &Lowered, inputs: &[&Tensor]) -> Result<Tensor> {
    let shapes: Vec<&[usize]> = inputs.iter().map(|input| &input.shape()[..]).collect();
    let shape = lowered.signature().broadcast_shape(&shapes)?;
    Tensor::zeros(&shape, lowered.result(), Device::CPU)
}

/// The kernel on a backend that has it.
fn kernel(backend: &Arc<dyn GpuBackend>, lowered: &Lowered) -> Arc<dyn PointwiseKernel> {
    prepare(backend, lowered).kernel().unwrap_or_else(|reason| panic!("{reason}"))
}

/// The result of a device.
fn on(
    host: device::Host,
    lowered: &Lowered,
    inputs: &[&Tensor],
    params: &[Scalar],
) -> Result<Tensor> {
    let backend: Arc<dyn GpuBackend> = Arc::new(host);
    let out = output(lowered, inputs)?;
    // SAFETY: nobody else has the output.
    unsafe { kernel(&backend, lowered).run(inputs, params, &out)? };
    Ok(out)
}

/// The result of a device with all primitives.
fn by_primitives(lowered: &Lowered, inputs: &[&Tensor], params: &[Scalar]) -> Result<Tensor> {
    on(device::Host::complete(), lowered, inputs, params)
}

/// The evaluator's result.
fn by_evaluator(lowered: &Lowered, inputs: &[&Tensor], params: &[Scalar]) -> Result<Tensor> {
    let out = output(lowered, inputs)?;
    // SAFETY: nobody else has the output.
    unsafe { evaluate(&Program::new(lowered)?, inputs, params, &out)? };
    Ok(out)
}
