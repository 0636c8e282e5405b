//! Deferred execution from Rust: what waits, what a flush runs, and what becomes of failures.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use keyfold::ops::aten;
use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Kernel, include_keys, include_keys_with};
use keyfold_layers::autograd;
use keyfold_layers::pipeline::{self, Ending, Options, Session};
use keyfold_tensor::device::random;
use keyfold_tensor::{Tensor, Value, ValueRef};

fn ones() -> Tensor {
    keyfold::init();
    Tensor::from_slice(&[1.0_f64, 2.0, 3.0], &[3]).unwrap()
}

/// Runs a block in a pipeline, and ends it.
fn within<R>(options: Options, f: impl FnOnce(&Arc<Session>) -> R) -> (R, Result<()>) {
    keyfold::init();
    let session = Session::new(options).unwrap();
    session.open();
    let guard = session.enter();
    let result = f(&session);
    guard.close().unwrap();
    (result, session.close(Ending::Run))
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

fn call(name: &str, x: &Tensor) -> Result<Tensor> {
    keyfold::dispatcher().call(name, &[ValueRef::Tensor(x)])?.into_tensor()
}

fn fails(_: &Tensor) -> Result<Tensor> {
    Err(Error::new(ErrorKind::KernelFailed, "on purpose"))
}

#[test]
fn calls_wait_until_something_is_read() {
    let x = ones();
    let ((), ended) = within(Options::default(), |session| {
        let y = aten::add(&aten::mul(&x, &x).unwrap(), &x).unwrap();
        assert!(y.is_pending() && y.keys().contains(DispatchKey::Deferred));
        assert_eq!((session.pending_count(), session.pending_bytes()), (2, 48));
        assert_eq!(y.to_vec::<f64>().unwrap(), [2.0, 6.0, 12.0]);
        assert!(!y.is_pending());
        assert_eq!((session.pending_count(), session.pending_bytes()), (0, 0));
        assert_eq!(session.statistics().flushes, 1);
        assert_eq!(y.get::<f64>(&[1]).unwrap(), 6.0);
        assert_eq!(session.statistics().flushes, 1);
    });
    ended.unwrap();
}

#[test]
fn the_end_of_the_block_runs_what_waits_and_calls_are_eager_again() {
    let x = ones();
    let (y, ended) = within(Options::default(), |_| aten::exp(&x).unwrap());
    ended.unwrap();
    assert!(!y.is_pending());
    assert_eq!(y.to_vec::<f64>().unwrap(), aten::exp(&x).unwrap().to_vec::<f64>().unwrap());
    assert!(!aten::exp(&y).unwrap().is_pending());
}

#[test]
fn a_failure_reaches_its_dependants_and_nothing_else() {
    define("pipelinetest::fails", fails);
    let x = ones();
    let ((bad, after, good), ended) = within(Options::default(), |_| {
        let bad = call("pipelinetest::fails", &x).unwrap();
        let after = aten::add(&bad, &x).unwrap();
        (bad, after, aten::add(&x, &x).unwrap())
    });
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KernelFailed);
    for text in ["on purpose", "operation 0 of a pipeline", "pipelinetest::fails"] {
        assert!(error.message().contains(text), "{error}");
    }
    for failed in [&bad, &after, &after] {
        assert!(!failed.is_pending());
        assert_eq!(failed.to_vec::<f64>().unwrap_err().message(), error.message());
    }
    assert_eq!(good.to_vec::<f64>().unwrap(), [2.0, 4.0, 6.0]);
}

#[test]
fn a_failure_that_was_read_isn_t_told_again() {
    define("pipelinetest::read", fails);
    let x = ones();
    let ((), ended) = within(Options::default(), |session| {
        let bad = call("pipelinetest::read", &x).unwrap();
        let good = aten::add(&x, &x).unwrap();
        assert_eq!(good.to_vec::<f64>().unwrap()[0], 2.0);
        assert!(bad.to_vec::<f64>().is_err());
        assert_eq!(session.last_failure().unwrap().operator, "pipelinetest::read");
    });
    ended.unwrap();
}

#[test]
fn results_that_nobody_holds_aren_t_computed() {
    define("pipelinetest::dead", fails);
    let x = ones();
    let ((), ended) = within(Options::default(), |session| {
        drop(call("pipelinetest::dead", &x).unwrap());
        drop(aten::add(&aten::mul(&x, &x).unwrap(), &x).unwrap());
        let kept = aten::exp(&x).unwrap();
        let dead: Vec<_> = session.explain().operations.iter().map(|one| one.dead).collect();
        assert_eq!(dead, [true, true, true, false]);
        session.flush().unwrap();
        assert!(!kept.is_pending());
        assert_eq!((session.statistics().dead, session.statistics().ran), (3, 1));
    });
    ended.unwrap();
}

#[test]
fn writes_to_pending_memory_are_recorded_in_order() {
    let x = ones();
    let ((), ended) = within(Options::default(), |session| {
        let y = aten::mul(&x, &x).unwrap();
        let before = aten::add(&y, &x).unwrap();
        let version = y.version();
        keyfold::dispatcher().call("aten::fill_.Scalar", &[(&y).into(), 7.0.into()]).unwrap();
        assert_ne!(y.version(), version);
        let after = aten::add(&y, &x).unwrap();
        assert_eq!(session.pending_count(), 4);
        let version = y.version();
        assert_eq!(before.to_vec::<f64>().unwrap(), [2.0, 6.0, 12.0]);
        assert_eq!(after.to_vec::<f64>().unwrap(), [8.0, 9.0, 10.0]);
        assert_eq!(y.to_vec::<f64>().unwrap(), [7.0; 3]);
        assert_eq!(y.version(), version);
    });
    ended.unwrap();
}

#[test]
fn a_write_to_an_input_runs_its_readers_first() {
    let x = ones();
    let ((), ended) = within(Options::default(), |session| {
        let y = aten::add(&x, &x).unwrap();
        keyfold::dispatcher().call("aten::fill_.Scalar", &[(&x).into(), 100.0.into()]).unwrap();
        assert_eq!(x.to_vec::<f64>().unwrap(), [100.0; 3]);
        assert_eq!(session.pending_count(), 0);
        assert_eq!(y.to_vec::<f64>().unwrap(), [2.0, 4.0, 6.0]);
    });
    ended.unwrap();
}

#[test]
fn an_input_written_where_nobody_sees_it_is_an_error_and_no_wrong_number() {
    let x = ones();
    let (y, ended) = within(Options::default(), |_| {
        let y = aten::add(&x, &x).unwrap();
        // SAFETY: nothing else accesses the memory.
        unsafe { x.copy_from(&Tensor::from_slice(&[100.0_f64], &[1]).unwrap()) }.unwrap();
        y
    });
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pipeline);
    assert!(error.message().contains("argument 'self' was changed in place"), "{error}");
    assert!(y.to_vec::<f64>().is_err());
}

#[test]
fn views_of_pending_tensors_share_their_memory() {
    let x = ones();
    let ((), ended) = within(Options::default(), |session| {
        let y = aten::add(&x, &x).unwrap();
        let part = aten::slice(&y, 0, 1_i64.into(), ValueRef::None, 1).unwrap();
        assert!(part.is_pending() && part.keys().contains(DispatchKey::Deferred));
        assert_eq!(session.pending_count(), 1);
        keyfold::dispatcher().call("aten::fill_.Scalar", &[(&part).into(), 0.0.into()]).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), [2.0, 0.0, 0.0]);
        // After the fill, views are of the same memory, too.
        let first = aten::select(&y, 0, 0).unwrap();
        keyfold::dispatcher().call("aten::fill_.Scalar", &[(&first).into(), 5.0.into()]).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), [5.0, 0.0, 0.0]);
        assert_eq!(part.to_vec::<f64>().unwrap(), [0.0, 0.0]);
    });
    ended.unwrap();
}

#[test]
fn the_limits_hold_over_everything_that_waits() {
    let x = ones();
    let options = Options { max_ops: 3, ..Options::default() };
    let (counts, ended) = within(options, |session| {
        let mut kept = Vec::new();
        (0..7)
            .map(|_| {
                kept.push(aten::add(&x, &x).unwrap());
                session.pending_count()
            })
            .collect::<Vec<_>>()
    });
    ended.unwrap();
    assert_eq!(counts, [1, 2, 0, 1, 2, 0, 1]);
    let options = Options { max_pending_bytes: 60, ..Options::default() };
    let (counts, ended) = within(options, |session| {
        let kept = [(); 3].map(|()| (aten::add(&x, &x).unwrap(), session.pending_count()));
        kept.map(|kept| kept.1)
    });
    ended.unwrap();
    assert_eq!(counts, [1, 2, 0]);
    // Results that nobody reads any more don't count: a chain waits as a whole, and is computed in one pass.
    let options = Options { max_pending_bytes: 500, ..Options::default() };
    let (chain, ended) = within(options, |session| {
        let chain = (0..40).fold(x.clone(), |y, _| aten::add(&y, &x).unwrap());
        assert_eq!((session.pending_count(), session.pending_bytes()), (40, 960));
        // Held results do.
        let mut kept = Vec::new();
        while chain.is_pending() {
            kept.push(aten::add(&x, &x).unwrap());
        }
        assert!(kept.len() <= 20, "{} of 24 bytes each", kept.len());
        chain
    });
    ended.unwrap();
    assert_eq!(chain.to_vec::<f64>().unwrap(), [41.0, 82.0, 123.0]);
    // Arguments that only waiting operations keep do as well.
    let ((), ended) = within(options, |session| {
        let mut sum = x.clone();
        for _ in 0..40 {
            sum = aten::add(&sum, &ones()).unwrap();
            assert!(session.pending_count() < 25, "{}", session.pending_count());
        }
    });
    ended.unwrap();
    // A small limit doesn't make each call look at all that waits.
    let options = Options { max_pending_bytes: 40, max_ops: usize::MAX, ..Options::default() };
    let (most, ended) = within(options, |session| {
        let mut chain = x.clone();
        let most = (0..1_000).map(|_| {
            chain = aten::add(&chain, &x).unwrap();
            session.pending_count()
        });
        most.max().unwrap()
    });
    ended.unwrap();
    assert!(most < 40, "{most}");
    for options in [
        Options { max_ops: 0, ..Options::default() },
        Options { max_pending_bytes: 0, ..Options::default() },
        Options { max_wait: Some(Duration::ZERO), ..Options::default() },
    ] {
        assert_eq!(Session::new(options).unwrap_err().kind(), ErrorKind::Value);
    }
}

#[test]
fn what_waited_too_long_runs_without_another_call() {
    let x = ones();
    let options = Options { max_wait: Some(Duration::from_millis(5)), ..Options::default() };
    let ((), ended) = within(options, |session| {
        let y = aten::add(&x, &x).unwrap();
        while y.is_pending() {
            std::thread::yield_now();
        }
        assert_eq!(session.pending_count(), 0);
        assert_eq!(y.to_vec::<f64>().unwrap(), [2.0, 4.0, 6.0]);
    });
    ended.unwrap();
}

#[test]
fn the_key_without_a_pipeline_is_an_error() {
    let x = ones();
    let guard = include_keys(DispatchKey::Pipeline.into());
    let error = aten::add(&x, &x).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pipeline);
    assert!(error.message().contains("no pipeline is open"), "{error}");
    guard.close().unwrap();
}

#[test]
fn a_kernel_may_read_what_waits_but_not_its_own_result() {
    static OTHER: std::sync::Mutex<Option<Tensor>> = std::sync::Mutex::new(None);
    fn reads(x: &Tensor) -> Result<Tensor> {
        let other = OTHER.lock().unwrap().clone().unwrap();
        let total: f64 = other.to_vec::<f64>()?.iter().sum();
        aten::mul(x, &Tensor::from_scalar(total.into(), x.dtype())?)
    }
    define("pipelinetest::reads", reads);
    let x = ones();
    let ((), ended) = within(Options::default(), |_| {
        let y = call("pipelinetest::reads", &x).unwrap();
        // Recorded later, and run earlier.
        *OTHER.lock().unwrap() = Some(aten::add(&x, &x).unwrap());
        assert_eq!(y.to_vec::<f64>().unwrap(), [12.0, 24.0, 36.0]);
        let y = call("pipelinetest::reads", &x).unwrap();
        *OTHER.lock().unwrap() = Some(y.clone());
        let error = y.to_vec::<f64>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Pipeline);
        assert!(error.message().contains("its own result"), "{error}");
    });
    ended.unwrap();
    *OTHER.lock().unwrap() = None;
}

#[test]
fn a_kernel_that_panics_fails_like_any_other() {
    fn panics(_: &Tensor) -> Result<Tensor> {
        panic!("on purpose")
    }
    define("pipelinetest::panics", panics);
    let x = ones();
    let (y, ended) = within(Options::default(), |_| call("pipelinetest::panics", &x).unwrap());
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::KernelPanic);
    assert!(y.to_vec::<f64>().unwrap_err().message().contains("on purpose"));
}

#[test]
fn a_kernel_that_returns_another_form_than_its_meta_kernel_is_told() {
    fn wrong(x: &Tensor) -> Result<Tensor> {
        x.slice(0, Some(1), None, 1)
    }
    fn transposed(x: &Tensor) -> Result<Tensor> {
        x.flip(&[0])
    }
    define("pipelinetest::wrong", wrong);
    define("pipelinetest::transposed", transposed);
    let x = ones();
    let (y, ended) = within(Options::default(), |_| call("pipelinetest::wrong", &x).unwrap());
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Return);
    assert!(y.to_vec::<f64>().is_err());
    // A view of the argument is copied, since the result was said to be of its own memory.
    let (y, ended) = within(Options::default(), |_| call("pipelinetest::transposed", &x).unwrap());
    ended.unwrap();
    assert_eq!(y.to_vec::<f64>().unwrap(), [3.0, 2.0, 1.0]);
}

#[test]
fn a_block_given_up_leaves_errors_and_nothing_pending() {
    let x = ones();
    let session = Session::new(Options::default()).unwrap();
    session.open();
    let guard = session.enter();
    let y = aten::add(&x, &x).unwrap();
    guard.close().unwrap();
    session.close(Ending::GiveUp).unwrap();
    assert!(!y.is_pending());
    assert_eq!(y.to_vec::<f64>().unwrap_err().kind(), ErrorKind::Pipeline);
    let y = {
        let session = Session::new(Options::default()).unwrap();
        session.open();
        let _guard = session.enter();
        aten::add(&x, &x).unwrap()
    };
    // The session was dropped without an end.
    assert_eq!(y.to_vec::<f64>().unwrap_err().kind(), ErrorKind::Pipeline);
}

#[test]
fn other_threads_read_and_compute_with_what_waits() {
    let x = ones();
    let ((), ended) = within(Options::default(), |_| {
        for _ in 0..50 {
            let y = aten::add(&x, &x).unwrap();
            std::thread::scope(|scope| {
                let sums: Vec<_> = (0..4)
                    .map(|_| scope.spawn(|| aten::add(&y, &y).unwrap().to_vec::<f64>().unwrap()))
                    .collect();
                for sum in sums {
                    assert_eq!(sum.join().unwrap(), [4.0, 8.0, 12.0]);
                }
            });
        }
    });
    ended.unwrap();
}

#[test]
fn a_pending_tensor_of_another_pipeline_is_computed_first() {
    let x = ones();
    let ((), ended) = within(Options::default(), |_| {
        let y = aten::add(&x, &x).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (z, ended) = within(Options::default(), |session| {
                    let z = aten::mul(&y, &y).unwrap();
                    assert!(z.is_pending() && !y.is_pending() && session.pending_count() == 1);
                    z
                });
                ended.unwrap();
                assert_eq!(z.to_vec::<f64>().unwrap(), [4.0, 16.0, 36.0]);
            });
        });
    });
    ended.unwrap();
}

#[test]
fn gradients_join_the_record() {
    let x = ones();
    x.set_requires_grad(true).unwrap();
    let options = Options { flush_on_backward: true, ..Options::default() };
    for (options, waits) in [(Options::default(), true), (options, false)] {
        let (grad, ended) = within(options, |session| {
            let loss = aten::sum_all(&aten::mul(&x, &x).unwrap()).unwrap();
            let grads = autograd::grad(
                &[loss],
                std::slice::from_ref(&x),
                &[None],
                autograd::Options::default(),
                &|| Ok(()),
            );
            let grad = grads.unwrap().pop().unwrap().unwrap();
            assert_eq!((grad.is_pending(), session.pending_count() > 0), (waits, waits));
            grad
        });
        ended.unwrap();
        assert_eq!(grad.to_vec::<f64>().unwrap(), [2.0, 4.0, 6.0]);
    }
}

#[test]
fn random_numbers_are_those_of_the_same_program_without_a_pipeline() {
    keyfold::init();
    let draw = || {
        let rand = |n: i64| {
            let sizes = [n];
            let args: [ValueRef<'_>; 1] = [(&sizes[..]).into()];
            keyfold::dispatcher().call("aten::rand", &args).unwrap().into_tensor().unwrap()
        };
        random::manual_seed(3).unwrap();
        let a = rand(5);
        drop(rand(3));
        let b = rand(4);
        let state = random::state(Device::CPU).unwrap();
        random::manual_seed(4).unwrap();
        let c = rand(2);
        let all = [a, b, c].map(|t| t.to_vec::<f64>().unwrap());
        (all, state.offset)
    };
    let eager = draw();
    let (deferred, ended) = within(Options::default(), |_| draw());
    ended.unwrap();
    assert_eq!(eager, deferred);
}

#[test]
fn calls_that_can_t_wait_run_at_once_and_explain_says_so() {
    keyfold::init();
    let dispatcher = keyfold::dispatcher();
    dispatcher.define("pipelinetest::nometa(Tensor x) -> Tensor").unwrap();
    let double = |x: &Tensor| aten::add(x, x);
    dispatcher.register("pipelinetest::nometa", DispatchKey::CPU, Kernel::typed(double)).unwrap();
    let x = ones();
    let ((), ended) = within(Options::default(), |session| {
        let y = aten::add(&x, &x).unwrap();
        let z = call("pipelinetest::nometa", &y).unwrap();
        assert!(!z.is_pending());
        assert_eq!(z.to_vec::<f64>().unwrap(), [4.0, 8.0, 12.0]);
        let mask = aten::gt(&y, &x).unwrap();
        let args: [ValueRef<'_>; 2] = [(&y).into(), (&mask).into()];
        let chosen = keyfold::dispatcher().call("aten::masked_select", &args).unwrap();
        assert_eq!(chosen.into_tensor().unwrap().numel(), 3);
        let text = session.explain().to_string();
        assert!(
            text.contains("pipelinetest::nometa ran at once: it has no kernel for Meta"),
            "{text}"
        );
        assert!(text.contains("aten::masked_select ran at once: its result's shape"), "{text}");
    });
    ended.unwrap();
}

#[test]
fn shape_errors_come_when_the_call_is_recorded() {
    let x = ones();
    let ((), ended) = within(Options::default(), |session| {
        let y = Tensor::from_slice(&[1.0_f64, 2.0], &[2]).unwrap();
        assert_eq!(aten::add(&x, &y).unwrap_err().kind(), ErrorKind::Shape);
        assert_eq!(session.pending_count(), 0);
    });
    ended.unwrap();
}

#[test]
fn an_operator_removed_before_the_flush_is_an_error() {
    keyfold::init();
    let dispatcher = keyfold::dispatcher();
    let name = "pipelinetest::removed";
    let defined = dispatcher.define(&format!("{name}(Tensor x) -> Tensor")).unwrap();
    let same = |x: &Tensor| x.copy();
    let like = |x: &Tensor| Tensor::meta(x.shape(), x.dtype());
    dispatcher.register(name, DispatchKey::Meta, Kernel::typed(like)).unwrap();
    dispatcher.register(name, DispatchKey::CPU, Kernel::typed(same)).unwrap();
    let x = ones();
    let (y, ended) = within(Options::default(), |_| {
        let y = call(name, &x).unwrap();
        defined.remove();
        y
    });
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::OperatorRemoved);
    assert!(y.to_vec::<f64>().is_err());
}

#[test]
fn a_value_with_several_results_waits_as_a_whole() {
    keyfold::init();
    let x = Tensor::from_slice(&[2.0, 0.0, 0.0, 3.0], &[2, 2]).unwrap();
    let ((), ended) = within(Options::default(), |session| {
        let both = keyfold::dispatcher().call("aten::linalg_eigh", &[(&x).into()]).unwrap();
        let Value::Tuple(both) = both else { panic!("{both:?}") };
        let [Value::Tensor(values), Value::Tensor(vectors)] = &both[..] else { panic!("{both:?}") };
        assert!(values.is_pending() && vectors.is_pending() && session.pending_count() == 1);
        assert_eq!(values.to_vec::<f64>().unwrap(), [2.0, 3.0]);
        assert_eq!(vectors.get::<f64>(&[0, 1]).unwrap(), 0.0);
    });
    ended.unwrap();
    let _ = pipeline::flush();
}

/// Has another thread ask a pipeline for its statistics when it is dropped, and waits for the answer.
struct Asks(Arc<Session>, mpsc::Sender<bool>);

impl Drop for Asks {
    fn drop(&mut self) {
        let (session, (answer, answered)) = (Arc::clone(&self.0), mpsc::channel());
        thread::spawn(move || answer.send(session.statistics()));
        let answered = answered.recv_timeout(Duration::from_secs(10));
        let _ = self.1.send(answered.is_ok());
    }
}

#[test]
fn objects_of_guards_are_dropped_without_the_pipelines_lock() {
    let (x, (tell, told)) = (ones(), mpsc::channel());
    let (result, ended) = within(Options::default(), |session| {
        let asks = Arc::new(Asks(Arc::clone(session), tell));
        let guard = include_keys_with(DispatchKeySet::EMPTY, asks);
        let y = aten::exp(&x)?;
        guard.close()?;
        session.flush()?;
        // Another context, in place of the one with the object.
        let z = aten::exp(&y)?;
        session.flush()?;
        Ok::<_, Error>(z)
    });
    ended.unwrap();
    assert_eq!(told.try_recv(), Ok(true));
    assert!(!result.unwrap().is_pending());
}

#[test]
fn views_of_a_computed_tensor_share_its_memory() {
    let x = ones();
    let (y, ended) = within(Options::default(), |_| aten::mul(&x, &x).unwrap());
    ended.unwrap();
    assert_eq!(y.buffer().shares(), 1);
    let view = aten::slice(&y, 0, 0.into(), 2.into(), 1).unwrap();
    assert!(y.buffer().is_same_memory(view.buffer()) && !y.buffer().is_same_memory(x.buffer()));
    assert_eq!((y.buffer().shares(), view.buffer().shares()), (2, 2));
    drop(view);
    assert_eq!(y.buffer().shares(), 1);
}
