//! Derivatives of scans.
//!
//! The derivative of a product `p[i]` of the elements up to `i` by one of them, `x[k]`, is `p[i] / x[k]`, except
//! where `x[k]` is 0. There it is the product of the others, which is 0 if another one of them is 0, too. So
//! first derivatives need the product with the lane's first zero left out, and those of higher order need the
//! other zeros as well: they compute what belongs to zeros by a recurrence instead, without divisions.

use keyfold_core::{Result, layout};
use keyfold_layers::autograd::{self, Backward, Forward, Gradients};
use keyfold_tensor::{Tensor, ValueRef};

use crate::aten;
use crate::vjp::{conj_if_complex, first_only};

/// Computes the cumulative sums from the last element on.
fn cumsum_from_end(x: &Tensor, dim: i64) -> Result<Tensor> {
    aten::flip(&aten::cumsum(&aten::flip(x, &[dim])?, dim)?, &[dim])
}

pub(super) fn cumsum(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    first_only(call, &cumsum_from_end(grad, call.int(1).unwrap_or(0))?)
}

/// The elements along a dimension from `start` to `end`, where negative places count from the end.
fn part(x: &Tensor, dim: i64, start: i64, end: Option<i64>) -> Result<Tensor> {
    aten::slice(x, dim, start.into(), end.map_or(ValueRef::None, ValueRef::Int), 1)
}

/// Moves elements one place on; the first ones become 1.
fn shifted(x: &Tensor, dim: i64) -> Result<Tensor> {
    let mut sizes = aten::sizes(x.shape());
    sizes[layout::normalize_axis(dim, x.ndim())?] = 1;
    let ones = aten::expand(&aten::full(&[], 1, x.dtype(), x.device())?, &sizes)?;
    aten::cat(&[ones, part(x, dim, 0, Some(-1))?], dim)
}

/// Solves `h[i] = a[i] h[i-1] + b[i]`, where `h[0] = b[0]`, in steps that double the distance (P. Kogge and
/// H. Stone, "A parallel algorithm for the efficient solution of a general class of recurrence equations", 1973).
fn recurrence(a: &Tensor, b: &Tensor, dim: i64) -> Result<Tensor> {
    let len = b.shape()[layout::normalize_axis(dim, b.ndim())?] as i64;
    let (mut a, mut b) = (a.clone(), b.clone());
    let mut distance = 1;
    while distance < len {
        let own = part(&a, dim, distance, None)?;
        let from = part(&b, dim, 0, Some(-distance))?;
        let next = aten::add(&part(&b, dim, distance, None)?, &aten::mul(&own, &from)?)?;
        b = aten::cat(&[part(&b, dim, 0, Some(distance))?, next], dim)?;
        let product = aten::mul(&own, &part(&a, dim, 0, Some(-distance))?)?;
        a = aten::cat(&[part(&a, dim, 0, Some(distance))?, product], dim)?;
        distance *= 2;
    }
    Ok(b)
}

/// The zeros of lanes.
struct Zeros {
    /// Whether an element is 0.
    mask: Tensor,
    /// The elements, with 1 in the place of zeros.
    replaced: Tensor,
}

impl Zeros {
    fn of(x: &Tensor) -> Result<Zeros> {
        let mask = aten::eq_scalar(x, 0)?;
        let replaced = aten::where_scalar_self(&mask, 1, x)?;
        Ok(Zeros { mask, replaced })
    }

    /// Returns the elements of lanes that have zeros, and 1 for those of the others, so that none of their
    /// products overflows.
    fn lanes_with_zeros(&self, x: &Tensor, dim: i64) -> Result<Tensor> {
        let count = aten::sum(&self.mask, &[dim], true)?;
        aten::where_scalar_other(&aten::gt_scalar(&count, 0)?, x, 1)
    }
}

/// The gradient of `x[k]` is `sum(grad[i] p[i]) / x[k]`, over all `i` from `k` on.
pub(super) fn cumprod(call: &Backward<'_>, grad: &Tensor) -> Result<Gradients> {
    let (x, products) = (call.tensor(0)?, call.result(0)?);
    let dim = call.int(1).unwrap_or(0);
    let x = if x.dtype() == grad.dtype() { x } else { aten::to(&x, grad.dtype())? };
    let (x, products) = (conj_if_complex(&x)?, conj_if_complex(&products)?);
    let zeros = Zeros::of(&x)?;
    let sums = cumsum_from_end(&aten::mul(grad, &products)?, dim)?;
    let of_zeros = match autograd::is_enabled() {
        true => {
            // The product of the elements before, times those behind, from the end on: h[k] = grad[k] + x[k+1] h[k+1].
            let lanes = zeros.lanes_with_zeros(&x, dim)?;
            let behind = shifted(&aten::flip(&lanes, &[dim])?, dim)?;
            let behind = recurrence(&behind, &aten::flip(grad, &[dim])?, dim)?;
            aten::mul(&shifted(&products, dim)?, &aten::flip(&behind, &[dim])?)?
        }
        false => {
            // Without the first zero, the products behind the second one are still 0.
            let nth = aten::cumsum(&zeros.mask, dim)?;
            let first = aten::where_scalar_other(&zeros.mask, &aten::eq_scalar(&nth, 1)?, false)?;
            let others = aten::cumprod(&aten::where_scalar_self(&first, 1, &x)?, dim)?;
            let sums = cumsum_from_end(&aten::mul(grad, &others)?, dim)?;
            aten::where_scalar_other(&first, &sums, 0)?
        }
    };
    let of_others = aten::div(&sums, &zeros.replaced)?;
    first_only(call, &aten::where_(&zeros.mask, &of_zeros, &of_others)?)
}

/// The tangent is `p[i] sum(t[k] / x[k])`, over all `k` up to `i`; that of zeros goes through the recurrence
/// `h[i] = x[i] h[i-1] + p[i-1] t[i]`.
pub(super) fn cumprod_tangent(call: &Forward<'_, '_>) -> Result<Option<Tensor>> {
    let Some(tangent) = call.tangent(0) else { return Ok(None) };
    let (x, products) = (call.tensor(0)?, call.result()?);
    let ValueRef::Int(dim) = call.args()[1] else { return Ok(None) };
    let dtype = products.dtype();
    let as_result =
        |x: &Tensor| if x.dtype() == dtype { Ok(x.clone()) } else { aten::to(x, dtype) };
    let (x, tangent) = (as_result(x)?, as_result(tangent)?);
    let zeros = Zeros::of(&x)?;
    let ratios = aten::where_scalar_self(&zeros.mask, 0, &aten::div(&tangent, &zeros.replaced)?)?;
    let of_others = aten::mul(products, &aten::cumsum(&ratios, dim)?)?;
    let at_zeros = aten::where_scalar_other(&zeros.mask, &tangent, 0)?;
    let at_zeros = aten::mul(&shifted(products, dim)?, &at_zeros)?;
    let of_zeros = recurrence(&zeros.lanes_with_zeros(&x, dim)?, &at_zeros, dim)?;
    aten::add(&of_others, &of_zeros).map(Some)
}
