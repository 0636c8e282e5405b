//! Forks while workers and jobs are running: children compute with workers of their own.
//!
//! These tests run without the test harness, whose threads and locks a child couldn't rely on.

#![allow(clippy::print_stdout, reason = "what the harness would print")]

#[path = "../../dispatch/tests/support/child.rs"]
mod child;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use child::{ends_well, in_child};
use keyfold_kit::pool::{Schedule, parallel_for, set_num_threads};

fn sum(len: usize) -> usize {
    let sum = AtomicUsize::new(0);
    parallel_for(Schedule::Adaptive, 0..len, 1, |part| {
        sum.fetch_add(part.sum(), Ordering::Relaxed);
        Ok(())
    })
    .unwrap();
    sum.into_inner()
}

/// The number of threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn a_child_starts_its_own_workers_when_it_needs_them() {
    set_num_threads(3).unwrap();
    assert_eq!(sum(1000), 499_500);
    assert_eq!(threads(), 3);
    let right = in_child(|| {
        let alone = threads() == 1;
        // A single part needs no worker.
        parallel_for(Schedule::Adaptive, 0..10, 10, |_| Ok(())).unwrap();
        alone && threads() == 1 && sum(1000) == 499_500 && threads() == 3
    });
    assert!(right);
    assert_eq!(sum(1000), 499_500);
}

fn a_grandchild_computes_too_and_with_another_number_of_threads() {
    set_num_threads(4).unwrap();
    assert_eq!(sum(1000), 499_500);
    assert!(in_child(|| {
        let before = sum(1000) == 499_500;
        set_num_threads(2).unwrap();
        before && in_child(|| sum(1000) == 499_500 && threads() == 2) && sum(1000) == 499_500
    }));
}

fn children_compute_while_other_threads_of_the_parent_do() {
    set_num_threads(4).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(sum(100), 4950);
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                [2, 3, 4].into_iter().for_each(|n| set_num_threads(n).unwrap());
            }
        });
        for _ in 0..50 {
            assert!(in_child(|| sum(1000) == 499_500));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn a_fork_inside_the_work_is_an_error_in_the_child_or_its_result_is_whole() {
    set_num_threads(4).unwrap();
    let caller = std::thread::current().id();
    // Set by the child only; the parent's copy stays false.
    let is_child = AtomicBool::new(false);
    let parts = AtomicUsize::new(0);
    let forked = AtomicBool::new(false);
    let result = parallel_for(Schedule::Adaptive, 0..64, 1, |_| {
        parts.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(1));
        if std::thread::current().id() == caller && !forked.swap(true, Ordering::Relaxed) {
            // SAFETY: the child continues this call, and exits below.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as in `in_child`.
                unsafe { libc::alarm(60) };
                is_child.store(true, Ordering::Relaxed);
            } else {
                assert!(ends_well(child));
            }
        }
        Ok(())
    });
    if is_child.into_inner() {
        let right = match result {
            Ok(()) => parts.into_inner() == 64,
            Err(error) => error.message().contains("forked"),
        };
        // SAFETY: `_exit` ends the process at once.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    result.unwrap();
    assert_eq!(parts.into_inner(), 64);
}

fn main() {
    let tests: [(&str, fn()); 4] = [
        ("a_child_starts_its_own_workers", a_child_starts_its_own_workers_when_it_needs_them),
        ("a_grandchild_computes_too", a_grandchild_computes_too_and_with_another_number_of_threads),
        ("children_compute_while_others_do", children_compute_while_other_threads_of_the_parent_do),
        (
            "a_fork_inside_the_work",
            a_fork_inside_the_work_is_an_error_in_the_child_or_its_result_is_whole,
        ),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
}
