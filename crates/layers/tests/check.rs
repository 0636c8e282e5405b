//! `Options::check`: each flush also runs its operations eagerly, and compares.

#[path = "support/pipelines.rs"]
mod pipelines;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyfold::ops::aten;
use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, Kernel};
use keyfold_layers::pipeline::{Check, Options, Session, Statistics};
use keyfold_tensor::device::random;
use keyfold_tensor::{Tensor, Value, ValueRef};

/// Runs a block in a pipeline that checks; returns its result, the outcome and the counters.
fn checked<R>(f: impl FnOnce(&Arc<Session>) -> R) -> (R, Result<()>, Statistics) {
    pipelines::within(Options { check: Some(Check::Eager), ..Options::default() }, f)
}

fn numbers() -> Tensor {
    keyfold::init();
    Tensor::from_slice(&[1.0_f64, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap()
}

/// Defines an operator of one tensor with a kernel for the CPU and one for Meta.
fn define(name: &str, kernel: fn(&Tensor) -> Result<Tensor>) {
    keyfold::init();
    let dispatcher = keyfold::dispatcher();
    dispatcher.define(&format!("{name}(Tensor x) -> Tensor")).unwrap();
    let like = |x: &Tensor| Tensor::meta(x.shape(), x.dtype());
    dispatcher.register(name, DispatchKey::Meta, Kernel::typed(like)).unwrap();
    dispatcher.register(name, DispatchKey::CPU, Kernel::typed(kernel)).unwrap();
}

fn call(name: &str, args: &[ValueRef<'_>]) -> Result<Tensor> {
    keyfold::dispatcher().call(name, args)?.into_tensor()
}

fn rand(sizes: &[i64]) -> Tensor {
    call("aten::rand", &[sizes.into()]).unwrap()
}

/// Returns a kernel's result: zeros, with `last` as the last element.
fn zeros_but(x: &Tensor, last: f64) -> Result<Tensor> {
    let mut items = vec![0.0; x.numel()];
    items[x.numel() - 1] = last;
    Tensor::from_vec(items, x.shape())
}

#[test]
fn equal_results_are_compared_and_stay() {
    let x = numbers();
    let ((y, z, sums), ended, counted) = checked(|_| {
        let y = aten::exp(&aten::mul(&x, &x).unwrap()).unwrap();
        let turned = aten::permute(&y, &[1, 0]).unwrap();
        let z = aten::sub(&turned, &aten::permute(&x, &[1, 0]).unwrap()).unwrap();
        (y, z.clone(), aten::sum_all(&z).unwrap())
    });
    ended.unwrap();
    let expected = aten::exp(&aten::mul(&x, &x).unwrap()).unwrap();
    assert_eq!(y.to_vec::<f64>().unwrap(), expected.to_vec::<f64>().unwrap());
    assert!(!z.is_pending() && !sums.is_pending());
    // The first product isn't stored; the view is no operation.
    assert_eq!((counted.ran, counted.checked, counted.failed), (4, 3, 0));
}

#[test]
fn a_kernel_that_returns_other_numbers_the_second_time_is_told() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    define("checktest::counts", |x| {
        zeros_but(x, CALLS.fetch_add(1, Ordering::Relaxed) as f64 + 1.0)
    });
    let x = numbers();
    let ((differs, after, other), ended, counted) = checked(|_| {
        let differs = call("checktest::counts", &[(&x).into()]).unwrap();
        let after = aten::add(&differs, &x).unwrap();
        (differs, after, aten::exp(&x).unwrap())
    });
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pipeline);
    for part in [
        "checktest::counts: element [1, 2] is 2.0, and 1.0 when the call runs eagerly",
        "the pipeline computed it by itself",
        "operation 0 of a pipeline, checktest::counts",
    ] {
        assert!(error.message().contains(part), "{error}");
    }
    for failed in [&differs, &after] {
        assert_eq!(failed.to_vec::<f64>().unwrap_err().message(), error.message());
    }
    assert_eq!(other.get::<f64>(&[0, 0]).unwrap(), 1.0_f64.exp());
    assert_eq!((counted.failed, counted.skipped, CALLS.load(Ordering::Relaxed)), (1, 1, 2));
}

#[test]
fn nan_equals_nan_and_zeros_of_both_signs_differ() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    define("checktest::nan", |x| {
        let quiet = CALLS.fetch_add(1, Ordering::Relaxed);
        zeros_but(x, f64::from_bits(f64::NAN.to_bits() | quiet))
    });
    define("checktest::sign", |x| {
        let is_odd = !CALLS.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        zeros_but(x, if is_odd { -0.0 } else { 0.0 })
    });
    let x = numbers();
    let (y, ended, counted) = checked(|_| call("checktest::nan", &[(&x).into()]).unwrap());
    ended.unwrap();
    assert!(y.get::<f64>(&[1, 2]).unwrap().is_nan());
    assert_eq!((counted.checked, CALLS.load(Ordering::Relaxed)), (1, 2));
    let (kept, ended, _) = checked(|_| call("checktest::sign", &[(&x).into()]).unwrap());
    let error = ended.unwrap_err();
    assert!(error.message().contains("element [1, 2] is -0.0, and 0.0 when"), "{error}");
    drop(kept);
}

#[test]
fn random_numbers_are_drawn_from_the_same_state() {
    keyfold::init();
    let draw = || {
        random::manual_seed(5).unwrap();
        let (a, b) = (rand(&[7]), rand(&[3]));
        let c = aten::add(&rand(&[7]), &a).unwrap();
        let all = [a, b, c].map(|t| t.to_vec::<f64>().unwrap());
        (all, random::state(Device::CPU).unwrap())
    };
    let expected = draw();
    let (found, ended, counted) = checked(|_| draw());
    ended.unwrap();
    assert_eq!(found, expected);
    assert_eq!((counted.checked, counted.failed), (4, 0));
}

#[test]
fn writes_in_place_are_compared_one_by_one() {
    let x = numbers();
    let fill = |y: &Tensor, number: f64| {
        keyfold::dispatcher().call("aten::fill_.Scalar", &[y.into(), number.into()]).unwrap();
    };
    let ((y, between), ended, counted) = checked(|_| {
        let y = aten::mul(&x, &x).unwrap();
        fill(&aten::select(&y, 0, 1).unwrap(), 7.0);
        let between = aten::add(&y, &x).unwrap();
        fill(&y, 8.0);
        (y, between)
    });
    ended.unwrap();
    assert_eq!(between.to_vec::<f64>().unwrap(), [2.0, 6.0, 12.0, 11.0, 12.0, 13.0]);
    assert_eq!(y.to_vec::<f64>().unwrap(), [8.0; 6]);
    assert_eq!((counted.ran, counted.checked), (4, 4));
}

#[test]
fn an_eager_call_that_fails_is_a_difference_and_a_failure_of_both_is_the_operations_own() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    define("checktest::first_fails", |x| match CALLS.fetch_add(1, Ordering::Relaxed) {
        0 => Err(Error::new(ErrorKind::KernelFailed, "the first call")),
        _ => zeros_but(x, 1.0),
    });
    define("checktest::fails", |_| Err(Error::new(ErrorKind::KernelFailed, "on purpose")));
    let x = numbers();
    let (kept, ended, _) = checked(|_| call("checktest::first_fails", &[(&x).into()]).unwrap());
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pipeline);
    let text = "it has a result, and an eager call failed: ";
    assert!(
        error.message().contains(text) && error.message().contains("the first call"),
        "{error}"
    );
    drop(kept);
    let (kept, ended, counted) = checked(|_| {
        let bad = call("checktest::fails", &[(&x).into()]).unwrap();
        aten::exp(&bad).unwrap()
    });
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::KernelFailed);
    assert_eq!((counted.failed, counted.skipped, counted.checked), (1, 1, 0));
    drop(kept);
}

#[test]
fn a_kernel_that_reads_what_waits_and_one_that_reads_its_own_result() {
    use std::sync::Mutex;
    static OTHER: Mutex<Option<Tensor>> = Mutex::new(None);
    define("checktest::reads", |x| {
        let other = OTHER.lock().unwrap().clone();
        let added = other.unwrap().get::<f64>(&[0, 0])?;
        zeros_but(x, added)
    });
    let x = numbers();
    let (y, ended, counted) = checked(|_| {
        let waits = aten::add(&x, &x).unwrap();
        *OTHER.lock().unwrap() = Some(waits);
        call("checktest::reads", &[(&x).into()]).unwrap()
    });
    ended.unwrap();
    assert_eq!(y.get::<f64>(&[1, 2]).unwrap(), 2.0);
    assert_eq!((counted.ran, counted.failed), (2, 0));
    let (own, ended, _) = checked(|_| {
        let own = call("checktest::reads", &[(&x).into()]).unwrap();
        *OTHER.lock().unwrap() = Some(own.clone());
        own
    });
    let text = "the kernel reads a tensor that is computed from its own result";
    assert!(ended.unwrap_err().message().contains(text));
    assert!(own.to_vec::<f64>().is_err());
    *OTHER.lock().unwrap() = None;
}

#[test]
fn several_results_are_named() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    keyfold::init();
    let dispatcher = keyfold::dispatcher();
    dispatcher.define("checktest::pair(Tensor x) -> (Tensor, Tensor)").unwrap();
    let pair = Kernel::boxed(|_, args: &[ValueRef<'_>]| {
        let x = args[0].tensor()?;
        let last = CALLS.fetch_add(1, Ordering::Relaxed) as f64;
        let items = [zeros_but(x, 1.0)?, zeros_but(x, last)?];
        Ok(Value::Tuple(items.map(Value::Tensor).into()))
    });
    dispatcher.register("checktest::pair", DispatchKey::CPU, pair).unwrap();
    let like = Kernel::boxed(|_, args: &[ValueRef<'_>]| {
        let x = args[0].tensor()?;
        let like = || Tensor::meta(x.shape(), x.dtype()).map(Value::Tensor);
        Ok(Value::Tuple(vec![like()?, like()?]))
    });
    dispatcher.register("checktest::pair", DispatchKey::Meta, like).unwrap();
    let x = numbers();
    let (kept, ended, _) =
        checked(|_| keyfold::dispatcher().call("checktest::pair", &[(&x).into()]).unwrap());
    let error = ended.unwrap_err();
    let text = "element [1, 2] of result 1 is 1.0, and 0.0 when the call runs eagerly";
    assert!(error.message().contains(text), "{error}");
    drop(kept);
}

#[test]
fn options_that_are_refused() {
    let error = Check::named("lazy").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.message().contains("\"lazy\"") && error.message().contains("\"eager\""));
    assert_eq!(Check::named("eager").unwrap().name(), "eager");
    let without = Session::new(Options::default()).unwrap();
    let checks = Options { check: Some(Check::Eager), ..Options::default() };
    let error = without.check_join(checks).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pipeline);
    Session::new(checks).unwrap().check_join(checks).unwrap();
    without.check_join(Options::default()).unwrap();
}
