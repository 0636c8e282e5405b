//! `scaled_dot_product_attention`, in terms of the operator that also keeps what its gradient needs.

use keyfold_core::{Error, ErrorKind, Result, Shape};
use keyfold_dispatch::{CallContext, Kernel, RegistrationKey, Value as _};
use keyfold_layers::autocast::Category;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::{Operands, Sizes, with};
use crate::inferred::Inferred;
use crate::naming::named;
use crate::op::{Op, Target};
use crate::row::{Layers, Row, Rule};

const NAME: &str = "aten::scaled_dot_product_attention";

/// The arguments of a call.
struct Arguments<'a> {
    operands: Operands<'a>,
    /// The number of query heads for each head of the keys and values, if those are grouped.
    group: Option<usize>,
}

fn error(kind: ErrorKind, message: impl AsRef<str>) -> Error {
    Error::new(kind, format!("{NAME}: {}", message.as_ref()))
}

impl<'a> Arguments<'a> {
    fn read(args: &[ValueRef<'a>]) -> Result<Arguments<'a>> {
        let [query, key, value, mask, dropout, causal, scale, grouped] = args else {
            let message = format!("takes 8 arguments, not {}", args.len());
            return Err(error(ErrorKind::Binding, message));
        };
        let p = dropout.scalar().map_or(0.0, |p| p.as_f64());
        if !(0.0..=1.0).contains(&p) {
            let message =
                format!("argument 'dropout_p' is a probability, from 0 to 1, and not {p}");
            return Err(error(ErrorKind::Value, message));
        }
        if p > 0.0 {
            let message = format!(
                "argument 'dropout_p' is {p}, but only 0 is supported; compute the weights with \
                 aten::softmax and aten::dropout, and multiply by the values"
            );
            return Err(error(ErrorKind::NotSupported, message));
        }
        let operands = Operands {
            query: tensor(query)?,
            key: tensor(key)?,
            value: tensor(value)?,
            mask: if matches!(mask, ValueRef::None) { None } else { Some(tensor(mask)?) },
            is_causal: matches!(causal, ValueRef::Bool(true)),
            scale: scale.scalar().map(|scale| scale.as_f64()),
        };
        let group = match grouped {
            ValueRef::Bool(true) => group(&operands)?,
            _ => None,
        };
        Ok(Arguments { operands, group })
    }
}

fn tensor<'a>(value: &ValueRef<'a>) -> Result<&'a Tensor> {
    value.tensor().map_err(|error| error.at(NAME))
}

/// Returns the number of query heads that share a head of the keys and values; `None` for one.
fn group(operands: &Operands<'_>) -> Result<Option<usize>> {
    let heads = |name: &str, x: &Tensor| match x.ndim() {
        3.. => Ok(x.shape()[x.ndim() - 3]),
        _ => {
            let message = format!(
                "argument '{name}': shape {:?} has no dimension of heads, which enable_gqa groups; \
                 give [..., heads, length, size]",
                x.shape()
            );
            Err(error(ErrorKind::Shape, message))
        }
    };
    let of_query = heads("query", operands.query)?;
    let (of_key, of_value) = (heads("key", operands.key)?, heads("value", operands.value)?);
    if of_key != of_value {
        let message = format!(
            "argument 'value' has {of_value} heads, but argument 'key' has {of_key}; give as many"
        );
        return Err(error(ErrorKind::Shape, message));
    }
    if of_key == of_query {
        return Ok(None);
    }
    if of_key == 0 || !of_query.is_multiple_of(of_key) {
        let message = format!(
            "argument 'key' has {of_key} heads, which don't divide the {of_query} of argument \
             'query'; with enable_gqa=True each of them serves a group of query heads"
        );
        return Err(error(ErrorKind::Shape, message));
    }
    if let Some(mask) = operands.mask
        && mask.ndim() > 2
        && ![1, of_query].contains(&mask.shape()[mask.ndim() - 3])
    {
        let message = format!(
            "argument 'attn_mask': shape {:?} can't be broadcast to the {of_query} heads of argument \
             'query'",
            mask.shape()
        );
        return Err(error(ErrorKind::Shape, message));
    }
    Ok(Some(of_query / of_key))
}

/// Returns the sizes of an operand whose dimension of heads is divided in two: groups, and the heads of a group.
/// One head, or one for each group, is shared.
fn grouped_sizes(shape: &[usize], heads: usize, group: usize) -> Vec<i64> {
    let mut sizes: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
    if let Some(at) = shape.len().checked_sub(3) {
        let divides = shape[at] == heads;
        sizes[at] = if divides { (heads / group) as i64 } else { shape[at] as i64 };
        sizes.insert(at + 1, if divides { group as i64 } else { 1 });
    }
    sizes
}

impl Arguments<'_> {
    /// Checks the operands as the kernel gets them, and returns the result's shape.
    fn check(&self) -> Result<Shape> {
        let op = Op::new(NAME, Target::Meta);
        let plain = |sizes: Sizes| with(&op, &sizes.leading, &[sizes.queries, sizes.values]);
        let Some(group) = self.group else { return plain(self.operands.sizes(&op)?) };
        let heads = self.operands.query.shape()[self.operands.query.ndim() - 3];
        let divided = |x: &Tensor| -> Result<Tensor> {
            op.at(x.detach().reshape(&grouped_sizes(x.shape(), heads, group)))
        };
        let (query, key) = (divided(self.operands.query)?, divided(self.operands.key)?);
        let value = divided(self.operands.value)?;
        let mask = self.operands.mask.map(divided).transpose()?;
        let (query, key, value) = (&query, &key, &value);
        let operands = Operands { query, key, value, mask: mask.as_ref(), ..self.operands };
        let mut sizes = operands.sizes(&op)?;
        let at = sizes.leading.len() - 1;
        sizes.leading.remove(at);
        sizes.leading[at - 1] *= group;
        plain(sizes)
    }
}

fn attention(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let arguments = Arguments::read(args)?;
    let shape = arguments.check()?;
    let Arguments { operands, group } = arguments;
    let dispatcher = context.dispatcher()?;
    let attention = |args: &[ValueRef<'_>]| -> Result<Value> {
        let results = dispatcher.call("keyfold::attention", args)?;
        let first = match results {
            Value::Tuple(items) | Value::List(items) => items.into_iter().next(),
            one => Some(one),
        };
        first.ok_or_else(|| error(ErrorKind::Return, "keyfold::attention returned nothing"))
    };
    let Some(group) = group else {
        return attention(&[args[0], args[1], args[2], args[3], args[5], args[6]]);
    };
    let heads = operands.query.shape()[operands.query.ndim() - 3];
    let reshape = |x: ValueRef<'_>, sizes: &[i64]| {
        dispatcher.call("aten::reshape", &[x, ValueRef::Ints(sizes)])
    };
    let divided =
        |x: &Tensor, arg: ValueRef<'_>| reshape(arg, &grouped_sizes(x.shape(), heads, group));
    let query = divided(operands.query, args[0])?;
    let (key, value) = (divided(operands.key, args[1])?, divided(operands.value, args[2])?);
    let mask = operands.mask.map_or(Ok(Value::None), |mask| divided(mask, args[3]))?;
    let out = attention(&[
        query.as_ref(),
        key.as_ref(),
        value.as_ref(),
        mask.as_ref(),
        args[5],
        args[6],
    ])?;
    let sizes: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
    reshape(out.as_ref(), &sizes)
}

/// Infers the result: the queries' shape, with a value's size in place of a query's.
fn infer(args: &[ValueRef<'_>]) -> Result<Inferred> {
    let arguments = Arguments::read(args)?;
    Ok(Inferred::fresh(arguments.check()?, arguments.operands.query.dtype()))
}

/// Returns the row of `scaled_dot_product_attention`.
pub(super) fn row() -> Result<Row> {
    Row::composite(
        "aten::scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? \
         attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool \
         enable_gqa=False) -> Tensor",
        RegistrationKey::CompositeImplicitAutograd,
        || Kernel::boxed(attention),
        infer,
        Layers {
            derivative: Rule::Derived,
            tangent: Rule::Derived,
            batching: Rule::Derived,
            autocast: Category::LowerPrecision,
        },
        named(
            "scaled_dot_product_attention",
            "Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, \
             bool is_causal=False, *, float? scale=None, bool enable_gqa=False",
            "Return `softmax(query @ key.T * scale + attn_mask) @ value`. Not in the \
             standard.\n\n`query` is `[..., L, E]`, `key` `[..., S, E]` and `value` `[..., S, V]`; \
             the dimensions in front broadcast, and\nthe result is `[..., L, V]`. No matrix of all \
             scores is made (T. Dao et al., \"FlashAttention\", 2022), and\nfloat16 and bfloat16 \
             accumulate in float32. `attn_mask` broadcasts to `[..., L, S]`: where a mask of bools \
             is\nFalse a score doesn't count, and a mask of floats is added to the scores. With \
             `is_causal` a score counts for\nkeys up to the query's own position. `scale` is `1 / \
             sqrt(E)` by default. With `enable_gqa` the third dimension\nfrom the end holds heads, \
             and each head of `key` and `value` serves a group of consecutive heads of \
             `query`.\n\nThe result of a query for which no key counts is 0, and so are its \
             gradients, as in PyTorch.\n\nRaises:\n    ShapeError: sizes or heads that don't fit \
             each other, or a mask that doesn't broadcast.\n    DTypeError: operands of different \
             dtypes, or a mask that is neither of bools nor of theirs.\n    NotSupported: \
             `dropout_p` other than 0.\n    InvalidValue: a mask beside `is_causal`.",
        ),
    )
}
