//! Decompositions and linear systems.

use keyfold::dispatcher;
use keyfold::ops::aten;
use keyfold_core::Result;
use keyfold_dispatch::Value as _;
use keyfold_tensor::{Tensor, Value, ValueRef as V};

use super::Table;
use crate::support::{call, data};

/// Calls an operator, and joins the elements of those of its results that are chosen.
fn joined(op: &str, args: &[V<'_>], results: &[usize]) -> Result<Tensor> {
    let Value::Tuple(all) = dispatcher().call(op, args)? else { return aten::cat(&[], 0) };
    let flat = results.iter().map(|place| aten::reshape(all[*place].as_ref().tensor()?, &[-1]));
    aten::cat(&flat.collect::<Result<Vec<_>>>()?, 0)
}

fn transposed(x: &Tensor) -> Result<Tensor> {
    aten::transpose(x, -1, -2)
}

/// Returns symmetric matrices with distinct eigenvalues, or also positive definite ones.
fn symmetric(x: &Tensor, positive: bool) -> Result<Tensor> {
    let n = x.shape()[x.ndim() - 1];
    let steps: Vec<f64> = (0..n * n)
        .map(|i| if i % (n + 1) == 0 { 3.0 + (i / (n + 1)) as f64 } else { 0.0 })
        .collect();
    let steps = aten::to(&Tensor::from_vec(steps, &[n, n])?, x.dtype())?;
    let steps = aten::to_device(&steps, x.device())?;
    let whole = match positive {
        true => aten::matmul(x, &transposed(x)?)?,
        false => aten::add(x, &transposed(x)?)?,
    };
    aten::add(&whole, &steps)
}

pub(super) fn add(table: &mut Table) {
    factors_of_any(table);
    factors_of_symmetric(table);
    systems(table);
}

fn factors_of_any(table: &mut Table) {
    let of = |shape: &[usize]| vec![data(shape, 0, -1.0, 1.9)];
    for shape in [&[3, 3][..], &[4, 2], &[2, 4], &[2, 2, 2], &[0, 2]] {
        for results in [&[1][..], &[0, 1], &[2], &[0, 1, 2]] {
            table.add("aten::linalg_svd", of(shape), vec![], move |x, _| {
                // Vectors up to their sign, which small steps may turn.
                let args = [V::Tensor(&x[0]), V::Bool(false)];
                let all = joined("aten::linalg_svd", &args, results)?;
                aten::mul(&all, &all)
            });
        }
        table.add("aten::linalg_svdvals", of(shape), vec![], |x, _| {
            call("aten::linalg_svdvals", &[V::Tensor(&x[0])])
        });
        for results in [&[0][..], &[1], &[1, 0]] {
            table.add("aten::linalg_qr", of(shape), vec![], move |x, _| {
                joined("aten::linalg_qr", &[V::Tensor(&x[0])], results)
            });
        }
    }
}

fn factors_of_symmetric(table: &mut Table) {
    let of = |shape: &[usize]| vec![data(shape, 0, -1.0, 1.9)];
    for shape in [&[3, 3][..], &[2, 2, 2], &[0, 0]] {
        for upper in [false, true] {
            let name = if upper { "U" } else { "L" };
            for results in [&[0][..], &[1], &[0, 1]] {
                table.add("aten::linalg_eigh", of(shape), vec![], move |x, _| {
                    let x = symmetric(&x[0], false)?;
                    let all = joined("aten::linalg_eigh", &[V::Tensor(&x), V::Str(name)], results)?;
                    aten::mul(&all, &all)
                });
            }
            table.add("aten::linalg_eigvalsh", of(shape), vec![], move |x, _| {
                let x = symmetric(&x[0], false)?;
                call("aten::linalg_eigvalsh", &[V::Tensor(&x), V::Str(name)])
            });
            table.add("aten::linalg_cholesky", of(shape), vec![], move |x, _| {
                let x = symmetric(&x[0], true)?;
                call("aten::linalg_cholesky", &[V::Tensor(&x), V::Bool(upper)])
            });
            table.add("aten::linalg_cholesky_ex", of(shape), vec![], move |x, _| {
                let x = symmetric(&x[0], true)?;
                joined("aten::linalg_cholesky_ex", &[V::Tensor(&x), V::Bool(upper)], &[0])
            });
        }
    }
}

fn systems(table: &mut Table) {
    let pairs: [(&[usize], &[usize], bool); 7] = [
        (&[3, 3], &[3, 2], true),
        (&[2, 2], &[2], true),
        (&[3, 2, 2], &[3, 2], true),
        (&[2, 2, 2], &[2, 3], true),
        (&[2, 2], &[2, 2, 1], true),
        (&[2, 2], &[3, 2], false),
        (&[0, 0], &[0, 2], true),
    ];
    for (a, b, left) in pairs {
        let inputs = || vec![data(a, 0, -1.0, 1.9), data(b, 1, -1.0, 1.0)];
        let is_matrix = b.len() > 1 && !(b.len() + 1 == a.len() && *b == a[..b.len()]);
        table.add("aten::linalg_solve", inputs(), vec![], move |x, _| {
            call("aten::linalg_solve", &[V::Tensor(&x[0]), V::Tensor(&x[1]), V::Bool(left)])
        });
        table.add("aten::linalg_solve_ex", inputs(), vec![], move |x, _| {
            let args = [V::Tensor(&x[0]), V::Tensor(&x[1]), V::Bool(left)];
            joined("aten::linalg_solve_ex", &args, &[0])
        });
        for (upper, unit) in [(false, false), (true, false), (false, true), (true, true)] {
            if !is_matrix {
                continue;
            }
            table.add("aten::linalg_solve_triangular", inputs(), vec![], move |x, _| {
                // Pivots away from 0.
                let a = aten::add_scalar(&x[0], 2.5)?;
                let flags = [upper, left, unit].map(V::Bool);
                let args: Vec<V<'_>> =
                    [V::Tensor(&a), V::Tensor(&x[1])].into_iter().chain(flags).collect();
                call("aten::linalg_solve_triangular", &args)
            });
        }
    }
    for shape in [&[3, 3][..], &[2, 2, 2], &[1, 1]] {
        let inputs = || vec![data(shape, 0, -1.0, 1.9)];
        table.add("aten::linalg_det", inputs(), vec![], |x, _| {
            call("aten::linalg_det", &[V::Tensor(&x[0])])
        });
        table.add("aten::linalg_slogdet", inputs(), vec![], |x, _| {
            joined("aten::linalg_slogdet", &[V::Tensor(&x[0])], &[1])
        });
    }
}
