//! The operations, on all real dtypes. They are written to be read, not to be fast.

use keyfold_plugin::{DType, Error, Params, Result};

use crate::memory::Number::{self, Float, Int};
use crate::memory::{View, is_number};
use crate::{index, random};

/// Returns whether [`run`] has an operation for these dtypes: the same predicate for both.
pub(crate) fn has(group: &str, name: &str, mut dtypes: impl Iterator<Item = DType>) -> bool {
    let known = match group {
        "pointwise" => matches!(name, "iota" | "gather" | "check" | "where") || arity(name) > 0,
        "reduce" => REDUCTIONS.contains(&name),
        "rows" => matches!(name, "softmax" | "log_softmax"),
        "linalg" => name == "matmul",
        "index" => index::OPERATIONS.contains(&name),
        "random" => matches!(name, "uniform" | "normal"),
        _ => false,
    };
    let is_float = |dtype| matches!(dtype, DType::F32 | DType::F64);
    let is_half = |dtype| matches!(dtype, DType::F16 | DType::BF16);
    known
        && dtypes.all(|dtype| match name {
            "neg" | "abs" | "sqrt" | "exp" | "log" | "sin" | "cos" | "floor" => is_float(dtype),
            "uniform" | "normal" => is_float(dtype) || is_half(dtype),
            "and" | "or" | "xor" | "shift_left" | "shift_right" => {
                is_number(dtype) && !is_float(dtype) && !is_half(dtype)
            }
            _ => is_number(dtype),
        })
}

/// Runs an operation.
///
/// # Errors
/// A false element of `check`; an operation that isn't there.
pub(crate) fn run(
    (group, name): (&str, &str),
    params: Params,
    inputs: &[View],
    outs: &[View],
) -> Result<()> {
    let out = &outs[0];
    match (group, params) {
        ("pointwise", Params::Pointwise { fault }) => pointwise(name, fault, inputs, out),
        ("reduce", Params::Reduce { dims, .. }) => {
            out.set(reduce(name, &inputs[0], dims));
            Ok(())
        }
        ("rows", Params::Rows { axis }) => {
            out.set(rows(name == "softmax", &inputs[0], axis));
            Ok(())
        }
        ("linalg", _) => {
            out.set(matmul(&inputs[0], &inputs[1]));
            Ok(())
        }
        ("index", Params::Index { dims, at }) => index::run(name, inputs, out, dims, at),
        ("index", _) => {
            index::positions(&inputs[0], outs);
            Ok(())
        }
        ("random", Params::Random { seed, offset }) => {
            out.set(random::numbers(name, out.dtype, (seed, offset), out.numel()));
            Ok(())
        }
        _ => Err(Error::not_supported(format!("there is no {name} of the group {group}"))),
    }
}

/// Returns the number of inputs of a primitive that computes elements of elements; 0 for others.
fn arity(name: &str) -> usize {
    match name {
        "cast" | "neg" | "abs" | "sqrt" | "exp" | "log" | "sin" | "cos" | "floor" => 1,
        "add" | "sub" | "mul" | "div" | "equal" | "less" | "and" | "or" | "xor" | "shift_left"
        | "shift_right" => 2,
        _ => 0,
    }
}

fn pointwise(name: &str, fault: u32, inputs: &[View], out: &View) -> Result<()> {
    let all: Vec<Vec<Number>> = inputs.iter().map(View::numbers).collect();
    match (name, &all[..]) {
        ("iota", _) => out.set((0..out.numel()).map(|at| Int(at as i128))),
        ("check", [given]) => {
            return if given.iter().all(|n| n.is_true()) {
                Ok(())
            } else {
                Err(Error::fault(fault))
            };
        }
        ("gather", [table, positions]) => {
            out.set(positions.iter().map(|at| table[at.float() as usize]));
        }
        ("where", [which, a, b]) => {
            let chosen = which.iter().zip(a.iter().zip(b));
            out.set(chosen.map(|(which, (a, b))| if which.is_true() { *a } else { *b }));
        }
        (_, [a]) => out.set(a.iter().map(|a| unary(name, *a))),
        (_, [a, b]) => out.set(a.iter().zip(b).map(|(a, b)| binary(name, *a, *b))),
        _ => return Err(Error::not_supported(format!("there is no primitive {name}"))),
    }
    Ok(())
}

fn unary(name: &str, a: Number) -> Number {
    let Float(value) = a else { return a };
    Float(match name {
        "neg" => -value,
        "abs" => value.abs(),
        "sqrt" => value.sqrt(),
        "exp" => value.exp(),
        "log" => value.ln(),
        "sin" => value.sin(),
        "cos" => value.cos(),
        "floor" => value.floor(),
        // The output converts.
        _ => value,
    })
}

fn binary(name: &str, a: Number, b: Number) -> Number {
    match (a, b) {
        (Int(a), Int(b)) => match name {
            "add" => Int(a + b),
            "sub" => Int(a - b),
            "mul" => Int(a.wrapping_mul(b)),
            "div" => Int(a.checked_div(b).unwrap_or(0)),
            "equal" => (a == b).into(),
            "less" => (a < b).into(),
            "and" => Int(a & b),
            "or" => Int(a | b),
            "xor" => Int(a ^ b),
            "shift_left" => Int(a << b),
            _ => Int(a >> b),
        },
        _ => {
            let (a, b) = (a.float(), b.float());
            match name {
                "add" => Float(a + b),
                "sub" => Float(a - b),
                "mul" => Float(a * b),
                "div" => Float(a / b),
                "equal" => (a == b).into(),
                _ => (a < b).into(),
            }
        }
    }
}

const REDUCTIONS: [&str; 8] = ["sum", "mean", "max", "min", "argmax", "argmin", "all", "any"];

/// Returns the elements of each lane, for each position of the dimensions that aren't in `reduced`.
fn lanes(x: &View, reduced: u64) -> Vec<Vec<Number>> {
    let kept = |dim: usize| reduced >> dim & 1 == 0;
    let count = x.shape.iter().enumerate().filter(|(dim, _)| kept(*dim)).map(|(_, size)| size);
    let mut lanes = vec![Vec::new(); count.product()];
    for (mut at, number) in x.numbers().into_iter().enumerate() {
        let (mut lane, mut step) = (0, 1);
        for (dim, size) in x.shape.iter().enumerate().rev() {
            if kept(dim) {
                lane += at % size * step;
                step *= size;
            }
            at /= size;
        }
        lanes[lane].push(number);
    }
    lanes
}

fn sum(lane: &[Number]) -> Number {
    match lane.first() {
        Some(Float(_)) => Float(lane.iter().map(|n| n.float()).sum()),
        _ => lane.iter().fold(Int(0), |sum, n| sum.plus(*n)),
    }
}

/// Returns the position of the greatest element, of the first NaN if there is one.
fn best(lane: &[Number], better: impl Fn(Number, Number) -> bool) -> usize {
    let is_nan = |n: Number| n.float().is_nan();
    let first_nan = lane.iter().position(|n| is_nan(*n));
    first_nan.unwrap_or_else(|| {
        (1..lane.len()).fold(0, |best, at| if better(lane[at], lane[best]) { at } else { best })
    })
}

fn reduce(name: &str, x: &View, reduced: u64) -> Vec<Number> {
    let less = |a, b| binary("less", a, b).is_true();
    let of = |lane: Vec<Number>| match name {
        "sum" => sum(&lane),
        "mean" => Float(sum(&lane).float() / lane.len() as f64),
        "max" => lane[best(&lane, |a, b| less(b, a))],
        "min" => lane[best(&lane, less)],
        "argmax" => Int(best(&lane, |a, b| less(b, a)) as i128),
        "argmin" => Int(best(&lane, less) as i128),
        "all" => lane.iter().all(|n| n.is_true()).into(),
        _ => lane.iter().any(|n| n.is_true()).into(),
    };
    lanes(x, reduced).into_iter().map(of).collect()
}

fn rows(is_softmax: bool, x: &View, axis: usize) -> Vec<Number> {
    let results = lanes(x, 1 << axis).into_iter().map(|lane| {
        let most = lane.iter().map(|n| n.float()).fold(f64::NEG_INFINITY, f64::max);
        let exponents: Vec<f64> = lane.iter().map(|n| n.float() - most).collect();
        let total: f64 = exponents.iter().map(|e| e.exp()).sum();
        let of = |e: f64| if is_softmax { e.exp() / total } else { e - total.ln() };
        exponents.into_iter().map(of).collect::<Vec<_>>()
    });
    let results: Vec<Vec<f64>> = results.collect();
    // Back from lanes to row-major order.
    let inner: usize = x.shape[axis + 1..].iter().product();
    let length = x.shape[axis];
    let place = |at: usize| (at / (length * inner) * inner + at % inner, at / inner % length);
    (0..x.numel()).map(place).map(|(lane, at)| Float(results[lane][at])).collect()
}

/// Returns the products of matrices `[..., m, k]` and `[..., k, n]`; leading dimensions broadcast.
fn matmul(a: &View, b: &View) -> Vec<Number> {
    let split = |shape: &[usize]| shape.split_at(shape.len() - 2).0.to_vec();
    let (stack_a, stack_b) = (split(&a.shape), split(&b.shape));
    let (m, k) = (a.shape[a.shape.len() - 2], a.shape[a.shape.len() - 1]);
    let n = b.shape[b.shape.len() - 1];
    let rank = stack_a.len().max(stack_b.len());
    let size = |stack: &[usize], dim: usize| {
        (dim + stack.len()).checked_sub(rank).map_or(1, |dim| stack[dim])
    };
    let stack: Vec<usize> =
        (0..rank).map(|dim| size(&stack_a, dim).max(size(&stack_b, dim))).collect();
    // The number of the matrix in a stack that broadcasts to the result's stack.
    let matrix = |of: &[usize], mut at: usize| {
        let (mut number, mut step) = (0, 1);
        for dim in (0..rank).rev() {
            let own = size(of, dim);
            number += at % stack[dim] % own * step;
            step *= own;
            at /= stack[dim];
        }
        number
    };
    let (left, right) = (a.numbers(), b.numbers());
    let mut products = Vec::with_capacity(stack.iter().product::<usize>() * m * n);
    for at in 0..stack.iter().product() {
        let (first, second) = (matrix(&stack_a, at) * m * k, matrix(&stack_b, at) * k * n);
        for row in 0..m {
            for column in 0..n {
                let terms = (0..k).map(|i| {
                    binary("mul", left[first + row * k + i], right[second + i * n + column])
                });
                products.push(sum(&terms.collect::<Vec<_>>()));
            }
        }
    }
    products
}
