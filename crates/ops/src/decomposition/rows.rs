//! The rows of decompositions.

use std::sync::Arc;

use keyfold_core::{ErrorKind, Result};
use keyfold_dispatch::{CallContext, Kernel, RegistrationKey, Value as _};
use keyfold_layers::autocast::Category;
use keyfold_layers::autograd::{Jvp, Pushforward, Saves, VjpOfSeveral};
use keyfold_layers::pipeline::Work;
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, Value, ValueRef};

use super::checks::square;
use super::{batching, gradients, tangents};
use crate::inferred::Inferred;
use crate::jvp::pushforward;
use crate::naming::Naming;
use crate::op::{Op, Target};
use crate::row::{Batching, Gradient, Layers, Row, Rule, Tangent};
use crate::vjp::formula;

const READS_FIRST: &[Saves] = &[Saves::arguments(&[0])];
const READS_RESULTS: &[Saves] = &[Saves::RESULTS];
const READS_BOTH: &[Saves] = &[Saves::arguments(&[0]).and_results()];
/// The gradient of the matrices reads them and the solution, that of the right sides the matrices.
const OF_SYSTEMS: &[Saves] = &[Saves::arguments(&[0]).and_results(), Saves::arguments(&[0])];

/// The floating-point operations of the least work, as of det: those of an LU decomposition.
const LU: f64 = 1.0 / 3.0;

/// Estimates the time of decompositions that take `factor` operations for each element of a matrix and each
/// of its rows or columns, whichever are fewer.
fn matrix_work(args: &[ValueRef<'_>], factor: f64) -> Result<Work> {
    systems_work(args, factor, 0)
}

/// As [`matrix_work`], of systems with a result of these elements.
fn systems_work(args: &[ValueRef<'_>], factor: f64, elements: usize) -> Result<Work> {
    let a = args[0].tensor()?;
    let [stack @ .., rows, columns] = &a.shape()[..] else {
        return Ok(Work { nanoseconds: 0.0, divides: true });
    };
    let matrices: usize = stack.iter().product();
    let least = *rows.min(columns) as f64;
    let each = factor * *rows as f64 * *columns as f64 * least;
    let operations = matrices as f64 * each + 2.0 * least * elements as f64;
    // A few operations a nanosecond. One matrix is one thread's.
    Ok(Work { nanoseconds: operations / 4.0, divides: matrices > 1 })
}

/// The rules of an operator with several results.
fn several(
    reads: &'static [Saves],
    vjp: VjpOfSeveral,
    tangent: fn() -> Arc<dyn Pushforward>,
    batching: vmap::Rule,
) -> Layers {
    Layers {
        derivative: Rule::Given(Gradient::Several(reads, vjp)),
        tangent: Rule::Given(Tangent::Other(tangent)),
        batching: Rule::Given(Batching::Rule(batching)),
        autocast: Category::FullPrecision,
    }
}

/// The rules of an operator with one result.
fn single(derivative: Rule<Gradient>, jvp: Jvp, batching: vmap::Rule) -> Layers {
    Layers {
        derivative,
        tangent: pushforward(jvp),
        batching: Rule::Given(Batching::Rule(batching)),
        autocast: Category::FullPrecision,
    }
}

const NAME_OF_INVERSE: &str = "aten::linalg_inv";

/// Returns the solution of systems whose right side is the identity.
fn inv(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let a = args[0].tensor()?;
    let op = Op::new(NAME_OF_INVERSE, Target::Meta);
    let (_, n) = square(&op, "A", a)?;
    let dispatcher = context.dispatcher()?;
    let device = ValueRef::Device(a.device());
    let (zero, one, size) = (ValueRef::Int(0), ValueRef::Int(1), ValueRef::Int(n as i64));
    let none = ValueRef::None;
    let places = dispatcher.call("aten::arange", &[zero, size, one, none, device])?;
    let column = dispatcher.call("aten::unsqueeze", &[places.as_ref(), one])?;
    let mask = dispatcher.call("aten::eq", &[column.as_ref(), places.as_ref()])?;
    let to = ValueRef::DType(a.dtype());
    let identity = dispatcher.call("aten::to", &[mask.as_ref(), to])?;
    // One for each matrix: with fewer dimensions it could mean vectors.
    let sizes: Vec<i64> = a.shape().iter().map(|size| *size as i64).collect();
    let identity = dispatcher.call("aten::expand", &[identity.as_ref(), ValueRef::Ints(&sizes)])?;
    let solved = dispatcher.call("aten::linalg_solve", &[args[0], identity.as_ref()]);
    // A singular matrix is this operator's error, and not that of the one that it calls.
    solved.map_err(|error| match error.message().strip_prefix("aten::linalg_solve: ") {
        Some(message) if error.kind() == ErrorKind::Value => op.error(error.kind(), message),
        _ => error.at(NAME_OF_INVERSE),
    })
}

fn infer_inverse(args: &[ValueRef<'_>]) -> Result<Inferred> {
    let a = args[0].tensor()?;
    square(&Op::new(NAME_OF_INVERSE, Target::Meta), "A", a)?;
    Ok(Inferred::fresh(a.shape().clone(), a.dtype()))
}

fn factorizations() -> Result<Vec<Row>> {
    type Of<A> = (&'static Tensor, A);
    Ok(vec![
        Row::computes_several::<(&Tensor, bool, Option<&'static str>), _, _>(
            "aten::linalg_svd(Tensor A, bool full_matrices=True, *, str? driver=None) -> (Tensor U, \
             Tensor S, Tensor Vh)",
            |_| (),
            super::svd,
            several(READS_RESULTS, gradients::svd, tangents::svd, batching::one),
            Naming::PartOf("linalg.svd"),
        )?
        .out_named("U", &["U", "S", "Vh"])
        .estimated(|args, _| matrix_work(args, 20.0)),
        Row::computes::<(&Tensor, Option<&'static str>), _, _>(
            ("aten::linalg_svdvals", ""),
            "Tensor A, *, str? driver=None",
            |_| (),
            super::svdvals,
            single(formula(READS_FIRST, gradients::svdvals), tangents::svdvals, batching::one),
            Naming::PartOf("linalg.svdvals"),
        )?
        .estimated(|args, _| matrix_work(args, 20.0)),
        Row::computes_several::<Of<&'static str>, _, _>(
            "aten::linalg_eigh(Tensor self, str UPLO=\"L\") -> (Tensor eigenvalues, \
             Tensor eigenvectors)",
            |_| (),
            super::eigh,
            several(READS_RESULTS, gradients::eigh, tangents::eigh, batching::one),
            Naming::PartOf("linalg.eigh"),
        )?
        .out_named("eigvals", &["eigvals", "eigvecs"])
        .estimated(|args, _| matrix_work(args, 10.0)),
        Row::computes::<Of<&'static str>, _, _>(
            ("aten::linalg_eigvalsh", ""),
            "Tensor self, str UPLO=\"L\"",
            |_| (),
            super::eigvalsh,
            single(formula(READS_FIRST, gradients::eigvalsh), tangents::eigvalsh, batching::one),
            Naming::PartOf("linalg.eigvalsh"),
        )?
        .estimated(|args, _| matrix_work(args, 10.0)),
        Row::computes_several::<Of<&'static str>, _, _>(
            "aten::linalg_qr(Tensor A, str mode=\"reduced\") -> (Tensor Q, Tensor R)",
            |_| (),
            super::qr,
            several(READS_RESULTS, gradients::qr, tangents::qr, batching::one),
            Naming::PartOf("linalg.qr"),
        )?
        .estimated(|args, _| matrix_work(args, 4.0)),
        Row::computes_several::<(&Tensor, bool, bool), _, _>(
            "aten::linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> \
             (Tensor L, Tensor info)",
            |_| (),
            super::cholesky_ex,
            several(READS_RESULTS, gradients::cholesky_ex, tangents::cholesky_ex, batching::one),
            Naming::Unnamed("`keyfold.linalg.cholesky` calls `aten::linalg_cholesky`"),
        )?
        .out_named("L", &["L", "info"])
        .estimated(|args, _| matrix_work(args, LU)),
        Row::computes::<Of<bool>, _, _>(
            ("aten::linalg_cholesky", ""),
            "Tensor self, *, bool upper=False",
            |_| (),
            super::cholesky,
            single(formula(READS_RESULTS, gradients::cholesky), tangents::cholesky, batching::one),
            Naming::PartOf("linalg.cholesky"),
        )?
        .estimated(|args, _| matrix_work(args, LU)),
    ])
}

fn systems() -> Result<Vec<Row>> {
    type Pair<'a> = (&'a Tensor, &'a Tensor, bool);
    let inverse = Layers {
        derivative: Rule::Derived,
        tangent: Rule::Derived,
        batching: Rule::Derived,
        autocast: Category::FullPrecision,
    };
    Ok(vec![
        Row::computes_several::<(&Tensor, &Tensor, bool, bool), _, _>(
            "aten::linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> \
             (Tensor result, Tensor info)",
            |_| (),
            super::solve_ex,
            several(OF_SYSTEMS, gradients::solve_ex, tangents::solve_ex, batching::systems),
            Naming::Unnamed("`keyfold.linalg.solve` calls `aten::linalg_solve`"),
        )?
        .estimated(|args, shape| systems_work(args, LU, shape.iter().product())),
        Row::computes::<Pair<'_>, _, _>(
            ("aten::linalg_solve", ""),
            "Tensor A, Tensor B, *, bool left=True",
            |_| (),
            super::solve,
            single(formula(OF_SYSTEMS, gradients::solve), tangents::solve, batching::systems),
            Naming::PartOf("linalg.solve"),
        )?
        .estimated(|args, shape| systems_work(args, LU, shape.iter().product())),
        Row::computes::<(&Tensor, &Tensor, bool, bool, bool), _, _>(
            ("aten::linalg_solve_triangular", ""),
            "Tensor self, Tensor B, *, bool upper, bool left=True, bool unitriangular=False",
            |_| (),
            super::solve_triangular,
            single(
                formula(OF_SYSTEMS, gradients::solve_triangular),
                tangents::solve_triangular,
                batching::systems,
            ),
            Naming::Unnamed("the array API has none"),
        )?
        .estimated(|args, shape| systems_work(args, 0.0, shape.iter().product())),
        Row::composite(
            "aten::linalg_inv(Tensor A) -> Tensor",
            RegistrationKey::CompositeImplicitAutograd,
            || Kernel::boxed(inv),
            infer_inverse,
            inverse,
            Naming::PartOf("linalg.inv"),
        )?,
        Row::computes::<(&Tensor,), _, _>(
            ("aten::linalg_det", ""),
            "Tensor A",
            |_| (),
            super::det,
            single(formula(READS_BOTH, gradients::det), tangents::det, batching::one),
            Naming::PartOf("linalg.det"),
        )?
        .estimated(|args, _| matrix_work(args, LU)),
        Row::computes_several::<(&Tensor,), _, _>(
            "aten::linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet)",
            |_| (),
            super::slogdet,
            several(READS_FIRST, gradients::slogdet, tangents::slogdet, batching::one),
            Naming::PartOf("linalg.slogdet"),
        )?
        .estimated(|args, _| matrix_work(args, LU)),
    ])
}

/// Returns the rows of decompositions and linear systems.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let mut rows = factorizations()?;
    rows.extend(systems()?);
    Ok(rows)
}
