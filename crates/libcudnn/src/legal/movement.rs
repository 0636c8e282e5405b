//! Reshapes, transposes, slices and concatenations as views of memory.

use keyfold_core::Result;
use keyfold_cudnn::{DataType, Layout, OpSpec, Operation, PointwiseMode, Port, Uid};

use super::sketch::Sketch;

/// Replaces what moves elements: a tensor without memory becomes a view of the other one's, and two with memory are
/// copied element by element from view to view.
pub(super) fn expand(sketch: &mut Sketch) -> Result<()> {
    // From the last operation on: an input may become a view of a later result.
    sketch.operations.reverse();
    sketch.replace(|sketch, op| {
        let Some(y) = op.output(Port::Y) else { return Ok(None) };
        if has_number(sketch, op) {
            return Ok(None);
        }
        match &op.operation {
            Operation::Concatenate(concatenate) if concatenate.in_place_index.is_none() => {
                let axis = usize::try_from(concatenate.axis).unwrap_or(0);
                concatenate_into(sketch, op, y, axis)
            }
            Operation::Reshape => {
                let Some(x) = op.input(Port::X) else { return Ok(None) };
                reshape(sketch, op, x, y)
            }
            _ => Ok(None),
        }
    })?;
    sketch.operations.reverse();
    sketch.replace(|sketch, op| {
        let (Some(x), Some(y)) = (op.input(Port::X), op.output(Port::Y)) else { return Ok(None) };
        if has_number(sketch, op) {
            return Ok(None);
        }
        let (dims, strides, offset) = match &op.operation {
            Operation::Transpose(transpose) => {
                let from = sketch.tensor(x);
                let places: Vec<usize> = transpose
                    .permutation
                    .iter()
                    .filter_map(|&axis| usize::try_from(axis).ok())
                    .collect();
                let dims = places.iter().map(|&axis| from.dims[axis]).collect();
                (dims, places.iter().map(|&axis| from.strides[axis]).collect(), 0)
            }
            Operation::Slice(slice) => {
                let from = sketch.tensor(x);
                let offset: i64 = slice
                    .start
                    .iter()
                    .zip(&from.strides)
                    .map(|(start, stride)| start * stride)
                    .sum();
                let strides = slice
                    .stride
                    .iter()
                    .zip(&from.strides)
                    .map(|(step, stride)| step * stride)
                    .collect();
                (sketch.dims(y).to_vec(), strides, offset)
            }
            Operation::Reshape => match seen_as(sketch, x, y) {
                Some(strides) => {
                    if !sketch.has_memory(x) {
                        // It gets memory, in the order that a reshape reads.
                        let packed = Layout::Packed.strides(sketch.dims(x))?;
                        if let Some(tensor) = sketch.tensors.get_mut(&x) {
                            tensor.strides = packed;
                        }
                    }
                    (sketch.dims(y).to_vec(), strides, 0)
                }
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(move_to(sketch, op, (x, y), (dims, strides, offset)))
    })
}

/// Returns whether an operation reads a number by value, which has no memory on a card to be viewed.
fn has_number(sketch: &Sketch, op: &OpSpec) -> bool {
    op.inputs.iter().any(|input| {
        let tensor = sketch.tensor(input.1);
        tensor.by_value || tensor.scalar.is_some()
    })
}

/// Returns whether elements of a tensor are copied by an engine as they are: it reads them as float32.
fn is_copied(sketch: &Sketch, uid: Uid) -> bool {
    let dtype = sketch.tensor(uid).dtype;
    !matches!(dtype, Some(DataType::I32 | DataType::I64 | DataType::F64))
}

/// Returns the strides of a packed tensor under another one's dimensions; `None` where either isn't packed.
fn seen_as(sketch: &Sketch, x: Uid, y: Uid) -> Option<Vec<i64>> {
    let is_packed = |uid: Uid| {
        let tensor = sketch.tensor(uid);
        tensor.is_virtual
            || Layout::Packed.strides(&tensor.dims).is_ok_and(|packed| packed == tensor.strides)
    };
    let packed = Layout::Packed.strides(sketch.dims(y)).ok()?;
    (is_packed(x) && is_packed(y) && sketch.tensor(y).strides == packed).then_some(packed)
}

/// Makes `y` a view of `x`'s memory, or copies the view into it where both have memory.
fn move_to(
    sketch: &mut Sketch,
    op: &OpSpec,
    (x, y): (Uid, Uid),
    (dims, strides, offset): (Vec<i64>, Vec<i64>, i64),
) -> Option<Vec<OpSpec>> {
    if sketch.has_memory(y) {
        if !is_copied(sketch, y) {
            return None;
        }
        if !sketch.has_memory(x) {
            give_memory(sketch, x);
        }
        let view = sketch.view(x, dims, strides, offset);
        let mut copy = sketch.pointwise(PointwiseMode::Identity, &[view], y);
        copy.name.clone_from(&op.name);
        sketch.note(format!("{} as a copy from a view", op.operation.name()));
        return Some(vec![copy]);
    }
    if !sketch.has_memory(x) {
        give_memory(sketch, x);
    }
    let place = sketch.place(x);
    let tensor = sketch.tensors.get_mut(&y)?;
    (tensor.dims, tensor.strides, tensor.is_virtual) = (dims, strides, false);
    sketch.places.insert(y, super::sketch::Place { of: place.of, offset: place.offset + offset });
    sketch.note(format!("{} as a view, without a copy", op.operation.name()));
    Some(Vec::new())
}

fn give_memory(sketch: &mut Sketch, uid: Uid) {
    if let Some(tensor) = sketch.tensors.get_mut(&uid) {
        tensor.is_virtual = false;
    }
}

/// A reshape whose input has no memory: the input is written into the output's.
fn reshape(sketch: &mut Sketch, op: &OpSpec, x: Uid, y: Uid) -> Result<Option<Vec<OpSpec>>> {
    if sketch.has_memory(x) || !sketch.has_memory(y) || seen_as(sketch, x, y).is_none() {
        return Ok(None);
    }
    if sketch.tensor(x).dtype != sketch.tensor(y).dtype {
        return Ok(None);
    }
    let place = sketch.place(y);
    let packed = Layout::Packed.strides(sketch.dims(x))?;
    if let Some(tensor) = sketch.tensors.get_mut(&x) {
        (tensor.strides, tensor.is_virtual) = (packed, false);
    }
    sketch.places.insert(x, place);
    sketch.note(format!("{} as a view, without a copy", op.operation.name()));
    Ok(Some(Vec::new()))
}

/// Writes each input into its part of the output, or has it written there.
fn concatenate_into(
    sketch: &mut Sketch,
    op: &OpSpec,
    y: Uid,
    axis: usize,
) -> Result<Option<Vec<OpSpec>>> {
    let all_are_copied = || op.inputs.iter().all(|(_, x)| is_copied(sketch, *x));
    if !sketch.has_memory(y) || !all_are_copied() {
        return Ok(None);
    }
    let strides = sketch.tensor(y).strides.clone();
    let mut start = 0;
    let mut copies = Vec::new();
    for (_, x) in &op.inputs {
        let dims = sketch.dims(*x).to_vec();
        let offset = start * strides.get(axis).copied().unwrap_or(0);
        start += dims.get(axis).copied().unwrap_or(0);
        if sketch.has_memory(*x) || sketch.tensor(*x).dtype != sketch.tensor(y).dtype {
            let part = sketch.view(y, dims, strides.clone(), offset);
            copies.push(sketch.pointwise(PointwiseMode::Identity, &[*x], part));
            continue;
        }
        let place = sketch.place(y);
        if let Some(tensor) = sketch.tensors.get_mut(x) {
            (tensor.strides, tensor.is_virtual) = (strides.clone(), false);
        }
        let offset = place.offset + offset;
        sketch.places.insert(*x, super::sketch::Place { of: place.of, offset });
    }
    sketch.note("a concatenation as copies into the parts of the result");
    // The list is in reverse order here.
    copies.reverse();
    Ok(Some(copies))
}
