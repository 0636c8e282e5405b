//! Decompositions of one matrix, by the crate faer. Matrices are dense, columns first.

use std::mem::MaybeUninit;

use faer::diag::DiagMut;
use faer::dyn_stack::{MemStack, StackReq};
use faer::linalg::cholesky::llt::factor as llt;
use faer::linalg::evd::{self, ComputeEigenvectors, SelfAdjointEvdParams};
use faer::linalg::householder;
use faer::linalg::lu::partial_pivoting::factor as lu;
use faer::linalg::qr::no_pivoting::factor as qr;
use faer::linalg::svd::{self, ComputeSvdVectors, SvdParams};
use faer::linalg::triangular_solve as triangular;
use faer::{Conj, MatMut, MatRef, Par, Spec};

/// The memory of faer's intermediate results, which is used again for the next matrix of a stack.
#[derive(Default)]
pub(super) struct Scratch(Vec<MaybeUninit<u8>>);

impl Scratch {
    /// Returns memory of at least that layout.
    fn at_least(&mut self, need: StackReq) -> &mut MemStack {
        let bytes = need.unaligned_bytes_required();
        if self.0.len() < bytes {
            self.0.resize(bytes, MaybeUninit::uninit());
        }
        MemStack::new(&mut self.0)
    }
}

/// Returns a matrix over a slice, columns first.
fn matrix(items: &[f64], rows: usize, columns: usize) -> MatRef<'_, f64> {
    MatRef::from_column_major_slice(items, rows, columns)
}

fn matrix_mut(items: &mut [f64], rows: usize, columns: usize) -> MatMut<'_, f64> {
    MatMut::from_column_major_slice_mut(items, rows, columns)
}

/// Writes a matrix with ones on the diagonal and zeros elsewhere.
pub(super) fn write_identity(items: &mut [f64], rows: usize) {
    items.fill(0.0);
    for (column, items) in items.chunks_exact_mut(rows.max(1)).enumerate().take(rows) {
        items[column] = 1.0;
    }
}

/// Vectors of a decomposition: the elements, and the number of columns.
pub(super) type Vectors<'a> = Option<(&'a mut [f64], usize)>;

/// Computes singular values, and singular vectors in columns. Returns whether the iteration converged.
pub(super) fn svd(
    scratch: &mut Scratch,
    a: &[f64],
    [m, n]: [usize; 2],
    s: &mut [f64],
    u: Vectors<'_>,
    v: Vectors<'_>,
) -> bool {
    let size = s.len();
    let kind = |vectors: &Vectors<'_>| match vectors {
        None => ComputeSvdVectors::No,
        Some((_, columns)) if *columns == size => ComputeSvdVectors::Thin,
        Some(_) => ComputeSvdVectors::Full,
    };
    let params: Spec<SvdParams, f64> = Spec::default();
    let need = svd::svd_scratch::<f64>(m, n, kind(&u), kind(&v), Par::Seq, params);
    let u = u.map(|(items, columns)| matrix_mut(items, m, columns));
    let v = v.map(|(items, columns)| matrix_mut(items, n, columns));
    let s = DiagMut::from_slice_mut(s);
    svd::svd(matrix(a, m, n), s, u, v, Par::Seq, scratch.at_least(need), params).is_ok()
}

/// Computes eigenvalues, and eigenvectors in columns, of a matrix whose lower triangle is read. Returns
/// whether the iteration converged.
pub(super) fn eigh(
    scratch: &mut Scratch,
    a: &[f64],
    n: usize,
    values: &mut [f64],
    vectors: Option<&mut [f64]>,
) -> bool {
    let params: Spec<SelfAdjointEvdParams, f64> = Spec::default();
    let kind = if vectors.is_some() { ComputeEigenvectors::Yes } else { ComputeEigenvectors::No };
    let need = evd::self_adjoint_evd_scratch::<f64>(n, kind, Par::Seq, params);
    let vectors = vectors.map(|items| matrix_mut(items, n, n));
    let values = DiagMut::from_slice_mut(values);
    let memory = scratch.at_least(need);
    evd::self_adjoint_evd(matrix(a, n, n), values, vectors, Par::Seq, memory, params).is_ok()
}

/// Replaces `a` by `R`, below whose diagonal other numbers remain, and writes `Q`.
pub(super) fn qr(scratch: &mut Scratch, a: &mut [f64], [m, n]: [usize; 2], q: Vectors<'_>) {
    let size = m.min(n);
    let block = qr::recommended_block_size::<f64>(m, n);
    let mut factors = vec![0.0; block * size];
    let mut factors = matrix_mut(&mut factors, block, size);
    let params: Spec<qr::QrParams, f64> = Spec::default();
    let need = qr::qr_in_place_scratch::<f64>(m, n, block, Par::Seq, params);
    let memory = scratch.at_least(need);
    qr::qr_in_place(matrix_mut(a, m, n), factors.as_mut(), Par::Seq, memory, params);
    let Some((items, columns)) = q else { return };
    write_identity(items, m);
    let need = householder::apply_block_householder_sequence_on_the_left_in_place_scratch::<f64>(
        m, block, columns,
    );
    householder::apply_block_householder_sequence_on_the_left_in_place_with_conj(
        matrix(a, m, n).subcols(0, size),
        factors.as_ref(),
        Conj::No,
        matrix_mut(items, m, columns),
        Par::Seq,
        scratch.at_least(need),
    );
}

/// Replaces the lower triangle of `a` by its factor; the other triangle remains. Returns the order of the
/// first leading minor that isn't positive.
pub(super) fn cholesky(scratch: &mut Scratch, a: &mut [f64], n: usize) -> Option<usize> {
    let params: Spec<llt::LltParams, f64> = Spec::default();
    let memory = scratch.at_least(llt::cholesky_in_place_scratch::<f64>(n, Par::Seq, params));
    let a = matrix_mut(a, n, n);
    match llt::cholesky_in_place(a, llt::LltRegularization::default(), Par::Seq, memory, params) {
        Ok(_) => None,
        Err(llt::LltError::NonPositivePivot { index }) => Some(index + 1),
    }
}

/// The rows of a matrix in the order of its factorization, and the sign of that permutation.
pub(super) struct Pivots {
    forward: Vec<usize>,
    inverse: Vec<usize>,
    pub(super) is_odd: bool,
}

impl Pivots {
    pub(super) fn new(n: usize) -> Pivots {
        Pivots { forward: vec![0; n], inverse: vec![0; n], is_odd: false }
    }
}

/// Replaces `a` by its triangular factors, that of the rows in the order of `pivots`.
pub(super) fn lu(scratch: &mut Scratch, a: &mut [f64], n: usize, pivots: &mut Pivots) {
    let params: Spec<lu::PartialPivLuParams, f64> = Spec::default();
    let need = lu::lu_in_place_scratch::<usize, f64>(n, n, Par::Seq, params);
    let Pivots { forward, inverse, is_odd } = pivots;
    let (memory, a) = (scratch.at_least(need), matrix_mut(a, n, n));
    let (info, _) = lu::lu_in_place(a, forward, inverse, Par::Seq, memory, params);
    *is_odd = info.transposition_count % 2 == 1;
}

/// Solves a system whose matrix has been factored; `b` becomes the solution.
pub(super) fn solve(a: &[f64], n: usize, pivots: &Pivots, b: &mut [f64], columns: usize) {
    let mut column = vec![0.0; n];
    for items in b.chunks_exact_mut(n) {
        column.copy_from_slice(items);
        for (item, row) in items.iter_mut().zip(&pivots.forward) {
            *item = column[*row];
        }
    }
    let mut b = matrix_mut(b, n, columns);
    let a = matrix(a, n, n);
    triangular::solve_unit_lower_triangular_in_place(a, b.as_mut(), Par::Seq);
    triangular::solve_upper_triangular_in_place(a, b, Par::Seq);
}

/// Solves a triangular system; `b` becomes the solution.
pub(super) fn solve_triangular(
    a: &[f64],
    n: usize,
    (upper, unit): (bool, bool),
    b: &mut [f64],
    columns: usize,
) {
    let (a, b) = (matrix(a, n, n), matrix_mut(b, n, columns));
    match (upper, unit) {
        (false, false) => triangular::solve_lower_triangular_in_place(a, b, Par::Seq),
        (false, true) => triangular::solve_unit_lower_triangular_in_place(a, b, Par::Seq),
        (true, false) => triangular::solve_upper_triangular_in_place(a, b, Par::Seq),
        (true, true) => triangular::solve_unit_upper_triangular_in_place(a, b, Par::Seq),
    }
}
