//! Loom models of single flight: every interleaving of threads that ask for values (see
//! `scripts/loom.sh`).
//!
//! Loom also reports threads that wait for ever.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread::{JoinHandle, spawn};

use keyfold_core::{Error, ErrorKind, Result};

use super::flight::{Failure, Pending, Shelf, Way};
use super::lru::{ByteHash, Dropped, Kept, Key};
use super::stats::{Counts, KindCounts};

impl Kept for u32 {
    fn bytes(&self) -> u64 {
        1
    }
}

type Numbers = Shelf<u32, ByteHash>;

const A: &[u8] = b"a";
const B: &[u8] = b"b";

fn shelf(entries: usize) -> Arc<Numbers> {
    Arc::new(Shelf::new(entries, 100, ByteHash::default()))
}

fn ask(
    shelf: &Numbers,
    key: &[u8],
    build: impl FnOnce() -> Result<u32, Failure>,
) -> Result<(u32, Way)> {
    shelf.get_or_build(key, &|| Ok(()), build, |_: Dropped<u32>| ())
}

/// Begins a thread for each number, and waits for all of them.
fn at_once<T: 'static>(
    numbers: std::ops::Range<u32>,
    work: impl Fn(u32) -> T + Clone + 'static,
) -> Vec<T> {
    let begin = |number| {
        let work = work.clone();
        spawn(move || work(number))
    };
    let threads: Vec<JoinHandle<T>> = numbers.map(begin).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn three_threads_make_one_build() {
    loom::model(|| {
        let (shelf, builds) = (shelf(4), Arc::new(AtomicUsize::new(0)));
        let of_threads = (Arc::clone(&shelf), Arc::clone(&builds));
        let got = at_once(0..3, move |number| {
            let (shelf, builds) = &of_threads;
            let build = || {
                builds.fetch_add(1, Ordering::Relaxed);
                Ok(number)
            };
            ask(shelf, A, build).unwrap()
        });
        assert_eq!(builds.load(Ordering::Relaxed), 1);
        assert!(got.iter().all(|value| value.0 == got[0].0));
        assert_eq!(got.iter().filter(|value| value.1 == Way::Built).count(), 1);
        assert_eq!(shelf.get(A), Some(got[0].0));
    });
}

#[test]
fn a_failed_build_wakes_who_waits() {
    loom::model(|| {
        let shelf = shelf(4);
        let of_threads = Arc::clone(&shelf);
        let failed = || Err(Failure::Failed(Error::new(ErrorKind::NotSupported, "no engine")));
        let got = at_once(0..3, move |_| ask(&of_threads, A, failed).unwrap_err().kind());
        assert_eq!(got, [ErrorKind::NotSupported; 3]);
        assert_eq!(shelf.get(A), None);
        assert_eq!(ask(&shelf, A, || Ok(7)).unwrap(), (7, Way::Built));
    });
}

#[test]
fn a_cancelled_build_is_made_by_another() {
    loom::model(|| {
        let shelf = shelf(4);
        let of_threads = Arc::clone(&shelf);
        let got = at_once(0..3, move |number| {
            let build = || match number {
                0 => Err(Failure::Cancelled(Error::new(ErrorKind::Value, "cancelled"))),
                _ => Ok(number),
            };
            ask(&of_threads, A, build).ok()
        });
        // The first thread fails if it is the builder, and no other one does.
        assert!(got[1].is_some() && got[2].is_some(), "{got:?}");
        let built = got.iter().flatten().filter(|value| value.1 == Way::Built).count();
        assert_eq!(built, 1, "{got:?}");
    });
}

#[test]
fn a_build_that_is_dropped_wakes_who_waits() {
    loom::model(|| {
        let shelf = shelf(4);
        let of_threads = Arc::clone(&shelf);
        let got = at_once(0..2, move |number| {
            if number == 0 {
                // As a panic does.
                drop(Pending::of(&of_threads, Key::from(A), std::process::id()));
                return None;
            }
            Some(ask(&of_threads, A, || Ok(7)).map_err(|error| error.kind()))
        });
        assert!(
            matches!(got[1], Some(Ok((7, Way::Built)) | Err(ErrorKind::KernelPanic))),
            "{got:?}"
        );
    });
}

#[test]
fn builds_that_ask_for_each_other_end() {
    loom::model(|| {
        let shelf = shelf(4);
        let of_threads = Arc::clone(&shelf);
        let got = at_once(0..2, move |number| {
            let keys = if number == 0 { [A, B] } else { [B, A] };
            let inner = || ask(&of_threads, keys[1], || Ok(number)).map_err(Failure::Failed);
            ask(&of_threads, keys[0], || inner().map(|value| value.0))
        });
        // Both begin, and one is refused; or one is first, and its inner build is the other's
        // value.
        let refused = got.iter().flat_map(|value| value.as_ref().err());
        assert!(refused.into_iter().all(|error| error.kind() == ErrorKind::Recursion));
    });
}

#[test]
fn a_value_that_is_put_during_its_build_is_one_entry() {
    loom::model(|| {
        let shelf = shelf(4);
        let of_threads = Arc::clone(&shelf);
        let got = at_once(0..3, move |number| match number {
            0 => {
                drop(of_threads.put(Key::from(A), 9));
                None
            }
            _ => Some(ask(&of_threads, A, || Ok(7)).unwrap().0),
        });
        assert!(got.iter().flatten().all(|&value| value == 7 || value == 9), "{got:?}");
        assert!(matches!(shelf.get(A), Some(7 | 9)));
        assert_eq!(shelf.with(|lru| lru.len()), 1);
    });
}

#[test]
fn counters_of_threads_add_up() {
    loom::model(|| {
        let counts = Arc::new(KindCounts::default());
        let of_threads = Arc::clone(&counts);
        at_once(0..3, move |number| {
            of_threads.note(|counts| counts.hits += 1);
            of_threads.note(|counts| counts.evictions += u64::from(number));
        });
        let Counts { hits, evictions, .. } = counts.read();
        assert_eq!((hits, evictions), (3, 3));
    });
}

#[test]
fn an_entry_that_goes_is_built_again() {
    loom::model(|| {
        let shelf = shelf(1);
        let of_threads = Arc::clone(&shelf);
        at_once(0..2, move |number| {
            for key in if number == 0 { [A, B] } else { [B, A] } {
                let value = u32::from(key[0]);
                assert_eq!(ask(&of_threads, key, || Ok(value)).unwrap().0, value);
            }
        });
        assert_eq!(shelf.with(|lru| lru.len()), 1);
    });
}
