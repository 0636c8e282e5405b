//! Samples of decompositions and linear systems.

use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::{Family, Sampler, plain, shape_of};
use crate::array::{Arg, Layout};
use crate::number::Number;

pub(super) const FAMILY: Family = Family { fit_shape, argument, fit_values, ..Family::PLAIN };

/// The largest matrix: the model is cubic.
const LARGEST: usize = 40;

fn is_square(name: &str) -> bool {
    !matches!(name, "aten::linalg_svd" | "aten::linalg_svdvals" | "aten::linalg_qr")
}

/// Stacks of matrices, square ones where the operator takes no others.
fn fit_shape(sampler: &mut Sampler, name: &str) -> Option<()> {
    if !name.starts_with("aten::linalg_") {
        return Some(());
    }
    sampler.at_least(2);
    let rank = sampler.shape.len();
    let (stack, item) = sampler.shape.split_at_mut(rank - 2);
    stack.iter_mut().for_each(|size| *size = (*size).min(3));
    item.iter_mut().for_each(|size| *size = (*size).min(LARGEST));
    if is_square(name) {
        item[0] = item[1];
    }
    Some(())
}

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, args: &[Arg]) -> Option<Arg> {
    if !name.starts_with("aten::linalg_") {
        return None;
    }
    let choice = sampler.choice;
    match &*argument.name {
        "A" => {
            let shape = sampler.shape.clone();
            Some(Arg::Tensor(sampler.tensor(&shape)))
        }
        "B" => {
            let a = shape_of(args, 0)?.to_vec();
            let (stack, n) = (&a[..a.len() - 2], a[a.len() - 1]);
            let shape = match choice % 4 {
                0 => [stack, &[n, 3]].concat(),
                1 => vec![n, 2],
                2 if name != "aten::linalg_solve_triangular" => vec![n],
                2 => vec![2, 1, n, 1][4 - a.len().clamp(2, 4)..].to_vec(),
                _ => vec![5, n],
            };
            Some(Arg::Tensor(sampler.tensor(&shape)))
        }
        "left" => plain(Value::Bool(choice % 4 != 3)),
        "mode" => plain(Value::Str(["reduced", "complete", "r"][choice % 3].into())),
        "check_errors" => plain(Value::Bool(false)),
        _ => None,
    }
}

/// Makes matrices that have a result: of small numbers, symmetric and positive definite ones for `cholesky`, and
/// with a large diagonal for systems.
fn fit_values(_: &Sampler, name: &str, args: &mut [Arg]) {
    if !name.starts_with("aten::linalg_") {
        return;
    }
    for arg in args.iter_mut() {
        let Arg::Tensor(operand) = arg else { continue };
        for item in &mut operand.array.items {
            if let Number::Float(x) = item {
                *x = if x.is_finite() { *x % 2.0 } else { 0.5 };
            }
        }
    }
    let shifts = ["cholesky", "solve", "inv"].iter().any(|part| name.contains(part));
    let Some(Arg::Tensor(a)) = args.first_mut().filter(|_| shifts) else { return };
    if a.layout == Layout::Broadcast {
        // Elements that share memory are equal, and these differ.
        a.layout = Layout::Sliced;
    }
    let n = a.array.shape[a.array.shape.len() - 1];
    for matrix in a.array.items.chunks_exact_mut((n * n).max(1)) {
        for row in 0..n {
            for column in 0..row {
                if name.contains("cholesky") {
                    matrix[column * n + row] = matrix[row * n + column];
                }
            }
            if let Number::Float(x) = &mut matrix[row * n + row] {
                *x += 2.0 * n as f64 + 3.0;
            }
        }
    }
}
