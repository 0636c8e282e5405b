//! The subject of the benchmarks: a no-op of two values that carry keys, called in every way.
//!
//! The value type is like a tensor library's: the keys are in an atomic word, a borrowed value is a
//! small `Copy` enum. Every way calls `a no-op that returns a plain integer`.

mod naive;
mod value;

use std::hint::black_box;
use std::time::{Duration, Instant};

use keyfold_dispatch::{
    CallContext, DispatchKey as K, DispatchKeySet, Dispatcher, Kernel, TypedOperator, exclude_keys,
};

use naive::Naive;
use value::{Ref, Tensor, Val};

type Typed = TypedOperator<Val, (&'static Tensor, &'static Tensor), i64>;

/// One way to call the no-op.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Runs it that many times and returns the elapsed time.
    pub(crate) run: Box<dyn Fn(u64) -> Duration>,
}

impl Case {
    fn new(name: &'static str, call: impl Fn() -> i64 + 'static) -> Case {
        Case { name, run: Box::new(move |times| time(times, &call)) }
    }
}

#[inline(never)]
fn time(times: u64, call: &impl Fn() -> i64) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        black_box(call());
    }
    start.elapsed()
}

fn noop(_a: &Tensor, _b: &Tensor) -> i64 {
    7
}

/// Returns a set of four keys: three layers without kernels over one backend.
fn four_keys() -> DispatchKeySet {
    [K::Tracer, K::Profiler, K::Autograd, K::CPU].into()
}

fn dispatcher() -> Dispatcher<Val> {
    let dispatcher = Dispatcher::new();
    for name in ["noop", "boxed", "layered"] {
        dispatcher.define(&format!("bench::{name}(Tensor a, Tensor b) -> int")).unwrap();
    }
    let typed = || Kernel::typed(|a: &Tensor, b: &Tensor| Ok(noop(a, b)));
    dispatcher.register("bench::noop", K::CPU, typed()).unwrap();
    dispatcher.register("bench::layered", K::CPU, typed()).unwrap();
    let boxed = Kernel::boxed(|_: &CallContext<'_, Val>, args: &[Ref<'_>]| match args {
        [Ref::Tensor(a), Ref::Tensor(b)] => Ok(Val::Int(noop(a, b))),
        _ => Ok(Val::None),
    });
    dispatcher.register("bench::boxed", K::CPU, boxed).unwrap();
    let below: Typed = dispatcher.typed("bench::layered").unwrap();
    let layer = Kernel::typed_with_context(
        move |context: &CallContext<'_, Val>, a: &Tensor, b: &Tensor| {
            below.redispatch(context.keyset().remove(K::Autograd), a, b)
        },
    );
    dispatcher.register("bench::layered", K::Autograd, layer).unwrap();
    dispatcher
}

/// Returns every case, the direct call first.
pub(crate) fn cases() -> Vec<Case> {
    let one: &'static [Tensor; 2] = pair(K::CPU.into());
    let four = pair(four_keys());
    let grad = pair([K::Autograd, K::CPU].into());
    let dispatcher = dispatcher();
    let typed: Typed = dispatcher.typed("bench::noop").unwrap();
    let typed_of_boxed: Typed = dispatcher.typed("bench::boxed").unwrap();
    let layered: Typed = dispatcher.typed("bench::layered").unwrap();
    let boxed = dispatcher.operator("bench::boxed").unwrap();
    let boxed_of_typed = dispatcher.operator("bench::noop").unwrap();
    let mut cases = Vec::new();

    let pointer: fn(&Tensor, &Tensor) -> i64 = noop;
    let [a, b] = one;
    cases.push(Case::new("direct call", move || black_box(pointer)(black_box(a), black_box(b))));

    for (name, pair) in [("naive, 1 key", one), ("naive, 4 keys", four)] {
        let naive = Naive::new(false);
        cases.push(Case::new(name, move || naive.call(black_box("bench::noop"), both(pair))));
    }
    let naive = Naive::new(false);
    cases.push(Case::new("naive, 4 keys, name copied once", move || {
        naive.call_thrifty(black_box("bench::noop"), both(four))
    }));
    let naive = Naive::new(true);
    cases.push(Case::new("naive, one redispatch", move || {
        naive.call(black_box("bench::noop"), both(grad))
    }));

    for (name, [a, b]) in [("typed, 1 key", one), ("typed, 4 keys", four)] {
        let typed = typed.clone();
        cases.push(Case::new(name, move || call(&typed, a, b)));
    }
    let guarded = typed.clone();
    cases.push(Case {
        name: "typed, a local exclude open",
        run: Box::new(move |times| {
            let _guard = exclude_keys(K::Tracer.into());
            time(times, &|| call(&guarded, a, b))
        }),
    });
    let [ga, gb] = grad;
    cases.push(Case::new("typed, one redispatch", move || call(&layered, ga, gb)));
    cases.push(Case::new("typed call of a boxed kernel", move || call(&typed_of_boxed, a, b)));
    for (name, operator) in [("boxed", boxed), ("boxed call of a typed kernel", boxed_of_typed)] {
        // The operator holds only a weak reference to its dispatcher.
        let keep = dispatcher.clone();
        cases.push(Case::new(name, move || {
            let _ = &keep;
            let args = [Ref::Tensor(black_box(a)), Ref::Tensor(black_box(b))];
            match black_box(&operator).call(&args) {
                Ok(Val::Int(i)) => i,
                other => panic!("not an int: {other:?}"),
            }
        }));
    }
    cases
}

fn call(operator: &Typed, a: &Tensor, b: &Tensor) -> i64 {
    match black_box(operator).call(black_box(a), black_box(b)) {
        Ok(i) => i,
        Err(error) => panic!("{error}"),
    }
}

fn pair(keys: DispatchKeySet) -> &'static [Tensor; 2] {
    Box::leak(Box::new([Tensor::new(keys), Tensor::new(keys)]))
}

fn both(pair: &'static [Tensor; 2]) -> [&'static Tensor; 2] {
    [black_box(&pair[0]), black_box(&pair[1])]
}
