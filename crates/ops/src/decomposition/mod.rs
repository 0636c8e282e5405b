//! Decompositions of matrices and linear systems, of float32 and float64. Leading dimensions are a stack.

mod algebra;
mod batching;
mod checks;
mod gradients;
mod rows;
mod tangents;

use keyfold_backend::{DecompositionParams, Operation};
use keyfold_core::{DType, Device, ErrorKind, Result, Shape};
use keyfold_tensor::Tensor;

use self::checks::{Matrices, Systems, check_driver, matrices, square, systems, wants_upper};
use crate::infer::{Call, CallPlan, Run, RunSeveral, SeveralPlan, Whole};
use crate::op::Op;

pub(crate) use self::rows::rows;

const SVD: &Operation = &Operation::new("svd");
const EIGH: &Operation = &Operation::new("eigh");
const QR: &Operation = &Operation::new("qr");
const CHOLESKY: &Operation = &Operation::new("cholesky");
const SOLVE: &Operation = &Operation::new("solve");
const SOLVE_TRIANGULAR: &Operation = &Operation::new("solve_triangular");
const DET: &Operation = &Operation::new("det");
const SLOGDET: &Operation = &Operation::new("slogdet");

/// Runs an operation.
fn execute(
    op: &Op,
    params: DecompositionParams,
    inputs: &[&Tensor],
    outs: &[&Tensor],
) -> Result<()> {
    // SAFETY: what computes results is called with outputs that are its own.
    unsafe { op.execute(&params, inputs, outs) }
}

/// Returns the form of a result: a stack's dimensions, and those of each item.
fn form(op: &Op, like: &Tensor, stack: &[usize], item: &[usize]) -> Result<(Device, Shape, DType)> {
    let shape: Vec<usize> = stack.iter().chain(item).copied().collect();
    Ok((op.device_of(like), op.at(Shape::new(&shape))?, like.dtype()))
}

/// As [`form`], of numbers of pivots and minors.
fn info_form(op: &Op, like: &Tensor, stack: &[usize]) -> Result<(Device, Shape, DType)> {
    Ok((op.device_of(like), op.at(Shape::new(stack))?, DType::I32))
}

/// Plans the operation of one result.
fn one<'a>(
    (device, shape, dtype): (Device, Shape, DType),
    params: DecompositionParams,
    x: &'a Tensor,
) -> CallPlan<impl Run + use<'a>> {
    let run = Whole(move |op: &Op, out: &Tensor| execute(op, params, &[x], &[out]));
    CallPlan::new(device, shape, dtype, run)
}

fn svd<'a>(
    call: Call<'_, ()>,
    (a, full, driver): (&'a Tensor, bool, Option<&str>),
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    check_driver(&call, driver)?;
    let Matrices { stack, rows, columns } = matrices(&call, "A", a)?;
    let least = rows.min(columns);
    let (left, right) = if full { (rows, columns) } else { (least, least) };
    let forms = [
        form(&call, a, stack, &[rows, left])?,
        form(&call, a, stack, &[least])?,
        form(&call, a, stack, &[right, columns])?,
    ];
    let params = DecompositionParams { vectors: true, full, ..DecompositionParams::new(SVD) };
    let run = move |op: &Op, outs: &[&Tensor]| execute(op, params, &[a], outs);
    Ok(SeveralPlan::new(forms, run).whole())
}

fn svdvals<'a>(
    call: Call<'_, ()>,
    (a, driver): (&'a Tensor, Option<&str>),
) -> Result<CallPlan<impl Run + use<'a>>> {
    check_driver(&call, driver)?;
    let Matrices { stack, rows, columns } = matrices(&call, "A", a)?;
    let form = form(&call, a, stack, &[rows.min(columns)])?;
    Ok(one(form, DecompositionParams::new(SVD), a))
}

fn eigh<'a>(
    call: Call<'_, ()>,
    (x, triangle): (&'a Tensor, &str),
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let upper = wants_upper(&call, triangle)?;
    let (stack, n) = square(&call, "self", x)?;
    let forms = [form(&call, x, stack, &[n])?, form(&call, x, stack, &[n, n])?];
    let params = DecompositionParams { vectors: true, upper, ..DecompositionParams::new(EIGH) };
    let run = move |op: &Op, outs: &[&Tensor]| execute(op, params, &[x], outs);
    Ok(SeveralPlan::new(forms, run).whole())
}

fn eigvalsh<'a>(
    call: Call<'_, ()>,
    (x, triangle): (&'a Tensor, &str),
) -> Result<CallPlan<impl Run + use<'a>>> {
    let upper = wants_upper(&call, triangle)?;
    let (stack, n) = square(&call, "self", x)?;
    let params = DecompositionParams { upper, ..DecompositionParams::new(EIGH) };
    Ok(one(form(&call, x, stack, &[n])?, params, x))
}

fn qr<'a>(
    call: Call<'_, ()>,
    (a, mode): (&'a Tensor, &str),
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let Matrices { stack, rows, columns } = matrices(&call, "A", a)?;
    let (vectors, full) = match mode {
        "reduced" => (true, false),
        "complete" => (true, true),
        "r" => (false, false),
        _ => {
            let message = format!(
                "argument 'mode' is '{mode}', but it must be 'reduced', 'complete', or 'r' for R only"
            );
            return Err(call.error(ErrorKind::Value, message));
        }
    };
    let inner = if full { rows } else { rows.min(columns) };
    // Where it isn't wanted Q is empty, as PyTorch's.
    let q = match vectors {
        true => form(&call, a, stack, &[rows, inner])?,
        false => form(&call, a, &[], &[0])?,
    };
    let forms = [q, form(&call, a, stack, &[inner, columns])?];
    let params = DecompositionParams { vectors, full, ..DecompositionParams::new(QR) };
    let run =
        move |op: &Op, outs: &[&Tensor]| execute(op, params, &[a], &outs[usize::from(!vectors)..]);
    Ok(SeveralPlan::new(forms, run).whole())
}

fn cholesky_ex<'a>(
    call: Call<'_, ()>,
    (x, upper, checked): (&'a Tensor, bool, bool),
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let (stack, n) = square(&call, "self", x)?;
    let forms = [form(&call, x, stack, &[n, n])?, info_form(&call, x, stack)?];
    let params = DecompositionParams { upper, checked, ..DecompositionParams::new(CHOLESKY) };
    let run = move |op: &Op, outs: &[&Tensor]| execute(op, params, &[x], outs);
    Ok(SeveralPlan::new(forms, run).whole())
}

fn cholesky<'a>(
    call: Call<'_, ()>,
    (x, upper): (&'a Tensor, bool),
) -> Result<CallPlan<impl Run + use<'a>>> {
    let (stack, n) = square(&call, "self", x)?;
    let params = DecompositionParams { upper, checked: true, ..DecompositionParams::new(CHOLESKY) };
    Ok(one(form(&call, x, stack, &[n, n])?, params, x))
}

/// Computes the solution of systems into `out`, a stack of matrices in the form that [`Systems`] says.
fn solve_systems(
    op: &Op,
    params: DecompositionParams,
    systems: &Systems<'_>,
    out: &Tensor,
    info: Option<&Tensor>,
) -> Result<()> {
    let (a, b) = systems.operands(op)?;
    let view = systems.result(op, out)?;
    let outs = [Some(&view), info];
    let outs: Vec<&Tensor> = outs.into_iter().flatten().collect();
    execute(op, params, &[&a, &b], &outs)
}

fn solve_ex<'a>(
    call: Call<'_, ()>,
    (a, b, left, checked): (&'a Tensor, &'a Tensor, bool, bool),
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let systems = systems(&call, ("A", a), b, (left, true))?;
    let (shape, dtype) = (call.at(Shape::new(&systems.shape()))?, systems.dtype);
    let forms = [(call.device_of(a), shape, dtype), info_form(&call, a, &systems.stack)?];
    let params = DecompositionParams { checked, ..DecompositionParams::new(SOLVE) };
    let run = move |op: &Op, outs: &[&Tensor]| {
        solve_systems(op, params, &systems, outs[0], Some(outs[1]))
    };
    Ok(SeveralPlan::new(forms, run).whole())
}

fn solve<'a>(
    call: Call<'_, ()>,
    (a, b, left): (&'a Tensor, &'a Tensor, bool),
) -> Result<CallPlan<impl Run + use<'a>>> {
    let systems = systems(&call, ("A", a), b, (left, true))?;
    let (shape, dtype) = (call.at(Shape::new(&systems.shape()))?, systems.dtype);
    let params = DecompositionParams { checked: true, ..DecompositionParams::new(SOLVE) };
    let run = Whole(move |op: &Op, out: &Tensor| solve_systems(op, params, &systems, out, None));
    Ok(CallPlan::new(call.device_of(a), shape, dtype, run))
}

fn solve_triangular<'a>(
    call: Call<'_, ()>,
    (a, b, upper, left, unit): (&'a Tensor, &'a Tensor, bool, bool, bool),
) -> Result<CallPlan<impl Run + use<'a>>> {
    if b.ndim() < 2 {
        return Err(checks::no_matrix(&call, "B", b));
    }
    let systems = systems(&call, ("self", a), b, (left, false))?;
    let (shape, dtype) = (call.at(Shape::new(&systems.shape()))?, systems.dtype);
    // The transpose of a triangular matrix is the other triangle's.
    let upper = upper == left;
    let params = DecompositionParams { upper, unit, ..DecompositionParams::new(SOLVE_TRIANGULAR) };
    let run = Whole(move |op: &Op, out: &Tensor| solve_systems(op, params, &systems, out, None));
    Ok(CallPlan::new(call.device_of(a), shape, dtype, run))
}

fn det<'a>(call: Call<'_, ()>, (a,): (&'a Tensor,)) -> Result<CallPlan<impl Run + use<'a>>> {
    let (stack, _) = square(&call, "A", a)?;
    Ok(one(form(&call, a, stack, &[])?, DecompositionParams::new(DET), a))
}

fn slogdet<'a>(
    call: Call<'_, ()>,
    (a,): (&'a Tensor,),
) -> Result<SeveralPlan<impl RunSeveral + use<'a>>> {
    let (stack, _) = square(&call, "A", a)?;
    let forms = [form(&call, a, stack, &[])?, form(&call, a, stack, &[])?];
    let params = DecompositionParams::new(SLOGDET);
    let run = move |op: &Op, outs: &[&Tensor]| execute(op, params, &[a], outs);
    Ok(SeveralPlan::new(forms, run).whole())
}
