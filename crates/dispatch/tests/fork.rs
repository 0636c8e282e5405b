//! Fork while other threads of the parent are inside operators: the child has copies of their
//! announcements, but not the threads. Without the test harness, which has threads of its own.

#![allow(clippy::print_stdout, reason = "what the harness would print")]

#[path = "support/child.rs"]
mod child;
mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use child::{ends_well, in_child};
use keyfold_dispatch::{DispatchKey as K, Kernel, Override, call_path};
use support::{Context, D, Ref, list, said, says, word};

struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Returns a dispatcher whose operator `op` runs `body`, with a kernel that counts its drop.
fn counting(body: impl Fn() + Send + Sync + 'static) -> (D, Arc<AtomicUsize>) {
    let (d, dropped) = (D::new(), Arc::new(AtomicUsize::new(0)));
    let counted = Counted(Arc::clone(&dropped));
    let kernel = Kernel::boxed(move |_: &Context<'_>, _: &[Ref<'_>]| {
        let _ = &counted;
        body();
        Ok(word("cpu", K::CPU))
    });
    d.register("op", K::CPU, kernel).unwrap();
    (d, dropped)
}

fn replace(d: &D) {
    let operator = d.operator("op").unwrap();
    d.register_with(&operator, K::CPU, says("new"), Override::Replace).unwrap();
}

fn call(d: &D) -> String {
    said(d.call("op", &[list(K::CPU).r()]).unwrap())
}

fn what_the_parents_threads_held_is_freed_in_the_child() {
    let barrier = Arc::new(Barrier::new(4));
    let waits = Arc::clone(&barrier);
    let (d, dropped) = counting(move || {
        waits.wait();
        waits.wait();
    });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert_eq!(call(&d), "cpu"));
        }
        barrier.wait();
        // Three threads are inside the kernel.
        assert!(in_child(|| {
            replace(&d);
            dropped.load(Ordering::SeqCst) == 1 && call(&d) == "new"
        }));
        assert!(in_child(|| in_child(|| {
            replace(&d);
            dropped.load(Ordering::SeqCst) == 1
        })));
        replace(&d);
        assert_eq!(dropped.load(Ordering::SeqCst), 0, "held in the parent");
        barrier.wait();
    });
    // The last thread to leave the kernel frees it.
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

fn what_the_forking_thread_holds_stays_valid_in_the_child() {
    let is_child = Arc::new(AtomicBool::new(false));
    let child = Arc::clone(&is_child);
    let (d, dropped) = counting(move || {
        child.store(in_child_from_here(), Ordering::SeqCst);
    });
    let answer = call(&d);
    if is_child.load(Ordering::SeqCst) {
        replace(&d);
        let right = answer == "cpu" && dropped.load(Ordering::SeqCst) == 1 && call(&d) == "new";
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    assert_eq!((answer.as_str(), dropped.load(Ordering::SeqCst)), ("cpu", 0));
}

/// Forks; returns true in the child, which continues the call.
fn in_child_from_here() -> bool {
    // SAFETY: the child continues this call on its one thread, and ends in the caller.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as in `in_child`.
        unsafe { libc::alarm(60) };
        // Inside the call, its table is protected, also after its replacement.
        assert_eq!(call_path(), [("op".to_owned(), K::CPU)]);
        return true;
    }
    assert!(ends_well(child));
    false
}

fn children_are_forked_while_threads_come_and_go_and_kernels_change() {
    let (d, _) = counting(|| {});
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Threads with dispatchers of their own, since a child can't use locks that it may have
            // inherited locked: they join, read, retire and leave.
            while !stop.load(Ordering::Relaxed) {
                let threads = [0; 3].map(|_| {
                    std::thread::spawn(|| {
                        let (own, _) = counting(|| {});
                        replace(&own);
                        assert_eq!(call(&own), "new");
                    })
                });
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            }
        });
        for _ in 0..50 {
            assert!(in_child(|| {
                let (own, dropped) = counting(|| {});
                let before = call(&own) == "cpu" && call(&d) == "cpu";
                replace(&own);
                before && dropped.load(Ordering::SeqCst) == 1
            }));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn main() {
    let tests: [(&str, fn()); 3] = [
        ("what_the_parents_threads_held", what_the_parents_threads_held_is_freed_in_the_child),
        ("what_the_forking_thread_holds", what_the_forking_thread_holds_stays_valid_in_the_child),
        (
            "children_are_forked_while_threads_come_and_go",
            children_are_forked_while_threads_come_and_go_and_kernels_change,
        ),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
}
