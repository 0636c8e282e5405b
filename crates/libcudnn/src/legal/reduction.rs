//! Reductions, softmax and statistics of channels by the reductions that engines have.

use keyfold_core::Result;
use keyfold_cudnn::{DataType, OpSpec, Operation, PointwiseMode, Port, ReductionMode, Uid};

use super::sketch::Sketch;

/// Replaces softmax, statistics of channels, and reductions by a function that no engine has.
pub(super) fn expand(sketch: &mut Sketch) -> Result<()> {
    sketch.replace(|sketch, op| match &op.operation {
        Operation::Softmax => softmax(sketch, op),
        Operation::GenStats => statistics(sketch, op),
        Operation::Reduction(reduction) => means(sketch, op, reduction.mode),
        Operation::ResampleBackward(_) => pooling(sketch, op),
        _ => Ok(None),
    })
}

fn softmax(sketch: &mut Sketch, op: &OpSpec) -> Result<Option<Vec<OpSpec>>> {
    let (Some(x), Some(y)) = (op.input(Port::X), op.output(Port::Y)) else { return Ok(None) };
    let mut rows = sketch.dims(x).to_vec();
    if let Some(last) = rows.last_mut() {
        *last = 1;
    }
    let largest = sketch.passing(DataType::F32, &rows)?;
    let shifted = sketch.passing_like(DataType::F32, x);
    let powers = sketch.passing_like(DataType::F32, x);
    let sum = sketch.passing(DataType::F32, &rows)?;
    let mut new = vec![
        sketch.reduction(ReductionMode::Max, x, largest),
        sketch.pointwise(PointwiseMode::Sub, &[x, largest], shifted),
        sketch.pointwise(PointwiseMode::Exp, &[shifted], powers),
        sketch.reduction(ReductionMode::Add, powers, sum),
        sketch.pointwise(PointwiseMode::Div, &[powers, sum], y),
    ];
    if let Some(stats) = op.output(Port::Stats) {
        let logarithm = sketch.passing(DataType::F32, &rows)?;
        new.push(sketch.pointwise(PointwiseMode::Log, &[sum], logarithm));
        new.push(sketch.pointwise(PointwiseMode::Add, &[largest, logarithm], stats));
    }
    sketch.note("softmax as the largest element, exponentials, their sum and a quotient");
    Ok(Some(new))
}

fn statistics(sketch: &mut Sketch, op: &OpSpec) -> Result<Option<Vec<OpSpec>>> {
    let (Some(x), Some(sum), Some(squares)) =
        (op.input(Port::X), op.output(Port::Sum), op.output(Port::SqSum))
    else {
        return Ok(None);
    };
    let squared = sketch.passing_like(DataType::F32, x);
    sketch.note("the statistics of channels as two reductions");
    Ok(Some(vec![
        sketch.reduction(ReductionMode::Add, x, sum),
        sketch.pointwise(PointwiseMode::Mul, &[x, x], squared),
        sketch.reduction(ReductionMode::Add, squared, squares),
    ]))
}

fn means(sketch: &mut Sketch, op: &OpSpec, mode: ReductionMode) -> Result<Option<Vec<OpSpec>>> {
    let (Some(x), Some(y)) = (op.input(Port::X), op.output(Port::Y)) else { return Ok(None) };
    let before = |sketch: &mut Sketch| sketch.passing_like(DataType::F32, x);
    let new = match mode {
        ReductionMode::Avg => {
            let count = sketch.tensor(x).numel().unwrap_or(1)
                / sketch.tensor(y).numel().unwrap_or(1).max(1);
            let share = sketch.number(sketch.dims(x).len(), 1.0 / count as f64);
            let scaled = before(sketch);
            sketch.note("a mean as the sum of shares");
            vec![
                sketch.pointwise(PointwiseMode::Mul, &[x, share], scaled),
                sketch.reduction(ReductionMode::Add, scaled, y),
            ]
        }
        ReductionMode::Norm1 => {
            let absolute = before(sketch);
            sketch.note("a norm as a sum of absolute values");
            vec![
                sketch.pointwise(PointwiseMode::Abs, &[x], absolute),
                sketch.reduction(ReductionMode::Add, absolute, y),
            ]
        }
        ReductionMode::Norm2 => {
            let squared = before(sketch);
            let sum = sketch.passing_like(DataType::F32, y);
            sketch.note("a norm as the root of a sum of squares");
            vec![
                sketch.pointwise(PointwiseMode::Mul, &[x, x], squared),
                sketch.reduction(ReductionMode::Add, squared, sum),
                sketch.pointwise(PointwiseMode::Sqrt, &[sum], y),
            ]
        }
        _ => return Ok(None),
    };
    Ok(Some(new))
}

/// The gradient of pooling from the forward's input and output: of a mean it needs neither, and of a maximum the
/// index, which the forward gives again.
fn pooling(sketch: &mut Sketch, op: &OpSpec) -> Result<Option<Vec<OpSpec>>> {
    let Operation::ResampleBackward(resample) = &op.operation else { return Ok(None) };
    let (Some(x), Some(y)) = (op.input(Port::X), op.input(Port::Y)) else { return Ok(None) };
    let mut alone = op.clone();
    alone.inputs.retain(|input| !matches!(input.0, Port::X | Port::Y));
    if resample.mode != keyfold_cudnn::ResampleMode::Maxpool {
        sketch.note("the gradient of pooling without the forward's tensors, which it doesn't read");
        return Ok(Some(vec![alone]));
    }
    if op.input(Port::Index).is_some() {
        return Ok(Some(vec![alone]));
    }
    let index = sketch.passing_like(DataType::I8, y);
    let dtype = sketch.tensor(y).dtype.unwrap_or(DataType::F32);
    let again = sketch.passing_like(dtype, y);
    // Nobody reads it, and an engine writes it: it has memory.
    if let Some(tensor) = sketch.tensors.get_mut(&again) {
        tensor.is_virtual = false;
    }
    let forward = OpSpec::new(
        Operation::Resample(resample.clone()),
        &[(Port::X, x)],
        &[(Port::Y, again), (Port::Index, index)],
    );
    alone.inputs.push((Port::Index, index));
    sketch.note("the gradient of max pooling by the index, which the forward gives again");
    Ok(Some(vec![forward, alone]))
}

/// Splits a reduction over axes with others between them into one for each run of axes, the innermost first.
pub(super) fn in_stages(sketch: &mut Sketch) -> Result<()> {
    sketch.replace(|sketch, op| {
        let Operation::Reduction(reduction) = &op.operation else { return Ok(None) };
        let (Some(x), Some(y)) = (op.input(Port::X), op.output(Port::Y)) else { return Ok(None) };
        let runs = runs(sketch, x, y);
        if runs.len() < 2 {
            return Ok(None);
        }
        let mut new = Vec::new();
        let mut from = x;
        for (stage, axes) in runs.iter().rev().enumerate() {
            let to = if stage + 1 == runs.len() {
                y
            } else {
                let mut dims = sketch.dims(from).to_vec();
                let mut order: Vec<usize> = (0..dims.len()).collect();
                order.sort_by_key(|&axis| {
                    (std::cmp::Reverse(sketch.tensor(from).strides[axis]), axis)
                });
                axes.iter().for_each(|&axis| dims[axis] = 1);
                let to = sketch.passing(DataType::F32, &dims)?;
                let mut stride = 1;
                if let Some(tensor) = sketch.tensors.get_mut(&to) {
                    for axis in order.into_iter().rev() {
                        tensor.strides[axis] = stride;
                        stride *= dims[axis];
                    }
                }
                to
            };
            let mode = match (reduction.mode, stage) {
                (ReductionMode::Amax, 1..) => ReductionMode::Max,
                (mode, _) => mode,
            };
            new.push(sketch.reduction(mode, from, to));
            from = to;
        }
        sketch.note("a reduction over separate axes in stages");
        Ok(Some(new))
    })
}

/// Returns the reduced axes in runs that no kept axis is between, in the order of memory.
fn runs(sketch: &Sketch, x: Uid, y: Uid) -> Vec<Vec<usize>> {
    let (dims, kept) = (sketch.dims(x), sketch.dims(y));
    let mut order: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis] > 1).collect();
    order.sort_by_key(|&axis| (std::cmp::Reverse(sketch.tensor(x).strides[axis]), axis));
    let mut runs: Vec<Vec<usize>> = Vec::new();
    let mut goes_on = false;
    for axis in order {
        let reduced = kept.get(axis) == Some(&1);
        match runs.last_mut().filter(|_| goes_on && reduced) {
            Some(run) => run.push(axis),
            None if reduced => runs.push(vec![axis]),
            None => {}
        }
        goes_on = reduced;
    }
    runs
}
