//! Rules of forward mode of decompositions; sources as for [`super::gradients`].

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_layers::autograd::{Forward, Pushforward, added};
use keyfold_tensor::{Tensor, ValueRef};

use super::algebra::{
    diagonal, differences, eigh as eigh_of, half_lower, identity, product, scale_columns,
    scale_rows, solve as solve_of, solve_triangular as triangular, svd as svd_of, symmetric,
    transposed, triangle, with_diagonal,
};
use super::checks::is_vector;
use super::gradients::{check_qr, cofactors, mirrored};
use crate::arg_values::is_true;
use crate::aten;

/// A rule as a plain function of a call, for operators with several results.
struct Rule(fn(&Forward<'_, '_>) -> Result<Vec<Option<Tensor>>>);

impl Pushforward for Rule {
    fn apply(&self, call: &Forward<'_, '_>) -> Result<Vec<Option<Tensor>>> {
        (self.0)(call)
    }
}

pub(super) fn svd() -> Arc<dyn Pushforward> {
    Arc::new(Rule(|call| {
        let Some(tangent) = call.tangent(0) else { return Ok(vec![None; 3]) };
        let [u, s, vh] = call.results() else { return Ok(vec![None; 3]) };
        let (m, n) = (u.shape()[u.ndim() - 2], vh.shape()[vh.ndim() - 1]);
        if is_true(call.args()[1]) && m != n {
            let message = "aten::linalg_svd: singular vectors of the null space aren't unique, so they \
                           have no derivative; use full_matrices=False";
            return Err(keyfold_core::Error::new(keyfold_core::ErrorKind::Gradient, message));
        }
        let (ut, v) = (transposed(u)?, transposed(vh)?);
        let right = product(tangent, &v)?;
        let inner = product(&ut, &right)?;
        let of_s = diagonal(&inner)?;
        let inner = with_diagonal(&inner, 0.0)?;
        let apart = differences(&aten::mul(s, s)?)?;
        let turned = aten::div(&symmetric(&scale_columns(&inner, s)?)?, &apart)?;
        let mut of_u = product(u, &turned)?;
        if m > n {
            let outside = aten::sub(&right, &product(u, &product(&ut, &right)?)?)?;
            of_u = aten::add(&of_u, &aten::div(&outside, &aten::unsqueeze(s, -2)?)?)?;
        }
        let turned = aten::div(&symmetric(&scale_rows(&inner, s)?)?, &apart)?;
        let mut of_v = product(&v, &turned)?;
        if n > m {
            let left = product(&transposed(tangent)?, u)?;
            let outside = aten::sub(&left, &product(&v, &product(vh, &left)?)?)?;
            of_v = aten::add(&of_v, &aten::div(&outside, &aten::unsqueeze(s, -2)?)?)?;
        }
        Ok(vec![Some(of_u), Some(of_s), Some(transposed(&of_v)?)])
    }))
}

/// Returns the diagonal of `left^T tangent right`.
fn projected(left: &Tensor, tangent: &Tensor, right: &Tensor) -> Result<Tensor> {
    aten::sum(&aten::mul(left, &product(tangent, right)?)?, &[-2], false)
}

pub(super) fn svdvals(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let Some(tangent) = call.tangent(0) else { return Ok(None) };
    let [u, _, vh] = &svd_of(call.tensor(0)?)?[..] else { return Ok(None) };
    projected(u, tangent, &transposed(vh)?).map(Some)
}

/// Returns the symmetric part of a tangent. A symmetric matrix moves in symmetric directions only, and of
/// others this is what agrees with the gradients, which are symmetric.
fn symmetric_part(tangent: &Tensor) -> Result<Tensor> {
    aten::mul_scalar(&symmetric(tangent)?, 0.5)
}

pub(super) fn eigh() -> Arc<dyn Pushforward> {
    Arc::new(Rule(|call| {
        let Some(tangent) = call.tangent(0) else { return Ok(vec![None; 2]) };
        let [values, vectors] = call.results() else { return Ok(vec![None; 2]) };
        let tangent = symmetric_part(tangent)?;
        let inner = product(&transposed(vectors)?, &product(&tangent, vectors)?)?;
        let turned = aten::div(&with_diagonal(&inner, 0.0)?, &differences(values)?)?;
        Ok(vec![Some(diagonal(&inner)?), Some(product(vectors, &turned)?)])
    }))
}

pub(super) fn eigvalsh(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let Some(tangent) = call.tangent(0) else { return Ok(None) };
    let ValueRef::Str(which) = call.args()[1] else { return Ok(None) };
    let [_, vectors] = &eigh_of(call.tensor(0)?, which)?[..] else { return Ok(None) };
    projected(vectors, &symmetric_part(tangent)?, vectors).map(Some)
}

pub(super) fn qr() -> Arc<dyn Pushforward> {
    Arc::new(Rule(|call| {
        let x = call.tensor(0)?;
        let (m, n) = (x.shape()[x.ndim() - 2], x.shape()[x.ndim() - 1]);
        check_qr(call.args()[1], m, n)?;
        let (Some(tangent), [q, r]) = (call.tangent(0), call.results()) else {
            return Ok(vec![None; call.results().len()]);
        };
        let split = m.min(n) as i64;
        let (start, end) = (ValueRef::Int(0), ValueRef::Int(split));
        let first = |x: &Tensor| aten::slice(x, -1, start, end, 1);
        let (r1, tangent1) = (first(r)?, first(tangent)?);
        let qt = transposed(q)?;
        let scaled = triangular(&r1, &tangent1, (true, false, false))?;
        let inner = product(&qt, &scaled)?;
        let turned = mirrored(&inner)?;
        let of_q = aten::add(&aten::sub(&scaled, &product(q, &inner)?)?, &product(q, &turned)?)?;
        let mut of_r = product(&aten::sub(&inner, &turned)?, &r1)?;
        of_r = super::algebra::upper(&of_r)?;
        if n > m {
            let others = |x: &Tensor| aten::slice(x, -1, end, ValueRef::None, 1);
            let turned = product(&transposed(&of_q)?, &product(q, &others(r)?)?)?;
            let others = aten::add(&turned, &product(&qt, &others(tangent)?)?)?;
            of_r = aten::cat(&[of_r, others], -1)?;
        }
        Ok(vec![Some(of_q), Some(of_r)])
    }))
}

pub(super) fn cholesky(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let Some(tangent) = call.tangent(0) else { return Ok(None) };
    let Some(factor) = call.results().first() else { return Ok(None) };
    let upper = is_true(call.args()[1]);
    let tangent = symmetric_part(tangent)?;
    let lower = if upper { transposed(factor)? } else { factor.clone() };
    let inner = triangular(&lower, &tangent, (false, true, false))?;
    let inner = triangular(&transposed(&lower)?, &inner, (true, false, false))?;
    let of_lower = product(&lower, &half_lower(&inner)?)?;
    if upper { transposed(&of_lower).map(Some) } else { Ok(Some(of_lower)) }
}

/// Adds the tangent of an integer result, which is none.
fn with_info(
    call: &Forward<'_, '_>,
    rule: fn(&Forward<'_, '_>) -> Result<Option<Tensor>>,
) -> Result<Vec<Option<Tensor>>> {
    Ok(vec![rule(call)?, None])
}

pub(super) fn cholesky_ex() -> Arc<dyn Pushforward> {
    Arc::new(Rule(|call| with_info(call, cholesky)))
}

pub(super) fn solve(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let (a, b, left) = (call.tensor(0)?, call.tensor(1)?, is_true(call.args()[2]));
    let vector = is_vector(a.shape(), b.shape());
    let column = |x: &Tensor| if vector { aten::unsqueeze(x, -1) } else { Ok(x.clone()) };
    let Some(x) = call.results().first() else { return Ok(None) };
    let x = column(x)?;
    let moved = match call.tangent(0) {
        Some(tangent) => {
            let moved = if left { product(tangent, &x)? } else { product(&x, tangent)? };
            Some(aten::neg(&moved)?)
        }
        None => None,
    };
    let of_b = call.tangent(1).map(column).transpose()?;
    let Some(total) = added(moved, of_b)? else { return Ok(None) };
    // Of the solution's shape, also where only B, of fewer dimensions, has a tangent.
    let total = aten::expand(&total, &aten::sizes(x.shape()))?;
    let found = solve_of(a, &total, left)?;
    if vector { aten::squeeze(&found, -1).map(Some) } else { Ok(Some(found)) }
}

pub(super) fn solve_ex() -> Arc<dyn Pushforward> {
    Arc::new(Rule(|call| with_info(call, solve)))
}

pub(super) fn solve_triangular(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let (a, args) = (call.tensor(0)?, call.args());
    let (upper, left, unit) = (is_true(args[2]), is_true(args[3]), is_true(args[4]));
    let Some(x) = call.results().first() else { return Ok(None) };
    let moved = match call.tangent(0) {
        Some(tangent) => {
            let tangent = triangle(tangent, upper, unit)?;
            let moved = if left { product(&tangent, x)? } else { product(x, &tangent)? };
            Some(aten::neg(&moved)?)
        }
        None => None,
    };
    let Some(total) = added(moved, call.tangent(1).cloned())? else { return Ok(None) };
    triangular(a, &total, (upper, left, unit)).map(Some)
}

/// Returns the sum of the products of two matrices' elements.
fn inner(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    aten::sum(&aten::mul(a, b)?, &[-2, -1], false)
}

pub(super) fn det(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let Some(tangent) = call.tangent(0) else { return Ok(None) };
    inner(&cofactors(call.tensor(0)?)?, tangent).map(Some)
}

pub(super) fn slogdet() -> Arc<dyn Pushforward> {
    Arc::new(Rule(|call| {
        let Some(tangent) = call.tangent(0) else { return Ok(vec![None; 2]) };
        let a = call.tensor(0)?;
        let inverse = solve_of(&transposed(a)?, &identity(a)?, true)?;
        Ok(vec![None, Some(inner(&inverse, tangent)?)])
    }))
}
