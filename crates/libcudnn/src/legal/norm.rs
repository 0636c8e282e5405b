//! Normalizations by what engines have: pointwise operations, and the norm of instances.

use keyfold_core::Result;
use keyfold_cudnn::{
    DataType, Norm, NormMode, NormPhase, OpSpec, Operation, PointwiseMode, Port, Uid,
};

use super::sketch::Sketch;

/// Replaces batch norm with given statistics, and group norm.
pub(super) fn expand(sketch: &mut Sketch) -> Result<()> {
    sketch.replace(|sketch, op| match &op.operation {
        Operation::Norm(norm)
            if norm.mode == NormMode::BatchNorm && norm.phase == NormPhase::Inference =>
        {
            Ok(inference(sketch, op))
        }
        Operation::Norm(norm) if norm.mode == NormMode::GroupNorm => groups(sketch, op, norm),
        _ => Ok(None),
    })
}

fn inference(sketch: &mut Sketch, op: &OpSpec) -> Option<Vec<OpSpec>> {
    let x = op.input(Port::X)?;
    let mut value = x;
    let mut new = Vec::new();
    for (mode, port) in [
        (PointwiseMode::Sub, Port::Mean),
        (PointwiseMode::Mul, Port::InvVariance),
        (PointwiseMode::Mul, Port::Scale),
        (PointwiseMode::Add, Port::Bias),
    ] {
        let result = match port {
            Port::Bias => op.output(Port::Y)?,
            _ => sketch.passing_like(DataType::F32, x),
        };
        new.push(sketch.pointwise(mode, &[value, op.input(port)?], result));
        value = result;
    }
    sketch.note("batch norm with given statistics as four pointwise operations");
    Some(new)
}

/// Group norm of packed images: the norm of instances of which each is a group, with a scale of 1 and a bias of 0, and
/// then the channels' own.
fn groups(sketch: &mut Sketch, op: &OpSpec, norm: &Norm) -> Result<Option<Vec<OpSpec>>> {
    let ports =
        (op.input(Port::X), op.input(Port::Scale), op.input(Port::Bias), op.output(Port::Y));
    let (Some(x), Some(scale), Some(bias), Some(y)) = ports else { return Ok(None) };
    let (Some(count), Some(epsilon)) = (norm.groups, op.input(Port::Epsilon)) else {
        return Ok(None);
    };
    let tensor = sketch.tensor(x).clone();
    let packed = keyfold_cudnn::Layout::Packed.strides(&tensor.dims)?;
    if tensor.strides != packed || !sketch.has_memory(x) || tensor.dims.len() < 3 {
        return Ok(None);
    }
    let statistics = [tensor.dims[0], count, 1, 1];
    let fits = |port: &Port| op.output(*port).is_none_or(|uid| sketch.dims(uid) == statistics);
    if ![Port::Mean, Port::InvVariance].iter().all(fits) {
        return Ok(None);
    }
    let size: i64 = tensor.dims[1..].iter().product::<i64>() / count;
    let dims = vec![tensor.dims[0], count, size, 1];
    let strides = vec![count * size, size, 1, 1];
    let viewed = sketch.view(x, dims.clone(), strides, 0);
    // Engines read scale and bias from memory: exp(0) and 0 of as many indices along a dimension of size 1.
    let of_groups =
        |sketch: &mut Sketch| -> Result<Uid> { sketch.passing(DataType::F32, &[1, count, 1, 1]) };
    let pattern = sketch.view(x, vec![1, count, 1, 1], vec![count, 1, 1, 1], 0);
    let zero = of_groups(sketch)?;
    let one = of_groups(sketch)?;
    let mut index = sketch.pointwise(PointwiseMode::GenIndex, &[pattern], zero);
    if let Operation::Pointwise(pointwise) = &mut index.operation {
        pointwise.axis = Some(0);
    }
    let exponential = sketch.pointwise(PointwiseMode::Exp, &[zero], one);
    let normal = sketch.passing(DataType::F32, &dims)?;
    let inner = Norm { mode: NormMode::InstanceNorm, phase: norm.phase, groups: None };
    let inputs =
        [(Port::X, viewed), (Port::Scale, one), (Port::Bias, zero), (Port::Epsilon, epsilon)];
    let mut outputs = vec![(Port::Y, normal)];
    for port in [Port::Mean, Port::InvVariance] {
        if let Some(uid) = op.output(port) {
            outputs.push((port, uid));
        }
    }
    if let Some(tensor) = sketch.tensors.get_mut(&normal) {
        tensor.is_virtual = false;
    }
    let norm = OpSpec::new(Operation::Norm(inner), &inputs, &outputs);
    let images = sketch.view(normal, tensor.dims, packed, 0);
    let scaled = sketch.passing_like(DataType::F32, x);
    sketch.note("group norm as the norm of instances, and then the scale and bias of channels");
    Ok(Some(vec![
        index,
        exponential,
        norm,
        sketch.pointwise(PointwiseMode::Mul, &[images, scale], scaled),
        sketch.pointwise(PointwiseMode::Add, &[scaled, bias], y),
    ]))
}
