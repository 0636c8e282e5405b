//! Functions of matrices for derivatives, by operators, so that derivatives are differentiable themselves.

use keyfold_core::Result;
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::aten::{self, Aten};

/// Returns the transposed matrices.
pub(super) fn transposed(x: &Tensor) -> Result<Tensor> {
    aten::transpose(x, -1, -2)
}

/// Returns `a b`.
pub(super) fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    aten::matmul(a, b)
}

/// Returns a mask of the elements of matrices below the diagonal; with `on` those on it, too.
fn below(x: &Tensor, on: bool) -> Result<Tensor> {
    let [rows, columns] = [2, 1].map(|back| x.shape()[x.ndim() - back] as i64);
    let row = aten::unsqueeze(&aten::arange(rows, x.device())?, 1)?;
    let column = aten::arange(columns, x.device())?;
    if on { aten::ge(&row, &column) } else { aten::gt(&row, &column) }
}

/// Returns matrices with zeros above the diagonal.
pub(super) fn lower(x: &Tensor) -> Result<Tensor> {
    aten::where_scalar_other(&below(x, true)?, x, 0)
}

/// Returns matrices with zeros on the diagonal and above.
pub(super) fn strictly_lower(x: &Tensor) -> Result<Tensor> {
    aten::where_scalar_other(&below(x, false)?, x, 0)
}

/// Returns matrices with zeros below the diagonal.
pub(super) fn upper(x: &Tensor) -> Result<Tensor> {
    aten::where_scalar_self(&below(x, false)?, 0, x)
}

/// Returns matrices with zeros on the diagonal and below.
pub(super) fn strictly_upper(x: &Tensor) -> Result<Tensor> {
    aten::where_scalar_self(&below(x, true)?, 0, x)
}

/// Returns the triangle of matrices that a triangular system reads.
pub(super) fn triangle(x: &Tensor, is_upper: bool, unit: bool) -> Result<Tensor> {
    match (is_upper, unit) {
        (true, false) => upper(x),
        (true, true) => strictly_upper(x),
        (false, false) => lower(x),
        (false, true) => strictly_lower(x),
    }
}

/// Returns the lower triangle with half of the diagonal.
pub(super) fn half_lower(x: &Tensor) -> Result<Tensor> {
    aten::mul_scalar(&aten::add(&lower(x)?, &strictly_lower(x)?)?, 0.5)
}

/// Returns the identity of the size of square matrices, of their dtype.
pub(super) fn identity(like: &Tensor) -> Result<Tensor> {
    let n = like.shape()[like.ndim() - 1] as i64;
    let places = aten::arange(n, like.device())?;
    aten::to(&aten::eq(&aten::unsqueeze(&places, 1)?, &places)?, like.dtype())
}

/// Replaces the diagonal of square matrices by a number.
pub(super) fn with_diagonal(x: &Tensor, number: f64) -> Result<Tensor> {
    let n = x.shape()[x.ndim() - 1] as i64;
    let places = aten::arange(n, x.device())?;
    let diagonal = aten::eq(&aten::unsqueeze(&places, 1)?, &places)?;
    aten::where_scalar_self(&diagonal, number, x)
}

/// Returns the diagonals of square matrices.
pub(super) fn diagonal(x: &Tensor) -> Result<Tensor> {
    aten::sum(&aten::sub(x, &with_diagonal(x, 0.0)?)?, &[-1], false)
}

/// Returns diagonal matrices.
pub(super) fn diagonal_matrix(values: &Tensor) -> Result<Tensor> {
    let identity = identity(values)?;
    // Not a product: infinite values would be NaN elsewhere.
    let mask = aten::ne_scalar(&identity, 0)?;
    aten::where_scalar_other(&mask, &aten::unsqueeze(values, -2)?, 0)
}

/// Multiplies the columns of matrices by values.
pub(super) fn scale_columns(x: &Tensor, values: &Tensor) -> Result<Tensor> {
    aten::mul(x, &aten::unsqueeze(values, -2)?)
}

/// Multiplies the rows of matrices by values.
pub(super) fn scale_rows(x: &Tensor, values: &Tensor) -> Result<Tensor> {
    aten::mul(x, &aten::unsqueeze(values, -1)?)
}

/// Returns `x - x^T`.
pub(super) fn skew(x: &Tensor) -> Result<Tensor> {
    aten::sub(x, &transposed(x)?)
}

/// Returns `x + x^T`.
pub(super) fn symmetric(x: &Tensor) -> Result<Tensor> {
    aten::add(x, &transposed(x)?)
}

/// Returns the differences `values[k] - values[j]` in row `j` and column `k`, with 1 on the diagonal.
pub(super) fn differences(values: &Tensor) -> Result<Tensor> {
    let all = aten::sub(&aten::unsqueeze(values, -2)?, &aten::unsqueeze(values, -1)?)?;
    with_diagonal(&all, 1.0)
}

/// `aten::linalg_solve`, of right sides that are matrices: fewer dimensions than those of `a` could mean
/// vectors.
pub(super) fn solve(a: &Tensor, b: &Tensor, left: bool) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::linalg_solve");
    if b.ndim() < a.ndim() {
        let mut sizes = aten::sizes(a.shape());
        let rank = sizes.len();
        sizes[rank - 2..].copy_from_slice(&aten::sizes(&b.shape()[b.ndim() - 2..]));
        let b = aten::expand(b, &sizes)?;
        return OP.call(&[a.into(), (&b).into(), left.into()]);
    }
    OP.call(&[a.into(), b.into(), left.into()])
}

/// `aten::linalg_solve_triangular`
pub(super) fn solve_triangular(
    a: &Tensor,
    b: &Tensor,
    (is_upper, left, unit): (bool, bool, bool),
) -> Result<Tensor> {
    static OP: Aten = Aten::new("aten::linalg_solve_triangular");
    OP.call(&[a.into(), b.into(), is_upper.into(), left.into(), unit.into()])
}

/// Returns the results of an operator with several.
fn several(op: &Aten, args: &[ValueRef<'_>]) -> Result<Vec<Tensor>> {
    match op.operator()?.call(args)? {
        Value::Tuple(results) => results.into_iter().map(Value::into_tensor).collect(),
        one => Ok(vec![one.into_tensor()?]),
    }
}

/// `aten::linalg_svd`, without the vectors of null spaces: `U`, `S`, and the transposed `V`.
pub(super) fn svd(a: &Tensor) -> Result<Vec<Tensor>> {
    static OP: Aten = Aten::new("aten::linalg_svd");
    several(&OP, &[a.into(), false.into()])
}

/// `aten::linalg_eigh`: the eigenvalues, and the eigenvectors in columns.
pub(super) fn eigh(a: &Tensor, triangle: &str) -> Result<Vec<Tensor>> {
    static OP: Aten = Aten::new("aten::linalg_eigh");
    several(&OP, &[a.into(), ValueRef::Str(triangle)])
}
