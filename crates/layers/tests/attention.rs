//! Derivatives of attention against finite differences, in every dtype, and its batching rules.

mod support;

use keyfold::dispatcher;
use keyfold_core::{DType, Result};
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, Value, ValueRef as V};
use support::*;

/// A call: the shapes of query, key and value, a mask, whether it's causal and heads are grouped.
struct Case {
    shapes: [&'static [usize]; 3],
    mask: Option<Tensor>,
    is_causal: bool,
    is_grouped: bool,
}

impl Case {
    fn plain(shapes: [&'static [usize]; 3]) -> Case {
        Case { shapes, mask: None, is_causal: false, is_grouped: false }
    }

    fn operands(&self) -> Vec<Tensor> {
        self.shapes.iter().enumerate().map(|(i, shape)| data(shape, i, -1.5, 1.9)).collect()
    }

    fn label(&self) -> String {
        let Case { shapes, mask, is_causal, is_grouped } = self;
        let mask = mask.as_ref().map(Tensor::dtype);
        format!("attention of {shapes:?}, mask {mask:?}, causal {is_causal}, grouped {is_grouped}")
    }

    /// The attention as a function of its operands, the last of which is the mask if there is a fourth.
    fn function(&self) -> Box<Function> {
        let (mask, is_causal, is_grouped) = (self.mask.clone(), self.is_causal, self.is_grouped);
        Box::new(move |x, _| {
            let mask = x.get(3).or(mask.as_ref()).map_or(V::None, V::Tensor);
            let [query, key, value] = [0, 1, 2].map(|at| V::Tensor(&x[at]));
            let (p, scale) = (V::Float(0.0), V::Float(0.75));
            let args = [query, key, value, mask, p, is_causal.into(), scale, V::Bool(is_grouped)];
            call("aten::scaled_dot_product_attention", &args)
        })
    }
}

fn cases() -> Vec<Case> {
    keyfold::init();
    let plain = [
        Case::plain([&[2, 3], &[4, 3], &[4, 2]]),
        Case::plain([&[2, 3, 2], &[2, 4, 2], &[2, 4, 3]]),
        Case::plain([&[2, 2, 3], &[1, 3], &[2, 1, 1, 2]]),
        Case::plain([&[2, 2], &[0, 2], &[0, 3]]),
        Case { is_grouped: true, ..Case::plain([&[4, 2, 3], &[2, 3, 3], &[2, 3, 2]]) },
    ];
    let causal =
        [Case::plain([&[3, 2], &[3, 2], &[3, 2]]), Case::plain([&[2, 3], &[4, 3], &[4, 1]])];
    let chosen = [true, false, true, true, false, false, false, false];
    let mask = Tensor::from_slice(&chosen, &[2, 4]).unwrap();
    let masked = Case { mask: Some(mask), ..Case::plain([&[2, 3], &[4, 3], &[4, 2]]) };
    let causal = causal.map(|case| Case { is_causal: true, ..case });
    plain.into_iter().chain(causal).chain([masked]).collect()
}

#[test]
fn derivatives_are_those_of_finite_differences() {
    for case in cases() {
        check(&case.label(), &case.function(), &case.operands(), &[]);
    }
    let case = Case::plain([&[2, 3, 2], &[2, 4, 2], &[2, 4, 3]]);
    let mut operands = case.operands();
    operands.push(data(&[2, 1, 4], 3, -1.0, 1.0));
    check("attention with an added mask", &case.function(), &operands, &[]);
}

#[test]
fn the_logarithms_have_derivatives_too() {
    keyfold::init();
    let operands = Case::plain([&[2, 2, 3], &[2, 4, 3], &[4, 2]]).operands();
    for at in [0, 1] {
        let one: Box<Function> = Box::new(move |x: &[Tensor], _: &[Tensor]| {
            let [query, key, value] = [0, 1, 2].map(|at| V::Tensor(&x[at]));
            let args = [query, key, value, V::None, V::Bool(false), V::None];
            Ok(several("keyfold::attention", &args)?.swap_remove(at))
        });
        check(&format!("result {at} of keyfold::attention"), &one, &operands, &[]);
    }
}

fn several(name: &str, args: &[V<'_>]) -> Result<Vec<Tensor>> {
    match dispatcher().call(name, args)? {
        Value::Tuple(items) | Value::List(items) => {
            items.into_iter().map(Value::into_tensor).collect()
        }
        one => Ok(vec![one.into_tensor()?]),
    }
}

#[test]
fn gradients_have_the_dtype_of_their_operands() {
    for case in cases() {
        let function = case.function();
        let exact: Vec<Tensor> = case.operands().iter().map(leaf).collect();
        let exact = gradients(&function, &exact, &[], false).unwrap();
        let exact: Vec<Vec<f64>> = exact.iter().map(numbers).collect();
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 0.01), (DType::BF16, 0.06)] {
            let cast = |x: &Tensor| leaf(&keyfold::ops::aten::to(x, dtype).unwrap());
            let leaves: Vec<Tensor> = case.operands().iter().map(cast).collect();
            let grads = gradients(&function, &leaves, &[], false).unwrap();
            let what = format!("{} in {dtype}", case.label());
            same(&what, &leaves, &grads, &exact, tolerance);
        }
    }
}

/// Runs a function for each example, or once for all of them by `vmap`.
fn compare_with_loop(
    what: &str,
    examples: &[(Tensor, bool)],
    f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
) {
    let count = 3;
    let each = (0..count).map(|i| {
        let one = examples.iter().map(|(x, batched)| match batched {
            true => x.select(0, i as i64).unwrap(),
            false => x.clone(),
        });
        f(&one.collect::<Vec<_>>()).unwrap()
    });
    let each: Vec<Vec<Tensor>> = each.collect();
    let dims: Vec<Option<i64>> = examples.iter().map(|(_, batched)| batched.then_some(0)).collect();
    let inputs: Vec<Tensor> = examples.iter().map(|(x, _)| x.clone()).collect();
    let all = vmap::vmap(|x| f(x), &dims, &[Some(0)], &inputs).unwrap();
    for (at, all) in all.iter().enumerate() {
        for (i, one) in each.iter().enumerate() {
            let got = numbers(&all.select(0, i as i64).unwrap());
            for (got, wanted) in got.iter().zip(numbers(&one[at])) {
                assert!((got - wanted).abs() < 1e-12, "{what}: result {at}: {got}, {wanted}");
            }
        }
    }
}

#[test]
fn examples_of_a_batch_are_one_more_dimension() {
    keyfold::init();
    let shapes: [&[usize]; 4] = [&[2, 3], &[4, 3], &[4, 2], &[2, 4]];
    for batched in [[true; 4], [true, false, false, false], [false, true, true, false]] {
        let operand = |(i, shape): (usize, &&[usize])| {
            let all = [&[3][..], shape].concat();
            let own = if batched[i] { &all } else { *shape };
            (data(own, i, -1.0, 1.0), batched[i])
        };
        let examples: Vec<_> = shapes.iter().enumerate().map(operand).collect();
        let args = |x: &[Tensor]| {
            let mask = V::Tensor(&x[3]);
            several(
                "keyfold::attention",
                &[
                    V::Tensor(&x[0]),
                    V::Tensor(&x[1]),
                    V::Tensor(&x[2]),
                    mask,
                    false.into(),
                    V::None,
                ],
            )
        };
        compare_with_loop(&format!("forward, batched {batched:?}"), &examples, args);
        let gradient = |x: &[Tensor]| {
            let results = args(x)?;
            let grad = keyfold::ops::aten::mul(&results[0], &results[0])?;
            let operands = [&grad, &x[0], &x[1], &x[2], &x[3]].map(V::Tensor);
            let rest = [V::Tensors(&results), false.into(), V::None];
            several("keyfold::attention_backward", &[&operands[..], &rest].concat())
        };
        compare_with_loop(&format!("backward, batched {batched:?}"), &examples, gradient);
    }
}
