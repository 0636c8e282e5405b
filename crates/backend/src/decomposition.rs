//! Decompositions of matrices, and linear systems.

use crate::{Group, Groups, Kernels, Operation, Params};

/// The parameters of the group `decomposition`.
///
/// Inputs and outputs are stacks of matrices with equal leading dimensions, of any strides, and of one dtype,
/// float32 or float64; sizes may be 0. `k` is the smaller of `m` and `n`.
///
/// | name | inputs | outputs |
/// | --- | --- | --- |
/// | `svd` | `A` `[m, n]` | with `vectors`: `U` `[m, k]`, `S` `[k]`, descending, and the transposed `V` `[k, n]`, with `full`: `[m, m]` and `[n, n]`; else `S` |
/// | `eigh` | `A` `[n, n]`, of which the lower triangle is read, with `upper` the upper one | the eigenvalues `[n]`, ascending, and with `vectors` the eigenvectors `[n, n]` in columns |
/// | `qr` | `A` `[m, n]` | with `vectors` `Q` `[m, k]`, with `full` `[m, m]`; then `R` `[k, n]`, with `full` `[m, n]` |
/// | `cholesky` | `A` `[n, n]`, of which the lower triangle is read, with `upper` the upper one | the lower triangular factor, or the upper one, and unless `checked` the order of the first leading minor that isn't positive, int32 `[]`, or 0 |
/// | `solve` | `A` `[n, n]`, `B` `[n, r]` | the solution of `A X = B`, and unless `checked` the number of the first pivot that is 0, counted from 1, int32 `[]`, or 0 |
/// | `solve_triangular` | `A` `[n, n]`, of which the lower triangle is read, with `upper` the upper one, with `unit` without its diagonal, which is 1; `B` `[n, r]` | the solution of `A X = B` |
/// | `det` | `A` `[n, n]` | the determinant `[]` |
/// | `slogdet` | `A` `[n, n]` | the sign of the determinant `[]`, and the logarithm of its absolute value `[]` |
///
/// Signs of singular vectors and eigenvectors are arbitrary; the host makes the greatest element of each column of
/// `U`, and of each eigenvector, positive.
///
/// Where a result doesn't exist, `checked` operations fail with an error of kind `Value` that names the matrix of the
/// stack; others fill it with NaN. `svd` and `eigh` fail so for elements that aren't finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecompositionParams {
    /// The kernel's operation.
    pub op: &'static Operation,
    /// Whether singular vectors, eigenvectors, or `Q` are among the outputs.
    pub vectors: bool,
    /// Whether there are vectors for the null space, too.
    pub full: bool,
    /// Whether the upper triangle is meant, not the lower one.
    pub upper: bool,
    /// Whether the diagonal of a triangular matrix is 1.
    pub unit: bool,
    /// Whether a result that doesn't exist is an error.
    pub checked: bool,
}

impl DecompositionParams {
    /// Returns the parameters of an operation, with all flags off.
    pub const fn new(op: &'static Operation) -> Self {
        let (vectors, full, upper, unit, checked) = (false, false, false, false, false);
        DecompositionParams { op, vectors, full, upper, unit, checked }
    }
}

impl Params for DecompositionParams {
    const GROUP: Group = Group::Decomposition;

    fn group<'a>(groups: &Groups<'a>) -> Option<&'a dyn Kernels<Self>> {
        groups.decomposition
    }

    fn operation(&self) -> &'static Operation {
        self.op
    }

    fn fields(&self) -> Vec<(&'static str, crate::Field)> {
        vec![
            ("vectors", self.vectors.into()),
            ("full", self.full.into()),
            ("upper", self.upper.into()),
            ("unit", self.unit.into()),
            ("checked", self.checked.into()),
        ]
    }
}
