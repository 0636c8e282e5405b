//! Complex derivatives against finite differences, with respect to both parts of each element.

mod support;
#[path = "support/cases.rs"]
#[allow(dead_code, reason = "gradients.rs uses all of it")]
mod table;

use std::collections::BTreeSet;

use keyfold::ops::aten;
use keyfold_core::{Complex, DType, ErrorKind, Result, Scalar};
use keyfold_layers::autograd::{self, Options};
use keyfold_tensor::{Tensor, ValueRef as V};
use support::*;
use table::cases;

type Number = Complex<f64>;

/// Operators with a derivative that don't support complex numbers. `to` has a real dtype in the table, and is
/// tested below with a complex one.
const REAL_ONLY: &str = "maximum minimum maximum.Scalar minimum.Scalar remainder floor_divide \
    remainder.Scalar floor_divide.Scalar rremainder.Scalar rfloor_divide.Scalar expm1 relu erf \
    softplus silu gelu gelu_tanh floor ceil round trunc log1p sigmoid max min amax amin softmax \
    log_softmax _thnn_fused_gru_cell _thnn_fused_lstm_cell linalg_svd linalg_svdvals linalg_eigh \
    linalg_eigvalsh linalg_qr linalg_cholesky linalg_cholesky_ex linalg_solve linalg_solve_ex \
    linalg_solve_triangular linalg_det linalg_slogdet \
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward _fused_rms_norm \
    _fused_rms_norm_backward _log_softmax_backward_data _native_batch_norm_legit.no_stats \
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training \
    _softmax_backward_data adaptive_avg_pool2d adaptive_avg_pool3d avg_pool2d \
    avg_pool2d_backward avg_pool3d avg_pool3d_backward clamp convolution convolution_backward \
    elu gelu_backward gelu_sigmoid gelu_sigmoid_backward gelu_tanh_backward hardtanh leaky_relu \
    max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices \
    max_pool3d_with_indices_backward mish native_batch_norm_backward native_dropout \
    native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm \
    native_layer_norm_backward threshold_backward \
    keyfold::convolution_activation to";

/// Returns an operator's name with its namespace, which is `aten` where none is given.
fn qualified(op: &str) -> String {
    if op.contains("::") { op.to_owned() } else { format!("aten::{op}") }
}

fn parts(x: &Tensor) -> Vec<f64> {
    let items = aten::to(x, DType::C128).unwrap().to_vec::<Number>().unwrap();
    match x.dtype().is_complex() {
        true => items.iter().flat_map(|z| [z.re, z.im]).collect(),
        false => items.iter().map(|z| z.re).collect(),
    }
}

/// Makes the tensor of that shape and dtype whose elements have these parts.
fn of_parts(parts: &[f64], like: &Tensor) -> Result<Tensor> {
    if !like.dtype().is_complex() {
        return Tensor::from_vec(parts.to_vec(), like.shape());
    }
    let items: Vec<Number> = parts.chunks(2).map(|z| Complex::new(z[0], z[1])).collect();
    Tensor::from_vec(items, like.shape())
}

/// Adds an imaginary part.
fn complex(x: &Tensor, seed: usize) -> Tensor {
    let imaginary = numbers(&data(x.shape(), seed, 0.2, 0.9));
    let items = numbers(x).into_iter().zip(imaginary).map(|(re, im)| Complex::new(re, im));
    Tensor::from_vec(items.collect::<Vec<Number>>(), x.shape()).unwrap()
}

/// Computes a real number that depends on both parts of every element.
fn loss(y: &Tensor) -> Result<Tensor> {
    if !y.dtype().is_complex() {
        return weighted(y);
    }
    let imaginary = aten::mul_scalar(&aten::imag(y)?, -0.7)?;
    aten::add(&weighted(&aten::real(y)?)?, &weighted(&imaginary)?)
}

fn loss_of_all(grads: &[Tensor]) -> Result<Tensor> {
    let mut total = Tensor::from_vec(vec![0.0_f64], &[])?;
    for grad in grads {
        total = aten::add(&total, &loss(grad)?)?;
    }
    Ok(total)
}

/// Computes the derivatives of a real number with respect to each part of each element.
fn differences_by_parts(
    inputs: &[Tensor],
    value: impl Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<Vec<Vec<f64>>> {
    const STEP: f64 = 1e-5;
    let mut all = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        let items = parts(input);
        let mut slopes = Vec::new();
        for k in 0..items.len() {
            let at = |by: f64| -> Result<f64> {
                let mut items = items.clone();
                items[k] += by;
                let mut moved = inputs.to_vec();
                moved[i] = of_parts(&items, input)?;
                value(&moved)?.item().map(Scalar::as_f64)
            };
            slopes.push((at(STEP)? - at(-STEP)?) / (2.0 * STEP));
        }
        all.push(slopes);
    }
    Ok(all)
}

fn first(
    f: &Function,
    inputs: &[Tensor],
    constants: &[Tensor],
    again: bool,
) -> Result<Vec<Tensor>> {
    gradients_of(&loss(&f(inputs, constants)?)?, inputs, again)
}

#[track_caller]
fn close(what: &str, inputs: &[Tensor], grads: &[Tensor], expected: &[Vec<f64>], tolerance: f64) {
    for (i, ((input, grad), expected)) in inputs.iter().zip(grads).zip(expected).enumerate() {
        assert_eq!((grad.shape(), grad.dtype()), (input.shape(), input.dtype()), "{what}: {i}");
        for (k, (given, wanted)) in parts(grad).iter().zip(expected).enumerate() {
            let near = (given - wanted).abs() <= tolerance * wanted.abs().max(1.0);
            assert!(near, "{what}: gradient {i}, part {k}: {given}, by differences {wanted}");
        }
    }
}

/// Compares first and second derivatives. Returns whether the operator supports these dtypes.
#[track_caller]
fn agrees(what: &str, f: &Function, inputs: &[Tensor], constants: &[Tensor]) -> bool {
    match f(inputs, constants) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::DType => return false,
        Err(error) => panic!("{what}: {error}"),
    }
    let run = || -> Result<()> {
        let slopes = differences_by_parts(inputs, |moved| loss(&f(moved, constants)?))?;
        let leaves: Vec<Tensor> = inputs.iter().map(leaf).collect();
        let grads = first(f, &leaves, constants, true)?;
        close(what, &leaves, &grads, &slopes, 1e-7);
        let slopes = differences_by_parts(inputs, |moved| {
            let leaves: Vec<Tensor> = moved.iter().map(leaf).collect();
            loss_of_all(&first(f, &leaves, constants, false)?)
        })?;
        let twice = gradients_of(&loss_of_all(&grads)?, &leaves, false)?;
        close(&format!("second of {what}"), &leaves, &twice, &slopes, 1e-6);
        Ok(())
    };
    run().unwrap_or_else(|error| panic!("{what}: {error}"));
    true
}

#[test]
fn every_operator_that_takes_complex_numbers() {
    let (mut tested, mut all) = (BTreeSet::new(), BTreeSet::new());
    for case in cases() {
        all.insert(case.op);
        let both: Vec<Tensor> = case.inputs.iter().map(|x| complex(x, 1)).collect();
        let takes = agrees(&case.label(), &case.function, &both, &case.constants);
        if !takes {
            continue;
        }
        tested.insert(case.op);
        // One real operand with a complex one. A real tensor can't be written with complex numbers.
        for place in 0..both.len() {
            let mut mixed = both.clone();
            mixed[place] = case.inputs[place].clone();
            let what = format!("{}, {place} real", case.label());
            if both.len() > 1 {
                agrees(&what, &case.function, &mixed, &case.constants);
            }
        }
    }
    let refused: BTreeSet<String> = REAL_ONLY.split_whitespace().map(qualified).collect();
    let untested: BTreeSet<String> = all.difference(&tested).map(|op| (*op).to_owned()).collect();
    assert_eq!(untested, refused);
}

#[test]
fn numbers_beside_tensors_may_be_complex() {
    let number = Scalar::Complex(Complex::new(0.8, -0.6));
    let x = data(&[2, 3], 0, 0.25, 1.9);
    let to: &Function = &|x, _| aten::to(&x[0], DType::C128);
    assert!(
        agrees("to", to, std::slice::from_ref(&x), &[]) && agrees("to", to, &[complex(&x, 1)], &[])
    );
    for op in ["add", "sub", "mul", "div", "rsub", "rdiv", "pow", "rpow"] {
        let name = format!("aten::{op}.Scalar");
        let f = move |x: &[Tensor], _: &[Tensor]| call(&name, &[V::Tensor(&x[0]), number.into()]);
        for x in [x.clone(), complex(&x, 1)] {
            assert!(agrees(op, &f, &[x], &[]), "{op}");
        }
    }
}

#[test]
fn expressions_of_complex_numbers() {
    let texts = [
        "x * x * y",
        "x ** y + y ** 2 + 2 ** x",
        "exp(x) / (1 + y)",
        "conj(x) * y",
        "real(x) * imag(y) + y",
        "imag(x) * x",
        "abs(x * y)",
        "sign(x) * y",
        "where(abs(x) > 1, conj(x) * x, abs(y) * imag(x))",
        "sqrt(x) * log(y) + tanh(x) + sin(x) * cos(y) + 1 / x",
    ];
    let inputs = [data(&[4], 0, 0.25, 1.9), data(&[4], 1, 0.25, 1.9)];
    let both = [complex(&inputs[0], 1), complex(&inputs[1], 3)];
    for text in texts {
        let f = move |x: &[Tensor], _: &[Tensor]| {
            let text = format!("x, y: {text}");
            let none: &[V<'_>] = &[];
            let args = [V::Tensors(x), V::Refs(none), V::Str(&text), V::None];
            call("keyfold::elementwise", &args)
        };
        assert!(agrees(text, &f, &both, &[]), "{text}");
        for place in 0..2 {
            let mut mixed = both.clone();
            mixed[place] = inputs[place].clone();
            assert!(agrees(&format!("{text}, {place} real"), &f, &mixed, &[]), "{text}");
        }
    }
}

#[test]
fn a_complex_loss_is_refused_without_an_initial_gradient() {
    let z = leaf(&complex(&data(&[1], 0, 0.25, 1.9), 1));
    let y = aten::mul(&z, &z).unwrap();
    let options = Options::default();
    let error = autograd::backward(std::slice::from_ref(&y), &[], options, &|| Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gradient);
    assert!(error.message().contains("only a real number"), "{error}");
    let seed = Tensor::from_vec(vec![Complex::new(0.0, 1.0)], &[1]).unwrap();
    autograd::backward(&[y], &[Some(seed)], options, &|| Ok(())).unwrap();
    let expected = Complex::new(0.0, 1.0) * (z.to_vec::<Number>().unwrap()[0] * 2.0).conj();
    assert_eq!(autograd::grad_of(&z).unwrap().to_vec::<Number>().unwrap(), [expected]);
}
