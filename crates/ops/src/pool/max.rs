//! Max pooling, with the index of each window's greatest element.

use keyfold_backend::Operation;
use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_dispatch::{CallContext, Kernel, RegistrationKey};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::Saves;
use keyfold_tensor::{IntList, Tensor, Value, ValueRef};

use super::derivatives::{self, batched, batched_backward};
use super::{Pooled, Windows, check_gradient, windows};
use crate::infer::{Call, CallPlan, Run, RunSeveral, SeveralPlan, Whole};
use crate::inferred::Inferred;
use crate::jvp::LINEAR;
use crate::naming::{Naming, named};
use crate::op::{Op, Target};
use crate::row::{Batching, Gradient, Layers, Row, Rule, Tangent};
use crate::vjp::formula;

/// The dtypes of max pooling: all that are ordered, except bool.
const NUMBERS: [DType; 12] = [
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

type Args = (&'static Tensor, IntList, IntList, IntList, IntList, bool);

pub(super) fn with_indices<'a>(
    call: Call<'_, usize>,
    (x, kernel, stride, padding, dilation, ceil_mode): (
        &'a Tensor,
        IntList,
        IntList,
        IntList,
        IntList,
        bool,
    ),
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    if !NUMBERS.contains(&x.dtype()) {
        return Err(call.unsupported("self", x.dtype(), &NUMBERS));
    }
    let pooled = Pooled::new(&call, "self", x, *call.state)?;
    let given = Windows {
        kernel: &kernel,
        stride: &stride,
        padding: &padding,
        dilation: Some(&dilation),
        ceil_mode,
    };
    let (params, sizes) = windows(&call, &const { Operation::new("max") }, &pooled, &given)?;
    let (device, shape) = (call.device_of(x), pooled.with(&call, &sizes)?);
    let forms = [(device, shape.clone(), x.dtype()), (device, shape, DType::I64)];
    Ok(SeveralPlan::new(forms, move |op: &Op, outs: &[&Tensor]| {
        // SAFETY: nothing else uses the results' memory (`RunSeveral`).
        unsafe { op.execute(&params, &[x], outs) }
    }))
}

type BackwardArgs =
    (&'static Tensor, &'static Tensor, IntList, IntList, IntList, IntList, bool, &'static Tensor);

fn backward<'a>(
    call: Call<'_, usize>,
    (grad, x, kernel, stride, padding, dilation, ceil_mode, indices): (
        &'a Tensor,
        &'a Tensor,
        IntList,
        IntList,
        IntList,
        IntList,
        bool,
        &'a Tensor,
    ),
) -> Result<CallPlan<impl Run + use<'a>>> {
    let pooled = Pooled::new(&call, "self", x, *call.state)?;
    let given = Windows {
        kernel: &kernel,
        stride: &stride,
        padding: &padding,
        dilation: Some(&dilation),
        ceil_mode,
    };
    let operation = &const { Operation::new("max_backward") };
    let (params, sizes) = windows(&call, operation, &pooled, &given)?;
    let shape = pooled.with(&call, &sizes)?;
    check_gradient(&call, grad, &shape)?;
    if *indices.shape() != shape || indices.dtype() != DType::I64 {
        let message = format!(
            "argument 'indices' is {} of shape {:?}; give those that the pooling returned, int64 of \
             shape {shape:?}",
            indices.dtype(),
            indices.shape()
        );
        let is_shape = *indices.shape() != shape;
        return Err(call.error(if is_shape { ErrorKind::Shape } else { ErrorKind::DType }, message));
    }
    let run = Whole(move |op: &Op, out: &Tensor| {
        // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
        unsafe { op.execute(&params, &[grad, indices], &[out]) }
    });
    Ok(CallPlan::new(call.device_of(grad), x.shape().clone(), grad.dtype(), run))
}

/// Returns the first result of `max_pool2d_with_indices` and its like.
fn values_of(context: &CallContext<'_, Value>, name: &str, args: &[ValueRef<'_>]) -> Result<Value> {
    match context.dispatcher()?.call(name, args)? {
        Value::Tuple(items) | Value::List(items) => {
            let none = || Error::new(ErrorKind::Return, format!("{name} returned nothing"));
            items.into_iter().next().ok_or_else(none)
        }
        one => Ok(one),
    }
}

/// Infers the values of max pooling.
pub(super) fn infer_values(
    name: &'static str,
    dims: usize,
    args: &[ValueRef<'_>],
) -> Result<Inferred> {
    use keyfold_dispatch::Args as _;
    let op = Op::new(name, Target::Meta);
    let plan = with_indices(Call::new(&op, &dims, None), Args::unbox(args)?)?;
    let form = plan.forms.into_iter().flatten().next();
    let form = form.ok_or_else(|| op.error(ErrorKind::Return, "there is no result"))?;
    Ok(Inferred::of_form(form))
}

const DOC: &str = "Return the greatest element of each window. Not in the standard.\n\nThe last \
                   dimensions are pooled, and one or two others are in front of them: channels, or \
                   batches of channels.\n`kernel_size`, `stride` (by default the kernel's size), \
                   `padding` and `dilation` are in elements, one number for all\npooled dimensions or \
                   one for each. Padding, at most half of a window, never is the greatest. With \
                   `ceil_mode`\nthe last window may reach behind the padding. NaN goes \
                   through.\n\nRaises:\n    ShapeError: a wrong number of dimensions, or a window \
                   larger than the padded input.\n    InvalidValue: windows without an element, or \
                   numbers out of range.";

/// The layers' rules of a composite.
pub(super) const DERIVED: Layers = Layers {
    derivative: Rule::Derived,
    tangent: Rule::Derived,
    batching: Rule::Derived,
    autocast: Category::Leave,
};

/// The names and schemas of one number of dimensions.
struct Names {
    with_indices: &'static str,
    backward: &'static str,
    values: &'static str,
    kernel: fn() -> Kernel<Value>,
    infer: fn(&[ValueRef<'_>]) -> Result<Inferred>,
    naming: Naming,
}

fn rows_of<const D: usize>(names: Names) -> Result<Vec<Row>> {
    const READS: &[Saves] = &[Saves::RESULTS];
    const READS_INDICES: &[Saves] = &[Saves::arguments(&[7])];
    let args = format!(
        "Tensor grad_output, Tensor self, int[{D}] kernel_size, int[{D}] stride, int[{D}] padding, \
         int[{D}] dilation, bool ceil_mode, Tensor indices"
    );
    Ok(vec![
        Row::computes_several::<Args, _, _>(
            names.with_indices,
            |_| D,
            with_indices,
            Layers {
                derivative: Rule::Given(Gradient::Several(READS, derivatives::max::<D>)),
                tangent: Rule::Given(Tangent::Other(derivatives::max_tangent)),
                batching: Rule::Given(Batching::Rule(batched)),
                autocast: Category::Leave,
            },
            Naming::Unnamed("`keyfold.max_pool2d` and its like call it"),
        )?
        .out_named("out", &["out", "indices"]),
        Row::computes::<BackwardArgs, _, _>(
            (names.backward, ""),
            &args,
            |_| D,
            backward,
            Layers {
                derivative: formula(READS_INDICES, derivatives::max_backward::<D>),
                tangent: LINEAR,
                batching: Rule::Given(Batching::Rule(batched_backward)),
                autocast: Category::Leave,
            },
            Naming::Unnamed("gradients of `keyfold.max_pool2d` and its like call it"),
        )?,
        Row::composite(
            names.values,
            RegistrationKey::CompositeImplicitAutograd,
            names.kernel,
            names.infer,
            DERIVED,
            names.naming,
        )?,
    ])
}

pub(super) fn rows() -> Result<Vec<Row>> {
    let mut rows = rows_of::<2>(Names {
        with_indices: "aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] \
                       stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> \
                       (Tensor, Tensor)",
        backward: "aten::max_pool2d_with_indices_backward",
        values: "aten::max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] \
                 padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor",
        kernel: || {
            Kernel::boxed(|context, args| {
                infer_values("aten::max_pool2d", 2, args)?;
                values_of(context, "aten::max_pool2d_with_indices", args)
            })
        },
        infer: |args| infer_values("aten::max_pool2d", 2, args),
        naming: named(
            "max_pool2d",
            "Tensor x, int[2] kernel_size, int[2]? stride=None, int[2] padding=0, int[2] dilation=1, \
             bool ceil_mode=False",
            DOC,
        ),
    })?;
    rows.extend(rows_of::<3>(Names {
        with_indices: "aten::max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] \
                       stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> \
                       (Tensor, Tensor)",
        backward: "aten::max_pool3d_with_indices_backward",
        values: "aten::max_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] \
                 padding=0, int[3] dilation=1, bool ceil_mode=False) -> Tensor",
        kernel: || {
            Kernel::boxed(|context, args| {
                infer_values("aten::max_pool3d", 3, args)?;
                values_of(context, "aten::max_pool3d_with_indices", args)
            })
        },
        infer: |args| infer_values("aten::max_pool3d", 3, args),
        naming: named(
            "max_pool3d",
            "Tensor x, int[3] kernel_size, int[3]? stride=None, int[3] padding=0, int[3] dilation=1, \
             bool ceil_mode=False",
            DOC,
        ),
    })?);
    Ok(rows)
}

/// The docstring of max pooling.
pub(super) const MAX_DOC: &str = DOC;
