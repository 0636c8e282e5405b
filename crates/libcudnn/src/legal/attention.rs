//! The gradients of attention as a graph: the only form that libcudnn plans.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_cudnn::{
    Alignment, Attention, DataType, DiagonalBandMask, OpSpec, Operation, Pointwise, PointwiseMode,
    Port, ReductionMode, Transpose, Uid,
};

use super::sketch::Sketch;

/// Replaces attention's gradients by the operations that compute them.
pub(super) fn expand_gradients(sketch: &mut Sketch) -> Result<()> {
    sketch.replace(|sketch, op| match &op.operation {
        Operation::SdpaBackward(attention) => gradients(sketch, op, attention).map(Some),
        _ => Ok(None),
    })
}

fn not_lowered(what: &str) -> Error {
    Error::new(ErrorKind::NotSupported, format!("attention's gradients aren't lowered with {what}"))
}

/// A matrix product, with the numbers of rows, columns and terms that are used, where sequences are shorter.
fn product((a, b, c): (Uid, Uid, Uid), [m, n, k]: [Option<Uid>; 3]) -> OpSpec {
    let mut inputs = vec![(Port::A, a), (Port::B, b)];
    for (port, uid) in [(Port::MOverride, m), (Port::NOverride, n), (Port::KOverride, k)] {
        inputs.extend(uid.map(|uid| (port, uid)));
    }
    OpSpec::new(Operation::Matmul, &inputs, &[(Port::C, c)])
}

fn gradients(sketch: &mut Sketch, op: &OpSpec, attention: &Attention) -> Result<Vec<OpSpec>> {
    if attention.dropout.is_some() {
        return Err(not_lowered("dropout"));
    }
    if op.input(Port::Bias).is_some() || op.output(Port::Dbias).is_some() {
        return Err(not_lowered("a bias"));
    }
    let is_causal = match (attention.right_bound, attention.left_bound, attention.alignment) {
        (None, None, _) => false,
        (Some(0), None, Alignment::TopLeft) => true,
        _ => return Err(not_lowered("a mask other than a causal one from the top left")),
    };
    let find = |port: Port| {
        op.input(port).or(op.output(port)).ok_or_else(|| not_lowered("a tensor missing"))
    };
    let (q, k, v, o, d_o, stats) = (
        find(Port::Q)?,
        find(Port::K)?,
        find(Port::V)?,
        find(Port::O)?,
        find(Port::Do)?,
        find(Port::Stats)?,
    );
    let (dq, dk, dv) = (find(Port::Dq)?, find(Port::Dk)?, find(Port::Dv)?);
    let (rows, columns) = (op.input(Port::SeqLenQ), op.input(Port::SeqLenKv));
    let io = sketch.tensor(q).dtype.unwrap_or(DataType::F16);
    let (heads, of_keys) = (sketch.dims(q).to_vec(), sketch.dims(k).to_vec());
    let [b, h, sq, d] = heads[..] else { return Err(not_lowered("other than 4 dimensions")) };
    let skv = of_keys[2];
    let (scores, row) = ([b, h, sq, skv], [b, h, sq, 1]);
    let scale = match op.input(Port::AttnScale) {
        Some(scale) => scale,
        None => sketch.number(4, 1.0),
    };
    let one = sketch.number(4, 1.0);
    let f32 = DataType::F32;
    let mut new = Vec::new();

    // Sums of rows of the output times its gradient, in memory of their own.
    let products = sketch.passing(f32, &heads)?;
    let sums = sketch.passing(f32, &row)?;
    let kept = sketch.passing(f32, &row)?;
    give_memory(sketch, kept);
    new.push(sketch.pointwise(PointwiseMode::Mul, &[d_o, o], products));
    new.push(sketch.reduction(ReductionMode::Add, products, sums));
    new.push(sketch.pointwise(PointwiseMode::Mul, &[sums, one], kept));

    // The weights again, by the forward's statistics.
    let keys = turned(sketch, k);
    let raw = sketch.passing(f32, &scores)?;
    let scaled = sketch.passing(f32, &scores)?;
    let mut logits = sketch.passing(f32, &scores)?;
    new.push(product((q, keys, raw), [rows, columns, None]));
    new.push(sketch.pointwise(PointwiseMode::Mul, &[raw, scale], scaled));
    new.push(sketch.pointwise(PointwiseMode::Sub, &[scaled, stats], logits));
    if let (Some(rows), Some(columns)) = (rows, columns) {
        let mut within = Vec::new();
        for (axis, length) in [(2, rows), (3, columns)] {
            let index = sketch.passing(DataType::I32, &scores)?;
            let below = sketch.passing(DataType::Bool, &scores)?;
            let counting = Operation::Pointwise(Pointwise {
                axis: Some(axis),
                ..Pointwise::new(PointwiseMode::GenIndex)
            });
            new.push(OpSpec::new(counting, &[(Port::X, logits)], &[(Port::Y, index)]));
            new.push(sketch.pointwise(PointwiseMode::CmpLt, &[index, length], below));
            within.push(below);
        }
        let both = sketch.passing(DataType::Bool, &scores)?;
        let mut and = sketch.pointwise(PointwiseMode::LogicalAnd, &within, both);
        and.compute = Some(DataType::Bool);
        new.push(and);
        let hidden = sketch.number(4, f64::NEG_INFINITY);
        let chosen = sketch.passing(f32, &scores)?;
        new.push(sketch.pointwise(PointwiseMode::BinarySelect, &[logits, hidden, both], chosen));
        logits = chosen;
    }
    if is_causal {
        let hidden = sketch.number(4, f64::NEG_INFINITY);
        let masked = sketch.passing(f32, &scores)?;
        let band =
            Operation::DiagonalBandMask(DiagonalBandMask { comparison: PointwiseMode::CmpGe });
        new.push(OpSpec::new(band, &[(Port::X, logits), (Port::B, hidden)], &[(Port::Y, masked)]));
        logits = masked;
    }
    let weights = sketch.passing(f32, &scores)?;
    new.push(sketch.pointwise(PointwiseMode::Exp, &[logits], weights));

    // The gradients of values and keys: their heads are summed where several queries share one.
    let turned_weights = transposed(sketch, &mut new, weights, io)?;
    shared(sketch, &mut new, (turned_weights, d_o, dv), [columns, None, rows], &heads, io)?;
    let values = turned(sketch, v);
    let d_weights = sketch.passing(f32, &scores)?;
    let centred = sketch.passing(f32, &scores)?;
    let weighted = sketch.passing(f32, &scores)?;
    let d_scores = sketch.passing(f32, &scores)?;
    new.push(product((d_o, values, d_weights), [rows, columns, None]));
    new.push(sketch.pointwise(PointwiseMode::Sub, &[d_weights, kept], centred));
    new.push(sketch.pointwise(PointwiseMode::Mul, &[centred, weights], weighted));
    new.push(sketch.pointwise(PointwiseMode::Mul, &[weighted, scale], d_scores));
    let turned_scores = transposed(sketch, &mut new, d_scores, io)?;
    shared(sketch, &mut new, (turned_scores, q, dk), [columns, None, rows], &heads, io)?;

    // The gradient of the queries, summed in float32 in memory of its own. It reads the keys as they are, by a name
    // of their own.
    let place = sketch.tensor(k).clone();
    let again = sketch.view(k, place.dims, place.strides, 0);
    let sum = sketch.passing(f32, &[b, h, sq, d])?;
    give_memory(sketch, sum);
    new.push(product((d_scores, again, sum), [rows, None, columns]));
    new.push(sketch.pointwise(PointwiseMode::Identity, &[sum], dq));
    sketch.note("attention's gradients as the graph of their formula");
    Ok(new)
}

fn give_memory(sketch: &mut Sketch, uid: Uid) {
    if let Some(tensor) = sketch.tensors.get_mut(&uid) {
        tensor.is_virtual = false;
    }
}

/// Returns a tensor with its last two dimensions exchanged: the same memory.
fn turned(sketch: &mut Sketch, uid: Uid) -> Uid {
    let tensor = sketch.tensor(uid);
    let (mut dims, mut strides) = (tensor.dims.clone(), tensor.strides.clone());
    dims.swap(2, 3);
    strides.swap(2, 3);
    sketch.view(uid, dims, strides, 0)
}

/// Appends a transpose of the last two dimensions in the dtype of inputs, by strides alone.
fn transposed(sketch: &mut Sketch, new: &mut Vec<OpSpec>, x: Uid, io: DataType) -> Result<Uid> {
    let dims = sketch.dims(x).to_vec();
    let cast = sketch.passing(io, &dims)?;
    new.push(sketch.pointwise(PointwiseMode::Identity, &[x], cast));
    let (mut swapped, mut strides) = (dims, sketch.tensor(cast).strides.clone());
    swapped.swap(2, 3);
    strides.swap(2, 3);
    let y = sketch.passing(io, &swapped)?;
    if let Some(tensor) = sketch.tensors.get_mut(&y) {
        tensor.strides = strides;
    }
    let transpose = Operation::Transpose(Transpose { permutation: vec![0, 1, 3, 2] });
    new.push(OpSpec::new(transpose, &[(Port::X, cast)], &[(Port::Y, y)]));
    Ok(y)
}

/// Appends a product into a gradient, by way of a sum over the heads that share it.
fn shared(
    sketch: &mut Sketch,
    new: &mut Vec<OpSpec>,
    (a, b, gradient): (Uid, Uid, Uid),
    overrides: [Option<Uid>; 3],
    heads: &[i64],
    io: DataType,
) -> Result<()> {
    let dims = sketch.dims(gradient).to_vec();
    if dims[1] == heads[1] {
        new.push(product((a, b, gradient), overrides));
        return Ok(());
    }
    let each = sketch.passing(io, &[dims[0], heads[1], dims[2], dims[3]])?;
    new.push(product((a, b, each), overrides));
    new.push(sketch.reduction(ReductionMode::Add, each, gradient));
    Ok(())
}
