//! Removing registrations: from outside, from a running kernel, from a kernel's destructor.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use keyfold_core::ErrorKind;
use keyfold_dispatch::{DispatchKey as K, DispatchKeySet, Handle, Kernel, Override};
use support::{Context, D, Ref, Val, Word, list, said, says, settles, word, wraps};

/// Counts its drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn call(d: &D, name: &str) -> Result<String, ErrorKind> {
    d.call(name, &[list(K::CPU).r()]).map(said).map_err(|error| error.kind())
}

#[test]
fn a_removed_operator_says_so_to_whoever_holds_it() {
    let d = D::new();
    let definition = d.define("ns::op(Tensor x) -> Tensor").unwrap();
    d.register("ns::op", K::CPU, Kernel::typed(|x: &Word| Ok(x.clone()))).unwrap();
    let operator = d.operator("ns::op").unwrap();
    let typed = d.typed::<(&Word,), Word>("ns::op").unwrap();
    let kernel = operator.kernel_at(K::CPU.into()).unwrap();
    let x = Word::new("x", K::CPU);
    let args = [Ref::Word(&x)];
    assert_eq!(typed.call(&x).unwrap(), x);
    assert!(definition.remove());
    assert!(!definition.remove() && !definition.is_active());

    let cpu = DispatchKeySet::from(K::CPU);
    let errors = [
        operator.call(&args).unwrap_err(),
        operator.redispatch(cpu, &args).unwrap_err(),
        operator.call_direct(K::CPU, &args, None).unwrap_err(),
        typed.call(&x).unwrap_err(),
        typed.redispatch(cpu, &x).unwrap_err(),
        operator.run_kernel_with(&kernel, cpu, K::CPU, |_, _| Ok(())).unwrap_err(),
        d.register_with(&operator, K::CUDA, says("late"), Override::Error).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::OperatorRemoved);
        assert!(error.to_string().contains("ns::op was removed"), "{error}");
    }
    assert!(operator.is_removed() && kernel.is_removed());
    assert!(operator.kernel_at(K::CPU.into()).is_none());
    assert!(operator.explain(&args).error.unwrap().contains("removed"));
    assert_eq!(d.call("ns::op", &args).unwrap_err().kind(), ErrorKind::UnknownOperator);
    assert!(format!("{operator:?}").ends_with("removed)"), "{operator:?}");

    // A new operator of that name is a different one.
    d.define("ns::op(Tensor x) -> Tensor").unwrap();
    d.register("ns::op", K::CPU, says("new")).unwrap();
    assert_eq!(said(d.call("ns::op", &args).unwrap()), "new");
    assert_eq!(operator.call(&args).unwrap_err().kind(), ErrorKind::OperatorRemoved);
}

#[test]
fn an_overload_goes_alone() {
    let d = D::new();
    let one = d.define("ns::op.one(Tensor x) -> Tensor").unwrap();
    d.define("ns::op.two(Tensor x, int n) -> Tensor").unwrap();
    let names = || d.overloads("ns::op").iter().map(|o| o.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(), ["ns::op.one", "ns::op.two"]);
    let held = d.operator("ns::op.one").unwrap();
    assert!(d.operator("ns::op").is_err(), "which of the two?");
    assert!(one.remove());
    assert_eq!(names(), ["ns::op.two"]);
    assert_eq!(d.operator("ns::op").unwrap().name(), "ns::op.two");
    let x = Word::new("x", K::CPU);
    assert_eq!(held.call(&[Ref::Word(&x)]).unwrap_err().kind(), ErrorKind::OperatorRemoved);
}

#[test]
fn a_removed_kernel_runs_no_more() {
    let d = D::new();
    let handle = d.register("op", K::CPU, says("cpu")).unwrap();
    let operator = d.operator("op").unwrap();
    let kernel = handle.kernel().unwrap();
    let run = || operator.run_kernel_with(&kernel, K::CPU.into(), K::CPU, |_, _| Ok(1));
    assert_eq!(run().unwrap(), 1);
    assert!(handle.remove());
    let error = run().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OperatorRemoved);
    assert!(error.to_string().contains("the kernel cpu"), "{error}");
    assert!(handle.kernel().is_none() && !handle.is_active());
    assert_eq!(call(&d, "op"), Err(ErrorKind::MissingKernel), "the operator is still there");
}

#[test]
fn an_operator_goes_with_its_last_definition() {
    let d = D::new();
    let first = d.define("op(Tensor x) -> Tensor").unwrap();
    let second = d.define("op(Tensor x) -> Tensor").unwrap();
    assert!(first.remove());
    assert!(d.operator("op").is_ok() && second.is_active());
    assert!(second.remove());
    assert!(d.operator("op").is_err());
    assert!(!second.remove() && !first.remove());
}

#[test]
fn a_dropped_handle_changes_nothing_and_a_dispatcher_may_go_first() {
    let d = D::new();
    let counter = Arc::new(AtomicUsize::new(0));
    let counted = Counted(Arc::clone(&counter));
    let kernel = Kernel::boxed(move |_: &Context<'_>, _: &[Ref<'_>]| {
        let _ = &counted;
        Ok(word("cpu", K::CPU))
    });
    drop(d.register("op", K::CPU, kernel).unwrap());
    assert_eq!(call(&d, "op").unwrap(), "cpu");
    let fallback = d.fallback(K::Tracer, wraps("tracer"), Override::Error).unwrap();
    let operator = d.operator("op").unwrap();
    let missing = d.define("empty(Tensor[] inputs) -> Tensor").unwrap();
    drop(d);
    let arg = list(K::CPU);
    assert_eq!(said(operator.call(&[arg.r()]).unwrap()), "cpu", "held, so it works on");
    assert!(operator.dispatcher().is_none());
    assert!(!fallback.remove() && !missing.remove() && fallback.kernel().is_none());
    assert_eq!(counter.load(Ordering::SeqCst), 0);
    drop(operator);
    settles("the kernel goes with the last holder", || counter.load(Ordering::SeqCst) == 1);
}

#[test]
fn a_kernel_may_remove_itself_while_it_runs() {
    let d = D::new();
    let counter = Arc::new(AtomicUsize::new(0));
    let own = Arc::new(Mutex::new(None::<Handle<Val>>));
    let (counted, mine) = (Counted(Arc::clone(&counter)), Arc::clone(&own));
    let kernel = Kernel::boxed(move |context: &Context<'_>, _: &[Ref<'_>]| {
        let handle = mine.lock().unwrap().take().unwrap();
        assert!(handle.remove());
        assert!(context.kernel().is_removed());
        assert_eq!(counted.0.load(Ordering::SeqCst), 0, "it lives as long as it runs");
        Ok(word("last words", K::CPU))
    });
    *own.lock().unwrap() = Some(d.register("op", K::CPU, kernel).unwrap());
    assert_eq!(call(&d, "op").unwrap(), "last words");
    goes_with_the_call(&counter);
    assert_eq!(call(&d, "op"), Err(ErrorKind::MissingKernel));
}

/// Checks that a removed kernel is freed at the end of the call that used it, on the calling
/// thread, without a further change of a registration. (If another test's thread is between
/// announcing itself and narrowing the announcement, that thread frees it.)
#[track_caller]
fn goes_with_the_call(counter: &AtomicUsize) {
    for _ in 0..1_000_000 {
        if counter.load(Ordering::SeqCst) == 1 {
            return;
        }
        std::thread::yield_now();
    }
    panic!("the kernel is still there after its call");
}

#[test]
fn a_kernel_that_is_removed_while_it_runs_goes_with_its_call() {
    // In a nested call, typed and boxed, removed from within and by another thread.
    for (typed, elsewhere) in [(false, false), (false, true), (true, false), (true, true)] {
        let d = D::new();
        let counter = Arc::new(AtomicUsize::new(0));
        let own = Arc::new(Mutex::new(None::<Handle<Val>>));
        let (counted, mine) = (Counted(Arc::clone(&counter)), Arc::clone(&own));
        let body = move || {
            let handle = mine.lock().unwrap().take().unwrap();
            if elsewhere {
                std::thread::scope(|scope| {
                    assert!(scope.spawn(|| handle.remove()).join().unwrap());
                });
            } else {
                assert!(handle.remove());
            }
            assert_eq!(counted.0.load(Ordering::SeqCst), 0, "it lives as long as it runs");
        };
        d.define("op(Tensor x) -> int").unwrap();
        let kernel = match typed {
            true => Kernel::typed(move |_: &Word| {
                body();
                Ok(5)
            }),
            false => Kernel::boxed(move |_: &Context<'_>, _: &[Ref<'_>]| {
                body();
                Ok(Val::Int(5))
            }),
        };
        *own.lock().unwrap() = Some(d.register("op", K::CPU, kernel).unwrap());
        let after = Arc::clone(&counter);
        d.define("outer(Tensor x) -> int").unwrap();
        let outer = Kernel::typed_with_context(move |context: &Context<'_>, x: &Word| {
            let op = context.dispatcher()?.typed::<(&Word,), i64>("op")?;
            let result = op.call(x)?;
            goes_with_the_call(&after);
            Ok(result)
        });
        d.register("outer", K::CPU, outer).unwrap();
        let x = Word::new("x", K::CPU);
        assert_eq!(d.typed::<(&Word,), i64>("outer").unwrap().call(&x).unwrap(), 5);
    }
}

#[test]
fn a_kernel_that_removes_itself_and_fails_goes_with_its_call() {
    let d = D::new();
    let counter = Arc::new(AtomicUsize::new(0));
    let own = Arc::new(Mutex::new(None::<Handle<Val>>));
    let (counted, mine) = (Counted(Arc::clone(&counter)), Arc::clone(&own));
    let kernel = Kernel::boxed(move |context: &Context<'_>, args: &[Ref<'_>]| {
        let _ = &counted;
        assert!(mine.lock().unwrap().take().unwrap().remove());
        context.call_below(args)
    });
    *own.lock().unwrap() = Some(d.register("op", K::Tracer, kernel).unwrap());
    assert_eq!(
        d.call("op", &[list([K::Tracer, K::CPU]).r()]).unwrap_err().kind(),
        ErrorKind::MissingKernel
    );
    goes_with_the_call(&counter);
}

#[test]
fn a_kernel_may_remove_its_operator_while_it_runs() {
    let d = D::new();
    let definition = Arc::new(d.define("op(Tensor[] inputs) -> Tensor").unwrap());
    let counter = Arc::new(AtomicUsize::new(0));
    let (counted, theirs) = (Counted(Arc::clone(&counter)), Arc::clone(&definition));
    let layer = Kernel::boxed(move |context: &Context<'_>, args: &[Ref<'_>]| {
        let _ = &counted;
        assert!(theirs.remove());
        assert!(context.operator().is_removed());
        assert_eq!(context.path(), [("op".to_owned(), K::Autograd)]);
        let error = context.call_below(args).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OperatorRemoved);
        Err(error)
    });
    d.register("op", K::Autograd, layer).unwrap();
    d.register("op", K::CPU, says("cpu")).unwrap();
    let error = d.call("op", &[list([K::Autograd, K::CPU]).r()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OperatorRemoved);
    assert!(d.operator("op").is_err());
    goes_with_the_call(&counter);
}

#[test]
fn a_kernel_may_register_replace_and_define_while_it_runs() {
    let d = D::new();
    let kernel = Kernel::boxed(|context: &Context<'_>, args: &[Ref<'_>]| {
        let dispatcher = context.dispatcher()?;
        dispatcher.define("new(Tensor[] inputs) -> Tensor")?;
        dispatcher.register("new", K::CPU, says("new"))?;
        dispatcher.fallback(K::Tracer, wraps("traced"), Override::Error)?;
        let operator = dispatcher.operator("op")?;
        dispatcher.register_with(&operator, K::CPU, says("second"), Override::Replace)?;
        let new = said(dispatcher.call("new", args)?);
        let second = said(dispatcher.call("op", args)?);
        Ok(word(&format!("first, {new}, {second}"), K::CPU))
    });
    d.register("op", K::CPU, kernel).unwrap();
    assert!(d.operator("op").unwrap().dispatcher().unwrap().is_same(&d));
    assert_eq!(call(&d, "op").unwrap(), "first, new, second");
    assert_eq!(call(&d, "op").unwrap(), "second");
    assert_eq!(said(d.call("op", &[list([K::Tracer, K::CPU]).r()]).unwrap()), "traced(second)");
}

#[test]
fn a_destructor_of_a_kernel_may_register_and_remove() {
    /// Calls and registers operators in its drop, as a host language's destructor might.
    struct Last(D, Arc<OnceLock<String>>);
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.define("from_drop(Tensor[] inputs) -> Tensor").unwrap();
            let handle = self.0.register("from_drop", K::CPU, says("dropped")).unwrap();
            let fallback = self.0.fallback(K::Tracer, wraps("t"), Override::Error).unwrap();
            let answer = said(self.0.call("from_drop", &[list([K::Tracer, K::CPU]).r()]).unwrap());
            assert!(handle.remove() && fallback.remove());
            self.1.set(answer).unwrap();
        }
    }
    // Every way to remove a kernel.
    for way in 0..6 {
        let d = D::new();
        let seen = Arc::new(OnceLock::new());
        let last = Last(d.clone(), Arc::clone(&seen));
        let kernel = Kernel::boxed(move |context: &Context<'_>, args: &[Ref<'_>]| {
            let _ = &last;
            if context.key().is_backend() {
                Ok(word("cpu", K::CPU))
            } else {
                context.call_below(args)
            }
        });
        let definition = d.define("op(Tensor[] inputs) -> Tensor").unwrap();
        let operator = d.operator("op").unwrap();
        if way == 0 {
            assert!(d.fallback(K::Profiler, kernel, Override::Error).unwrap().remove());
        } else if way == 1 {
            d.fallback(K::Profiler, kernel, Override::Error).unwrap();
            d.fallback(K::Profiler, wraps("other"), Override::Replace).unwrap();
        } else {
            let handle = d.register_with(&operator, K::CPU, kernel, Override::Error).unwrap();
            assert_eq!(call(&d, "op").unwrap(), "cpu");
            match way {
                2 => assert!(handle.remove()),
                3 => {
                    d.register_with(&operator, K::CPU, says("next"), Override::Replace).unwrap();
                }
                4 => assert!(definition.remove()),
                _ => {
                    // A conflict: the new kernel is dropped, and the old one removed later.
                    d.register_with(&operator, K::CPU, says("no"), Override::Error).unwrap_err();
                    assert!(seen.get().is_none());
                    assert!(handle.remove());
                }
            }
        }
        // Another test's thread may have protected the snapshot for a moment.
        settles("the kernel goes", || seen.get().is_some());
        assert_eq!(seen.get().map(String::as_str), Some("t(dropped)"), "way {way}");
    }
}

#[test]
fn removing_a_fallback_reaches_every_operator() {
    let d = D::new();
    for name in ["a", "b", "c"] {
        d.register(name, K::CPU, says(name)).unwrap();
    }
    let traced = || {
        ["a", "b", "c"].map(|name| said(d.call(name, &[list([K::Tracer, K::CPU]).r()]).unwrap()))
    };
    let handle = d.fallback(K::Tracer, wraps("t"), Override::Error).unwrap();
    assert_eq!(handle.name(), "fallback at Tracer");
    assert_eq!(handle.key(), Some(K::Tracer.into()));
    assert!(handle.operator().is_none() && handle.is_active());
    assert_eq!(traced(), ["t(a)", "t(b)", "t(c)"]);
    assert!(handle.remove());
    assert_eq!(traced(), ["a", "b", "c"]);
    assert!(!handle.remove());
}
