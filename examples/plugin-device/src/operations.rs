//! The operations: `has` says which there are, `run` runs one.

use keyfold_plugin::{DType, Error, Operation, Params, Result};

use crate::memory::View;
use crate::{fused, index, linalg, pointwise, random, reduce, rows, scan};

/// Returns whether [`run`] has an operation.
pub fn has(operation: &Operation<'_>) -> bool {
    let dtypes: Vec<DType> = operation.inputs().chain(operation.outputs()).collect();
    match operation.group() {
        "pointwise" => pointwise::has(operation.name(), &dtypes),
        "reduce" => reduce::has(operation.name(), &dtypes),
        "rows" => rows::has(operation.name(), &dtypes),
        "scan" => scan::has(operation.name()),
        "linalg" => linalg::has(operation.name()),
        "index" => index::has(operation.name()),
        "random" => random::has(operation.name(), &dtypes),
        group => fused::has(group, operation.name(), &dtypes),
    }
}

/// Runs an operation.
pub fn run(name: &str, params: Params, inputs: &[View], outs: &[View]) -> Result<()> {
    let out = &outs[0];
    match params {
        Params::Pointwise { fault } => pointwise::run(name, fault, inputs, out),
        Params::Reduce { dims, .. } => reduce::run(name, &inputs[0], dims, out),
        Params::Rows { axis } => rows::run(name, &inputs[0], axis, out),
        Params::Scan { axis } => scan::run(name, &inputs[0], axis, out),
        Params::None if name == "matmul" => linalg::matmul(&inputs[0], &inputs[1], out),
        Params::None if name == "positions" => index::positions(&inputs[0], outs),
        Params::Index { dims, at } => index::run(name, inputs, dims, at, out),
        Params::Random { seed, offset } => random::run(name, seed, offset, out),
        _ => Err(Error::not_supported(format!("there is no {name}"))),
    }
}
