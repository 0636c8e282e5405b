//! Memory of ended threads, and operators called in the destructors of a thread. A counting
//! allocator measures the memory, so this is a program of one test at a time.

#![allow(clippy::print_stdout, reason = "what the harness would print")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, OnceLock};

use keyfold_dispatch::{
    DispatchKey as K, LocalContext, LocalKeys, exclude_keys, include_keys, include_keys_with,
    local_data,
};
use support::{D, list, said, says, wraps};

struct Counting;

static LIVE: AtomicIsize = AtomicIsize::new(0);

// SAFETY: the system's allocator, with a counter.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of threads; each once leaked 8,000 bytes.
const THREADS: isize = 50;

/// Returns how many more bytes are in use after many rounds.
fn bytes_left(round: impl Fn()) -> isize {
    // Allocates what is allocated once.
    (0..3).for_each(|_| round());
    let before = LIVE.load(Ordering::Relaxed);
    (0..THREADS).for_each(|_| round());
    (LIVE.load(Ordering::Relaxed) - before) / THREADS
}

fn dispatcher() -> &'static D {
    static D: OnceLock<D> = OnceLock::new();
    D.get_or_init(|| {
        let d = crate::D::new();
        d.register("op", K::CPU, says("cpu")).unwrap();
        d.register("op", K::Tracer, wraps("traced")).unwrap();
        d
    })
}

fn call() -> String {
    said(dispatcher().call("op", &[list(K::CPU).r()]).unwrap())
}

/// Calls, guards and their objects: all that a destructor may use.
fn everything_works() {
    assert_eq!(call(), "cpu");
    let guard = include_keys_with(K::Tracer.into(), Arc::new(7_i32));
    assert_eq!(call(), "traced(cpu)");
    assert_eq!(local_data::<i32>().as_deref(), Some(&7));
    let context = LocalContext::current();
    assert_eq!(context.keys(), LocalKeys::current());
    let other = exclude_keys(K::Tracer.into());
    assert_eq!(call(), "cpu");
    context.replace(|| assert_eq!(call(), "traced(cpu)"));
    other.close().unwrap();
    guard.close().unwrap();
    assert_eq!((call().as_str(), LocalKeys::current()), ("cpu", LocalKeys::default()));
    assert!(local_data::<i32>().is_none());
}

static RAN: AtomicUsize = AtomicUsize::new(0);

fn ran() -> usize {
    RAN.swap(0, Ordering::SeqCst)
}

/// Runs everything in its drop.
struct Late;

impl Drop for Late {
    fn drop(&mut self) {
        everything_works();
        RAN.fetch_add(1, Ordering::SeqCst);
    }
}

thread_local!(static LATE: RefCell<Option<Late>> = const { RefCell::new(None) });

fn rusts_destructors_call_operators() {
    for before in [false, true] {
        let left = bytes_left(|| {
            let thread = std::thread::spawn(move || {
                // Either destructor may run first.
                if before {
                    everything_works();
                }
                LATE.set(Some(Late));
                if !before {
                    everything_works();
                }
            });
            thread.join().unwrap();
            assert_eq!(ran(), 1);
        });
        assert!(left < 100, "{left} bytes a thread");
    }
}

/// Returns a key of the C library whose destructor runs everything, `rounds` times.
fn native_key(rounds: usize) -> libc::pthread_key_t {
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    unsafe extern "C" fn destructor(value: *mut c_void) {
        everything_works();
        RAN.fetch_add(1, Ordering::SeqCst);
        if value as usize > 1 {
            // SAFETY: a created key; the value is a number.
            unsafe {
                libc::pthread_setspecific(KEY.get().copied().unwrap(), value.wrapping_sub(1))
            };
        }
    }
    let key = *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: a place for a key.
        assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, Some(destructor)) }, 0);
        key
    });
    // SAFETY: a created key; the value is a number.
    assert_eq!(unsafe { libc::pthread_setspecific(key, rounds as *mut c_void) }, 0);
    key
}

fn native_destructors_call_operators() {
    // ThreadSanitizer's own part of a thread is gone in the last round, the fourth.
    let is_short = std::env::var_os("KEYFOLD_SANITIZER").is_some_and(|kind| kind == "thread");
    let most = if is_short { 3 } else { 4 };
    for (before, rounds) in [(false, 1), (true, 1), (false, 3), (true, most)] {
        let left = bytes_left(|| {
            let thread = std::thread::spawn(move || {
                native_key(rounds);
                if before {
                    everything_works();
                }
            });
            thread.join().unwrap();
            assert_eq!(ran(), rounds);
        });
        assert!(left < 100, "{left} bytes a thread, {rounds} rounds, called before: {before}");
    }
}

fn guards_that_outlive_their_function_end_with_the_thread() {
    thread_local!(static GUARD: RefCell<Option<keyfold_dispatch::LocalGuard>> =
        const { RefCell::new(None) });
    let left = bytes_left(|| {
        let data = Arc::new([0_u8; 1000]);
        let (kept, lost) = (Arc::clone(&data), Arc::clone(&data));
        let thread = std::thread::spawn(|| {
            GUARD.set(Some(include_keys_with(K::Tracer.into(), kept)));
            // A guard that is never closed.
            let _guard = std::mem::ManuallyDrop::new(include_keys_with(K::Tracer.into(), lost));
            drop(include_keys(K::Profiler.into()));
        });
        thread.join().unwrap();
        assert_eq!(Arc::strong_count(&data), 1);
    });
    assert!(left < 100, "{left} bytes a thread");
}

fn the_slots_of_the_most_threads_are_given_back() {
    const AT_ONCE: isize = 64;
    call();
    let left = bytes_left(|| {
        let barrier = Barrier::new(AT_ONCE as usize);
        let before = LIVE.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let threads = [0; AT_ONCE as usize].map(|_| {
                scope.spawn(|| {
                    call();
                    barrier.wait();
                })
            });
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let after = LIVE.load(Ordering::Relaxed) - before;
        assert!(after < 1000 * AT_ONCE, "{after} bytes after {AT_ONCE} threads");
    });
    assert!(left < 100, "{left} bytes a round");
}

fn main() {
    let tests: [(&str, fn()); 4] = [
        ("rusts_destructors_call_operators", rusts_destructors_call_operators),
        ("native_destructors_call_operators", native_destructors_call_operators),
        (
            "guards_that_outlive_their_function",
            guards_that_outlive_their_function_end_with_the_thread,
        ),
        ("the_slots_of_the_most_threads", the_slots_of_the_most_threads_are_given_back),
    ];
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
}
