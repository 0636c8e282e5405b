//! Derivatives of the built-in operators against finite differences.

mod support;
#[path = "support/cases.rs"]
mod table;

use std::collections::BTreeSet;
use std::sync::Arc;

use keyfold::dispatcher;
use keyfold::ops::{Gradient, Row, Rule, aten, rows};
use keyfold_core::{DType, Device, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, Kernel, Override};
use keyfold_layers::autograd::{self, Options};
use keyfold_tensor::{Tensor, ValueRef as V};
use support::*;
use table::cases;

/// Operators without a derivative, by their rows.
fn without_derivative() -> BTreeSet<String> {
    let without = |row: &&Row| match row.layers().derivative {
        Rule::Refused(_) | Rule::Given(Gradient::Detach) => true,
        Rule::Derived => row.is_composite(),
        Rule::Given(_) => false,
    };
    let names = rows().iter().filter(without).map(|row| row.schema().name.to_string());
    let is_out = |name: &str| name.ends_with(".out") || name.ends_with("_out");
    let is_listed = |name: &String| name.starts_with("aten::") && !is_out(name);
    names.filter(is_listed).collect()
}

#[test]
fn derivatives_are_those_of_finite_differences() {
    for case in cases() {
        check(&case.label(), &case.function, &case.inputs, &case.constants);
    }
}

#[test]
fn every_operator_is_in_the_table_or_needs_no_derivative() {
    let tested: BTreeSet<String> = cases().iter().map(|case| case.op.to_owned()).collect();
    let exempt = without_derivative();
    assert_eq!(tested.intersection(&exempt).next(), None, "in both lists");
    let operators = dispatcher().operators();
    let outs = rows().iter().filter_map(Row::out_schema).map(|schema| schema.name.to_string());
    let outs: BTreeSet<String> = outs.collect();
    let names: BTreeSet<String> = operators
        .iter()
        .map(|op| op.name().to_string())
        // Those of keyfold's own are tested here where finite differences mean something.
        .filter(|name| name.starts_with("aten::") || tested.contains(name))
        // A result that is written into `out` isn't recorded: see the test below.
        .filter(|name| !name.ends_with(".out") && !name.ends_with("_out"))
        .filter(|name| !outs.contains(name))
        .collect();
    let listed: BTreeSet<String> = tested.union(&exempt).cloned().collect();
    assert_eq!(names, listed);
    for name in &tested {
        let operator = dispatcher().operator(name).unwrap();
        assert!(operator.has_kernel(DispatchKey::Autograd.into()), "{name} has no derivative");
    }
}

#[test]
fn what_is_written_into_out_has_no_derivative_and_says_so() {
    let x = leaf(&Tensor::from_slice(&[1.0, 2.0], &[2]).unwrap());
    let out = Tensor::zeros(&[2], DType::F64, Device::CPU).unwrap();
    let exp = dispatcher().operator("aten::exp.out").unwrap();
    let result = exp.call(&[V::Tensor(&x), V::Tensor(&out)]).and_then(|v| v.into_tensor());
    let error = match result {
        Ok(result) => {
            let loss = weighted(&result).unwrap();
            gradients_of(&loss, std::slice::from_ref(&x), false).unwrap_err()
        }
        Err(error) => error,
    };
    assert_eq!(error.kind(), keyfold_core::ErrorKind::Gradient);
    assert!(error.message().contains("aten::exp.out"), "{error}");
}

/// Converts all inputs to one dtype, or only the first one.
fn in_dtype(inputs: &[Tensor], dtype: DType, all: bool) -> Vec<Tensor> {
    let cast = |(i, x): (usize, &Tensor)| {
        if all || i == 0 { aten::to(x, dtype).unwrap() } else { x.clone() }
    };
    inputs.iter().enumerate().map(cast).collect()
}

#[test]
fn gradients_have_the_dtype_of_their_operand() {
    for case in cases() {
        let exact: Vec<Tensor> = case.inputs.iter().map(leaf).collect();
        let exact = gradients(&case.function, &exact, &case.constants, false).unwrap();
        let exact: Vec<Vec<f64>> = exact.iter().map(numbers).collect();
        for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 0.03), (DType::BF16, 0.2)] {
            // Decompositions refuse halves.
            if case.op.starts_with("aten::linalg_") && dtype != DType::F32 {
                continue;
            }
            for all in [true, false] {
                // A tensor can be written with numbers of a wider dtype, but not of a higher kind.
                let inputs = in_dtype(&case.inputs, dtype, all);
                let leaves: Vec<Tensor> = inputs.iter().map(leaf).collect();
                let what = format!("{} in {dtype}", case.label());
                let grads = gradients(&case.function, &leaves, &case.constants, false);
                let grads = match grads {
                    Ok(grads) => grads,
                    // Norms and others refuse to mix dtypes.
                    Err(error) if !all && error.kind() == ErrorKind::DType => continue,
                    Err(error) => panic!("{what}: {error}"),
                };
                same(&what, &leaves, &grads, &exact, tolerance);
            }
        }
    }
}

#[test]
fn only_the_needed_gradients_are_computed() {
    for case in cases().iter().filter(|case| case.inputs.len() > 1) {
        let all: Vec<Tensor> = case.inputs.iter().map(leaf).collect();
        let all = gradients(&case.function, &all, &case.constants, false).unwrap();
        for i in 0..case.inputs.len() {
            let mut inputs = case.inputs.clone();
            inputs[i] = leaf(&inputs[i]);
            let loss = weighted(&(case.function)(&inputs, &case.constants).unwrap()).unwrap();
            let wanted = std::slice::from_ref(&inputs[i]);
            let grads = gradients_of(&loss, wanted, false)
                .unwrap_or_else(|error| panic!("{}: {error}", case.label()));
            same(&case.label(), wanted, &grads, &[numbers(&all[i])], 1e-12);
        }
    }
}

#[test]
fn derivatives_work_on_meta() {
    let meta = |x: &Tensor| Tensor::meta(x.shape(), x.dtype()).unwrap();
    // A gradient on meta has no elements to copy to another device.
    let works = |case: &&table::Case| !case.has_mask() && case.op != "aten::to.device";
    for case in cases().iter().filter(works) {
        let leaves: Vec<Tensor> = case.inputs.iter().map(|x| leaf(&meta(x))).collect();
        let constants: Vec<Tensor> = case.constants.iter().map(meta).collect();
        let what = case.label();
        let result =
            (case.function)(&leaves, &constants).unwrap_or_else(|error| panic!("{what}: {error}"));
        let seed = Tensor::meta(result.shape(), result.dtype()).unwrap();
        let options = Options { create_graph: true, retain_graph: true };
        let grads = autograd::grad(&[result], &leaves, &[Some(seed)], options, &|| Ok(()))
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        for (leaf, grad) in leaves.iter().zip(grads) {
            if let Some(grad) = grad {
                assert_eq!(grad.device(), Device::META, "{what}");
                assert_eq!((grad.shape(), grad.dtype()), (leaf.shape(), leaf.dtype()), "{what}");
            }
        }
    }
}

/// Computes the gradients of the sum of an operator's result.
fn slopes(inputs: &[&[f64]], f: impl Fn(&[Tensor]) -> Tensor) -> Vec<Vec<f64>> {
    let leaves: Vec<Tensor> =
        inputs.iter().map(|x| leaf(&Tensor::from_slice(x, &[x.len()]).unwrap())).collect();
    let total = aten::sum_all(&f(&leaves)).unwrap();
    gradients_of(&total, &leaves, false).unwrap().iter().map(numbers).collect()
}

#[test]
fn kinks_have_slope_zero_and_ties_share() {
    type Unary = fn(&Tensor) -> Result<Tensor>;
    let relu: Unary = |x| call("aten::relu", &[V::Tensor(x)]);
    let functions: [(Unary, [f64; 3]); 3] =
        [(aten::abs, [-1.0, 0.0, 1.0]), (aten::sign, [0.0; 3]), (relu, [0.0, 0.0, 1.0])];
    for (function, expected) in functions {
        assert_eq!(slopes(&[&[-2.0, 0.0, 3.0]], |x| function(&x[0]).unwrap()), [expected]);
    }
    let pair = [&[1.0, 2.0, 3.0][..], &[1.0, 5.0, 0.0]];
    let greatest = slopes(&pair, |x| aten::maximum(&x[0], &x[1]).unwrap());
    assert_eq!(greatest, [[0.5, 0.0, 1.0], [0.5, 1.0, 0.0]]);
    let smallest = slopes(&pair, |x| aten::minimum(&x[0], &x[1]).unwrap());
    assert_eq!(smallest, [[0.5, 1.0, 0.0], [0.5, 0.0, 1.0]]);
    for (op, expected) in [("max", [0.0, 0.5, 0.5, 0.0]), ("amin", [0.5, 0.0, 0.0, 0.5])] {
        let op = format!("aten::{op}");
        let ties = slopes(&[&[1.0, 4.0, 4.0, 1.0]], |x| call(&op, &[V::Tensor(&x[0])]).unwrap());
        assert_eq!(ties, [expected]);
    }
    let number = slopes(&[&[1.0, 2.0, 3.0]], |x| {
        call("aten::maximum.Scalar", &[V::Tensor(&x[0]), V::Int(2)]).unwrap()
    });
    assert_eq!(number, [[0.0, 0.5, 1.0]]);
}

#[test]
fn powers_of_zero_and_of_negative_numbers() {
    let inf = f64::INFINITY;
    let grads = slopes(&[&[0.0, 0.0, 0.0, 2.0], &[0.0, 1.0, 2.0, 0.0]], |x| {
        aten::pow(&x[0], &x[1]).unwrap()
    });
    assert_eq!(grads[0], [0.0, 1.0, 0.0, 0.0]);
    assert_eq!(grads[1], [0.0, 0.0, 0.0, 2.0_f64.ln()]);
    let grads = slopes(&[&[-2.0, 0.0], &[3.0, -1.0]], |x| aten::pow(&x[0], &x[1]).unwrap());
    assert_eq!(grads[0], [12.0, -inf]);
    assert!(grads[1][0].is_nan());
    assert_eq!(grads[1][1], -inf);
    let cube = |n| slopes(&[&[-2.0, 0.0]], move |x| aten::pow_scalar(&x[0], n).unwrap());
    assert_eq!(cube(3), [[12.0, 0.0]]);
    assert_eq!(cube(0), [[0.0, 0.0]]);
    assert_eq!(cube(1), [[1.0, 1.0]]);
    assert_eq!(cube(2), [[-4.0, 0.0]]);
    let of_zero = slopes(&[&[0.0, 2.0, -1.0]], |x| aten::rpow_scalar(&x[0], 0).unwrap());
    assert_eq!(of_zero, [[0.0, 0.0, -inf]]);
    let negative = slopes(&[&[2.0]], |x| aten::rpow_scalar(&x[0], -3).unwrap());
    assert!(negative[0][0].is_nan());
}

#[test]
fn second_derivatives_of_powers_at_zero_are_finite() {
    let square: &Function = &|x, _| {
        let exponent = Tensor::from_slice(&[0.0, 1.0, 2.0, 3.0], &[4])?;
        aten::pow(&x[0], &exponent)
    };
    let x = leaf(&Tensor::zeros(&[4], DType::F64, Device::CPU).unwrap());
    let inputs = [x];
    let grads = gradients(square, &inputs, &[], true).unwrap();
    let twice = gradients_of(&aten::sum_all(&grads[0]).unwrap(), &inputs, false).unwrap();
    let weights = 0.5 + 3.0 / 4.0;
    assert_eq!(numbers(&twice[0])[0], 0.0);
    assert_eq!(numbers(&twice[0])[2], 2.0 * weights);
    assert_eq!(numbers(&twice[0])[3], 0.0);
}

#[test]
fn the_last_value_put_to_a_place_gets_the_gradient() {
    let at = [Some(Tensor::from_slice(&[1_i64, 0, 1], &[3]).unwrap())];
    let f = |x: &[Tensor]| aten::index_put(&x[0], &at, &x[1], false).unwrap();
    let grads = slopes(&[&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]], f);
    assert_eq!(grads, [[0.0, 0.0, 1.0], [0.0, 1.0, 1.0]]);
}

#[test]
fn integers_in_between_cut_and_beside_are_left_out() {
    let x = leaf(&data(&[3], 0, 0.5, 1.9));
    assert!(!aten::to(&x, DType::I64).unwrap().requires_grad());
    assert!(!aten::gt_scalar(&x, 1).unwrap().requires_grad());
    assert!(!call("aten::argmax", &[V::Tensor(&x)]).unwrap().requires_grad());
    assert!(!aten::detach(&x).unwrap().requires_grad());
    let whole = Tensor::from_slice(&[1_i64, 2, 3], &[3]).unwrap();
    for op in ["mul", "add", "sub", "div", "pow", "maximum", "minimum", "matmul"] {
        for swapped in [false, true] {
            let (mut a, mut b) = (&x, &whole);
            if swapped {
                std::mem::swap(&mut a, &mut b);
            }
            let result = call(&format!("aten::{op}"), &[V::Tensor(a), V::Tensor(b)]).unwrap();
            let total = aten::sum_all(&result).unwrap();
            let grads = gradients_of(&total, std::slice::from_ref(&x), false).unwrap();
            let expected = differences(&[x.detach()], |moved| {
                let (a, b) = if swapped { (&whole, &moved[0]) } else { (&moved[0], &whole) };
                let result = call(&format!("aten::{op}"), &[V::Tensor(a), V::Tensor(b)])?;
                aten::sum_all(&result)?.item().map(|number| number.as_f64())
            });
            same(op, std::slice::from_ref(&x), &grads, &expected.unwrap(), 1e-7);
        }
    }
}

#[test]
fn what_no_gradient_reads_is_not_kept() {
    const COUNT: usize = 1 << 22;
    let _counting = keyfold_tensor::memory::count();
    // The memory that is freed with an operand of a product: all of it, or nothing.
    let freed = |grad_of_it: bool| {
        let row = Tensor::full(&[1, COUNT], 1.0.into(), DType::F64, Device::CPU).unwrap();
        let column = Tensor::full(&[COUNT, 1], 1.0.into(), DType::F64, Device::CPU).unwrap();
        autograd::set_requires_grad(if grad_of_it { &row } else { &column }, true).unwrap();
        let product = aten::matmul(&row, &column).unwrap();
        let before = keyfold_tensor::memory::live();
        drop(row);
        let freed = before - keyfold_tensor::memory::live();
        assert!(product.requires_grad());
        freed
    };
    let size = (COUNT * size_of::<f64>()) as i64;
    // Tests in other threads use little memory.
    assert!(freed(true) > size / 2, "its own gradient reads the other operand");
    assert!(freed(false) < size / 2, "the other's gradient reads it");
}

/// The identity, with a derivative that saves its operand in its own state, with the operand's edge.
struct Keeper;

impl autograd::Derivative for Keeper {
    fn name(&self) -> &str {
        "test::kept"
    }

    fn saves(&self) -> autograd::Saves {
        autograd::Saves::NONE
    }

    fn apply(
        &self,
        call: &autograd::Backward<'_>,
        grads: &[Option<Tensor>],
    ) -> Result<autograd::Gradients> {
        let extra = call.extra().and_then(|extra| extra.downcast_ref::<autograd::SavedTensor>());
        extra.unwrap().restore(self.name())?;
        Ok(grads.to_vec())
    }

    fn record(
        &self,
        args: &[V<'_>],
        _: &[&Tensor],
        _: &[Option<autograd::Edge>],
    ) -> Result<(Option<autograd::Extra>, autograd::Saves)> {
        let kept = autograd::SavedTensor::keep(args[0].tensor()?)?;
        Ok((Some(Arc::new(kept)), self.saves()))
    }
}

#[test]
fn a_long_chain_of_kept_tensors_ends_without_recursion() {
    let dispatcher = dispatcher();
    dispatcher.define("test::kept(Tensor self) -> Tensor").unwrap();
    let copy = Kernel::typed(|x: &Tensor| x.copy());
    dispatcher.implement("test::kept", DispatchKey::CPU, copy, Override::Error).unwrap();
    let keeper = Arc::new(Keeper);
    autograd::register_derivative(dispatcher, "test::kept", keeper, Override::Error).unwrap();
    let x = leaf(&data(&[1], 0, 1.0, 1.9));
    for goes_back in [false, true] {
        let mut y = aten::alias(&x).unwrap();
        for _ in 0..200_000 {
            y = call("test::kept", &[V::Tensor(&y)]).unwrap();
        }
        if goes_back {
            let grads = gradients_of(&y, std::slice::from_ref(&x), false).unwrap();
            assert_eq!(numbers(&grads[0]), [1.0]);
        }
        drop(y);
    }
}

/// Pseudorandom numbers (xorshift, G. Marsaglia, "Xorshift RNGs", 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// One step of a chain, which keeps the shape `[2, 3]` and small numbers.
fn step(which: usize, x: &Tensor, other: &Tensor) -> Result<Tensor> {
    let one = |x: &Tensor| aten::add_scalar(&aten::mul(x, x)?, 1);
    match which {
        0 => aten::tanh(x),
        1 => aten::sigmoid(x),
        2 => aten::sin(x),
        3 => aten::mul(x, other),
        4 => aten::add(&aten::select(x, 0, 1)?, other),
        5 => aten::div(x, &one(other)?),
        6 => aten::log(&one(x)?),
        7 => call("aten::softmax", &[V::Tensor(x), V::Int(1)]),
        8 => aten::matmul(&aten::matmul(x, &aten::transpose(other, 0, 1)?)?, x),
        9 => aten::sub(x, &aten::sum(x, &[0], true)?),
        10 => aten::flip(&aten::pow_scalar(&one(x)?, 0.5)?, &[1]),
        11 => aten::reshape(
            &aten::stack(&[aten::select(x, 0, 0)?, aten::cos(&aten::select(other, 0, 1)?)?], 1)?,
            &[2, 3],
        ),
        12 => aten::index_select(x, 0, &Tensor::from_slice(&[1_i64, 1], &[2])?),
        13 => aten::mul(
            &aten::expand(&aten::select(x, 1, 2)?, &[3, 2])
                .and_then(|x| aten::transpose(&x, 0, 1))?,
            other,
        ),
        _ => call("aten::log_softmax", &[V::Tensor(&aten::neg(x)?), V::Int(0)]),
    }
}

#[test]
fn chains_of_operators() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    for round in 0..60 {
        let chain: Vec<usize> = (0..5).map(|_| random.below(15)).collect();
        let inputs = [data(&[2, 3], round * 2, -1.0, 1.0), data(&[2, 3], round * 2 + 1, -1.0, 1.0)];
        let what = format!("chain {chain:?}");
        let f = move |x: &[Tensor], _: &[Tensor]| {
            chain.iter().try_fold(x[0].clone(), |y, which| step(*which, &y, &x[1]))
        };
        check(&what, &f, &inputs, &[]);
    }
}
