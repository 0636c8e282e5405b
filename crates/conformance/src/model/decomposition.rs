//! Decompositions and linear systems. Singular vectors and the like aren't unique, and the errors of solutions
//! depend on the matrix, so that a property is checked: that the factors' product is the matrix, and that
//! the solution solves the system.

use keyfold_core::DType;

use super::{Expected, Given, Property};
use crate::array::Array;
use crate::number::{Number, unit};

const SVD: &str = "aten::linalg_svd";
const SVDVALS: &str = "aten::linalg_svdvals";
const EIGH: &str = "aten::linalg_eigh";
const EIGVALSH: &str = "aten::linalg_eigvalsh";
const QR: &str = "aten::linalg_qr";
const CHOLESKY: &str = "aten::linalg_cholesky";
const CHOLESKY_EX: &str = "aten::linalg_cholesky_ex";
const SOLVE: &str = "aten::linalg_solve";
const SOLVE_EX: &str = "aten::linalg_solve_ex";
const SOLVE_TRIANGULAR: &str = "aten::linalg_solve_triangular";
const INV: &str = "aten::linalg_inv";

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Vec<Expected>> {
    let (SVD
    | SVDVALS
    | EIGH
    | EIGVALSH
    | QR
    | CHOLESKY
    | CHOLESKY_EX
    | SOLVE
    | SOLVE_EX
    | SOLVE_TRIANGULAR
    | INV
    | "aten::linalg_det"
    | "aten::linalg_slogdet") = name
    else {
        return None;
    };
    let a = given.array(0);
    let (stack, item) = a.shape.split_at(a.shape.len() - 2);
    let [m, n] = [item[0], item[1]];
    let least = m.min(n);
    let of = |item: &[usize]| Expected::any(a.dtype, &[stack, item].concat());
    let info = |stack: &[usize]| Expected::from_fn(DType::I32, stack, |_| (Number::Whole(0), 0.0));
    Some(match name {
        SVD if given.flag(1) => vec![of(&[m, m]), of(&[least]), of(&[n, n])],
        SVD => vec![of(&[m, least]), of(&[least]), of(&[least, n])],
        SVDVALS => vec![of(&[least])],
        EIGH => vec![of(&[n]), of(&[n, n])],
        EIGVALSH => vec![of(&[n])],
        QR => match given.text(1) {
            "complete" => vec![of(&[m, m]), of(&[m, n])],
            "r" => vec![Expected::any(a.dtype, &[0]), of(&[least, n])],
            _ => vec![of(&[m, least]), of(&[least, n])],
        },
        CHOLESKY | INV => vec![of(&[n, n])],
        CHOLESKY_EX => vec![of(&[n, n]), info(stack)],
        SOLVE | SOLVE_EX | SOLVE_TRIANGULAR => {
            let systems = Systems::of(name, given);
            let mut all = vec![Expected::any(a.dtype, &systems.shape)];
            if name == SOLVE_EX {
                all.push(info(&systems.stack));
            }
            all
        }
        _ => {
            let dets: Vec<(f64, f64)> = (0..count(a)).map(|at| det(&Matrix::of(a, at))).collect();
            let u = unit(a.dtype);
            let make = |item: fn(f64, f64, f64) -> (f64, f64)| {
                let mut at = 0;
                Expected::from_fn(a.dtype, stack, |_| {
                    let (value, error) = item(dets[at].0, dets[at].1, u);
                    at += 1;
                    (Number::Float(value), error)
                })
            };
            match name {
                "aten::linalg_det" => vec![make(|value, error, _| (value, error))],
                _ => vec![
                    make(|value, _, _| (if value == 0.0 { 0.0 } else { value.signum() }, 0.0)),
                    make(|value, error, u| {
                        let log = value.abs().ln();
                        (log, error / value.abs() + 64.0 * u * log.abs())
                    }),
                ],
            }
        }
    })
}

/// The property of an operator's results.
pub(super) fn property(name: &str) -> Option<Property> {
    Some(match name {
        SVD => |given, results| {
            let full = given.flag(1);
            each(given, |a, at| {
                let (u, vh) = (Matrix::of(&results[0], at), Matrix::of(&results[2], at));
                let s = Matrix::values(&results[1], at);
                let s =
                    diagonal(&s.items, if full { [a.rows, a.columns] } else { [s.items.len(); 2] });
                orthonormal(&u, "U", given)?;
                orthonormal(&vh.transposed(), "the transposed Vh", given)?;
                descending(&s.diagonal(), false)?;
                near(&u.times(&s).times(&vh), a, "U S Vh", given)
            })
        },
        SVDVALS => |given, results| {
            each(given, |a, at| {
                let values = Matrix::values(&results[0], at).items;
                descending(&values, false)?;
                let gram = a.times(&a.transposed());
                sums_are(&values.iter().map(|x| x * x).collect::<Vec<_>>(), &gram, given)
            })
        },
        EIGH => |given, results| {
            each(given, |a, at| {
                let values = Matrix::values(&results[0], at);
                let vectors = Matrix::of(&results[1], at);
                let a = a.mirrored();
                orthonormal(&vectors, "the eigenvectors", given)?;
                descending(&values.items, true)?;
                let middle = diagonal(&values.items, [a.rows; 2]);
                near(&vectors.times(&middle).times(&vectors.transposed()), &a, "V L V^T", given)
            })
        },
        EIGVALSH => |given, results| {
            each(given, |a, at| {
                let values = Matrix::values(&results[0], at).items;
                descending(&values, true)?;
                let a = a.mirrored();
                sums_are(&values, &a, given)?;
                sums_are(&values.iter().map(|x| x * x).collect::<Vec<_>>(), &a.times(&a), given)
            })
        },
        QR => |given, results| {
            each(given, |a, at| {
                let r = Matrix::of(&results[1], at);
                triangular(&r.transposed(), "R")?;
                if given.text(1) == "r" {
                    return near(
                        &r.transposed().times(&r),
                        &a.transposed().times(a),
                        "R^T R",
                        given,
                    );
                }
                let q = Matrix::of(&results[0], at);
                orthonormal(&q, "Q", given)?;
                near(&q.times(&r), a, "Q R", given)
            })
        },
        CHOLESKY | CHOLESKY_EX => |given, results| {
            let upper = given.flag(1);
            each(given, |a, at| {
                let factor = Matrix::of(&results[0], at);
                let (factor, a) = match upper {
                    true => (factor.transposed(), a.transposed()),
                    false => (factor, a.clone()),
                };
                triangular(&factor, "the factor")?;
                near(&factor.times(&factor.transposed()), &a.mirrored(), "the product", given)
            })
        },
        INV => |given, results| {
            each(given, |a, at| {
                let inverse = Matrix::of(&results[0], at);
                let one = diagonal(&vec![1.0; a.rows], [a.rows; 2]);
                solves(a, &inverse, &one, given)
            })
        },
        SOLVE | SOLVE_EX => |given, results| Systems::of(SOLVE, given).check(given, &results[0]),
        SOLVE_TRIANGULAR => {
            |given, results| Systems::of(SOLVE_TRIANGULAR, given).check(given, &results[0])
        }
        _ => return None,
    })
}

/// A matrix, rows first.
#[derive(Clone)]
struct Matrix {
    rows: usize,
    columns: usize,
    items: Vec<f64>,
}

/// Returns the number of matrices of a stack.
fn count(a: &Array) -> usize {
    a.shape[..a.shape.len() - 2].iter().product()
}

impl Matrix {
    /// Returns a matrix of a stack.
    fn of(a: &Array, at: usize) -> Matrix {
        let item = &a.shape[a.shape.len() - 2..];
        Matrix::new(a, at, [item[0], item[1]])
    }

    fn new(a: &Array, at: usize, [rows, columns]: [usize; 2]) -> Matrix {
        let size = rows * columns;
        let items = a.items[at * size..(at + 1) * size].iter().map(|item| item.float()).collect();
        Matrix { rows, columns, items }
    }

    /// Returns a vector of a stack, as a column.
    fn values(a: &Array, at: usize) -> Matrix {
        Matrix::new(a, at, [a.shape[a.shape.len() - 1], 1])
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.items[row * self.columns + column]
    }

    fn from_fn([rows, columns]: [usize; 2], item: impl Fn(usize, usize) -> f64) -> Matrix {
        let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        Matrix { rows, columns, items: all.map(|(row, column)| item(row, column)).collect() }
    }

    fn transposed(&self) -> Matrix {
        Matrix::from_fn([self.columns, self.rows], |row, column| self.at(column, row))
    }

    fn times(&self, other: &Matrix) -> Matrix {
        Matrix::from_fn([self.rows, other.columns], |row, column| {
            (0..self.columns).map(|k| self.at(row, k) * other.at(k, column)).sum()
        })
    }

    /// The symmetric matrix of the lower triangle.
    fn mirrored(&self) -> Matrix {
        Matrix::from_fn([self.rows; 2], |row, column| self.at(row.max(column), row.min(column)))
    }

    fn diagonal(&self) -> Vec<f64> {
        (0..self.rows.min(self.columns)).map(|i| self.at(i, i)).collect()
    }

    fn norm(&self) -> f64 {
        self.items.iter().map(|item| item * item).sum::<f64>().sqrt()
    }
}

fn diagonal(values: &[f64], shape: [usize; 2]) -> Matrix {
    Matrix::from_fn(shape, |row, column| if row == column { values[row] } else { 0.0 })
}

type Checked = Result<(), String>;

/// Checks all matrices of the first argument.
fn each(given: &Given<'_>, check: impl Fn(&Matrix, usize) -> Checked) -> Checked {
    let a = given.array(0);
    (0..count(a)).try_for_each(|at| check(&Matrix::of(a, at), at))
}

/// The relative error of a decomposition of matrices of that size.
fn tolerance(size: usize, given: &Given<'_>) -> f64 {
    64.0 * (size as f64 + 1.0) * unit(given.array(0).dtype)
}

fn near(got: &Matrix, wanted: &Matrix, what: &str, given: &Given<'_>) -> Checked {
    let difference = Matrix::from_fn([wanted.rows, wanted.columns], |row, column| {
        got.at(row, column) - wanted.at(row, column)
    });
    let most = tolerance(wanted.rows.max(wanted.columns), given) * (wanted.norm() + 1e-30);
    // NaN isn't near anything.
    match difference.norm() <= most {
        true => Ok(()),
        false => {
            Err(format!("{what} differs from the matrix by {}, not {most}", difference.norm()))
        }
    }
}

fn orthonormal(x: &Matrix, what: &str, given: &Given<'_>) -> Checked {
    let one = diagonal(&vec![1.0; x.columns], [x.columns; 2]);
    near(&x.transposed().times(x), &one, &format!("the product of {what} with itself"), given)
}

fn descending(values: &[f64], ascends: bool) -> Checked {
    let sorted = |pair: &[f64]| if ascends { pair[0] <= pair[1] } else { pair[0] >= pair[1] };
    let positive = ascends || values.iter().all(|value| *value >= 0.0);
    match positive && values.windows(2).all(sorted) {
        true => Ok(()),
        false => Err(format!("the values {values:?} aren't sorted, or negative")),
    }
}

/// Checks that the sum of the values is the trace of a matrix.
fn sums_are(values: &[f64], matrix: &Matrix, given: &Given<'_>) -> Checked {
    let (sum, trace) = (values.iter().sum::<f64>(), matrix.diagonal().iter().sum::<f64>());
    let most = tolerance(matrix.rows, given) * (matrix.norm() + 1e-30) * (matrix.rows as f64 + 1.0);
    match (sum - trace).abs() <= most {
        true => Ok(()),
        false => Err(format!("the sum of the values is {sum}, where the trace is {trace}")),
    }
}

/// Checks that there are zeros above the diagonal.
fn triangular(x: &Matrix, what: &str) -> Checked {
    let above = (0..x.rows).flat_map(|row| (row + 1..x.columns).map(move |column| (row, column)));
    match above.into_iter().all(|(row, column)| x.at(row, column) == 0.0) {
        true => Ok(()),
        false => Err(format!("{what} isn't triangular")),
    }
}

/// Checks a solution by its residual, whose size is that of a backward stable algorithm.
fn solves(a: &Matrix, x: &Matrix, b: &Matrix, given: &Given<'_>) -> Checked {
    let got = a.times(x);
    let difference =
        Matrix::from_fn([b.rows, b.columns], |row, column| got.at(row, column) - b.at(row, column));
    let most = tolerance(a.rows, given) * (a.norm() * x.norm() + b.norm() + 1e-30);
    match difference.norm() <= most {
        true => Ok(()),
        false => Err(format!("the residual is {}, not {most}", difference.norm())),
    }
}

/// The determinant, by elimination, and the bound of its error.
fn det(a: &Matrix) -> (f64, f64) {
    let (n, mut a, mut value) = (a.rows, a.clone(), 1.0);
    let rows = a.items.chunks(n.max(1)).map(|row| row.iter().map(|x| x * x).sum::<f64>().sqrt());
    let bound: f64 = rows.map(|size| size.max(1e-30)).product();
    for k in 0..n {
        let best =
            (k..n).max_by(|i, j| a.at(*i, k).abs().total_cmp(&a.at(*j, k).abs())).unwrap_or(k);
        if best != k {
            (0..n).for_each(|column| a.items.swap(k * n + column, best * n + column));
            value = -value;
        }
        let pivot = a.at(k, k);
        value *= pivot;
        for row in k + 1..n {
            let factor = if pivot == 0.0 { 0.0 } else { a.at(row, k) / pivot };
            for column in k..n {
                a.items[row * n + column] -= factor * a.at(k, column);
            }
        }
    }
    (value, bound * 1e-13 * (n as f64 + 1.0).powi(2))
}

/// Linear systems with broadcast operands.
struct Systems {
    /// The shape of the solutions, and of the stack.
    shape: Vec<usize>,
    stack: Vec<usize>,
    left: bool,
    vector: bool,
    /// Which triangle is read of the matrix, and whether the diagonal is 1.
    triangle: Option<(bool, bool)>,
}

impl Systems {
    fn of(name: &str, given: &Given<'_>) -> Systems {
        let (a, b) = (given.array(0), given.array(1));
        let is_triangular = name == SOLVE_TRIANGULAR;
        let vector = b.shape.len() == 1;
        let left = if is_triangular { given.flag(3) } else { given.flag(2) };
        let rank = b.shape.len() - if vector { 1 } else { 2 };
        let stack_a = &a.shape[..a.shape.len() - 2];
        let stack = keyfold_core::layout::broadcast_shapes(stack_a, &b.shape[..rank]);
        let stack = stack.map(|stack| stack.to_vec()).unwrap_or_default();
        let shape = [&stack[..], &b.shape[rank..]].concat();
        let triangle = is_triangular.then(|| (given.flag(2), given.flag(4)));
        Systems { shape, stack, left, vector, triangle }
    }

    /// The place of an item in a stack that broadcasts to this one.
    fn place(&self, mut at: usize, stack: &[usize]) -> usize {
        let (mut place, mut step) = (0, 1);
        for (back, size) in self.stack.iter().rev().enumerate() {
            if let Some(own) = stack.len().checked_sub(back + 1).map(|d| stack[d]) {
                place += if own == 1 { 0 } else { at % size * step };
                step *= own;
            }
            at /= size;
        }
        place
    }

    fn check(&self, given: &Given<'_>, result: &Array) -> Checked {
        let (a, b) = (given.array(0), given.array(1));
        let item = match (self.vector, &b.shape[..]) {
            (true, [.., n]) => [*n, 1],
            (_, [.., rows, columns]) => [*rows, *columns],
            _ => return Ok(()),
        };
        let rank = b.shape.len() - if self.vector { 1 } else { 2 };
        (0..self.stack.iter().product()).try_for_each(|at| {
            let own = self.place(at, &a.shape[..a.shape.len() - 2]);
            let a = Matrix::of(a, own);
            let a = match self.triangle {
                None => a,
                Some((upper, unit)) => Matrix::from_fn([a.rows; 2], |row, column| {
                    let kept = if upper { row <= column } else { row >= column };
                    match (row == column && unit, kept) {
                        (true, _) => 1.0,
                        (_, true) => a.at(row, column),
                        _ => 0.0,
                    }
                }),
            };
            let b = Matrix::new(b, self.place(at, &b.shape[..rank]), item);
            let x = Matrix::new(result, at, item);
            match self.left {
                true => solves(&a, &x, &b, given),
                false => solves(&a.transposed(), &x.transposed(), &b.transposed(), given),
            }
        })
    }
}
