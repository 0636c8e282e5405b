//! Equal calls in a pipeline, of which one is computed.

#[path = "support/pipelines.rs"]
mod pipelines;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold::ops::aten;
use keyfold_core::{Result, Scalar};
use keyfold_dispatch::{DispatchKey, Kernel};
use keyfold_layers::pipeline::{Options, Session, Statistics};
use keyfold_tensor::Tensor;

/// Runs a block in a pipeline; returns its result, the outcome and the counters.
fn within<R>(f: impl FnOnce(&Arc<Session>) -> R) -> (R, Result<()>, Statistics) {
    pipelines::within(Options::default(), f)
}

fn numbers() -> Tensor {
    keyfold::init();
    Tensor::from_slice(&[1.5_f64, -2.0, 0.25], &[3]).unwrap()
}

/// Two sums of the same squares.
fn twice(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let first = aten::exp(&aten::add_scalar(&aten::mul(x, x)?, 1.0)?)?;
    let other = aten::tanh(&aten::add_scalar(&aten::mul(x, x)?, 1.0)?)?;
    Ok((first, other))
}

#[test]
fn equal_calls_whose_results_nobody_holds_are_computed_once() {
    let x = numbers();
    let expected = twice(&x).unwrap();
    let (made, ended, counted) = within(|session| {
        let made = twice(&x).unwrap();
        // Also what reads equal results.
        let plan = session.explain();
        assert_eq!(plan.operations.iter().filter(|one| one.dead).count(), 2, "{plan}");
        made
    });
    ended.unwrap();
    assert_eq!((counted.recorded, counted.ran, counted.merged, counted.dead), (6, 4, 2, 2));
    let made = [&made.0, &made.1].map(|x| x.to_vec::<f64>().unwrap());
    assert_eq!(made, [&expected.0, &expected.1].map(|x| x.to_vec::<f64>().unwrap()));
}

#[test]
fn results_that_somebody_holds_are_of_their_own() {
    let x = numbers();
    let ((a, b), ended, counted) =
        within(|_| (aten::mul(&x, &x).unwrap(), aten::mul(&x, &x).unwrap()));
    ended.unwrap();
    assert_eq!((counted.merged, counted.ran), (0, 2));
    aten::fill_(&a, Scalar::from(0.0)).unwrap();
    assert_eq!(b.to_vec::<f64>().unwrap(), [2.25, 4.0, 0.0625]);
}

#[test]
fn other_numbers_operands_and_views_are_other_calls() {
    let x = Tensor::from_slice(&[1.0_f64, 2.0, 3.0, 4.0], &[4]).unwrap();
    let (front, back) = (
        aten::slice(&x, 0, 0.into(), 2.into(), 1).unwrap(),
        aten::slice(&x, 0, 2.into(), 4.into(), 1).unwrap(),
    );
    let (made, ended, counted) = within(|_| {
        let numbers = aten::add(&aten::mul_scalar(&x, 2.0)?, &aten::mul_scalar(&x, 3.0)?)?;
        let places = aten::add(&aten::exp(&front)?, &aten::exp(&back)?)?;
        let order = aten::add(&aten::sub(&front, &back)?, &aten::sub(&back, &front)?)?;
        Ok::<_, keyfold_core::Error>([numbers, places, order])
    });
    ended.unwrap();
    assert_eq!(counted.merged, 0);
    let [numbers, places, order] = made.unwrap();
    assert_eq!(numbers.to_vec::<f64>().unwrap(), [5.0, 10.0, 15.0, 20.0]);
    let expected = [1.0_f64.exp() + 3.0_f64.exp(), 2.0_f64.exp() + 4.0_f64.exp()];
    assert_eq!(places.to_vec::<f64>().unwrap(), expected);
    assert_eq!(order.to_vec::<f64>().unwrap(), [0.0, 0.0]);
}

#[test]
fn a_write_between_equal_calls_keeps_them_apart() {
    let x = numbers();
    let (made, ended, counted) = within(|_| {
        let y = aten::add_scalar(&x, 1.0)?;
        let before = aten::exp(&aten::mul_scalar(&y, 2.0)?)?;
        aten::fill_(&y, Scalar::from(0.0))?;
        let after = aten::exp(&aten::mul_scalar(&y, 2.0)?)?;
        Ok::<_, keyfold_core::Error>((before, after))
    });
    ended.unwrap();
    assert_eq!(counted.merged, 0);
    let (before, after) = made.unwrap();
    assert_eq!(before.to_vec::<f64>().unwrap()[0], 5.0_f64.exp());
    assert_eq!(after.to_vec::<f64>().unwrap(), [1.0; 3]);
}

#[test]
fn an_operator_of_the_user_is_called_each_time() {
    keyfold::init();
    let dispatcher = keyfold::dispatcher();
    dispatcher.define("sametest::halve(Tensor x) -> Tensor").unwrap();
    let like = |x: &Tensor| Tensor::meta(x.shape(), x.dtype());
    dispatcher.register("sametest::halve", DispatchKey::Meta, Kernel::typed(like)).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let halve = move |x: &Tensor| {
        seen.fetch_add(1, Ordering::Relaxed);
        aten::mul_scalar(x, 0.5)
    };
    dispatcher.register("sametest::halve", DispatchKey::CPU, Kernel::typed(halve)).unwrap();
    let call = |x: &Tensor| dispatcher.call("sametest::halve", &[x.into()])?.into_tensor();
    let x = numbers();
    let (made, ended, counted) = within(|_| {
        let sum = aten::add(&aten::exp(&call(&x)?)?, &aten::tanh(&call(&x)?)?)?;
        Ok::<_, keyfold_core::Error>(sum)
    });
    ended.unwrap();
    assert_eq!((calls.load(Ordering::Relaxed), counted.merged), (2, 0));
    assert_eq!(made.unwrap().to_vec::<f64>().unwrap()[0], 0.75_f64.exp() + 0.75_f64.tanh());
}

#[test]
fn a_failure_of_equal_calls_is_that_of_the_first_one() {
    keyfold::init();
    let base = Tensor::from_slice(&[2_i64, 3], &[2]).unwrap();
    let exponent = Tensor::from_slice(&[1_i64, -1], &[2]).unwrap();
    let (made, ended, counted) = within(|_| {
        let first = aten::neg(&aten::pow(&base, &exponent)?)?;
        let other = aten::abs(&aten::pow(&base, &exponent)?)?;
        Ok::<_, keyfold_core::Error>([first, other])
    });
    let error = ended.unwrap_err();
    assert!(error.message().contains("operation 0 of a pipeline, aten::pow"), "{error}");
    assert_eq!((counted.merged, counted.failed, counted.skipped), (1, 1, 2));
    for made in made.unwrap() {
        assert_eq!(made.to_vec::<i64>().unwrap_err().message(), error.message());
    }
}

#[test]
fn a_recorded_program_computes_equal_calls_once() {
    let x = numbers();
    let session = Session::recorder();
    let placeholder = session.placeholder(&x).unwrap();
    let guard = session.enter();
    let (a, b) = twice(&placeholder).unwrap();
    guard.close().unwrap();
    let recording = session.finish(&[placeholder], &[a, b]).unwrap();
    assert_eq!(recording.counts().0, 4);
    let made = recording.replay(std::slice::from_ref(&x)).unwrap();
    let expected = twice(&x).unwrap();
    assert_eq!(made[0].to_vec::<f64>().unwrap(), expected.0.to_vec::<f64>().unwrap());
    assert_eq!(made[1].to_vec::<f64>().unwrap(), expected.1.to_vec::<f64>().unwrap());
}
