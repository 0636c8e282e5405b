//! Scaled-dot-product attention: `softmax(query key^T scale + mask) value`.

mod batching;
mod composite;
mod derivatives;

use keyfold_backend::{AttentionParams, Operation};
use keyfold_core::{DType, ErrorKind, Result, Shape, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Saves;
use keyfold_tensor::{Tensor, TensorList};

use crate::infer::{Call, RunSeveral, SeveralPlan};
use crate::naming::Naming;
use crate::op::Op;
use crate::row::{Batching, Gradient, Layers, Row, Rule, Tangent};

/// The dtypes of attention.
const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];

/// The tensors that scores are made of.
#[derive(Clone, Copy)]
struct Operands<'a> {
    query: &'a Tensor,
    key: &'a Tensor,
    value: &'a Tensor,
    mask: Option<&'a Tensor>,
    is_causal: bool,
    scale: Option<f64>,
}

/// The sizes of an attention.
struct Sizes {
    /// The dimensions before the last two.
    leading: Shape,
    queries: usize,
    keys: usize,
    depth: usize,
    values: usize,
}

/// Appends sizes to a shape.
fn with(op: &Op, shape: &[usize], sizes: &[usize]) -> Result<Shape> {
    let mut all = op.at(Shape::new(shape))?;
    for size in sizes {
        op.at(all.insert(all.len(), *size))?;
    }
    Ok(all)
}

/// Returns the last two sizes of an operand, and those before.
fn matrix<'a>(op: &Op, name: &str, x: &'a Tensor) -> Result<(&'a [usize], usize, usize)> {
    match &**x.shape() {
        [leading @ .., rows, columns] => Ok((leading, *rows, *columns)),
        shape => {
            let message = format!(
                "argument '{name}': shape {shape:?} has no two dimensions; give [..., length, size]"
            );
            Err(op.error(ErrorKind::Shape, message))
        }
    }
}

impl<'a> Operands<'a> {
    /// Checks the operands, and returns their sizes.
    fn sizes(&self, op: &Op) -> Result<Sizes> {
        let dtype = self.query.dtype();
        if !FLOATS.contains(&dtype) {
            return Err(op.unsupported("query", dtype, &FLOATS));
        }
        for (name, x) in [("key", self.key), ("value", self.value)] {
            if x.dtype() != dtype {
                let message = format!(
                    "argument '{name}' is {}, but argument 'query' is {dtype}; convert one of them \
                     with aten::to",
                    x.dtype()
                );
                return Err(op.error(ErrorKind::DType, message));
            }
        }
        let (of_query, queries, depth) = matrix(op, "query", self.query)?;
        let (of_key, keys, key_depth) = matrix(op, "key", self.key)?;
        let (of_value, value_keys, values) = matrix(op, "value", self.value)?;
        let refuse = |message: String| op.error(ErrorKind::Shape, message);
        if key_depth != depth {
            return Err(refuse(format!(
                "argument 'key': shape {:?} has keys of size {key_depth}, but the queries of shape \
                 {:?} have size {depth}; the last sizes must be equal",
                self.key.shape(),
                self.query.shape()
            )));
        }
        if value_keys != keys {
            return Err(refuse(format!(
                "argument 'value': shape {:?} has {value_keys} values, but argument 'key' of shape \
                 {:?} has {keys} keys; there must be one value for each key",
                self.value.shape(),
                self.key.shape()
            )));
        }
        let mut leading = op.at(Shape::new(of_query))?;
        for (name, x, own) in [("key", self.key, of_key), ("value", self.value, of_value)] {
            leading = layout::broadcast_shapes(&leading, own).map_err(|_| {
                refuse(format!(
                    "argument '{name}': the dimensions of {:?} before the last two don't broadcast \
                     with those of argument 'query' of shape {:?}{}",
                    x.shape(),
                    self.query.shape(),
                    heads_advice(of_query, own)
                ))
            })?;
        }
        let sizes = Sizes { leading, queries, keys, depth, values };
        self.check_mask(op, &sizes)?;
        Ok(sizes)
    }

    fn check_mask(&self, op: &Op, sizes: &Sizes) -> Result<()> {
        let Some(mask) = self.mask else { return Ok(()) };
        let dtype = self.query.dtype();
        if self.is_causal {
            let message = "argument 'attn_mask' is given beside is_causal=True; leave one of them \
                           away, or put the causal mask into 'attn_mask'";
            return Err(op.error(ErrorKind::Value, message));
        }
        if mask.dtype() != DType::Bool && mask.dtype() != dtype {
            let message = format!(
                "argument 'attn_mask' is {}; it must be bool, or {dtype} as argument 'query'",
                mask.dtype()
            );
            return Err(op.error(ErrorKind::DType, message));
        }
        let scores = with(op, &sizes.leading, &[sizes.queries, sizes.keys])?;
        if layout::broadcast_strides(mask.shape(), mask.strides(), &scores).is_err() {
            let message = format!(
                "argument 'attn_mask': shape {:?} can't be broadcast to the scores' shape {scores:?}",
                mask.shape()
            );
            return Err(op.error(ErrorKind::Shape, message));
        }
        Ok(())
    }

    /// The factor of the scores: that of the call, else the inverse of the square root of a query's size.
    fn scale(&self, depth: usize) -> f64 {
        self.scale.unwrap_or(1.0 / (depth.max(1) as f64).sqrt())
    }

    fn params(&self, op: &'static Operation, sizes: &Sizes) -> AttentionParams {
        AttentionParams {
            op,
            scale: self.scale(sizes.depth),
            has_mask: self.mask.is_some().into(),
            is_causal: self.is_causal.into(),
        }
    }
}

/// Says what to do where only the numbers of heads differ.
fn heads_advice(of_query: &[usize], other: &[usize]) -> &'static str {
    match (of_query, other) {
        ([.., heads], [.., fewer]) if *fewer > 0 && heads.is_multiple_of(*fewer) => {
            "; where several query heads share one, use enable_gqa=True"
        }
        _ => "",
    }
}

/// The dtype of the logarithms.
fn logarithm_dtype(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

type ForwardArgs =
    (&'static Tensor, &'static Tensor, &'static Tensor, Option<&'static Tensor>, bool, Option<f64>);

fn forward<'a>(
    call: Call<'_, ()>,
    (query, key, value, mask, is_causal, scale): (
        &'a Tensor,
        &'a Tensor,
        &'a Tensor,
        Option<&'a Tensor>,
        bool,
        Option<f64>,
    ),
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let operands = Operands { query, key, value, mask, is_causal, scale };
    let sizes = operands.sizes(&call)?;
    let params = operands.params(&const { Operation::new("forward") }, &sizes);
    let (device, dtype) = (call.device_of(query), query.dtype());
    let out = with(&call, &sizes.leading, &[sizes.queries, sizes.values])?;
    let logarithms = with(&call, &sizes.leading, &[sizes.queries])?;
    let forms = [(device, out, dtype), (device, logarithms, logarithm_dtype(dtype))];
    Ok(SeveralPlan::new(forms, move |op: &Op, outs: &[&Tensor]| {
        let inputs: Vec<&Tensor> = [query, key, value].into_iter().chain(mask).collect();
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &inputs, outs) }
    }))
}

type BackwardArgs = (
    &'static Tensor,
    &'static Tensor,
    &'static Tensor,
    &'static Tensor,
    Option<&'static Tensor>,
    TensorList<'static>,
    bool,
    Option<f64>,
);

fn backward<'a>(
    call: Call<'_, ()>,
    (grad, query, key, value, mask, results, is_causal, scale): (
        &'a Tensor,
        &'a Tensor,
        &'a Tensor,
        &'a Tensor,
        Option<&'a Tensor>,
        TensorList<'a>,
        bool,
        Option<f64>,
    ),
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let operands = Operands { query, key, value, mask, is_causal, scale };
    let sizes = operands.sizes(&call)?;
    let params = operands.params(&const { Operation::new("backward") }, &sizes);
    let results: Vec<&'a Tensor> = results.iter().collect::<Result<_>>()?;
    let [out, logarithms] = results[..] else {
        let message = format!(
            "argument 'results' has {} tensors; give both results of keyfold::attention",
            results.len()
        );
        return Err(call.error(ErrorKind::Value, message));
    };
    let (device, dtype) = (call.device_of(query), query.dtype());
    let of_results = with(&call, &sizes.leading, &[sizes.queries, sizes.values])?;
    let of_logarithms = with(&call, &sizes.leading, &[sizes.queries])?;
    for (name, x, shape, dtype) in [
        ("grad", grad, &of_results, dtype),
        ("results[0]", out, &of_results, dtype),
        ("results[1]", logarithms, &of_logarithms, logarithm_dtype(dtype)),
    ] {
        if x.shape() != shape {
            let message =
                format!("argument '{name}': shape {:?} isn't the result's {shape:?}", x.shape());
            return Err(call.error(ErrorKind::Shape, message));
        }
        if x.dtype() != dtype {
            let message = format!("argument '{name}' is {}; it must be {dtype}", x.dtype());
            return Err(call.error(ErrorKind::DType, message));
        }
    }
    let form = |rows: usize, columns: usize| -> Result<_> {
        Ok((device, with(&call, &sizes.leading, &[rows, columns])?, dtype))
    };
    let forms = [
        form(sizes.queries, sizes.depth)?,
        form(sizes.keys, sizes.depth)?,
        form(sizes.keys, sizes.values)?,
    ];
    Ok(SeveralPlan::new(forms, move |op: &Op, outs: &[&Tensor]| {
        let operands = [grad, query, key, value].into_iter().chain(mask);
        let inputs: Vec<&Tensor> = operands.chain([out, logarithms]).collect();
        // SAFETY: as above.
        unsafe { op.execute(&params, &inputs, outs) }
    }))
}

/// Returns the rows of attention.
pub(crate) fn rows() -> Result<Vec<Row>> {
    const READS: &[Saves] = &[Saves::ALL];
    Ok(vec![
        composite::row()?,
        Row::computes_several::<ForwardArgs, _, _>(
            "keyfold::attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, \
             bool is_causal=False, float? scale=None) -> (Tensor, Tensor)",
            |_| (),
            forward,
            Layers {
                derivative: Rule::Given(Gradient::Several(READS, derivatives::attention)),
                tangent: Rule::Given(Tangent::Other(derivatives::tangent)),
                batching: Rule::Given(Batching::Rule(batching::attention)),
                autocast: Category::LowerPrecision,
            },
            Naming::Unnamed("`keyfold.scaled_dot_product_attention` calls it"),
        )?,
        Row::computes_several::<BackwardArgs, _, _>(
            "keyfold::attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, \
             Tensor? attn_mask, Tensor[] results, bool is_causal=False, float? scale=None) -> \
             (Tensor, Tensor, Tensor)",
            |_| (),
            backward,
            Layers {
                derivative: Rule::Refused(
                    "gradients of gradients go through the operators that they are written in",
                ),
                tangent: Rule::Refused(
                    "tangents of gradients go through the operators that they are written in",
                ),
                batching: Rule::Given(Batching::Rule(batching::attention_backward)),
                autocast: Category::Leave,
            },
            Naming::Unnamed("gradients of `keyfold.scaled_dot_product_attention` call it"),
        )?,
    ])
}
