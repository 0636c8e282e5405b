//! The read side alone: callers without locks and reference counts, while kernels are swapped. Only
//! the engine's protocol orders their accesses, so that ThreadSanitizer checks this program without
//! suppressions (`scripts/sanitize.sh thread`).

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use keyfold_dispatch::{DispatchKey as K, Kernel, Override};
use support::{Context, D, Ref, Val, Word};

const CALLERS: usize = 3;

/// A kernel with memory that its drop overwrites, so that a late reader finds a wrong sum.
struct Sums {
    numbers: Vec<i64>,
}

impl Sums {
    fn new(start: i64) -> Sums {
        Sums { numbers: (start..start + 8).collect() }
    }

    /// Returns the first number if all are consistent.
    fn check(&self) -> i64 {
        let start = self.numbers[0];
        assert!(self.numbers.iter().zip(start..).all(|(a, b)| *a == b), "{:?}", self.numbers);
        start
    }
}

impl Drop for Sums {
    fn drop(&mut self) {
        self.numbers.fill(i64::MIN);
    }
}

#[test]
fn soak_reads_while_kernels_are_swapped() {
    let swaps = std::env::var("KEYFOLD_SOAK_SWAPS").map_or(20_000, |text| text.parse().unwrap());
    let d = D::new();
    d.define("op(Tensor x) -> int").unwrap();
    let operator = d.operator("op").unwrap();
    let replace = |key: K, start: i64| {
        let sums = Sums::new(start);
        let kernel = match start % 2 {
            0 => Kernel::typed(move |_: &Word| Ok(sums.check())),
            _ => Kernel::boxed(move |_: &Context<'_>, _: &[Ref<'_>]| Ok(Val::Int(sums.check()))),
        };
        d.register_with(&operator, key, kernel, Override::Replace).unwrap();
    };
    replace(K::CPU, 0);
    replace(K::Autograd, 0);
    let typed = d.typed::<(&Word,), i64>("op").unwrap();
    let (ready, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let callers = [0; CALLERS].map(|_| {
            let (operator, typed, ready, stop) = (&operator, &typed, &ready, &stop);
            scope.spawn(move || {
                let plain = Word::new("x", K::CPU);
                let grad = Word::new("x", [K::Autograd, K::CPU]);
                let mut last = [0; 2];
                // A thread's first call takes a lock, once.
                typed.call(&plain).unwrap();
                let caller = ready.fetch_add(1, Ordering::SeqCst);
                while !stop.load(Ordering::SeqCst) {
                    for (x, last) in [&plain, &grad].into_iter().zip(&mut last) {
                        let number = if caller == 0 {
                            match operator.call(&[Ref::Word(x)]) {
                                Ok(Val::Int(number)) => number,
                                other => panic!("{other:?}"),
                            }
                        } else {
                            typed.call(x).unwrap()
                        };
                        assert!(number >= *last, "{number} after {last}: an older table");
                        *last = number;
                    }
                }
            })
        });
        while ready.load(Ordering::SeqCst) < CALLERS {
            std::thread::yield_now();
        }
        for start in 1..swaps {
            replace(if start % 3 == 0 { K::Autograd } else { K::CPU }, start);
        }
        stop.store(true, Ordering::SeqCst);
        // One by one, since ThreadSanitizer understands pthread_join, but not the waiting of a
        // scope.
        for caller in callers {
            caller.join().unwrap();
        }
    });
}
