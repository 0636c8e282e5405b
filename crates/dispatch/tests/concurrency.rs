//! Callers and a swapper at once; recursion; panics. Checks also that ended threads leave nothing
//! behind.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use keyfold_core::ErrorKind;
use keyfold_dispatch::{
    DispatchKey as K, DispatchKeySet, Kernel, LocalKeys, Override, call_path, exclude_keys,
    include_keys, without_layers,
};
use support::{Context, D, Ref, Val, Word, list, said, says, settles, word, wraps};

/// Counts its live instances.
struct Live(&'static AtomicI64);

impl Live {
    fn new(count: &'static AtomicI64) -> Live {
        count.fetch_add(1, Ordering::Relaxed);
        Live(count)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a whole number"))
}

/// Returns the process's resident memory in KiB, if the system reports it.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Returns whether a sanitizer's allocator delays the reuse of freed memory, so that the process
/// grows.
fn keeps_freed_memory() -> bool {
    std::env::var_os("KEYFOLD_SANITIZER").is_some()
}

/// Returns a composite that returns its number at a backend's key. At an autograd key it calls
/// below itself, and checks that the result is the same number, since both entries are one
/// registration.
fn numbered(number: i64, live: &'static AtomicI64) -> Kernel<Val> {
    let own = Live::new(live);
    Kernel::typed_with_context(move |context: &Context<'_>, x: &Word| {
        let _ = &own;
        // Reads the kernel's memory, which must be alive.
        assert!(!context.kernel().is_fallthrough());
        Ok(number + i64::from(x.zero_dim))
    })
}

/// Three callers, by typed handle, by operator and by name, and a swapper that replaces a
/// registration behind two entries of the table, and another that comes and goes.
#[allow(clippy::print_stdout, reason = "the soak's figures, for whoever asks with --nocapture")]
#[test]
fn soak_callers_and_a_swapper() {
    static LIVE: AtomicI64 = AtomicI64::new(0);
    let seconds = Duration::from_secs(setting("KEYFOLD_SOAK_SECONDS", 1));
    let swaps = setting("KEYFOLD_SOAK_SWAPS", 20_000);
    let d = D::new();
    d.define("op(Tensor x) -> int").unwrap();
    let operator = d.operator("op").unwrap();
    let composite = keyfold_dispatch::RegistrationKey::CompositeImplicitAutograd;
    let replace = |number| {
        d.register_with(&operator, composite, numbered(number, &LIVE), Override::Replace).unwrap()
    };
    replace(0);
    let newest = AtomicI64::new(0);
    let stop = AtomicBool::new(false);
    let calls = AtomicUsize::new(0);
    let (mut done, mut before, mut after) = (0, None, None);
    std::thread::scope(|scope| {
        for caller in 0..3 {
            let (d, operator, newest, stop, calls) = (&d, &operator, &newest, &stop, &calls);
            scope.spawn(move || {
                let typed = d.typed::<(&Word,), i64>("op").unwrap();
                let plain = Word::new("x", K::CPU);
                let grad = Word::new("x", [K::Autograd, K::CPU]);
                let mut last = [0, 0];
                while !stop.load(Ordering::Relaxed) {
                    for (i, x) in [&plain, &grad].into_iter().enumerate() {
                        let number = match caller {
                            0 => typed.call(x).unwrap(),
                            1 => int(operator.call(&[Ref::Word(x)]).unwrap()),
                            _ => int(d.call("op", &[Ref::Word(x)]).unwrap()),
                        };
                        // Snapshots are ordered: no call sees an older one than an earlier call.
                        assert!(number >= last[i], "{number} after {}", last[i]);
                        assert!(number <= newest.load(Ordering::SeqCst));
                        last[i] = number;
                        calls.fetch_add(1, Ordering::Relaxed);
                    }
                    // All entries come from the single registration.
                    let entries = operator.entries(false);
                    let kernels = entries.iter().map(|entry| Arc::as_ptr(&entry.kernel));
                    let [first, rest @ ..] = &kernels.collect::<Vec<_>>()[..] else {
                        panic!("an empty table")
                    };
                    assert!(rest.iter().all(|kernel| kernel == first));
                }
            });
        }
        let start = Instant::now();
        // Swaps continue until both the time and the number are reached.
        while done < swaps || start.elapsed() < seconds {
            done += 1;
            newest.store(done as i64, Ordering::SeqCst);
            replace(done as i64);
            if done % 16 == 0 {
                let handle = d.register("other", K::CPU, says("other")).unwrap();
                assert!(handle.remove());
            }
            if done == swaps / 4 {
                before = resident();
            }
            if done == swaps {
                after = resident();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // The callers have ended; the next change frees the remaining snapshots.
    replace(i64::MAX - 1);
    settles("only the registered one lives", || LIVE.load(Ordering::SeqCst) == 1);
    assert!(calls.load(Ordering::SeqCst) > 0);
    println!(
        "{done} swaps and {} calls in {seconds:?} or more; KiB after a quarter of {swaps} swaps: \
         {before:?}, after all: {after:?}",
        calls.load(Ordering::SeqCst)
    );
    if let (Some(before), Some(after), false) = (before, after, keeps_freed_memory()) {
        // Leaking all replaced kernels would take 20,000 KiB and more; threads that are scheduled
        // late, of this test and of parallel ones, have held up to 2500.
        assert!(after < before + 8192, "{before} KiB grew to {after} KiB");
    }
}

fn int(value: Val) -> i64 {
    match value {
        Val::Int(i) => i,
        other => panic!("not an int: {other:?}"),
    }
}

/// A layer and the kernel below it are registered and removed as a pair, the layer last and first:
/// a call that ran the layer must find the kernel or an error in a later snapshot, but never the
/// mask of one snapshot with the entries of another.
#[test]
fn soak_masks_and_entries_belong_together() {
    let rounds = setting("KEYFOLD_SOAK_SWAPS", 20_000) / 10;
    let d = D::new();
    d.register("op", K::CPU, says("cpu")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let keys = DispatchKeySet::from([K::Tracer, K::Autograd, K::CPU]);
                let arg = list(keys);
                while !stop.load(Ordering::Relaxed) {
                    // Without a kernel Autograd is masked; an old mask with new entries would be an
                    // error here.
                    let answer = said(d.call("op", &[arg.r()]).unwrap());
                    assert!(["cpu", "grad(cpu)"].contains(&answer.as_str()), "{answer}");
                }
            });
        }
        for round in 0..rounds {
            let layer = if round % 2 == 0 {
                d.register("op", K::Autograd, wraps("grad")).unwrap()
            } else {
                d.fallback(K::Autograd, wraps("grad"), Override::Error).unwrap()
            };
            assert!(layer.remove());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_kernel_that_runs_long_holds_back_its_own_table_only() {
    static LIVE: AtomicI64 = AtomicI64::new(0);
    let d = D::new();
    let (entered, wait_entered) = mpsc::channel();
    let (go, wait_go) = mpsc::channel::<()>();
    let own = Live::new(&LIVE);
    let wait_go = std::sync::Mutex::new(wait_go);
    let slow = Kernel::boxed(move |_: &Context<'_>, _: &[Ref<'_>]| {
        let _ = &own;
        entered.send(()).unwrap();
        wait_go.lock().unwrap().recv().unwrap();
        Ok(word("slow", K::CPU))
    });
    let handle = d.register("slow", K::CPU, slow).unwrap();
    d.define("quick(Tensor x) -> int").unwrap();
    let quick = d.operator("quick").unwrap();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| said(d.call("slow", &[list(K::CPU).r()]).unwrap()));
        wait_entered.recv().unwrap();
        assert!(handle.remove());
        for i in 0..1000 {
            let kernel = numbered(i, &LIVE);
            d.register_with(&quick, K::CPU, kernel, Override::Replace).unwrap();
            settles("the slow one, the new and the last live", || LIVE.load(Ordering::SeqCst) <= 3);
        }
        go.send(()).unwrap();
        assert_eq!(slow.join().unwrap(), "slow");
    });
    settles("only the registered one lives", || LIVE.load(Ordering::SeqCst) == 1);
}

/// Registers a kernel that calls itself endlessly and counts the depth.
fn endless(d: &D) -> Arc<AtomicUsize> {
    let deepest = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&deepest);
    let kernel = Kernel::boxed(move |context: &Context<'_>, args: &[Ref<'_>]| {
        count.fetch_add(1, Ordering::Relaxed);
        context.operator().call(args)
    });
    d.register("endless", K::CPU, kernel).unwrap();
    d.register("fine", K::CPU, says("fine")).unwrap();
    deepest
}

fn recursion_is_an_error_and_the_thread_goes_on(d: &D) {
    let arg = list(K::CPU);
    for _ in 0..3 {
        let error = d.call("endless", &[arg.r()]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Recursion);
        let text = error.to_string();
        assert!(text.starts_with("endless: operator calls nest"), "{text}");
        // On a tiny stack, too few calls fit to distinguish recursion from a kernel that splits its
        // work.
        let repeated = text.contains("endless at CPU runs inside itself");
        let last = text.contains("the last calls: endless at CPU, then endless at CPU");
        assert!(repeated || last, "{text}");
        assert!(call_path().is_empty());
        assert_eq!(said(d.call("fine", &[arg.r()]).unwrap()), "fine");
    }
}

#[test]
fn endless_recursion_is_an_error_on_any_stack() {
    for kib in [64, 128, 512, 1024, 2048, 8192, 65536] {
        let d = D::new();
        let deepest = endless(&d);
        let thread = std::thread::Builder::new().stack_size(kib * 1024);
        let inner = d.clone();
        thread
            .spawn(move || recursion_is_an_error_and_the_thread_goes_on(&inner))
            .unwrap()
            .join()
            .unwrap_or_else(|_| panic!("with {kib} KiB"));
        let deepest = deepest.load(Ordering::Relaxed) / 3;
        assert!(deepest > 5, "{deepest} deep with {kib} KiB");
        assert!(deepest <= 1000);
        if kib == 65536 {
            assert_eq!(deepest, 1000, "where the stack is large the number of calls ends it");
        }
    }
}

#[test]
fn endless_redispatch_through_a_layer_is_an_error() {
    let d = D::new();
    let layer = Kernel::boxed(|context: &Context<'_>, args: &[Ref<'_>]| {
        context.redispatch(context.keyset(), args)
    });
    d.register("op", K::Autograd, layer).unwrap();
    d.register("op", K::CPU, says("cpu")).unwrap();
    let both = [K::Autograd, K::CPU];
    let error = d.call("op", &[list(both).r()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Recursion);
    for part in ["op at Autograd runs inside itself 1000 times", "keyset.remove(\"Autograd\")"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(LocalKeys::current().excluded().is_empty());
    assert_eq!(said(d.call("op", &[list(K::CPU).r()]).unwrap()), "cpu");
}

#[test]
fn a_panic_in_a_kernel_leaves_the_thread_as_it_was() {
    static LIVE: AtomicI64 = AtomicI64::new(0);
    let d = D::new();
    d.define("op(Tensor x) -> int").unwrap();
    let own = Live::new(&LIVE);
    let panics = Kernel::typed(move |x: &Word| -> keyfold_core::Result<i64> {
        let _ = &own;
        // A panic without two thousand messages on stderr.
        std::panic::resume_unwind(Box::new(x.text.clone()))
    });
    let cpu = d.register("op", K::CPU, panics).unwrap();
    let layer = Kernel::boxed(|context: &Context<'_>, args: &[Ref<'_>]| context.call_below(args));
    d.register("op", K::Autograd, layer).unwrap();
    let x = Word::new("on purpose", [K::Autograd, K::CPU]);
    let typed = d.typed::<(&Word,), i64>("op").unwrap();
    let _guard = include_keys(K::Profiler.into());
    let before = LocalKeys::current();
    for _ in 0..2000 {
        // More often than calls may nest, so that a leaked depth would show.
        let panic = catch_unwind(AssertUnwindSafe(|| typed.call(&x))).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "on purpose");
        assert_eq!(LocalKeys::current(), before);
        assert!(call_path().is_empty());
    }
    assert!(cpu.remove());
    settles("no slot holds its table back", || LIVE.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_layers_key_is_excluded_for_calls_inside_it_and_on_no_other_thread() {
    let d = D::new();
    d.register("inner", K::CPU, says("cpu")).unwrap();
    d.register("inner", K::Autograd, wraps("grad")).unwrap();
    d.register("op", K::CPU, says("cpu")).unwrap();
    let both = DispatchKeySet::from([K::Autograd, K::CPU]);
    let layer = Kernel::boxed(move |context: &Context<'_>, args: &[Ref<'_>]| {
        // Not captured: a dispatcher that owns a kernel that owns the dispatcher is never freed.
        let outer = context.dispatcher()?;
        assert_eq!(context.excluded(), K::Autograd.into());
        assert_eq!(context.keyset(), both, "the chosen key is still in it");
        assert_eq!(said(outer.call("inner", args)?), "cpu");
        assert_eq!(said(without_layers(|| outer.call("inner", args))?), "grad(cpu)");
        assert_eq!(context.excluded(), K::Autograd.into(), "and back again");
        std::thread::scope(|scope| {
            let there = scope.spawn(|| said(outer.call("inner", &[list(both).r()]).unwrap()));
            assert_eq!(there.join().unwrap(), "grad(cpu)");
            let here = LocalKeys::current();
            let there = scope.spawn(move || {
                let _guard = here.enter();
                said(outer_call(&D::new(), both))
            });
            assert_eq!(there.join().unwrap(), "cpu", "the sets were handed on");
        });
        // A guard that a layer opens ends before the layer's call.
        let guard = exclude_keys(K::Profiler.into());
        let below = said(context.call_below(args)?);
        guard.close()?;
        Ok(word(&format!("layer({below})"), K::CPU))
    });
    d.register("op", K::Autograd, layer).unwrap();
    assert_eq!(said(d.call("op", &[list(both).r()]).unwrap()), "layer(cpu)");
    assert_eq!(LocalKeys::current(), LocalKeys::default());
}

/// Returns the result of an operator with a layer, in a new dispatcher.
fn outer_call(d: &D, keys: DispatchKeySet) -> Val {
    d.register("op", K::CPU, says("cpu")).unwrap();
    d.register("op", K::Autograd, wraps("grad")).unwrap();
    d.call("op", &[list(keys).r()]).unwrap()
}

#[test]
fn threads_come_and_go() {
    let d = D::new();
    d.register("op", K::CPU, says("cpu")).unwrap();
    for _ in 0..50 {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let d = d.clone();
                std::thread::spawn(move || said(d.call("op", &[list(K::CPU).r()]).unwrap()))
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), "cpu");
        }
    }
}

#[test]
fn a_thread_locals_destructor_may_call() {
    struct Late(D, mpsc::Sender<String>);
    impl Drop for Late {
        fn drop(&mut self) {
            let answer = said(self.0.call("op", &[list(K::CPU).r()]).unwrap());
            self.1.send(answer).unwrap();
        }
    }
    thread_local!(static LATE: std::cell::RefCell<Option<Late>> = const { std::cell::RefCell::new(None) });
    let d = D::new();
    d.register("op", K::CPU, says("cpu")).unwrap();
    for call_first in [true, false] {
        let (sender, receiver) = mpsc::channel();
        let inner = d.clone();
        std::thread::spawn(move || {
            if call_first {
                inner.call("op", &[list(K::CPU).r()]).unwrap();
            }
            LATE.set(Some(Late(inner.clone(), sender)));
            if !call_first {
                inner.call("op", &[list(K::CPU).r()]).unwrap();
            }
        })
        .join()
        .unwrap();
        assert_eq!(receiver.recv().unwrap(), "cpu");
    }
}

#[test]
fn guards_are_local_and_exclusion_beats_inclusion() {
    let d = D::new();
    d.register("op", K::CPU, says("cpu")).unwrap();
    d.register("op", K::Tracer, wraps("traced")).unwrap();
    let call = || said(d.call("op", &[list(K::CPU).r()]).unwrap());
    let include = include_keys(K::Tracer.into());
    assert_eq!(call(), "traced(cpu)");
    std::thread::scope(|scope| {
        let there = scope.spawn(|| said(d.call("op", &[list(K::CPU).r()]).unwrap()));
        assert_eq!(there.join().unwrap(), "cpu");
    });
    let exclude = exclude_keys(K::Tracer.into());
    assert_eq!(call(), "cpu");
    exclude.close().unwrap();
    assert_eq!(call(), "traced(cpu)");
    include.close().unwrap();
    assert_eq!(call(), "cpu");
}
