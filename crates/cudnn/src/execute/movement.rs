//! Operations that move elements.

use keyfold_core::{DType, Result};
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::node::{Node, Results};
use super::program::dtype_of;
use crate::{Operation, Port};

/// Returns the tensors that it reads, all in one dtype: as they are, where they are of that.
fn inputs(node: &Node<'_>) -> Result<Vec<Tensor>> {
    let places = || node.op.inputs.iter().map(|entry| node.program.place(entry.1));
    let output = node.output_spec(Port::Y).map(dtype_of);
    let same = places().all(|place| Some(dtype_of(node.program.spec(place))) == output);
    let held: Vec<&Tensor> = places().filter_map(|place| node.memory[place].as_ref()).collect();
    let raw = held.first().map(|tensor| tensor.dtype());
    if same && held.len() == node.op.inputs.len() {
        // Bytes of 8-bit floats are moved as bytes.
        if held.iter().all(|tensor| Some(tensor.dtype()) == raw) {
            return Ok(held.into_iter().cloned().collect());
        }
    }
    let wide = output.map_or(DType::F32, |dtype| match node.precision().held(dtype) {
        DType::U8 if dtype.is_f8() => DType::F32,
        held => held,
    });
    let load = |place| Ok(node.program.load(node.memory, place, wide)?.into_owned());
    places().map(load).collect()
}

pub(super) fn compute(node: &Node<'_>) -> Result<Results> {
    let (calls, inputs) = (node.calls(), inputs(node)?);
    let x = &inputs[0];
    let y = match &node.op.operation {
        Operation::Transpose(transpose) => {
            calls.one("aten::permute", &[x.into(), ValueRef::Ints(&transpose.permutation)])?
        }
        Operation::Slice(slice) => {
            let mut part = x.clone();
            for axis in 0..slice.start.len() {
                let (start, limit) = (slice.start[axis], slice.limit[axis]);
                part = part.slice(axis as i64, Some(start), Some(limit), slice.stride[axis])?;
            }
            part
        }
        Operation::Concatenate(concatenate) => {
            let parts: Vec<Value> = inputs.iter().cloned().map(Value::Tensor).collect();
            calls.one("aten::cat", &[ValueRef::List(&parts), concatenate.axis.into()])?
        }
        _ => calls.reshape(x, node.output_dims(Port::Y)?)?,
    };
    Ok(vec![(Port::Y, y)])
}
