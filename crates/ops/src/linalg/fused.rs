//! Products with an addend and an activation, which a backend computes in one pass: `addmm`, `baddbmm`,
//! `linear`, and `linear_activation`.

use keyfold_backend::{Activation, GpuBackend, LinearFactor, LinearParams, Operation};
use keyfold_core::{DType, ErrorKind, Result, Scalar, layout};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Jvp, Saves, Vjp};
use keyfold_layers::vmap;
use keyfold_tensor::Tensor;

use super::{fused_layers, infer_shape, product_work};
use crate::activation;
use crate::convert::to_dtype;
use crate::infer::{Call, CallPlan, Run};
use crate::jvp::pushforward;
use crate::naming::{Naming, named};
use crate::op::Op;
use crate::row::{Batching, Layers, Row, Rule};
use crate::vjp::formula;

/// The epilogue of a product: `activation(alpha a b + beta addend)`.
struct Epilogue<'t> {
    addend: Option<&'t Tensor>,
    alpha: LinearFactor,
    beta: LinearFactor,
    activation: Activation,
}

/// Plans a product with an epilogue in that dtype; the addend broadcasts to the result.
fn plan<'t>(
    op: &Op,
    a: &'t Tensor,
    b: Tensor,
    epilogue: Epilogue<'t>,
    dtype: DType,
) -> Result<CallPlan<impl Run + use<'t>>> {
    let (sizes, shape) = infer_shape(op, a.shape(), b.shape())?;
    let run = move |op: &Op, out: &Tensor| {
        if out.numel() == 0 {
            return Ok(());
        }
        let Epilogue { addend, alpha, beta, activation } = epilogue;
        let mut rows = if a.ndim() == 1 { op.at(a.unsqueeze(0))? } else { a.detach() };
        let mut columns = if b.ndim() == 1 { op.at(b.unsqueeze(1))? } else { b };
        if sizes.k == 0 {
            // A sum of no products is a sum of one that is 0.
            let zero = op.at(Tensor::full(&[], Scalar::Bool(false), dtype, out.device()))?;
            let at_end = |x: &Tensor, dim: usize| {
                let mut shape = x.shape().to_vec();
                let rank = shape.len();
                shape[rank - dim] = 1;
                op.at(zero.broadcast_to(&shape))
            };
            (rows, columns) = (at_end(&rows, 1)?, at_end(&columns, 2)?);
        }
        let (rows, columns) = (to_dtype(op, &rows, dtype)?, to_dtype(op, &columns, dtype)?);
        let is_plain = addend.is_none() && alpha.is_one() && activation == Activation::None;
        if is_plain {
            let kernel = op.kernel(GpuBackend::linalg, |linalg| linalg.matmul(dtype, dtype))?;
            // SAFETY: what computes a result is called with an output that is its own (`Run::run`).
            return op.at(unsafe { kernel.launch(&(), &[&rows, &columns], out) });
        }
        let addend = addend.map(|addend| to_dtype(op, addend, dtype)).transpose()?;
        let params = LinearParams {
            op: &const { Operation::new("matmul") },
            has_addend: addend.is_some(),
            activation,
            alpha,
            beta,
        };
        let inputs: [&Tensor; 3] = [&rows, &columns, addend.as_deref().unwrap_or(&rows)];
        let given = if params.has_addend { 3 } else { 2 };
        // SAFETY: as above.
        unsafe { op.execute(&params, &inputs[..given], &[out]) }
    };
    Ok(CallPlan::new(op.device_of(a), shape, dtype, run))
}

/// Checks that an argument has that many dimensions.
fn check_rank(op: &Op, name: &str, x: &Tensor, rank: usize) -> Result<()> {
    if x.ndim() == rank {
        return Ok(());
    }
    let message =
        format!("argument '{name}' has shape {:?}, but it must have {rank} dimensions", x.shape());
    Err(op.error(ErrorKind::Shape, message))
}

/// Checks that an argument broadcasts to the result's shape.
fn check_addend(op: &Op, name: &str, addend: &Tensor, shape: &[usize]) -> Result<()> {
    if layout::broadcast_strides(addend.shape(), addend.strides(), shape).is_ok() {
        return Ok(());
    }
    let message = format!(
        "argument '{name}' has shape {:?}, which must broadcast to that of the product, {shape:?}",
        addend.shape()
    );
    Err(op.error(ErrorKind::Shape, message))
}

/// Returns a factor for numbers of that dtype.
fn factor(op: &Op, name: &str, number: Scalar, dtype: DType) -> Result<LinearFactor> {
    let wanted = match number {
        Scalar::Float(_) if !dtype.is_floating() && !dtype.is_complex() => "an integer",
        Scalar::Complex(_) if !dtype.is_complex() => "a real number",
        _ => return Ok(LinearFactor::new(number)),
    };
    let message =
        format!("argument '{name}' is {number:?}, but the product is of {dtype}; give {wanted}");
    Err(op.error(ErrorKind::DType, message))
}

type Addmm<'a> = (&'a Tensor, &'a Tensor, &'a Tensor, Scalar, Scalar);

/// `beta self + alpha a b`, of matrices or batches of them, by the kernel's state.
fn addmm<'a>(
    call: Call<'_, [&'static str; 2]>,
    (addend, a, b, beta, alpha): Addmm<'a>,
) -> Result<CallPlan<impl Run + use<'a>>> {
    let names = *call.state;
    let rank = if names[0] == "mat1" { 2 } else { 3 };
    check_rank(&call, names[0], a, rank)?;
    check_rank(&call, names[1], b, rank)?;
    if rank == 3 && a.shape()[0] != b.shape()[0] {
        let message = format!(
            "shapes {:?} and {:?} are batches of different sizes, {} and {}",
            a.shape(),
            b.shape(),
            a.shape()[0],
            b.shape()[0]
        );
        return Err(call.error(ErrorKind::Shape, message));
    }
    let dtype = a.dtype().promote(b.dtype()).promote(addend.dtype());
    let (_, shape) = infer_shape(&call, a.shape(), b.shape())?;
    check_addend(&call, "self", addend, &shape)?;
    let epilogue = Epilogue {
        // NaN in an addend that isn't asked for must not go through.
        addend: Some(addend).filter(|_| beta.is_nonzero()),
        alpha: factor(&call, "alpha", alpha, dtype)?,
        beta: factor(&call, "beta", beta, dtype)?,
        activation: Activation::None,
    };
    plan(&call, a, b.detach(), epilogue, dtype)
}

/// `input weight^T + bias`, activated.
fn linear_plan<'a>(
    op: &Op,
    (x, weight, bias): (&'a Tensor, &'a Tensor, Option<&'a Tensor>),
    name: &str,
) -> Result<CallPlan<impl Run + use<'a>>> {
    let rank = weight.ndim();
    if rank == 0 || rank > 2 || x.ndim() == 0 {
        let (name, shape, wanted) = match x.ndim() {
            0 => ("input", x.shape(), "at least 1 dimension"),
            _ => ("weight", weight.shape(), "2 dimensions, outputs and inputs, or 1"),
        };
        let message = format!("argument '{name}' has shape {shape:?}, but it must have {wanted}");
        return Err(op.error(ErrorKind::Shape, message));
    }
    let (inputs, given) = (weight.shape()[rank - 1], x.shape()[x.ndim() - 1]);
    if inputs != given {
        let message = format!(
            "argument 'input' has shape {:?} and argument 'weight' has shape {:?}: their last sizes \
             are {given} and {inputs}, which must be equal",
            x.shape(),
            weight.shape()
        );
        return Err(op.error(ErrorKind::Shape, message));
    }
    if let Some(bias) = bias {
        // One number for each output, or one for all.
        let fits = bias.ndim() == 0
            || rank == 2 && bias.ndim() == 1 && [1, weight.shape()[0]].contains(&bias.shape()[0]);
        if !fits {
            let message = format!(
                "argument 'bias' has shape {:?}, but it must have {:?}: a number for each output of \
                 argument 'weight', whose shape is {:?}",
                bias.shape(),
                &weight.shape()[..rank - 1],
                weight.shape()
            );
            return Err(op.error(ErrorKind::Shape, message));
        }
    }
    let factors = x.dtype().promote(weight.dtype());
    let dtype = bias.map_or(factors, |bias| factors.promote(bias.dtype()));
    let columns = if rank == 2 { op.at(weight.transpose(0, 1))? } else { weight.detach() };
    let epilogue = Epilogue {
        addend: bias,
        alpha: LinearFactor::ONE,
        beta: LinearFactor::ONE,
        activation: activation::parse(op, name, dtype)?,
    };
    plan(op, x, columns, epilogue, dtype)
}

type Linear<'a> = (&'a Tensor, &'a Tensor, Option<&'a Tensor>);

fn linear<'a>(call: Call<'_, ()>, args: Linear<'a>) -> Result<CallPlan<impl Run + use<'a>>> {
    linear_plan(&call, args, Activation::None.name())
}

type LinearActivation<'a> = (&'a Tensor, &'a Tensor, Option<&'a Tensor>, &'a str);

fn linear_activation<'a>(
    call: Call<'_, ()>,
    (x, weight, bias, name): LinearActivation<'a>,
) -> Result<CallPlan<impl Run + use<'a>>> {
    linear_plan(&call, (x, weight, bias), name)
}

fn layers(reads: &'static [Saves], vjp: Vjp, jvp: Jvp, batching: vmap::Rule) -> Layers {
    Layers {
        derivative: formula(reads, vjp),
        tangent: pushforward(jvp),
        batching: Rule::Given(Batching::Rule(batching)),
        autocast: Category::LowerPrecision,
    }
}

/// Returns the rows of products with an epilogue.
pub(super) fn rows() -> Result<Vec<Row>> {
    const READS_FACTORS: &[Saves] = &[Saves::NONE, Saves::arguments(&[2]), Saves::arguments(&[1])];
    const READS_OTHER: &[Saves] = &[Saves::arguments(&[1]), Saves::arguments(&[0]), Saves::NONE];
    const READS_ALL: &[Saves] = &[Saves::arguments(&[0, 1, 2]).and_results()];
    let addmm_row = |name, names: [&'static str; 2], batching| {
        let args = format!(
            "Tensor self, Tensor {}, Tensor {}, *, Scalar beta=1, Scalar alpha=1",
            names[0], names[1]
        );
        Row::computes::<Addmm<'_>, _, _>(
            (name, ""),
            &args,
            move |_| names,
            addmm,
            layers(READS_FACTORS, fused_layers::addmm_vjp, fused_layers::addmm_jvp, batching),
            Naming::Unnamed("`keyfold.linear` adds a bias to a product"),
        )
        .map(|row| row.estimated(|args, shape| product_work(args, 1, shape)))
    };
    Ok(vec![
        addmm_row("aten::addmm", ["mat1", "mat2"], fused_layers::addmm_batched)?,
        addmm_row("aten::baddbmm", ["batch1", "batch2"], fused_layers::baddbmm_batched)?,
        Row::computes::<Linear<'_>, _, _>(
            ("aten::linear", ""),
            "Tensor input, Tensor weight, Tensor? bias=None",
            |_| (),
            linear,
            layers(
                READS_OTHER,
                fused_layers::linear_vjp,
                fused_layers::linear_jvp,
                fused_layers::linear_batched,
            ),
            named(
                "linear",
                "Tensor x, Tensor weight, Tensor? bias=None",
                "Return `x @ weight.T + bias`, a layer of a network.\n\nThe shapes are `(..., inputs)`, \
                 `(outputs, inputs)` and `(outputs,)`, and the result's is\n`(..., outputs)`; with a \
                 weight of shape `(inputs,)` it is `(...)`, and the bias a number.\nFloat16 and \
                 bfloat16 are added up in float32 and rounded once. Not in the \
                 standard.\n\nRaises:\n    ShapeError: the shapes don't fit.",
            ),
        )?
        .estimated(|args, shape| product_work(args, 0, shape)),
        Row::computes::<LinearActivation<'_>, _, _>(
            ("keyfold::linear_activation", ""),
            "Tensor input, Tensor weight, Tensor? bias=None, str activation=\"none\"",
            |_| (),
            linear_activation,
            layers(
                READS_ALL,
                fused_layers::activated_vjp,
                fused_layers::activated_jvp,
                fused_layers::linear_batched,
            ),
            named(
                "linear_activation",
                "Tensor x, Tensor weight, Tensor? bias=None, str activation=\"none\"",
                "Return `activation(x @ weight.T + bias)`, computed in one pass.\n\nThe activation is \
                 \"none\", \"relu\", \"gelu\", \"gelu_tanh\", \"gelu_sigmoid\" (`x sigmoid(1.702 \
                 x)`),\n\"sigmoid\" or \"tanh\", of floats. Shapes and rounding are those of `linear`; \
                 the derivative\ncomputes the product anew for the forms of gelu. Not in the \
                 standard.\n\nRaises:\n    ShapeError: the shapes don't fit.\n    InvalidValue: there \
                 is no such activation.\n    DTypeError: an activation of numbers that aren't floats.",
            ),
        )?
        .estimated(|args, shape| product_work(args, 0, shape)),
    ])
}
