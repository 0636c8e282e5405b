//! Vector-Jacobian products of decompositions (M. Giles, "An extended collection of matrix derivative results
//! for forward and reverse mode algorithmic differentiation", 2008; J. Townsend, "Differentiating the singular
//! value decomposition", 2016; S. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions
//! with application in optimum experimental design", 2010).
//!
//! Of symmetric matrices one triangle is read, and the gradient is symmetric: half of it stands for each of two
//! mirrored elements.
//!
//! Singular vectors and eigenvectors are unique up to signs, and differentiable, only where the values
//! differ; equal ones give infinite or NaN gradients, as in PyTorch.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_layers::autograd::{self, Backward, Gradients, added};
use keyfold_tensor::{Tensor, ValueRef};

use super::algebra::{
    diagonal_matrix, differences, eigh as eigh_of, half_lower, product, scale_columns, scale_rows,
    skew, solve as solve_of, solve_triangular as triangular, strictly_lower, svd as svd_of,
    symmetric, transposed, triangle, upper, with_diagonal,
};
use super::checks::is_vector;
use crate::aten;
use crate::vjp::{first_only, if_needed};

#[cold]
fn refused(name: &str, why: &str) -> Error {
    Error::new(ErrorKind::Gradient, format!("{name}: {why}"))
}

pub(super) fn svd(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    let (u, s, vh) = (call.result(0)?, call.result(1)?, call.result(2)?);
    let shape = call.shape(0);
    let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let is_full = call.flag(1) && (m > n && grads[0].is_some() || n > m && grads[2].is_some());
    if is_full {
        let why = "singular vectors of the null space aren't unique, so they have no derivative; \
                   use full_matrices=False";
        return Err(refused("aten::linalg_svd", why));
    }
    // With the other factor's null space its vectors aren't needed.
    let least = m.min(n) as i64;
    let first = |x: &Tensor, dim| aten::slice(x, dim, ValueRef::Int(0), ValueRef::Int(least), 1);
    let (u, vh) = (first(&u, -1)?, first(&vh, -2)?);
    let [of_u, of_s, of_v] = grads else { return Ok(vec![None; call.slots()]) };
    let (of_u, of_v) = (of_u.as_ref(), of_v.as_ref());
    let of_u = of_u.map(|grad| first(grad, -1)).transpose()?;
    let of_v = of_v.map(|grad| first(grad, -2)).transpose()?;
    if of_u.is_none() && of_v.is_none() {
        let Some(of_s) = of_s else { return Ok(vec![None; call.slots()]) };
        return first_only(call, &product(&scale_columns(&u, of_s)?, &vh)?);
    }
    let apart = differences(&aten::mul(&s, &s)?)?;
    let projected = of_u.as_ref().map(|grad| product(&transposed(&u)?, grad)).transpose()?;
    let turned_u = projected.as_ref().map(|x| scale_columns(&skew(x)?, &s)).transpose()?;
    let in_v = of_v.as_ref().map(|grad| product(&vh, &transposed(grad)?)).transpose()?;
    let turned_v = in_v.as_ref().map(|x| scale_rows(&skew(x)?, &s)).transpose()?;
    let inner = added(turned_u, turned_v)?.map(|x| aten::div(&x, &apart)).transpose()?;
    let on_diagonal = of_s.as_ref().map(diagonal_matrix).transpose()?;
    let Some(inner) = added(inner, on_diagonal)? else { return Ok(vec![None; call.slots()]) };
    let grad = match (of_u, of_v) {
        (Some(grad), _) if m > n => {
            let outside = aten::sub(&grad, &product(&u, &product(&transposed(&u)?, &grad)?)?)?;
            let outside = aten::div(&outside, &aten::unsqueeze(&s, -2)?)?;
            product(&aten::add(&product(&u, &inner)?, &outside)?, &vh)?
        }
        (_, Some(grad)) if n > m => {
            let outside = aten::sub(&grad, &product(&product(&grad, &transposed(&vh)?)?, &vh)?)?;
            let outside = aten::div(&outside, &aten::unsqueeze(&s, -1)?)?;
            product(&u, &aten::add(&product(&inner, &vh)?, &outside)?)?
        }
        _ => product(&product(&u, &inner)?, &vh)?,
    };
    first_only(call, &grad)
}

pub(super) fn svdvals(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let [u, _, vh] = &svd_of(&call.tensor(0)?)?[..] else { return Ok(vec![None]) };
    first_only(call, &product(&scale_columns(u, grad)?, vh)?)
}

pub(super) fn eigh(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    let (values, vectors) = (call.result(0)?, call.result(1)?);
    let [of_values, of_vectors] = grads else { return Ok(vec![None; call.slots()]) };
    let across = transposed(&vectors)?;
    let turned = match of_vectors {
        Some(grad) => {
            let inner = aten::div(&product(&across, grad)?, &differences(&values)?)?;
            Some(aten::mul_scalar(&symmetric(&with_diagonal(&inner, 0.0)?)?, 0.5)?)
        }
        None => None,
    };
    let on_diagonal = of_values.as_ref().map(diagonal_matrix).transpose()?;
    let Some(inner) = added(turned, on_diagonal)? else { return Ok(vec![None; call.slots()]) };
    first_only(call, &product(&product(&vectors, &inner)?, &across)?)
}

pub(super) fn eigvalsh(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let ValueRef::Str(triangle) = call.value(1) else { return Ok(vec![None]) };
    let [_, vectors] = &eigh_of(&call.tensor(0)?, triangle)?[..] else { return Ok(vec![None]) };
    first_only(call, &product(&scale_columns(vectors, grad)?, &transposed(vectors)?)?)
}

/// Refuses `Q` where it isn't unique, and where it isn't there.
pub(super) fn check_qr(mode: ValueRef<'_>, m: usize, n: usize) -> Result<()> {
    let why = match mode {
        ValueRef::Str("r") => "the derivative needs Q, which mode 'r' leaves out; use 'reduced'",
        ValueRef::Str("complete") if m > n => {
            "columns of Q for the null space aren't unique, so they have no derivative; use mode \
             'reduced'"
        }
        _ => return Ok(()),
    };
    Err(refused("aten::linalg_qr", why))
}

pub(super) fn qr(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    let shape = call.shape(0);
    let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    check_qr(call.value(1), m, n)?;
    let (q, r) = (call.result(0)?, call.result(1)?);
    let [of_q, of_r] = grads else { return Ok(vec![None; call.slots()]) };
    if m >= n {
        return first_only(call, &tall_qr(&q, &r, of_q.as_ref(), of_r.as_ref())?);
    }
    // The first m columns are decomposed, and the others are turned by Q.
    let split = m as i64;
    let (start, end) = (ValueRef::Int(0), ValueRef::Int(split));
    let first = |x: &Tensor| aten::slice(x, -1, start, end, 1);
    let others = |x: &Tensor| aten::slice(x, -1, end, ValueRef::None, 1);
    let (of_first, of_others) = match of_r {
        Some(grad) => (Some(first(grad)?), Some(others(grad)?)),
        None => (None, None),
    };
    let turned = match &of_others {
        Some(grad) => {
            let columns = product(&q, &others(&r)?)?;
            Some(product(&columns, &transposed(grad)?)?)
        }
        None => None,
    };
    let of_q = added(of_q.clone(), turned)?;
    let left = tall_qr(&q, &first(&r)?, of_q.as_ref(), of_first.as_ref())?;
    let right = match &of_others {
        Some(grad) => product(&q, grad)?,
        None => aten::mul_scalar(&others(&r)?, 0)?,
    };
    first_only(call, &aten::cat(&[left, right], -1)?)
}

/// The gradient of the matrix whose factors are `q` and a square `r`.
fn tall_qr(q: &Tensor, r: &Tensor, of_q: Option<&Tensor>, of_r: Option<&Tensor>) -> Result<Tensor> {
    let from_r = of_r.map(|grad| product(grad, &transposed(r)?)).transpose()?;
    let from_q = of_q.map(|grad| aten::neg(&product(&transposed(q)?, grad)?)).transpose()?;
    let inner = match added(from_r, from_q)? {
        Some(inner) => upper(&inner)?,
        None => return aten::mul_scalar(q, 0),
    };
    // With each element of the upper triangle mirrored, and the diagonal as it is.
    let inner = symmetric(&aten::sub(&inner, &aten::mul_scalar(&only_diagonal(&inner)?, 0.5)?)?)?;
    let total = added(Some(product(q, &inner)?), of_q.cloned())?;
    let Some(total) = total else { return aten::mul_scalar(q, 0) };
    triangular(&transposed(r)?, &total, (false, false, false))
}

/// Returns the diagonal alone.
fn only_diagonal(x: &Tensor) -> Result<Tensor> {
    aten::sub(x, &with_diagonal(x, 0.0)?)
}

pub(super) fn cholesky(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (mut factor, mut grad) = (call.result(0)?, grad.clone());
    if call.flag(1) {
        (factor, grad) = (transposed(&factor)?, transposed(&grad)?);
    }
    let across = transposed(&factor)?;
    let inner = half_lower(&product(&across, &grad)?)?;
    let inner = aten::mul_scalar(&symmetric(&inner)?, 0.5)?;
    let inner = triangular(&across, &inner, (true, true, false))?;
    first_only(call, &triangular(&factor, &inner, (false, false, false))?)
}

pub(super) fn cholesky_ex(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    match &grads[0] {
        Some(grad) => cholesky(call, grad),
        None => Ok(vec![None; call.slots()]),
    }
}

pub(super) fn solve(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (a, left) = (call.tensor(0)?, call.flag(2));
    let vector = is_vector(a.shape(), &call.shape(1));
    let column = |x: &Tensor| if vector { aten::unsqueeze(x, -1) } else { Ok(x.clone()) };
    let of_b = solve_of(&transposed(&a)?, &column(grad)?, left)?;
    let of_a = || {
        let (x, of_b) = (transposed(&column(&call.result(0)?)?)?, aten::neg(&of_b)?);
        if left { product(&of_b, &x) } else { product(&x, &of_b) }
    };
    let of_a = if_needed(call, 0, of_a)?;
    let of_b =
        if_needed(call, 1, || if vector { aten::squeeze(&of_b, -1) } else { Ok(of_b.clone()) })?;
    Ok(vec![of_a, of_b])
}

pub(super) fn solve_ex(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    match &grads[0] {
        Some(grad) => solve(call, grad),
        None => Ok(vec![None; call.slots()]),
    }
}

pub(super) fn solve_triangular(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let a = call.tensor(0)?;
    let (is_upper, left, unit) = (call.flag(2), call.flag(3), call.flag(4));
    let of_b = triangular(&transposed(&a)?, grad, (!is_upper, left, unit))?;
    let of_a = || {
        let (x, of_b) = (transposed(&call.result(0)?)?, aten::neg(&of_b)?);
        let whole = if left { product(&of_b, &x)? } else { product(&x, &of_b)? };
        triangle(&whole, is_upper, unit)
    };
    Ok(vec![if_needed(call, 0, of_a)?, if_needed(call, 1, || Ok(of_b.clone()))?])
}

/// Returns the transposed inverse times a number for each matrix.
fn inverse_times(a: &Tensor, numbers: &Tensor) -> Result<Tensor> {
    let eye = super::algebra::identity(a)?;
    let inverse = solve_of(&transposed(a)?, &eye, true)?;
    aten::mul(&inverse, &each_matrix(numbers)?)
}

/// Gives numbers the dimensions of matrices of one element.
fn each_matrix(numbers: &Tensor) -> Result<Tensor> {
    aten::unsqueeze(&aten::unsqueeze(numbers, -1)?, -1)
}

/// Returns the matrices of cofactors, by the singular value decomposition, also of singular matrices: with
/// the products of all singular values but one.
pub(super) fn cofactors(a: &Tensor) -> Result<Tensor> {
    static DET: aten::Aten = aten::Aten::new("aten::linalg_det");
    let [u, s, vh] = &svd_of(a)?[..] else { return aten::zeros_like(a) };
    let sign = aten::mul(&DET.call(&[u.into()])?, &DET.call(&[vh.into()])?)?;
    let before = |s: &Tensor| -> Result<Tensor> {
        let n = s.shape()[s.ndim() - 1] as i64;
        let all = aten::cumprod(s, -1)?;
        let mut sizes = aten::sizes(s.shape());
        if let Some(last) = sizes.last_mut() {
            *last = n.min(1);
        }
        let one = aten::expand(&aten::full(&[], 1.0, s.dtype(), s.device())?, &sizes)?;
        let rest = aten::slice(&all, -1, ValueRef::Int(0), ValueRef::Int((n - 1).max(0)), 1)?;
        aten::cat(&[one, rest], -1)
    };
    let behind = aten::flip(&before(&aten::flip(s, &[-1])?)?, &[-1])?;
    let others = aten::mul(&before(s)?, &behind)?;
    let whole = product(&scale_columns(u, &others)?, vh)?;
    aten::mul(&whole, &each_matrix(&sign)?)
}

pub(super) fn det(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let a = call.tensor(0)?;
    if autograd::is_enabled() {
        // Cofactors by singular vectors have no derivative where two singular values are equal.
        let numbers = aten::mul(grad, &call.result(0)?)?;
        return first_only(call, &inverse_times(&a, &numbers)?);
    }
    first_only(call, &aten::mul(&cofactors(&a)?, &each_matrix(grad)?)?)
}

pub(super) fn slogdet(call: &Backward<'_>, grads: &[Option<Tensor>]) -> Result<Gradients> {
    // The sign is constant.
    match &grads[1] {
        Some(grad) => first_only(call, &inverse_times(&call.tensor(0)?, grad)?),
        None => Ok(vec![None; call.slots()]),
    }
}

/// Returns the strictly lower triangle less its mirror image.
pub(super) fn mirrored(x: &Tensor) -> Result<Tensor> {
    skew(&strictly_lower(x)?)
}
