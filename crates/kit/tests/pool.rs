//! The thread pool: every index once, failures, nesting, many callers, numbers of threads, local keys.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use common::{THREADS, exclusive};
use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::{DispatchKey, LocalKeys, exclude_keys, include_keys_with, local_data};
use keyfold_kit::pool::{Schedule, num_threads, parallel_for, set_num_threads};

const SCHEDULES: [Schedule; 2] = [Schedule::Uniform, Schedule::Adaptive];

fn counts(len: usize) -> Vec<AtomicU32> {
    (0..len).map(|_| AtomicU32::new(0)).collect()
}

fn assert_each_once(counts: &[AtomicU32]) {
    let wrong = counts.iter().position(|count| count.load(Ordering::Relaxed) != 1);
    assert_eq!(wrong, None, "an index was used another number of times than once");
}

#[test]
fn each_of_100_000_indices_is_used_exactly_once() {
    let _exclusive = exclusive();
    for threads in THREADS {
        set_num_threads(threads).unwrap();
        for schedule in SCHEDULES {
            for grain in [1, 2, 3, 7, 64, 1000, 4096, 33_333, 50_000, 99_999, 100_000, usize::MAX] {
                let used = counts(100_000);
                // A range that doesn't start at 0.
                parallel_for(schedule, 17..100_017, grain, |part| {
                    assert!(part.len() <= grain && !part.is_empty());
                    for index in part {
                        used[index - 17].fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
                .unwrap();
                assert_each_once(&used);
            }
        }
    }
}

#[test]
fn empty_and_extreme_ranges_work() {
    let _exclusive = exclusive();
    set_num_threads(4).unwrap();
    for schedule in SCHEDULES {
        parallel_for(schedule, 5..5, 1, |_| panic!("nothing to do")).unwrap();
        #[expect(clippy::reversed_empty_ranges, reason = "what is tested")]
        parallel_for(schedule, 9..5, 1, |_| panic!("nothing to do")).unwrap();
        let sum = AtomicUsize::new(0);
        parallel_for(schedule, usize::MAX - 10..usize::MAX, 3, |part| {
            sum.fetch_add(part.len(), Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
        assert_eq!(sum.into_inner(), 10);
        // More grains than fit in 32 bits.
        let sum = AtomicUsize::new(0);
        parallel_for(schedule, 0..usize::MAX, usize::MAX / 9, |part| {
            sum.fetch_add(part.len(), Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
        assert_eq!(sum.into_inner(), usize::MAX);
        let error = parallel_for(schedule, 0..usize::MAX, 1, |part| {
            Err(Error::new(ErrorKind::Value, format!("stopped at a part of {}", part.len())))
        });
        assert_eq!(error.unwrap_err().message(), "stopped at a part of 1");
    }
}

#[test]
fn grain_0_is_an_error() {
    for schedule in SCHEDULES {
        let error = parallel_for(schedule, 0..10, 0, |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.message().contains("'grain' is 0"), "{error}");
    }
}

#[test]
fn nested_calls_use_each_index_once() {
    let _exclusive = exclusive();
    for threads in THREADS {
        set_num_threads(threads).unwrap();
        for (outer, inner) in SCHEDULES.iter().flat_map(|o| SCHEDULES.map(|i| (*o, i))) {
            let used = counts(100 * 100);
            parallel_for(outer, 0..100, 1, |rows| {
                rows.into_iter().try_for_each(|row| {
                    parallel_for(inner, 0..100, 1, |columns| {
                        for column in columns {
                            used[row * 100 + column].fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(())
                    })
                })
            })
            .unwrap();
            assert_each_once(&used);
        }
    }
}

#[test]
fn a_chain_of_nested_calls_100_deep_ends() {
    fn deeper(depth: usize, leaves: &AtomicUsize) -> Result<()> {
        if depth == 0 {
            leaves.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        parallel_for(Schedule::Adaptive, 0..2, 1, |part| {
            if part.start == 0 { deeper(depth - 1, leaves) } else { Ok(()) }
        })
    }
    let _exclusive = exclusive();
    set_num_threads(4).unwrap();
    let leaves = AtomicUsize::new(0);
    deeper(100, &leaves).unwrap();
    assert_eq!(leaves.into_inner(), 1);
}

#[test]
fn the_first_error_is_returned_and_remaining_parts_are_skipped() {
    let _exclusive = exclusive();
    for threads in THREADS {
        set_num_threads(threads).unwrap();
        for schedule in SCHEDULES {
            let calls = AtomicUsize::new(0);
            let failed = AtomicBool::new(false);
            let error = parallel_for(schedule, 0..100_000, 1, |part| {
                calls.fetch_add(1, Ordering::Relaxed);
                if !failed.swap(true, Ordering::Relaxed) {
                    return Err(Error::new(ErrorKind::Shape, format!("index {}", part.start)));
                }
                // Gives the other threads time to see the error long before they are done.
                std::thread::sleep(std::time::Duration::from_micros(100));
                Ok(())
            });
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Shape);
            assert!(error.message().starts_with("index "));
            assert!(calls.into_inner() < 100_000, "all parts were begun");
            works_on(schedule);
        }
    }
}

fn works_on(schedule: Schedule) {
    let used = counts(1000);
    parallel_for(schedule, 0..1000, 1, |part| {
        for index in part {
            used[index].fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })
    .unwrap();
    assert_each_once(&used);
}

#[test]
fn a_panic_is_resumed_with_its_payload_and_the_workers_stay_usable() {
    let _exclusive = exclusive();
    for threads in THREADS {
        set_num_threads(threads).unwrap();
        for schedule in SCHEDULES {
            for guilty in [0, 500, 999] {
                let panic = catch_unwind(AssertUnwindSafe(|| {
                    parallel_for(schedule, 0..1000, 10, |part| {
                        assert!(!part.contains(&guilty), "index {guilty} panicked");
                        Ok(())
                    })
                }));
                let text = panic.unwrap_err().downcast::<String>().unwrap();
                assert_eq!(*text, format!("index {guilty} panicked"));
                works_on(schedule);
            }
            // Every part on every thread panics, with a payload that isn't text.
            let panic = catch_unwind(AssertUnwindSafe(|| {
                parallel_for(schedule, 0..100, 1, |part| std::panic::panic_any(part.len()))
            }));
            assert_eq!(*panic.unwrap_err().downcast::<usize>().unwrap(), 1);
            works_on(schedule);
        }
    }
}

#[test]
fn a_panic_in_a_nested_call_reaches_the_outermost_caller() {
    let _exclusive = exclusive();
    set_num_threads(4).unwrap();
    let panic = catch_unwind(|| {
        parallel_for(Schedule::Adaptive, 0..20, 1, |outer| {
            parallel_for(Schedule::Uniform, 0..20, 1, |inner| {
                assert!(outer.start != 7 || inner.start != 13, "7 and 13");
                Ok(())
            })
        })
    });
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "7 and 13");
    works_on(Schedule::Adaptive);
}

#[test]
fn ten_thousand_jobs_from_eight_threads_at_once() {
    let _exclusive = exclusive();
    for threads in [2, 4] {
        set_num_threads(threads).unwrap();
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..8)
                .map(|caller| {
                    let total = &total;
                    scope.spawn(move || {
                        for job in 0..1250 {
                            let schedule = SCHEDULES[(caller + job) % 2];
                            let sum = AtomicUsize::new(0);
                            parallel_for(schedule, 0..100, 7, |part| {
                                sum.fetch_add(part.sum(), Ordering::Relaxed);
                                Ok(())
                            })
                            .unwrap();
                            assert_eq!(sum.into_inner(), 4950);
                            total.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            callers.into_iter().for_each(|caller| caller.join().unwrap());
        });
        assert_eq!(total.into_inner(), 10_000);
    }
}

#[test]
fn writes_of_helpers_are_visible_when_the_job_ends() {
    let _exclusive = exclusive();
    set_num_threads(4).unwrap();
    // Plain writes to disjoint parts of plain memory, which ThreadSanitizer checks.
    struct Out(*mut u64);
    // SAFETY: each index is written by one thread, and read after all are done.
    unsafe impl Sync for Out {}
    impl Out {
        unsafe fn write(&self, index: usize, value: u64) {
            // SAFETY: the caller's promise.
            unsafe { self.0.add(index).write(value) };
        }
    }
    for round in 0..200 {
        let mut items = vec![0_u64; 1000];
        let out = Out(items.as_mut_ptr());
        parallel_for(SCHEDULES[round % 2], 0..1000, 10, |part| {
            // SAFETY: in bounds, and each index in one part only.
            part.for_each(|index| unsafe { out.write(index, (index * round) as u64) });
            Ok(())
        })
        .unwrap();
        assert!(items.iter().enumerate().all(|(index, item)| *item == (index * round) as u64));
    }
}

#[test]
fn the_number_of_threads_can_change_while_jobs_run() {
    let _exclusive = exclusive();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let callers = [(); 3].map(|()| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    works_on(Schedule::Adaptive);
                    works_on(Schedule::Uniform);
                }
            })
        });
        for round in 0..100 {
            set_num_threads(THREADS[round % THREADS.len()]).unwrap();
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
    assert_eq!(num_threads().unwrap(), THREADS[99 % THREADS.len()]);
}

#[test]
fn numbers_of_threads_out_of_range_are_errors() {
    let _exclusive = exclusive();
    set_num_threads(2).unwrap();
    for threads in [0, 4097, usize::MAX] {
        let error = set_num_threads(threads).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.message().contains(&format!("'n' is {threads};")), "{error}");
    }
    assert_eq!(num_threads().unwrap(), 2);
}

#[test]
fn as_many_threads_as_set_work_at_the_same_time() {
    let _exclusive = exclusive();
    for threads in THREADS {
        set_num_threads(threads).unwrap();
        // Each part waits for all others, so this ends only if `threads` threads work.
        let barrier = std::sync::Barrier::new(threads);
        for schedule in SCHEDULES {
            parallel_for(schedule, 0..threads, 1, |_| {
                barrier.wait();
                Ok(())
            })
            .unwrap();
        }
    }
}

#[test]
fn workers_have_names() {
    let _exclusive = exclusive();
    set_num_threads(3).unwrap();
    let caller = std::thread::current().id();
    let barrier = std::sync::Barrier::new(3);
    parallel_for(Schedule::Uniform, 0..3, 1, |_| {
        barrier.wait();
        let thread = std::thread::current();
        if thread.id() != caller {
            let name = thread.name().unwrap();
            assert!(["keyfold-0", "keyfold-1"].contains(&name), "{name}");
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn local_keys_and_objects_travel_with_the_work() {
    let _exclusive = exclusive();
    set_num_threads(4).unwrap();
    let seen = |expected: &(dyn Fn() -> bool + Sync)| {
        let barrier = std::sync::Barrier::new(4);
        parallel_for(Schedule::Uniform, 0..4, 1, |_| {
            barrier.wait();
            if expected() { Ok(()) } else { Err(Error::new(ErrorKind::Value, "other keys")) }
        })
        .unwrap();
    };
    let empty = || LocalKeys::current() == LocalKeys::default() && local_data::<u8>().is_none();
    seen(&empty);
    {
        let _outer = exclude_keys(DispatchKey::Autograd.into());
        let _inner = include_keys_with(DispatchKey::Profiler.into(), std::sync::Arc::new(42_u8));
        let here = LocalKeys::current();
        seen(&|| LocalKeys::current() == here && local_data::<u8>().as_deref() == Some(&42));
    }
    // The workers' own keys and data are restored.
    seen(&empty);
}
