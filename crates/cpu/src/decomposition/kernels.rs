//! The decompositions of a stack's matrices.

use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_backend::DecompositionParams;
use keyfold_core::{Error, ErrorKind, Result};
use keyfold_kit::pool::{Schedule, grain_for, parallel_for};
use keyfold_tensor::Tensor;

use super::factor::{self, Pivots, Scratch, Vectors, write_identity};
use super::stack::{Source, Target};

/// An operation.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Work {
    Svd,
    Eigh,
    Qr,
    Cholesky,
    Solve,
    SolveTriangular,
    Det,
    Slogdet,
}

impl Work {
    /// The dimensions of an item of each output, from the first on.
    fn items(self, params: &DecompositionParams) -> &'static [usize] {
        match self {
            Work::Svd if params.vectors => &[2, 1, 2],
            Work::Svd => &[1],
            Work::Eigh => &[1, 2],
            Work::Qr => &[2, 2],
            Work::Cholesky | Work::Solve => &[2, 0],
            Work::SolveTriangular => &[2],
            Work::Det => &[0],
            Work::Slogdet => &[0, 0],
        }
    }

    /// The time of a matrix, in nanoseconds: floating-point operations at a few per nanosecond.
    fn nanoseconds(self, [m, n]: [usize; 2], columns: usize) -> f64 {
        let (m, n, columns) = (m as f64, n as f64, columns as f64);
        let least = m.min(n);
        let operations = match self {
            Work::Svd => 20.0 * m * n * least,
            Work::Eigh => 10.0 * n * n * n,
            Work::Qr => 4.0 * m * n * least,
            Work::SolveTriangular => n * n * columns,
            _ => n * n * n / 3.0 + 2.0 * n * n * columns,
        };
        200.0 + operations / 4.0
    }
}

/// The failure of a matrix.
enum Fault {
    NotPositive(usize),
    Singular(usize),
    NotFinite,
    NoConvergence,
}

/// The stacks of a call.
struct Stacks<'a> {
    params: &'a DecompositionParams,
    a: Source,
    b: Option<Source>,
    outs: Vec<Target>,
}

/// The memory of a thread, which is used again for each matrix.
#[derive(Default)]
struct Memory {
    scratch: Scratch,
    a: Vec<f64>,
    b: Vec<f64>,
    left: Vec<f64>,
    right: Vec<f64>,
    values: Vec<f64>,
    column: Vec<f64>,
}

/// Decomposes all matrices.
///
/// # Errors
/// That of the first matrix of the stack without a result, for operations that are checked.
pub(super) fn run(
    work: Work,
    params: &DecompositionParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let [a, rest @ ..] = inputs else { return Ok(()) };
    let targets = outputs.iter().zip(work.items(params));
    let stacks = Stacks {
        params,
        a: Source::new(a)?,
        b: rest.first().map(|b| Source::new(b)).transpose()?,
        outs: targets.map(|(out, item)| Target::new(out, *item)).collect::<Result<_>>()?,
    };
    let (count, shape) = stacks.a.sizes();
    check_memory(&stacks)?;
    let columns = stacks.b.as_ref().map_or(0, |b| b.sizes().1[1]);
    let grain = grain_for(work.nanoseconds(shape, columns));
    let failed = AtomicUsize::new(usize::MAX);
    parallel_for(Schedule::Adaptive, 0..count, grain, |numbers| {
        let mut memory = Memory::default();
        for number in numbers {
            if stacks.decompose(work, number, &mut memory).is_some() {
                failed.fetch_min(number, Ordering::Relaxed);
            }
        }
        Ok(())
    })?;
    match failed.into_inner() {
        usize::MAX => Ok(()),
        // Computed once more for its message: of several matrices the first one is named.
        first => match stacks.decompose(work, first, &mut Memory::default()) {
            Some(fault) => Err(stacks.error(first, &fault)),
            None => Ok(()),
        },
    }
}

/// Refuses matrices whose copies don't fit in memory, as those of broadcast views may not.
fn check_memory(stacks: &Stacks<'_>) -> Result<()> {
    for [rows, columns] in
        [Some(&stacks.a), stacks.b.as_ref()].into_iter().flatten().map(|x| x.sizes().1)
    {
        let len = rows.checked_mul(columns);
        if len.is_none_or(|len| Vec::<f64>::new().try_reserve_exact(len).is_err()) {
            let message = format!("can't allocate host memory for a matrix of {rows} by {columns}");
            return Err(Error::new(ErrorKind::Memory, message));
        }
    }
    Ok(())
}

impl Stacks<'_> {
    /// Decomposes a matrix; returns the fault that is an error.
    fn decompose(&self, work: Work, number: usize, memory: &mut Memory) -> Option<Fault> {
        self.a.load(number, &mut memory.a);
        if let Some(b) = &self.b {
            b.load(number, &mut memory.b);
        }
        match work {
            Work::Svd => self.svd(number, memory),
            Work::Eigh => self.eigh(number, memory),
            Work::Qr => self.qr(number, memory),
            Work::Cholesky => self.cholesky(number, memory),
            Work::Solve => self.solve(number, memory),
            Work::SolveTriangular => self.solve_triangular(number, memory),
            Work::Det | Work::Slogdet => self.det(work, number, memory),
        }
    }

    fn svd(&self, number: usize, memory: &mut Memory) -> Option<Fault> {
        let Memory { scratch, a, left, right, values, column, .. } = memory;
        if a.iter().any(|item| !item.is_finite()) {
            return Some(Fault::NotFinite);
        }
        let unscale = scale(a);
        let [m, n] = self.a.sizes().1;
        let size = m.min(n);
        let (columns_u, columns_v) = if self.params.full { (m, n) } else { (size, size) };
        zeros(values, size);
        let vectors = self.params.vectors;
        if vectors {
            // Of tall matrices faer leaves a part of the vectors of the null space as it was.
            zeros(left, m * columns_u);
            zeros(right, n * columns_v);
        }
        if size == 0 {
            write_identity(&mut left[..], m);
            write_identity(&mut right[..], n);
        } else {
            let u: Vectors<'_> = vectors.then_some((&mut left[..], columns_u));
            let v: Vectors<'_> = vectors.then_some((&mut right[..], columns_v));
            if !factor::svd(scratch, a, [m, n], values, u, v) {
                return Some(Fault::NoConvergence);
            }
        }
        values.iter_mut().for_each(|value| *value *= unscale);
        if let [of_u, of_s, of_v] = &self.outs[..] {
            fix_signs(left, m, right, n);
            of_u.store(number, column, left, m);
            of_s.store(number, column, values, size);
            of_v.store_transposed(number, column, right, n);
        } else {
            self.outs[0].store(number, column, values, size);
        }
        None
    }

    fn eigh(&self, number: usize, memory: &mut Memory) -> Option<Fault> {
        let Memory { scratch, a, left, values, column, .. } = memory;
        let n = self.a.sizes().1[0];
        transpose_if(self.params.upper, a, n);
        // The other triangle isn't read, whatever it holds.
        for (column, items) in a.chunks_exact_mut(n.max(1)).enumerate() {
            items[..column].fill(0.0);
        }
        if a.iter().any(|item| !item.is_finite()) {
            return Some(Fault::NotFinite);
        }
        let unscale = scale(a);
        zeros(values, n);
        left.resize(n * n, 0.0);
        let vectors = self.params.vectors.then_some(&mut left[..]);
        if n > 0 && !factor::eigh(scratch, a, n, values, vectors) {
            return Some(Fault::NoConvergence);
        }
        values.iter_mut().for_each(|value| *value *= unscale);
        self.outs[0].store(number, column, values, n);
        if let Some(of_vectors) = self.outs.get(1) {
            fix_signs(left, n, &mut [], 0);
            of_vectors.store(number, column, left, n);
        }
        None
    }

    fn qr(&self, number: usize, memory: &mut Memory) -> Option<Fault> {
        let Memory { scratch, a, left, column, .. } = memory;
        let [m, n] = self.a.sizes().1;
        let columns = if self.params.full { m } else { m.min(n) };
        left.resize(m * columns, 0.0);
        match m.min(n) {
            0 => write_identity(left, m),
            _ => {
                let q = self.params.vectors.then_some((&mut left[..], columns));
                factor::qr(scratch, a, [m, n], q);
            }
        }
        let (of_r, of_q) = self.outs.split_last()?;
        if let Some(of_q) = of_q.first() {
            of_q.store(number, column, left, m);
        }
        of_r.store_with(number, column, |row, at| if row <= at { a[at * m + row] } else { 0.0 });
        None
    }

    fn cholesky(&self, number: usize, memory: &mut Memory) -> Option<Fault> {
        let Memory { scratch, a, column, .. } = memory;
        let n = self.a.sizes().1[0];
        transpose_if(self.params.upper, a, n);
        let minor = if n == 0 { None } else { factor::cholesky(scratch, a, n) };
        // Nor is NaN positive.
        let unordered = || (0..n).find(|i| a[i * n + i].is_nan()).map(|i| i + 1);
        let order = minor.or_else(unordered).unwrap_or(0);
        if self.params.checked && order > 0 {
            return Some(Fault::NotPositive(order));
        }
        let upper = self.params.upper;
        self.outs[0].store_with(number, column, |row, at| {
            let (row, at) = if upper { (at, row) } else { (row, at) };
            match (order, row >= at) {
                (0, true) => a[at * n + row],
                (0, false) => 0.0,
                _ => f64::NAN,
            }
        });
        if let Some(info) = self.outs.get(1) {
            info.fill(number, column, order as f64);
        }
        None
    }

    fn solve(&self, number: usize, memory: &mut Memory) -> Option<Fault> {
        let Memory { scratch, a, b, column, .. } = memory;
        let [n, columns] = self.outs[0].shape();
        let mut pivots = Pivots::new(n);
        if n > 0 {
            factor::lu(scratch, a, n, &mut pivots);
        }
        let singular = (0..n).position(|i| a[i * n + i] == 0.0).map_or(0, |i| i + 1);
        if self.params.checked && singular > 0 {
            return Some(Fault::Singular(singular));
        }
        if singular > 0 {
            self.outs[0].fill(number, column, f64::NAN);
        } else if n * columns > 0 {
            factor::solve(a, n, &pivots, b, columns);
            self.outs[0].store(number, column, b, n);
        }
        if let Some(info) = self.outs.get(1) {
            info.fill(number, column, singular as f64);
        }
        None
    }

    fn solve_triangular(&self, number: usize, memory: &mut Memory) -> Option<Fault> {
        let Memory { a, b, column, .. } = memory;
        let [n, columns] = self.outs[0].shape();
        if n * columns > 0 {
            let DecompositionParams { upper, unit, .. } = *self.params;
            factor::solve_triangular(a, n, (upper, unit), b, columns);
            self.outs[0].store(number, column, b, n);
        }
        None
    }

    fn det(&self, work: Work, number: usize, memory: &mut Memory) -> Option<Fault> {
        let Memory { scratch, a, column, .. } = memory;
        let n = self.a.sizes().1[0];
        let mut pivots = Pivots::new(n);
        if n > 0 {
            factor::lu(scratch, a, n, &mut pivots);
        }
        let sign = if pivots.is_odd { -1.0 } else { 1.0 };
        let diagonal = (0..n).map(|i| a[i * n + i]);
        if work == Work::Det {
            let product: f64 = diagonal.product();
            self.outs[0].fill(number, column, sign * product);
            return None;
        }
        let (mut sign, mut total) = (sign, 0.0);
        for item in diagonal {
            // Not the bit of the sign: that of a zero is 0, and that of NaN is NaN.
            sign *= if item > 0.0 {
                1.0
            } else if item < 0.0 {
                -1.0
            } else {
                item
            };
            total += item.abs().ln();
        }
        self.outs[0].fill(number, column, sign);
        self.outs[1].fill(number, column, total);
        None
    }

    #[cold]
    fn error(&self, number: usize, fault: &Fault) -> Error {
        let which = self.a.name(number);
        let message = match fault {
            Fault::NotPositive(order) => format!(
                "{which} isn't positive definite: its leading minor of order {order} isn't positive"
            ),
            Fault::Singular(pivot) => format!(
                "{which} is singular: pivot {pivot} of its elimination is 0, so there is no unique \
                 solution"
            ),
            Fault::NotFinite => {
                format!("{which} has elements that are NaN or infinite, which has no decomposition")
            }
            Fault::NoConvergence => format!("the iteration for {which} didn't converge"),
        };
        Error::new(ErrorKind::Value, message)
    }
}

/// Multiplies the elements by a power of 2 where squares of the greatest are out of range. Returns the
/// factor that undoes it.
fn scale(items: &mut [f64]) -> f64 {
    const fn power(exponent: i64) -> f64 {
        f64::from_bits(((exponent + 1023) as u64) << 52)
    }
    let greatest = items.iter().fold(0.0, |greatest: f64, item| greatest.max(item.abs()));
    let exponent = if greatest > power(500) {
        -600
    } else if greatest > 0.0 && greatest < power(-500) {
        600
    } else {
        return 1.0;
    };
    items.iter_mut().for_each(|item| *item *= power(exponent));
    power(-exponent)
}

/// Makes a vector one of so many zeros.
fn zeros(items: &mut Vec<f64>, count: usize) {
    items.clear();
    items.resize(count, 0.0);
}

/// Makes the greatest element of each column positive, and changes the sign of the same column of another
/// matrix with it. So signs, which are arbitrary, don't change under small changes of a matrix; columns that
/// only one of them has are vectors of its null space.
fn fix_signs(items: &mut [f64], rows: usize, others: &mut [f64], other_rows: usize) {
    let mut pairs = others.chunks_exact_mut(other_rows.max(1));
    let fix = |column: &mut [f64], pair: Option<&mut [f64]>| {
        let greatest = column.iter().copied().reduce(|a, b| if b.abs() > a.abs() { b } else { a });
        if greatest.is_some_and(|greatest| greatest < 0.0) {
            let all = column.iter_mut().chain(pair.into_iter().flatten());
            all.for_each(|item| *item = -*item);
        }
    };
    for column in items.chunks_exact_mut(rows.max(1)) {
        fix(column, pairs.next());
    }
    for column in pairs {
        fix(column, None);
    }
}

/// Transposes a square matrix if the upper triangle is meant.
fn transpose_if(upper: bool, a: &mut [f64], n: usize) {
    if upper {
        for row in 1..n {
            for column in 0..row {
                a.swap(row * n + column, column * n + row);
            }
        }
    }
}
