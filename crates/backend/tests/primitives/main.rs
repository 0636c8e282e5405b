//! Expressions on a device with primitives only, against the CPU's evaluator.

#[cfg(feature = "delayed")]
mod asynchronous;
mod calls;
mod compare;
mod device;
mod expressions;
mod functions;
mod groups;
mod offers;
mod samples;

use std::sync::Arc;

use keyfold_backend::{GpuBackend, PointwiseKernel, prepare};
use keyfold_core::{DType, Device, Result, Scalar};
use keyfold_expr::{Expr, Lowered};
use keyfold_kit::evaluate::evaluate;
use keyfold_kit::interpreter::Program;
use keyfold_tensor::Tensor;

/// Lowers a text for inputs x, y, z of these dtypes.
fn lowered(text: &str, inputs: &[DType]) -> Result<Lowered> {
    Lowered::new(&Expr::parse(text)?, inputs, &[], None)
}

/// Returns a new output for inputs of a lowered expression.
fn output(lowered: &Lowered, inputs: &[&Tensor]) -> Result<Tensor> {
    let shapes: Vec<&[usize]> = inputs.iter().map(|input| &input.shape()[..]).collect();
    let shape = lowered.signature().broadcast_shape(&shapes)?;
    Tensor::zeros(&shape, lowered.result(), Device::CPU)
}

/// Returns the kernel on a backend that offers it.
fn kernel(backend: &Arc<dyn GpuBackend>, lowered: &Lowered) -> Arc<dyn PointwiseKernel> {
    prepare(backend, lowered).kernel().unwrap_or_else(|reason| panic!("{reason}"))
}

/// Runs an expression on a device and returns the result.
fn on(
    host: device::Host,
    lowered: &Lowered,
    inputs: &[&Tensor],
    params: &[Scalar],
) -> Result<Tensor> {
    let backend: Arc<dyn GpuBackend> = Arc::new(host);
    let out = output(lowered, inputs)?;
    // SAFETY: the output isn't shared.
    unsafe { kernel(&backend, lowered).run(inputs, params, &out)? };
    Ok(out)
}

/// Runs an expression on a device with all primitives.
fn by_primitives(lowered: &Lowered, inputs: &[&Tensor], params: &[Scalar]) -> Result<Tensor> {
    on(device::Host::complete(), lowered, inputs, params)
}

/// Runs an expression with the evaluator.
fn by_evaluator(lowered: &Lowered, inputs: &[&Tensor], params: &[Scalar]) -> Result<Tensor> {
    let out = output(lowered, inputs)?;
    // SAFETY: the output isn't shared.
    unsafe { evaluate(&Program::new(lowered)?, inputs, params, &out)? };
    Ok(out)
}
