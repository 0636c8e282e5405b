//! Steps that don't depend on each other run concurrently on threads, with the results of one by one.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use keyfold::kit::pool::set_num_threads;
use keyfold::ops::aten;
use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, Handle, Kernel, Override};
use keyfold_layers::pipeline::{
    Check, Ending, Explanation, Options, Recording, Session, Statistics,
};
use keyfold_layers::profiler;
use keyfold_tensor::device::random;
use keyfold_tensor::{Tensor, Value, ValueRef};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// The rows and columns of matrices: their products and decompositions are worth a thread.
const SIZE: usize = 96;

/// Makes a test wait for others, which set the number of threads and register kernels.
fn alone() -> MutexGuard<'static, ()> {
    static RUNNING: Mutex<()> = Mutex::new(());
    keyfold::init();
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a program in a pipeline; returns its result, the outcome, the plan and the counters.
fn deferred<R>(
    threads: usize,
    options: Options,
    program: impl FnOnce() -> R,
) -> (R, Result<()>, Explanation, Statistics, Option<usize>) {
    set_num_threads(threads).unwrap();
    let session = Session::new(options).unwrap();
    session.open();
    let guard = session.enter();
    let result = program();
    let plan = session.explain();
    guard.close().unwrap();
    let ended = session.close(Ending::Run);
    let last = session.last_failure().map(|failure| failure.index);
    (result, ended, plan, session.statistics(), last)
}

fn numbers(seed: usize) -> Tensor {
    let count = SIZE * SIZE;
    let numbers: Vec<f64> =
        (0..count).map(|at| ((at * 7 + seed * 31) as f64 * 0.37).sin()).collect();
    Tensor::from_slice(&numbers, &[SIZE, SIZE]).unwrap()
}

/// A matrix that has a Cholesky decomposition, or has none.
fn symmetric(is_positive: bool) -> Tensor {
    let sign = if is_positive { 1.0 } else { -1.0 };
    let mut items = vec![0.0; SIZE * SIZE];
    (0..SIZE).for_each(|at| items[at * SIZE + at] = sign * (at + 1) as f64);
    Tensor::from_slice(&items, &[SIZE, SIZE]).unwrap()
}

fn call(name: &str, args: &[ValueRef<'_>]) -> Result<Value> {
    keyfold::dispatcher().call(name, args)
}

fn qr(x: &Tensor) -> Result<[Tensor; 2]> {
    let Value::Tuple(results) = call("aten::linalg_qr", &[x.into(), "reduced".into()])? else {
        return Err(Error::new(ErrorKind::Return, "no tuple"));
    };
    let [q, r] = <[Value; 2]>::try_from(results.to_vec()).unwrap();
    Ok([q.into_tensor()?, r.into_tensor()?])
}

fn cholesky(x: &Tensor) -> Result<Tensor> {
    call("aten::linalg_cholesky", &[x.into(), false.into()])?.into_tensor()
}

fn define(name: &str, kernel: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) {
    let dispatcher = keyfold::dispatcher();
    dispatcher.define(&format!("{name}(Tensor x) -> Tensor")).unwrap();
    let like = |x: &Tensor| Tensor::meta(x.shape(), x.dtype());
    dispatcher.register(name, DispatchKey::Meta, Kernel::typed(like)).unwrap();
    let kernel =
        Kernel::boxed(move |_, args: &[ValueRef<'_>]| kernel(args[0].tensor()?).map(Value::Tensor));
    dispatcher.register(name, DispatchKey::CPU, kernel).unwrap();
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    let wide = aten::to(tensor, DType::F64).unwrap();
    wide.to_vec::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
}

fn record(inputs: &[Tensor], program: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>) -> Recording {
    let session = Session::recorder();
    let placeholders: Vec<Tensor> =
        inputs.iter().map(|input| session.placeholder(input).unwrap()).collect();
    let guard = session.enter();
    let outputs = program(&placeholders).unwrap();
    guard.close().unwrap();
    session.finish(&placeholders, &outputs).unwrap()
}

#[test]
fn independent_calls_run_concurrently() {
    let _alone = alone();
    let inputs: Vec<Tensor> = (0..6).map(numbers).collect();
    let program = || inputs.iter().map(|x| qr(x).unwrap()).collect::<Vec<_>>();
    let expected = program();
    for threads in [1, 2, 8] {
        let (made, ended, plan, counted, _) = deferred(threads, Options::default(), program);
        ended.unwrap();
        for (own, expected) in made.iter().flatten().zip(expected.iter().flatten()) {
            assert!(bits(own) == bits(expected));
        }
        assert_eq!((counted.ran, counted.failed), (6, 0));
        if threads == 1 {
            assert!(plan.concurrent.is_empty() && counted.concurrent == 0);
            continue;
        }
        assert_eq!(plan.concurrent.len(), 1, "{plan}");
        assert_eq!(plan.concurrent[0].steps, (0..6).map(|at| vec![at]).collect::<Vec<_>>());
        assert!(plan.to_string().contains("concurrently: %0; %1; %2; %3; %4; %5\n"), "{plan}");
        assert_eq!(counted.concurrent, 6);
    }
}

/// A product, a group, and a product.
fn tower(x: &Tensor) -> Result<Tensor> {
    let y = aten::tanh(&aten::add(&aten::matmul(x, x)?, x)?)?;
    aten::matmul(&y, x)
}

#[test]
fn chains_that_were_recorded_one_after_another_run_concurrently() {
    let _alone = alone();
    let inputs: Vec<Tensor> = (0..4).map(numbers).collect();
    let program = || inputs.iter().map(|x| tower(x).unwrap()).collect::<Vec<_>>();
    let expected = program();
    let (made, ended, plan, counted, _) = deferred(2, Options::default(), program);
    ended.unwrap();
    assert!(made.iter().zip(&expected).all(|(own, expected)| bits(own) == bits(expected)));
    let steps: Vec<usize> = plan.concurrent.iter().map(|one| one.steps.len()).collect();
    assert_eq!((steps, plan.groups.len()), (vec![4, 4], 4), "{plan}");
    assert_eq!((counted.ran, counted.groups, counted.concurrent), (16, 4, 8));
}

#[test]
fn a_chain_and_small_calls_run_one_by_one() {
    let _alone = alone();
    let (x, small) = (numbers(0), aten::sum(&numbers(1), &[0], false).unwrap());
    let (_, ended, plan, counted, _) = deferred(2, Options::default(), || {
        let mut y = x.clone();
        for _ in 0..6 {
            y = aten::matmul(&y, &x).unwrap();
        }
        y
    });
    ended.unwrap();
    assert!(plan.concurrent.is_empty());
    assert_eq!((counted.ran, counted.planned), (6, 0));
    let (_, ended, plan, ..) = deferred(2, Options::default(), || {
        (0..9)
            .map(|at| aten::matmul(&small, &numbers(at).select(0, 1).unwrap()).unwrap())
            .collect::<Vec<_>>()
    });
    ended.unwrap();
    assert!(plan.concurrent.is_empty());
}

#[test]
fn failures_are_those_of_one_by_one() {
    let _alone = alone();
    let inputs: Vec<Tensor> = (0..5).map(|at| symmetric(at % 3 != 1)).collect();
    let program = || {
        let made: Vec<Tensor> = inputs.iter().map(|x| cholesky(x).unwrap()).collect();
        let after = made.iter().map(|x| aten::matmul(x, x).unwrap());
        let after: Vec<Tensor> = after.collect();
        (made, after)
    };
    let mut told = Vec::new();
    for threads in [1, 2, 8] {
        let ((made, after), ended, plan, counted, last) =
            deferred(threads, Options::default(), program);
        assert_eq!(plan.concurrent.len(), if threads > 1 { 2 } else { 0 }, "{plan}");
        for (at, (own, after)) in made.iter().zip(&after).enumerate() {
            assert!(!own.is_pending() && !after.is_pending());
            match at % 3 {
                1 => {
                    let error = own.to_vec::<f64>().unwrap_err();
                    let place = format!("operation {at} of a pipeline, aten::linalg_cholesky");
                    assert!(error.message().contains(&place), "{error}");
                    assert_eq!(after.to_vec::<f64>().unwrap_err().message(), error.message());
                }
                _ => {
                    assert!(bits(own) == bits(&cholesky(&inputs[at]).unwrap()));
                    assert!(bits(after) == bits(&aten::matmul(own, own).unwrap()));
                }
            }
        }
        assert_eq!((counted.ran, counted.failed, counted.skipped, last), (8, 2, 2, Some(4)));
        told.push(ended.unwrap_err().message().to_owned());
    }
    assert!(told.iter().all(|one| *one == told[0] && one.contains("operation 1 of a pipeline")));
}

#[test]
fn kernels_of_the_user_s_own_stay_on_the_flushing_thread() {
    let _alone = alone();
    let here = std::thread::current().id();
    let seen: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let note = Arc::clone(&seen);
    define("concurrenttest::noted", move |x| {
        note.lock().unwrap().push(std::thread::current().id());
        aten::matmul(x, x)
    });
    let inputs: Vec<Tensor> = (0..6).map(numbers).collect();
    let own =
        |x: &Tensor| call("concurrenttest::noted", &[x.into()]).unwrap().into_tensor().unwrap();
    let program = || {
        let both = inputs.iter().flat_map(|x| [own(x), aten::matmul(x, x).unwrap()]);
        both.collect::<Vec<Tensor>>()
    };
    let (made, ended, plan, ..) = deferred(8, Options::default(), program);
    ended.unwrap();
    assert!(plan.concurrent.is_empty(), "{plan}");
    assert!(made.chunks(2).all(|both| bits(&both[0]) == bits(&both[1])));
    assert_eq!(*seen.lock().unwrap(), [here; 6]);

    // A kernel that shadows keyfold's own.
    seen.lock().unwrap().clear();
    let note = Arc::clone(&seen);
    let shadow = Kernel::boxed(move |_, args: &[ValueRef<'_>]| {
        note.lock().unwrap().push(std::thread::current().id());
        args[0].tensor()?.copy().map(Value::Tensor)
    });
    let dispatcher = keyfold::dispatcher();
    let operator = dispatcher.operator("aten::linalg_cholesky").unwrap();
    let shadow =
        dispatcher.register_with(&operator, DispatchKey::CPU, shadow, Override::Shadow).unwrap();
    let program = || inputs.iter().map(|x| cholesky(x).unwrap()).collect::<Vec<_>>();
    let (_, ended, plan, ..) = deferred(8, Options::default(), program);
    assert!(shadow.remove());
    ended.unwrap();
    assert!(plan.concurrent.is_empty(), "{plan}");
    assert_eq!(*seen.lock().unwrap(), [here; 6]);
}

#[test]
fn a_kernel_that_is_registered_during_the_flush_stays_on_the_flushing_thread() {
    static SHADOW: Mutex<Option<Handle<Value>>> = Mutex::new(None);
    let _alone = alone();
    let here = std::thread::current().id();
    let seen: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
    let note = Arc::clone(&seen);
    define("concurrenttest::registers", move |x| {
        let note = Arc::clone(&note);
        let shadow = Kernel::boxed(move |_, args: &[ValueRef<'_>]| {
            note.lock().unwrap().push(std::thread::current().id());
            args[0].tensor()?.copy().map(Value::Tensor)
        });
        let dispatcher = keyfold::dispatcher();
        let operator = dispatcher.operator("aten::linalg_cholesky")?;
        // It is removed behind the flush.
        let shadow =
            dispatcher.register_with(&operator, DispatchKey::CPU, shadow, Override::Shadow)?;
        SHADOW.lock().unwrap().replace(shadow);
        x.copy()
    });
    let inputs: Vec<Tensor> = (0..5).map(|_| symmetric(true)).collect();
    let (made, ended, plan, counted, _) = deferred(8, Options::default(), || {
        let first = call("concurrenttest::registers", &[(&inputs[0]).into()]).unwrap();
        (first, inputs.iter().map(|x| cholesky(x).unwrap()).collect::<Vec<_>>())
    });
    assert!(SHADOW.lock().unwrap().take().unwrap().remove());
    ended.unwrap();
    assert_eq!(plan.concurrent.len(), 1, "{plan}");
    assert_eq!((seen.lock().unwrap().clone(), counted.concurrent), (vec![here; 5], 0));
    assert!(made.1.iter().zip(&inputs).all(|(own, input)| bits(own) == bits(input)));
}

#[test]
fn a_recorded_program_runs_concurrently_and_fails_as_one_by_one() {
    let _alone = alone();
    set_num_threads(2).unwrap();
    let inputs: Vec<Tensor> = (0..4).map(numbers).collect();
    let program = |inputs: &[Tensor]| inputs.iter().map(tower).collect::<Result<Vec<_>>>();
    let recording = record(&inputs, program);
    assert_eq!(recording.counts(), (16, 12));
    let expected = program(&inputs).unwrap();
    for threads in [1, 2, 8, 2] {
        set_num_threads(threads).unwrap();
        assert_eq!(recording.concurrent(), if threads == 1 { 0 } else { 8 });
        let made = recording.replay(&inputs).unwrap();
        assert!(made.iter().zip(&expected).all(|(own, expected)| bits(own) == bits(expected)));
    }

    // Of the first chain the second call fails, of the second one the first, which is moved before it.
    let (positive, negative) = (symmetric(true), symmetric(false));
    let program = |inputs: &[Tensor]| {
        let chain = |x: &Tensor| cholesky(&aten::neg(&cholesky(x)?)?);
        let mut made = inputs.iter().map(chain).collect::<Result<Vec<_>>>()?;
        made.push(cholesky(&inputs[0])?);
        Ok(made)
    };
    let mut told = Vec::new();
    for inputs in [[&positive, &negative], [&negative, &positive], [&negative, &negative]] {
        let inputs = inputs.map(Tensor::clone);
        let recording = record(&inputs, program);
        for threads in [1, 2] {
            set_num_threads(threads).unwrap();
            let error = recording.replay(&inputs).unwrap_err();
            assert_eq!(error.kind(), program(&inputs).unwrap_err().kind());
            told.push(error.message().to_owned());
        }
    }
    for (at, both) in [3, 0, 0].iter().zip(told.chunks(2)) {
        assert_eq!(both[0], both[1]);
        assert!(both[0].contains(&format!("operation {at} of a fused function")), "{}", both[0]);
    }
}

#[test]
fn a_check_compares_what_ran_concurrently() {
    let _alone = alone();
    let inputs: Vec<Tensor> = (0..4).map(numbers).collect();
    let options = Options { check: Some(Check::Eager), ..Options::default() };
    let program = || inputs.iter().map(|x| tower(x).unwrap()).collect::<Vec<_>>();
    let (_made, ended, _, counted, _) = deferred(2, options, program);
    ended.unwrap();
    // Of a group the last result is stored.
    assert_eq!((counted.ran, counted.checked, counted.concurrent), (16, 12, 8));
}

#[test]
fn a_profile_has_a_range_for_each_step_inside_one_for_all() {
    let _alone = alone();
    let inputs: Vec<Tensor> = (0..8).map(numbers).collect();
    let session = profiler::Session::new(profiler::Options::default());
    let recording = session.start().unwrap();
    let program = || inputs.iter().map(|x| qr(x).unwrap()).collect::<Vec<_>>();
    let (_made, ended, ..) = deferred(2, Options::default(), program);
    recording.stop().unwrap();
    ended.unwrap();
    let events = session.profile().events;
    let own: Vec<_> =
        events.iter().filter(|event| &*event.name == "pipeline: aten::linalg_qr").collect();
    assert_eq!(own.len(), 8);
    for event in own {
        let around = &events[event.parent.unwrap()];
        assert!(around.name.ends_with("and 3 more concurrently"), "{}", around.name);
        assert!(around.start <= event.start && event.end() <= around.end());
    }
}

fn fill_row(x: &Tensor) -> Result<()> {
    let row = aten::select(x, 0, 1)?;
    call("aten::fill_.Scalar", &[(&row).into(), 0.5.into()]).map(drop)
}

#[test]
fn a_write_in_place_stays_between_the_reads_before_and_after_it() {
    let _alone = alone();
    let inputs: Vec<Tensor> = (0..3).map(numbers).collect();
    let program = |inputs: &[Tensor]| -> Result<Vec<Tensor>> {
        let mut made = Vec::new();
        let written = aten::add(&inputs[0], &inputs[1])?;
        for at in 0..2 {
            // Before each write, and behind it: decompositions of the memory, of a view of it, and of others.
            made.extend(qr(&written)?);
            made.extend(qr(&aten::permute(&written, &[1, 0])?)?);
            made.extend(qr(&inputs[at + 1])?);
            fill_row(&written)?;
            made.extend(qr(&written)?);
            made.extend(qr(&inputs[at])?);
            aten::mul_scalar(&written, 2.0).map(|x| made.push(x))?;
        }
        made.push(written);
        Ok(made)
    };
    let expected = program(&inputs).unwrap();
    let same = |made: &[Tensor]| {
        made.iter().zip(&expected).all(|(own, expected)| bits(own) == bits(expected))
    };
    for threads in [2, 8] {
        let (made, ended, plan, counted, _) =
            deferred(threads, Options::default(), || program(&inputs).unwrap());
        ended.unwrap();
        assert!(same(&made), "{plan}");
        assert_eq!((plan.concurrent.len(), counted.failed), (3, 0), "{plan}");
    }
    let recording = record(&inputs, program);
    assert!(recording.concurrent() > 0);
    (0..3).for_each(|_| assert!(same(&recording.replay(&inputs).unwrap())));
}

/// The operations of random programs: most are worth a thread.
fn step(at: usize, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match at {
        0..4 => aten::matmul(a, b),
        4 => qr(a).map(|[q, _]| q),
        5 => qr(a).map(|[_, r]| r),
        // Of most matrices there is none.
        6 => cholesky(a),
        7 => cholesky(&aten::add(&symmetric(true), &aten::mul_scalar(&aten::tanh(a)?, 0.001)?)?),
        8 => aten::add(a, b),
        9 => aten::exp(&aten::neg(&aten::abs(a)?)?),
        10 => aten::sub(a, &aten::sum(a, &[-1], true)?),
        11 => aten::permute(a, &[1, 0]),
        12 => call("aten::rand", &[(&[SIZE as i64, SIZE as i64][..]).into()])?.into_tensor(),
        // In place.
        13 => fill_row(a).map(|()| a.clone()),
        _ => call("concurrenttest::own", &[a.into()])?.into_tensor(),
    }
}

type Steps = [(usize, usize, usize, bool)];

/// Runs a program; where an operation fails eagerly, what depends on it does.
fn run(steps: &Steps, inputs: &[Tensor]) -> Vec<Result<Tensor, ErrorKind>> {
    random::manual_seed(3).unwrap();
    let mut made: Vec<Result<Tensor, ErrorKind>> = inputs.iter().cloned().map(Ok).collect();
    for (at, a, b, forget) in steps {
        let count = made.len();
        let at = if *at == 13 && count == inputs.len() { &8 } else { at };
        // Others than products and sums read one operand, and random numbers none.
        let (a, b) = match at {
            12 => (&made[0], &made[0]),
            // Mostly not to an input, so that the write may wait.
            13 => (&made[inputs.len() + a % (count - inputs.len()).max(1)], &made[0]),
            0..4 | 8 => (&made[a % count], &made[b % count]),
            _ => (&made[a % count], &made[a % count]),
        };
        let result = match (a, b) {
            (Ok(a), Ok(b)) => step(*at, a, b).map_err(|error| error.kind()),
            (Err(kind), _) | (_, Err(kind)) => Err(*kind),
        };
        if *forget && count > inputs.len() {
            drop(made.remove(inputs.len()));
        }
        made.push(result);
    }
    made
}

#[test]
fn random_programs_have_the_same_bits_and_errors() {
    let _alone = alone();
    define("concurrenttest::own", aten::tanh);
    // Of each run, which may write to views of them.
    let inputs = || (0..4).map(numbers).collect::<Vec<Tensor>>();
    let ran_concurrently = Cell::new(0);
    let place = 0..60_usize;
    let steps = prop::collection::vec((0..15_usize, place.clone(), place, any::<bool>()), 2..16);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(40));
    let outcome = runner.run(&steps, |steps| {
        let eager = run(&steps, &inputs());
        let mut told = Vec::new();
        for threads in [1, 2, 8] {
            let inputs = inputs();
            let (made, ended, plan, counted, _) =
                deferred(threads, Options::default(), || run(&steps, &inputs));
            ran_concurrently.set(ran_concurrently.get() + counted.concurrent);
            for (eager, own) in eager.iter().zip(&made) {
                let own = own.as_ref().unwrap();
                prop_assert!(!own.is_pending());
                match (eager, own.to_vec::<f64>()) {
                    (Ok(eager), Ok(_)) => prop_assert!(bits(eager) == bits(own), "{plan}"),
                    (Err(eager), Err(own)) => prop_assert_eq!(*eager, own.kind()),
                    (eager, own) => prop_assert!(false, "{eager:?} and {own:?}\n{plan}"),
                }
            }
            told.push(ended.map_err(|error| error.message().to_owned()));
        }
        prop_assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
        Ok(())
    });
    outcome.unwrap();
    assert!(ran_concurrently.get() > 0);
}
