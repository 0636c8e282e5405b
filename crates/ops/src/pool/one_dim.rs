//! Pooling over one dimension, as pooling of rows.

use keyfold_core::Result;
use keyfold_dispatch::{Args as _, CallContext, Kernel, RegistrationKey, Value as _};
use keyfold_tensor::{IntList, Tensor, Value, ValueRef};

use super::average::{ADAPTIVE_DOC, DOC, adaptive};
use super::max::{DERIVED, MAX_DOC, infer_values, with_indices};
use super::{Pooled, Windows, check_float, windows};
use crate::infer::Call;
use crate::inferred::Inferred;
use crate::naming::{Naming, named};
use crate::op::{Op, Target};
use crate::row::Row;

/// Adds a dimension of size 1 in front of the last one.
fn as_rows(context: &CallContext<'_, Value>, x: ValueRef<'_>) -> Result<Value> {
    context.dispatcher()?.call("aten::unsqueeze", &[x, ValueRef::Int(-2)])
}

/// Removes that dimension from each result.
fn squeezed(context: &CallContext<'_, Value>, result: Value) -> Result<Value> {
    match result {
        Value::Tuple(items) | Value::List(items) => {
            let each = items.into_iter().map(|item| squeezed(context, item));
            Ok(Value::Tuple(each.collect::<Result<_>>()?))
        }
        one => {
            let args = [one.as_ref(), ValueRef::Int(-2)];
            context.dispatcher()?.call("aten::squeeze.dim", &args)
        }
    }
}

/// An argument of one number as that of two dimensions; an empty list stays empty.
fn two(value: ValueRef<'_>, first: i64) -> Result<Vec<i64>> {
    let given = <(IntList,)>::unbox(&[value])?.0;
    Ok(given.first().map_or_else(Vec::new, |own| vec![first, *own]))
}

/// Calls an operator of two dimensions with these arguments of windows; `firsts` are their values along the
/// rows.
fn by_rows(
    context: &CallContext<'_, Value>,
    name: &str,
    args: &[ValueRef<'_>],
    firsts: &[i64],
) -> Result<Value> {
    let x = as_rows(context, args[0])?;
    let lists: Vec<Vec<i64>> = args[1..]
        .iter()
        .zip(firsts)
        .map(|(arg, first)| two(*arg, *first))
        .collect::<Result<_>>()?;
    let mut all = vec![x.as_ref()];
    all.extend(lists.iter().map(|list| ValueRef::Ints(list)));
    all.extend(&args[1 + firsts.len()..]);
    squeezed(context, context.dispatcher()?.call(name, &all)?)
}

type MaxArgs = (&'static Tensor, IntList, IntList, IntList, IntList, bool);
type AverageArgs = (&'static Tensor, IntList, IntList, IntList, bool, bool);

fn infer_average(args: &[ValueRef<'_>]) -> Result<Inferred> {
    let op = Op::new("aten::avg_pool1d", Target::Meta);
    let (x, kernel, stride, padding, ceil_mode, _) = AverageArgs::unbox(args)?;
    check_float(&op, "self", x.dtype())?;
    let pooled = Pooled::new(&op, "self", x, 1)?;
    let given =
        Windows { kernel: &kernel, stride: &stride, padding: &padding, dilation: None, ceil_mode };
    let operation = &const { keyfold_backend::Operation::new("average") };
    let (_, sizes) = windows(&op, operation, &pooled, &given)?;
    Ok(Inferred::fresh(pooled.with(&op, &sizes)?, x.dtype()))
}

fn infer_adaptive(args: &[ValueRef<'_>]) -> Result<Inferred> {
    let op = Op::new("aten::adaptive_avg_pool1d", Target::Meta);
    let plan = adaptive(Call::new(&op, &1, None), <(&Tensor, IntList)>::unbox(args)?)?;
    Ok(Inferred::of_form(plan.form))
}

fn infer_indices(args: &[ValueRef<'_>]) -> Result<Vec<Option<Inferred>>> {
    let op = Op::new("aten::max_pool1d_with_indices", Target::Meta);
    let plan = with_indices(Call::new(&op, &1, None), MaxArgs::unbox(args)?)?;
    Ok(plan.forms.into_iter().map(|form| form.map(Inferred::of_form)).collect())
}

pub(super) fn rows() -> Result<Vec<Row>> {
    let key = RegistrationKey::CompositeImplicitAutograd;
    Ok(vec![
        Row::composite_of_several(
            "aten::max_pool1d_with_indices(Tensor self, int[1] kernel_size, int[1] stride=[], \
             int[1] padding=0, int[1] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
            key,
            || {
                Kernel::boxed(|context, args| {
                    infer_indices(args)?;
                    by_rows(context, "aten::max_pool2d_with_indices", args, &[1, 1, 0, 1])
                })
            },
            infer_indices,
            DERIVED,
            Naming::Unnamed("`keyfold.max_pool1d` returns the values"),
        )?,
        Row::composite(
            "aten::max_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, \
             int[1] dilation=1, bool ceil_mode=False) -> Tensor",
            key,
            || {
                Kernel::boxed(|context, args| {
                    infer_values("aten::max_pool1d", 1, args)?;
                    by_rows(context, "aten::max_pool2d", args, &[1, 1, 0, 1])
                })
            },
            |args| infer_values("aten::max_pool1d", 1, args),
            DERIVED,
            named(
                "max_pool1d",
                "Tensor x, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, int[1] \
                 dilation=1, bool ceil_mode=False",
                MAX_DOC,
            ),
        )?,
        Row::composite(
            "aten::avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, \
             bool ceil_mode=False, bool count_include_pad=True) -> Tensor",
            key,
            || {
                Kernel::boxed(|context, args| {
                    infer_average(args)?;
                    by_rows(context, "aten::avg_pool2d", args, &[1, 1, 0])
                })
            },
            infer_average,
            DERIVED,
            named(
                "avg_pool1d",
                "Tensor x, int[1] kernel_size, int[1]? stride=None, int[1] padding=0, bool \
                 ceil_mode=False, bool count_include_pad=True",
                DOC,
            ),
        )?,
        Row::composite(
            "aten::adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor",
            key,
            || {
                Kernel::boxed(|context, args| {
                    infer_adaptive(args)?;
                    by_rows(context, "aten::adaptive_avg_pool2d", args, &[1])
                })
            },
            infer_adaptive,
            DERIVED,
            named("adaptive_avg_pool1d", "Tensor x, int[1] output_size", ADAPTIVE_DOC),
        )?,
    ])
}
