//! Forward mode of every row against reverse mode and against central differences.

mod calls;
#[path = "../cases/mod.rs"]
mod cases;

use std::collections::BTreeMap;
use std::slice::from_ref;

use keyfold::Tensor;
use keyfold::layers::autograd::{self, Options};
use keyfold::ops::{Row, Rule, Tangent, aten, rows};
use keyfold_core::{Complex, DType, Device, ErrorKind, Result, Scalar};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_tensor::device::random;
use keyfold_tensor::{Value, ValueRef};

use calls::{Case, OF_SYMMETRIC, complex, others, pointwise, real, symmetric};
use cases::arguments;

/// Returns the floating and complex tensors of a call, in order.
fn primals(case: &Case) -> Vec<Tensor> {
    fn gather(value: &Value, found: &mut Vec<Tensor>) {
        match value {
            Value::Tensor(tensor)
                if tensor.dtype().is_floating() || tensor.dtype().is_complex() =>
            {
                found.push(tensor.clone());
            }
            Value::List(items) => items.iter().for_each(|item| gather(item, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    case.iter().for_each(|value| gather(value, &mut found));
    found
}

/// Calls the operator with other floating and complex tensors.
fn call(row: &Row, case: &Case, tensors: &[Tensor]) -> Result<Tensor> {
    fn replaced(value: &Value, rest: &mut std::slice::Iter<'_, Tensor>) -> Value {
        match value {
            Value::Tensor(tensor)
                if tensor.dtype().is_floating() || tensor.dtype().is_complex() =>
            {
                Value::Tensor(rest.next().unwrap().clone())
            }
            Value::List(items) => {
                Value::List(items.iter().map(|item| replaced(item, rest)).collect())
            }
            other => other.clone(),
        }
    }
    let writes = row.schema().arguments[0].alias.as_ref().is_some_and(|alias| alias.write);
    let mut tensors = tensors.to_vec();
    if writes {
        // A written argument is a copy of the caller's tensor.
        tensors[0] = aten::clone(&tensors[0])?;
    }
    let mut rest = tensors.iter();
    let mut args: Vec<Value> = case.iter().map(|value| replaced(value, &mut rest)).collect();
    drop(tensors);
    random::manual_seed(7)?;
    let result = {
        let refs: Vec<ValueRef<'_>> = args.iter().map(Value::as_ref).collect();
        keyfold::dispatcher().call(&row.schema().name.to_string(), &refs)?
    };
    match result {
        Value::Argument(at) => args.swap_remove(at).into_tensor(),
        Value::Tuple(results) | Value::List(results) => joined(results),
        other => other.into_tensor(),
    }
}

/// Returns the elements of all floating and complex results, one behind the other.
fn joined(results: Vec<Value>) -> Result<Tensor> {
    let tensors = results.into_iter().map(Value::into_tensor).collect::<Result<Vec<_>>>()?;
    let inexact = |x: &&Tensor| x.dtype().is_floating() || x.dtype().is_complex();
    let flat = tensors.iter().filter(inexact).map(|x| aten::reshape(x, &[-1]));
    aten::cat(&flat.collect::<Result<Vec<_>>>()?, 0)
}

/// Returns the real and imaginary parts of the elements.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype().is_complex() {
        true => {
            let items = tensor.to_vec::<Complex<f64>>().unwrap();
            items.into_iter().flat_map(|item| [item.re, item.im]).collect()
        }
        false => tensor.to_vec::<f64>().unwrap(),
    }
}

/// Makes a tangent for a tensor.
fn direction(like: &Tensor, from: usize) -> Tensor {
    let shape = like.shape();
    let made = if like.dtype().is_complex() { complex(shape, from) } else { real(shape, from) };
    made.into_tensor().unwrap()
}

/// Returns the real inner product.
fn product(a: &Tensor, b: &Tensor) -> f64 {
    numbers(a).iter().zip(numbers(b)).map(|(a, b)| a * b).sum()
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * a.abs().max(b.abs()).max(1.0)
}

/// Compares forward mode of a call with reverse mode and with central differences. Returns whether the result
/// has a derivative.
fn compare(row: &Row, case: &Case) -> Result<bool> {
    let name = &row.schema().name;
    let primals = primals(case);
    if primals.is_empty() {
        call(row, case, &primals)?;
        return Ok(false);
    }
    let tangents: Vec<Tensor> =
        primals.iter().enumerate().map(|(i, x)| direction(x, i + 3)).collect();
    let tangents: Vec<Tensor> = match OF_SYMMETRIC.contains(&&*name.to_string()) {
        true => tangents.iter().map(symmetric).collect::<Result<_>>()?,
        false => tangents,
    };
    let (values, found) = autograd::jvp(|x| Ok(vec![call(row, case, x)?]), &primals, &tangents)?;
    let (value, tangent) = (&values[0], &found[0]);
    assert_eq!((value.shape(), value.dtype()), (tangent.shape(), tangent.dtype()), "{name}");
    if !value.dtype().is_floating() && !value.dtype().is_complex() {
        return Ok(false);
    }
    let step = 1e-6;
    let moved = |sign: f64| {
        let both = primals.iter().zip(&tangents);
        let moved = both.map(|(x, t)| aten::add(x, &aten::mul_scalar(t, sign * step)?));
        call(row, case, &moved.collect::<Result<Vec<_>>>()?)
    };
    let (up, down) = (numbers(&moved(1.0)?), numbers(&moved(-1.0)?));
    let cut = matches!(row.layers().tangent, Rule::Refused(_));
    for (found, (up, down)) in numbers(tangent).iter().zip(up.iter().zip(down)) {
        let difference = if cut { 0.0 } else { (up - down) / (2.0 * step) };
        // Outside of a function's domain the formula of the derivative may be finite.
        let undefined = difference.is_nan();
        assert!(
            undefined || close(*found, difference, 1e-7),
            "{name}: {found}, {difference} by differences"
        );
    }
    if cut {
        return Ok(true);
    }
    let leaves: Vec<Tensor> = primals.iter().map(Tensor::detach).collect();
    leaves.iter().try_for_each(|leaf| autograd::set_requires_grad(leaf, true))?;
    let result = call(row, case, &leaves)?;
    let seed = direction(&result, 1);
    let grads = match autograd::requires_grad(&result) {
        true => {
            autograd::grad(&[result], &leaves, &[Some(seed.clone())], Options::default(), &|| {
                Ok(())
            })?
        }
        false => vec![None; leaves.len()],
    };
    let back: f64 = grads
        .iter()
        .zip(&tangents)
        .filter_map(|(grad, tangent)| grad.as_ref().map(|grad| product(grad, tangent)))
        .sum();
    let forward = product(&seed, tangent);
    assert!(close(forward, back, 1e-12), "{name}: {forward} forward, {back} in reverse");
    Ok(true)
}

#[test]
fn forward_mode_of_every_row_equals_reverse_mode_and_differences() {
    keyfold::init();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut compared, mut complex_ones) = (0, 0);
    for row in rows() {
        let name = row.schema().name.to_string();
        if name == "keyfold::matmul_mixed" {
            // It takes no float64, and differences of rounded factors mean nothing.
            continue;
        }
        let mut cases = if row.expression().is_some() { pointwise(row) } else { others(&name) };
        if cases.is_empty() && row.schema().arguments.iter().any(|arg| arg.ty == Type::Tensor) {
            cases = vec![arguments(row, DType::F64)];
        }
        let rule = row.layers().tangent;
        let reason = match rule {
            Rule::Given(Tangent::Linear) => "linear",
            Rule::Given(Tangent::Multilinear) => "multilinear",
            Rule::Given(_) => "given",
            Rule::Derived => "derived",
            Rule::Refused(reason) => reason,
        };
        *counts.entry(reason).or_default() += 1;
        let takes_none = reason == "no argument is a tensor";
        assert_eq!(cases.is_empty(), takes_none, "{name}: no calls to compare");
        let mut differentiable = 0;
        for case in &cases {
            let is_complex = primals(case).iter().any(|x| x.dtype().is_complex());
            match compare(row, case) {
                Ok(true) => {
                    differentiable += 1;
                    complex_ones += usize::from(is_complex);
                }
                Ok(false) => {}
                // Not of all dtypes: bit patterns of integers alone, order of real ones alone.
                Err(error) if is_complex || matches!(rule, Rule::Refused(_)) => {
                    // A refused rule is said when the call is differentiated.
                    let refused = matches!(rule, Rule::Refused(_)) && !is_complex;
                    let expected = match error.kind() {
                        ErrorKind::Gradient => refused,
                        kind => matches!(kind, ErrorKind::DType | ErrorKind::Value),
                    };
                    assert!(expected, "{name}: {error}");
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
        if !matches!(rule, Rule::Refused(_)) {
            assert!(differentiable > 0, "{name}: no call with a derivative");
        }
        compared += differentiable;
    }
    let counts: Vec<(&str, usize)> = counts.into_iter().collect();
    assert_eq!(counts, COUNTS, "rows by their rule of forward mode; a new row changes them");
    assert_eq!((compared, complex_ones), CALLS, "calls compared; a new row changes how many");
}

const COUNTS: &[(&str, usize)] = &[
    ("derived", 91),
    ("detaches its result", 1),
    ("given", 54),
    ("gradients that are differentiated are computed by the operators of the cell's derivative", 2),
    ("it writes to its outputs", 2),
    ("it writes to its state, too", 2),
    ("linear", 50),
    ("multilinear", 5),
    ("no argument is a tensor", 7),
    ("no argument is floating or complex", 1),
    ("tangents of gradients go through the operators that they are written in", 1),
    ("the result is bool", 19),
    ("the result is bool or integer", 15),
];
const CALLS: (usize, usize) = (360, 50);

fn number(value: f64) -> Tensor {
    Tensor::full(&[], Scalar::Float(value), DType::F64, Device::CPU).unwrap()
}

/// Computes the derivative of a function of one number.
fn derivative(f: impl Fn(&Tensor) -> Result<Tensor>, at: &Tensor) -> Result<Tensor> {
    let (_, mut tangents) = autograd::jvp(|x| Ok(vec![f(&x[0])?]), from_ref(at), &[number(1.0)])?;
    Ok(tangents.remove(0))
}

#[test]
fn levels_nest_without_confusion() {
    keyfold::init();
    let cube = |x: &Tensor| aten::mul(&aten::mul(x, x)?, x);
    let second = derivative(|x| derivative(cube, x), &number(2.0)).unwrap();
    assert_eq!(second.item().unwrap().as_f64(), 12.0);
    let third = derivative(|x| derivative(|x| derivative(cube, x), x), &number(2.0)).unwrap();
    assert_eq!(third.item().unwrap().as_f64(), 6.0);
    // d/dx (x * d/dy (x + y)) is 1: the inner level ignores x's tangent.
    let outer =
        derivative(|x| aten::mul(x, &derivative(|y| aten::add(x, y), &number(1.0))?), &number(3.0));
    assert_eq!(outer.unwrap().item().unwrap().as_f64(), 1.0);
}

#[test]
fn both_modes_differentiate_each_other() {
    keyfold::init();
    // f(x) = sum(exp(x) * x): f' = exp(x) (x + 1), f'' = exp(x) (x + 2).
    let f = |x: &Tensor| aten::sum_all(&aten::mul(&aten::exp(x)?, x)?);
    let gradient = |x: &Tensor| -> Result<Tensor> {
        let x = autograd::per_example::variable(x)?;
        let grads = autograd::grad(&[f(&x)?], &[x], &[], Options::default(), &|| Ok(()))?;
        Ok(grads[0].clone().unwrap())
    };
    let x = Tensor::from_slice(&[0.5, -1.0], &[2]).unwrap();
    let t = Tensor::from_slice(&[1.0, 2.0], &[2]).unwrap();
    let expected = [0.5_f64.exp() * 2.5, (-1.0_f64).exp() * 2.0];
    let check = |found: &Tensor| {
        let found = found.to_vec::<f64>().unwrap();
        assert!(found.iter().zip(expected).all(|(a, b)| close(*a, b, 1e-14)), "{found:?}");
    };
    // Forward over reverse: nodes save tensors with their tangents.
    let (_, found) =
        autograd::jvp(|x| Ok(vec![gradient(&x[0])?]), from_ref(&x), from_ref(&t)).unwrap();
    assert!(!found[0].requires_grad());
    check(&found[0]);
    // Reverse over forward: the computation of tangents is recorded.
    let leaf = x.detach();
    autograd::set_requires_grad(&leaf, true).unwrap();
    let (_, along) = autograd::jvp(|x| Ok(vec![f(&x[0])?]), from_ref(&leaf), &[t]).unwrap();
    let grads = autograd::grad(&along, &[leaf], &[], Options::default(), &|| Ok(())).unwrap();
    check(grads[0].as_ref().unwrap());
}

#[test]
fn tangents_that_mean_nothing_any_more_are_errors() {
    keyfold::init();
    let (x, t) = (number(2.0), number(1.0));
    let mut kept = None;
    let square = |x: &Tensor| aten::mul(x, x);
    autograd::jvp(
        |x| {
            kept = Some(x[0].clone());
            Ok(vec![square(&x[0])?])
        },
        from_ref(&x),
        from_ref(&t),
    )
    .unwrap();
    let error = square(&kept.unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gradient);
    assert!(error.message().contains("has ended"), "{error}");

    let wrong = |primal: Tensor, tangent: Tensor| {
        autograd::jvp(|x| Ok(x.to_vec()), &[primal], &[tangent]).unwrap_err()
    };
    let error = wrong(x, Tensor::from_slice(&[1.0], &[1]).unwrap());
    assert!(error.message().contains("primal 0: a tangent of float64[1]"), "{error}");
    let whole = Tensor::from_slice(&[1_i64], &[1]).unwrap();
    assert_eq!(wrong(whole.clone(), whole).kind(), ErrorKind::DType);
}
