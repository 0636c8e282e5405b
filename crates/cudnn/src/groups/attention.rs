//! Scaled-dot-product attention as graphs.

use keyfold_backend::{AttentionParams, Operation};
use keyfold_core::{DType, Result};

use super::GraphGroup;
use super::draft::{Draft, Operand, product};
use super::key::Key;
use crate::{Attention, DataType, Operation as Node, Pointwise, PointwiseMode, Port, Uid};

impl GraphGroup for AttentionParams {
    fn write(&self, key: &mut Key) {
        let &AttentionParams { op: _, scale, has_mask, is_causal } = self;
        key.words([scale.to_bits(), u64::from(has_mask), u64::from(is_causal)]);
    }

    fn refusal(op: &Operation, inputs: &[DType], outputs: &[DType]) -> Option<String> {
        match op.name() {
            "forward" | "backward" => {
                let other = inputs
                    .iter()
                    .chain(outputs)
                    .find(|dtype| !dtype.is_floating() && **dtype != DType::Bool);
                other.map(|other| format!("cuDNN's graphs have no attention of {other}"))
            }
            other => Some(format!("it has no operation named '{other}'")),
        }
    }

    fn draft(&self, draft: &mut Draft<'_>) -> Result<()> {
        let sizes = Sizes::new(self, draft)?;
        if sizes.queries == 0 || sizes.keys == 0 {
            // No score counts.
            match self.op.name() {
                "forward" => {
                    draft.fill(0, 0.0);
                    draft.fill(1, f64::NEG_INFINITY);
                }
                _ => (0..3).for_each(|output| draft.fill(output, 0.0)),
            }
            return Ok(());
        }
        match self.op.name() {
            "forward" => forward(self, draft, &sizes),
            _ => backward(self, draft, &sizes),
        }
    }
}

/// The sizes of an attention.
struct Sizes {
    /// The dimensions before the last two of the results.
    leading: Vec<i64>,
    /// The same as batch and heads.
    heads: [i64; 2],
    queries: i64,
    keys: i64,
    depth: i64,
    values: i64,
}

impl Sizes {
    fn new(params: &AttentionParams, draft: &Draft<'_>) -> Result<Sizes> {
        let first = usize::from(params.op.name() == "backward");
        let (query, value) = (draft.sizes(first), draft.sizes(first + 2));
        let result = draft.sizes_of_output(0);
        let last = |sizes: &[i64], back: usize| sizes[sizes.len() - back];
        let leading = result[..result.len() - 2].to_vec();
        let heads = match leading.split_last() {
            Some((heads, batch)) => [product(batch), *heads],
            None => [1, 1],
        };
        let (queries, depth) = (last(&query, 2), last(&query, 1));
        let (keys, values) = (last(&value, 2), last(&value, 1));
        Ok(Sizes { leading, heads, queries, keys, depth, values })
    }

    /// Returns the four dimensions of matrices. Those without columns get one, of zeros.
    fn dims(&self, rows: i64, columns: i64) -> Vec<i64> {
        vec![self.heads[0], self.heads[1], rows, columns.max(1)]
    }

    /// Returns an input of matrices, broadcast to all heads.
    fn input(
        &self,
        draft: &mut Draft<'_>,
        input: usize,
        rows: i64,
        columns: i64,
    ) -> Result<Operand> {
        let dims = self.dims(rows, columns);
        if columns == 0 {
            return draft.filled(draft.dtype(input)?, &dims, 0.0);
        }
        let all = [&self.leading[..], &[rows, columns]].concat();
        draft.expanded(input, &all, &dims)
    }

    /// Returns an output of matrices.
    fn output(
        &self,
        draft: &mut Draft<'_>,
        output: usize,
        rows: i64,
        columns: i64,
    ) -> Result<Operand> {
        let dims = self.dims(rows, columns);
        match columns {
            0 => draft.scratch(draft.dtype_of_output(output)?, &dims),
            _ => draft.output(output, &dims),
        }
    }

    /// Returns what is added to the scores: a mask of numbers itself, and 0 and -inf for one of
    /// bools.
    fn bias(&self, draft: &mut Draft<'_>, mask: usize, dtype: DataType) -> Result<Operand> {
        let sizes = draft.sizes(mask);
        let at = |back: usize| sizes.len().checked_sub(back).map_or(1, |axis| sizes[axis]);
        let own = &sizes[..sizes.len().saturating_sub(2)];
        let (rows, columns) = (at(2), at(1));
        let mask = if product(own) == 1 {
            draft.input(mask, &[1, 1, rows, columns])?
        } else if own.len() == 1 || product(&own[..own.len() - 1]) == 1 {
            draft.input(mask, &[1, own[own.len() - 1], rows, columns])?
        } else {
            let all = [&self.leading[..], &[rows, columns]].concat();
            draft.expanded(mask, &all, &[self.heads[0], self.heads[1], rows, columns])?
        };
        if mask.dtype != DataType::Bool {
            return Ok(mask);
        }
        let bias = draft.scratch(dtype, &mask.dims)?;
        let mut sketch = draft.sketch("mask as numbers");
        let (none, all) = (sketch.number(0.0, 4), sketch.number(f64::NEG_INFINITY, 4));
        let (mask, y) = (sketch.bind("mask", &mask), sketch.bind("bias", &bias));
        let select = Pointwise::new(PointwiseMode::BinarySelect);
        sketch.pointwise(select, &[none, all, mask], y);
        draft.add(sketch);
        Ok(bias)
    }
}

fn attributes(params: &AttentionParams) -> Attention {
    let right_bound = (params.is_causal == 1).then_some(0);
    Attention { right_bound, ..Attention::default() }
}

fn forward(params: &AttentionParams, draft: &mut Draft<'_>, sizes: &Sizes) -> Result<()> {
    let &Sizes { queries, keys, depth, values, .. } = sizes;
    let q = sizes.input(draft, 0, queries, depth)?;
    let (k, v) = (sizes.input(draft, 1, keys, depth)?, sizes.input(draft, 2, keys, values)?);
    let bias = match params.has_mask {
        1 => Some(sizes.bias(draft, 3, q.dtype)?),
        _ => None,
    };
    let o = sizes.output(draft, 0, queries, values)?;
    let stats = draft.wide_output(1, &sizes.dims(queries, 1))?;
    let mut sketch = draft.sketch("attention");
    let mut inputs: Vec<(Port, Uid)> = vec![
        (Port::Q, sketch.bind("q", &q)),
        (Port::K, sketch.bind("k", &k)),
        (Port::V, sketch.bind("v", &v)),
        (Port::AttnScale, sketch.number(params.scale, 4)),
    ];
    inputs.extend(bias.map(|bias| (Port::Bias, sketch.bind("bias", &bias))));
    let outputs = [(Port::O, sketch.bind("o", &o)), (Port::Stats, sketch.bind("stats", &stats))];
    sketch.operation(Node::Sdpa(attributes(params)), &inputs, &outputs);
    draft.add(sketch);
    Ok(())
}

fn backward(params: &AttentionParams, draft: &mut Draft<'_>, sizes: &Sizes) -> Result<()> {
    let &Sizes { queries, keys, depth, values, .. } = sizes;
    let grad = sizes.input(draft, 0, queries, values)?;
    let q = sizes.input(draft, 1, queries, depth)?;
    let (k, v) = (sizes.input(draft, 2, keys, depth)?, sizes.input(draft, 3, keys, values)?);
    let (bias, at) = match params.has_mask {
        1 => (Some(sizes.bias(draft, 4, q.dtype)?), 5),
        _ => (None, 4),
    };
    let o = sizes.input(draft, at, queries, values)?;
    let stats = draft.wide_input(at + 1, &sizes.dims(queries, 1))?;
    let dq = sizes.output(draft, 0, queries, depth)?;
    let (dk, dv) = (sizes.output(draft, 1, keys, depth)?, sizes.output(draft, 2, keys, values)?);
    let mut sketch = draft.sketch("gradients of attention");
    let mut inputs: Vec<(Port, Uid)> = vec![
        (Port::Q, sketch.bind("q", &q)),
        (Port::K, sketch.bind("k", &k)),
        (Port::V, sketch.bind("v", &v)),
        (Port::O, sketch.bind("o", &o)),
        (Port::Do, sketch.bind("do", &grad)),
        (Port::Stats, sketch.bind("stats", &stats)),
        (Port::AttnScale, sketch.number(params.scale, 4)),
    ];
    inputs.extend(bias.map(|bias| (Port::Bias, sketch.bind("bias", &bias))));
    let outputs = [
        (Port::Dq, sketch.bind("dq", &dq)),
        (Port::Dk, sketch.bind("dk", &dk)),
        (Port::Dv, sketch.bind("dv", &dv)),
    ];
    sketch.operation(Node::SdpaBackward(attributes(params)), &inputs, &outputs);
    draft.add(sketch);
    Ok(())
}
