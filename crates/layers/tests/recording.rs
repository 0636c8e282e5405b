//! Recordings: programs that are computed again for other inputs without their calls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold::ops::aten;
use keyfold_core::{DType, ErrorKind, Result, Scalar, Shape, Strides};
use keyfold_dispatch::{DispatchKey, Kernel};
use keyfold_layers::pipeline::{Ending, Recording, Session};
use keyfold_tensor::{Tensor, ValueRef};

/// Makes a test wait for others, whose registrations would make its recordings outdated.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn numbers(count: usize) -> Tensor {
    keyfold::init();
    let numbers: Vec<f64> = (0..count).map(|at| at as f64 * 0.5 - 1.0).collect();
    Tensor::from_slice(&numbers, &[count]).unwrap()
}

/// Records a program of inputs like these.
fn record(
    inputs: &[Tensor],
    program: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Recording> {
    keyfold::init();
    let session: Arc<Session> = Session::recorder();
    let placeholders = inputs.iter().map(|input| session.placeholder(input));
    let placeholders = placeholders.collect::<Result<Vec<_>>>()?;
    let guard = session.enter();
    let outputs = program(&placeholders);
    guard.close()?;
    session.finish(&placeholders, &outputs?)
}

/// The elements of a vector but the first, as a view.
fn tail_of(x: &Tensor) -> Tensor {
    let shape = Shape::new(&[x.numel() - 1]).unwrap();
    Tensor::from_parts(x.buffer().clone(), shape, x.strides().clone(), 1).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_vec::<f64>().unwrap()
}

#[test]
fn a_program_is_computed_for_other_inputs() {
    let _alone = alone();
    let program = |x: &[Tensor]| {
        let y = aten::exp(&aten::mul(&x[0], &x[1])?)?;
        let sum = aten::sum(&y, &[0], true)?;
        Ok(vec![aten::div(&y, &sum)?, sum])
    };
    let recording = record(&[numbers(4), numbers(4)], program).unwrap();
    assert_eq!(recording.counts(), (4, 2));
    for factor in [1.0, -2.0] {
        let x = [numbers(4), aten::mul_scalar(&numbers(4), factor).unwrap()];
        assert!(recording.fits(&x) && recording.is_current());
        let (found, expected) = (recording.replay(&x).unwrap(), program(&x).unwrap());
        assert_eq!(values(&found[0]), values(&expected[0]));
        assert_eq!(values(&found[1]), values(&expected[1]));
        assert!(!found[0].is_pending());
    }
    assert!(!recording.fits(&[numbers(4), numbers(5)]));
    assert!(!recording.fits(&[numbers(4)]));
}

#[test]
fn views_of_inputs_and_results_are_views() {
    let _alone = alone();
    let program = |x: &[Tensor]| {
        let matrix = aten::reshape(&x[0], &[2, 3])?;
        let turned = aten::permute(&matrix, &[1, 0])?;
        let y = aten::neg(&turned)?;
        Ok(vec![turned, aten::permute(&y, &[1, 0])?, x[0].clone()])
    };
    let recording = record(&[numbers(6)], program).unwrap();
    let x = numbers(6);
    let found = recording.replay(std::slice::from_ref(&x)).unwrap();
    assert!(found[0].buffer().shares_with(x.buffer()) && found[2].buffer().shares_with(x.buffer()));
    assert_eq!(values(&found[0]), values(&program(std::slice::from_ref(&x)).unwrap()[0]));
    assert_eq!(values(&found[1]), values(&aten::neg(&x).unwrap()));
}

#[test]
fn writes_to_inputs_are_made() {
    let _alone = alone();
    let program = |x: &[Tensor]| {
        aten::fill_(&x[0], Scalar::from(3.0))?;
        Ok(vec![aten::add(&x[0], &x[1])?])
    };
    let recording = record(&[numbers(2), numbers(2)], program).unwrap();
    let (x, y) = (numbers(2), numbers(2));
    let before = x.version();
    let found = recording.replay(&[x.clone(), y.clone()]).unwrap();
    assert!(x.version() > before);
    assert_eq!((values(&x), values(&found[0])), (vec![3.0, 3.0], vec![2.0, 2.5]));
    assert!(recording.mixes(&[x.clone(), x.clone()]) && !recording.mixes(&[x, y]));
}

#[test]
fn constants_are_read_at_each_replay_until_nobody_else_holds_them() {
    let _alone = alone();
    let (constant, x) = (numbers(2), numbers(2));
    let program = |x: &[Tensor]| Ok(vec![aten::mul(&aten::neg(&x[0])?, &constant)?]);
    let recording = record(std::slice::from_ref(&x), program).unwrap();
    aten::fill_(&constant, Scalar::from(3.0)).unwrap();
    assert!(recording.is_current());
    let found = recording.replay(std::slice::from_ref(&x)).unwrap();
    assert_eq!(values(&found[0]), [3.0, 1.5]);
    drop(constant);
    assert!(!recording.is_current());
    // A constant of the program's own is nobody else's from the start.
    let own = record(std::slice::from_ref(&x), |x| Ok(vec![aten::mul(&x[0], &numbers(2))?]));
    assert!(own.unwrap().is_current());
}

#[test]
fn a_kernel_registered_later_makes_it_outdated() {
    let _alone = alone();
    let x = numbers(2);
    let recording = record(std::slice::from_ref(&x), |x| Ok(vec![aten::neg(&x[0])?])).unwrap();
    let dispatcher = keyfold::dispatcher();
    dispatcher.define("recordingtest::own(Tensor x) -> Tensor").unwrap();
    assert!(!recording.is_current());
    let recording = record(std::slice::from_ref(&x), |x| Ok(vec![aten::neg(&x[0])?])).unwrap();
    assert!(recording.is_current());
    let kernel = Kernel::typed(|x: &Tensor| aten::neg(x));
    dispatcher.register("recordingtest::own", DispatchKey::CPU, kernel).unwrap();
    assert!(!recording.is_current());
}

#[test]
fn what_reads_elements_is_refused() {
    let _alone = alone();
    let x = numbers(2);
    let reads = record(std::slice::from_ref(&x), |x| {
        let first = aten::neg(&x[0])?.get::<f64>(&[0])?;
        Ok(vec![aten::mul_scalar(&x[0], first)?])
    });
    let error = reads.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pipeline);
    assert!(error.message().contains("it reads elements"), "{error}");
    let writes = record(std::slice::from_ref(&x), |x| {
        let own = numbers(2);
        aten::copy_(&own, &x[0])?;
        Ok(vec![own])
    });
    assert!(writes.unwrap_err().message().contains("it writes to memory that isn't pending"));
    let strides = Strides::new(&[-1]).unwrap();
    let backwards = Tensor::from_parts(x.buffer().clone(), x.shape().clone(), strides, 1).unwrap();
    let error = Session::recorder().placeholder(&backwards).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
}

#[test]
fn a_program_that_reads_elements_runs_from_there_on() {
    let _alone = alone();
    let (x, first) = (numbers(3), numbers(3));
    let session = Session::recorder();
    let placeholder = session.placeholder(&x).unwrap();
    let guard = session.enter();
    let before = aten::neg(&placeholder).unwrap();
    aten::copy_(&placeholder, &aten::mul(&placeholder, &first).unwrap()).unwrap();
    let after = aten::neg(&placeholder).unwrap();
    assert!(before.is_pending() && session.refused().is_none() && session.has_written());
    assert_eq!(values(&x), values(&first));
    let squares = values(&aten::mul(&first, &first).unwrap());
    assert_eq!(values(&after), squares.iter().map(|one| -one).collect::<Vec<_>>());
    assert!(session.refused().unwrap().contains("it reads elements"));
    assert_eq!(values(&before), values(&aten::neg(&first).unwrap()));
    assert_eq!(values(&x), squares);
    let later = aten::neg(&placeholder).unwrap();
    assert!(!later.is_pending());
    guard.close().unwrap();
    session.close(Ending::Run).unwrap();
    assert_eq!(values(&later), values(&after));
    assert_eq!(x.version(), placeholder.version());
}

#[test]
fn placeholders_of_one_memory_run_in_the_order_of_their_calls() {
    let _alone = alone();
    let x = numbers(4);
    let session = Session::recorder();
    let whole = session.placeholder(&x).unwrap();
    let tail = session.placeholder(&tail_of(&x)).unwrap();
    let guard = session.enter();
    let before = aten::neg(&tail).unwrap();
    aten::fill_(&whole, Scalar::from(5.0)).unwrap();
    let after = aten::neg(&tail).unwrap();
    session.run_instead("it is enough").unwrap();
    assert_eq!(session.refused().unwrap(), "it is enough");
    guard.close().unwrap();
    session.close(Ending::Run).unwrap();
    assert_eq!(values(&before), [0.5, 0.0, -0.5]);
    assert_eq!(values(&after), [-5.0; 3]);
}

#[test]
fn writes_of_placeholders_of_one_memory_are_counted_together() {
    let _alone = alone();
    let x = numbers(4);
    let session = Session::recorder();
    let whole = session.placeholder(&x).unwrap();
    let tail = session.placeholder(&tail_of(&x)).unwrap();
    let guard = session.enter();
    let before = x.version();
    let kept = aten::neg(&x).unwrap();
    aten::fill_(&whole, Scalar::from(2.0)).unwrap();
    assert!(session.mixes());
    aten::fill_(&tail, Scalar::from(3.0)).unwrap();
    assert_eq!((whole.version(), tail.version(), x.version()), (before + 1, before + 1, before));
    session.run_instead("it is enough").unwrap();
    guard.close().unwrap();
    session.close(Ending::Run).unwrap();
    assert_eq!(
        (whole.version(), tail.version(), x.version()),
        (before + 2, before + 2, before + 2)
    );
    assert_eq!(values(&kept), [1.0, 0.5, 0.0, -0.5]);
}

#[test]
fn a_placeholder_is_of_its_input_s_memory_whatever_ends_the_recording() {
    let _alone = alone();
    let x = numbers(2);
    let session = Session::recorder();
    let placeholder = session.placeholder(&x).unwrap();
    session.close(Ending::GiveUp).unwrap();
    assert_eq!(values(&placeholder), values(&x));
    let session = Session::recorder();
    let placeholder = session.placeholder(&x).unwrap();
    drop(session);
    assert_eq!(values(&placeholder), values(&x));
}

#[test]
fn a_program_that_runs_ends_at_its_first_failure() {
    let _alone = alone();
    let ints = |numbers: [i64; 2]| Tensor::from_slice(&numbers, &[2]).unwrap();
    let x = ints([2, 3]);
    let session = Session::recorder();
    let placeholder = session.placeholder(&x).unwrap();
    let guard = session.enter();
    let failed = aten::pow(&placeholder, &ints([1, -1])).unwrap();
    aten::fill_(&placeholder, Scalar::from(5_i64)).unwrap();
    let later = aten::neg(&placeholder).unwrap();
    assert_eq!(session.run_instead("it is enough").unwrap_err().kind(), ErrorKind::Value);
    guard.close().unwrap();
    session.close(Ending::Run).unwrap();
    assert_eq!(x.to_vec::<i64>().unwrap(), [2, 3]);
    for result in [failed, later] {
        assert_eq!(result.to_vec::<i64>().unwrap_err().kind(), ErrorKind::Value);
    }
}

#[test]
fn what_is_held_besides_the_results_escapes() {
    let _alone = alone();
    let x = numbers(2);
    let session = Session::recorder();
    let placeholder = session.placeholder(&x).unwrap();
    let guard = session.enter();
    let inner = aten::neg(&placeholder).unwrap();
    let result = aten::exp(&inner).unwrap();
    guard.close().unwrap();
    assert!(session.escapes(&[&placeholder, &result]));
    drop(inner);
    assert!(!session.escapes(&[&placeholder, &result]));
    assert!(session.escapes(&[&result]));
    session.finish(&[placeholder], &[result]).unwrap();
}

#[test]
fn a_write_is_done_before_a_later_failure() {
    let _alone = alone();
    let ints = |numbers: [i64; 2]| Tensor::from_slice(&numbers, &[2]).unwrap();
    let inputs = [ints([1, 2]), ints([1, 2]), ints([1, 1])];
    let recording = record(&inputs, |x| {
        let twice = aten::add(&x[1], &x[1])?;
        aten::fill_(&x[0], Scalar::from(5_i64))?;
        Ok(vec![aten::pow(&twice, &x[2])?])
    });
    let x = ints([1, 2]);
    let failed = recording.unwrap().replay(&[x.clone(), ints([1, 2]), ints([1, -1])]);
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Value);
    assert_eq!(x.to_vec::<i64>().unwrap(), [5, 5]);
}

#[test]
fn a_failure_is_the_operation_s_and_the_recording_stays() {
    let _alone = alone();
    let (base, exponent) = (Tensor::from_slice(&[2_i64, 3], &[2]).unwrap(), |power: i64| {
        Tensor::from_slice(&[power, 1], &[2]).unwrap()
    });
    let recording = record(&[base.clone(), exponent(1)], |x| {
        Ok(vec![aten::add(&aten::pow(&x[0], &x[1])?, &x[0])?])
    });
    let recording = recording.unwrap();
    let error = recording.replay(&[base.clone(), exponent(-1)]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.to_string().contains("aten::pow"), "{error}");
    let found = recording.replay(&[base, exponent(2)]).unwrap();
    assert_eq!(found[0].to_vec::<i64>().unwrap(), [6, 6]);
    assert_eq!(found[0].dtype(), DType::I64);
}

#[test]
fn operators_of_the_user_run_as_they_are_registered() {
    let _alone = alone();
    let x = numbers(3);
    let dispatcher = keyfold::dispatcher();
    dispatcher.define("recordingtest::twice(Tensor x) -> Tensor").unwrap();
    let like = |x: &Tensor| Tensor::meta(x.shape(), x.dtype());
    dispatcher.register("recordingtest::twice", DispatchKey::Meta, Kernel::typed(like)).unwrap();
    let twice = |x: &Tensor| aten::add(x, x);
    dispatcher.register("recordingtest::twice", DispatchKey::CPU, Kernel::typed(twice)).unwrap();
    let call =
        |x: &Tensor| dispatcher.call("recordingtest::twice", &[ValueRef::Tensor(x)])?.into_tensor();
    let recording =
        record(std::slice::from_ref(&x), |x| Ok(vec![call(&aten::neg(&call(&x[0])?)?)?])).unwrap();
    let found = recording.replay(std::slice::from_ref(&x)).unwrap();
    assert_eq!(values(&found[0]), values(&aten::mul_scalar(&x, -4.0).unwrap()));
}
