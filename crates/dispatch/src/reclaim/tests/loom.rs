//! Loom models of the protocol: every interleaving of its steps (see `scripts/loom.sh`).
//!
//! A snapshot here is a loom cell, and freeing it is a write, so that loom also reports a read that
//! isn't ordered before the free. The memory itself lives until the end of an execution, since
//! wrong protocols are tested, too.
//!
//! Under loom there is no membarrier, as if it were denied after readers began to rely on it.

use ::loom::cell::UnsafeCell;

use super::super::*;
use crate::sync::{AtomicPtr, Ordering};

const ALIVE: u32 = 7;
const FREED: u32 = 0;

#[repr(align(64))]
struct Snapshot(UnsafeCell<u32>);

fn snapshot() -> *mut Snapshot {
    Box::into_raw(Box::new(Snapshot(UnsafeCell::new(ALIVE))))
}

fn state_of(pointer: *const Snapshot) -> u32 {
    // SAFETY: snapshots stay allocated until the execution ends, and loom reports concurrent
    // writes.
    unsafe { (*pointer).0.with(|state| *state) }
}

unsafe fn mark_freed(pointer: usize) {
    // SAFETY: as in `state_of`.
    unsafe { (*(pointer as *const Snapshot)).0.with_mut(|state| *state = FREED) };
}

fn joined(domain: &Domain, asymmetric: bool) -> Arc<Slots> {
    let slots = domain.join(asymmetric, EntryPath::FastAbove(0));
    domain.reserve(&slots, 1);
    slots
}

/// The reader's protocol. All variants but the first are wrong, and loom must report them.
#[derive(Clone, Copy)]
enum Reader {
    AsItIs,
    /// Nothing is announced between the load and `hold`.
    WithoutBlockAll,
    /// The load may be reordered before the announcement.
    WithoutFence,
    /// The pointer isn't announced after `BLOCK_ALL`.
    WithoutHold,
}

impl Reader {
    fn read(self, slot: &Slot, source: &AtomicPtr<Snapshot>) {
        let pointer = match self {
            Reader::WithoutBlockAll => source.load(Ordering::Acquire),
            Reader::WithoutFence => {
                slot.content.store(BLOCK_ALL, Ordering::Relaxed);
                source.load(Ordering::Acquire)
            }
            Reader::AsItIs | Reader::WithoutHold => slot.protect(source, false),
        };
        match self {
            Reader::WithoutHold => slot.release(),
            _ => slot.hold(pointer, 3),
        }
        assert_eq!(state_of(pointer), ALIVE);
        slot.release();
    }
}

/// Readers join, read `reads` times and leave, while a writer swaps and collects.
fn readers_against_a_writer(reader: Reader, readers: usize, reads: usize, swaps: usize) {
    loom::model(move || {
        let domain = Arc::new(Domain::new());
        let mut all = vec![snapshot()];
        let current = Arc::new(AtomicPtr::new(all[0]));
        let threads: Vec<_> = (0..readers)
            .map(|_| {
                let (domain, current) = (Arc::clone(&domain), Arc::clone(&current));
                loom::thread::spawn(move || {
                    let slots = joined(&domain, false);
                    for _ in 0..reads {
                        reader.read(&slots.below(1)[0], &current);
                    }
                    domain.leave(Arc::as_ptr(&slots));
                })
            })
            .collect();
        for _ in 0..swaps {
            let next = snapshot();
            all.push(next);
            let old = current.swap(next, Ordering::AcqRel);
            domain.push(Retired { pointer: old as usize, free: mark_freed });
            domain.collect(None);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        domain.collect(None);
        assert_eq!(domain.waiting().0, 0, "everything unlinked is freed in the end");
        let last = all.pop().unwrap();
        assert_eq!(state_of(last), ALIVE);
        assert!(all.iter().all(|unlinked| state_of(*unlinked) == FREED));
        for pointer in all.into_iter().chain([last]) {
            // SAFETY: made by `Box::into_raw`, once in the list, and the readers have ended.
            drop(unsafe { Box::from_raw(pointer) });
        }
    });
}

#[test]
fn one_reader_and_two_swaps() {
    readers_against_a_writer(Reader::AsItIs, 1, 1, 2);
}

#[test]
fn one_reader_that_reads_twice() {
    readers_against_a_writer(Reader::AsItIs, 1, 2, 1);
}

#[test]
fn two_readers_and_one_swap() {
    readers_against_a_writer(Reader::AsItIs, 2, 1, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_block_all_it_fails() {
    readers_against_a_writer(Reader::WithoutBlockAll, 1, 1, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_a_fence_it_fails() {
    readers_against_a_writer(Reader::WithoutFence, 1, 1, 1);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_hold_it_fails() {
    readers_against_a_writer(Reader::WithoutHold, 1, 1, 1);
}

/// Two writers that swap and collect concurrently free each snapshot once.
#[test]
fn two_writers_and_a_reader() {
    loom::model(|| {
        let domain = Arc::new(Domain::new());
        let snapshots = [snapshot(), snapshot(), snapshot()];
        let current = Arc::new(AtomicPtr::new(snapshots[0]));
        let writer = |domain: &Domain, current: &AtomicPtr<Snapshot>, next| {
            let old = current.swap(next, Ordering::AcqRel);
            domain.push(Retired { pointer: old as usize, free: mark_freed });
            domain.collect(None);
        };
        let there = {
            let (domain, current) = (Arc::clone(&domain), Arc::clone(&current));
            let next = snapshots[1] as usize;
            loom::thread::spawn(move || writer(&domain, &current, next as *mut Snapshot))
        };
        let slots = joined(&domain, false);
        Reader::AsItIs.read(&slots.below(1)[0], &current);
        writer(&domain, &current, snapshots[2]);
        there.join().unwrap();
        domain.collect(None);
        assert_eq!(domain.waiting().0, 0);
        let states = snapshots.map(|pointer| state_of(pointer));
        assert_eq!(states.iter().filter(|state| **state == ALIVE).count(), 1);
        for pointer in snapshots {
            // SAFETY: made by `Box::into_raw`, and not referred to any more.
            drop(unsafe { Box::from_raw(pointer) });
        }
    });
}

/// The time at which a reader without a fence confirms that it fences from now on.
#[derive(Clone, Copy, PartialEq)]
enum Word {
    /// Before its first read with a fence.
    Before,
    /// Although it continues without a fence, which loom must report.
    TooEarly,
    /// Never, since it ends.
    Never,
}

/// A reader that started without a fence, while membarrier worked, against a writer to which it is
/// denied.
fn a_reader_turns_to_fences(word: Word) {
    loom::model(move || {
        let domain = Arc::new(Domain::new());
        let snapshots = [snapshot(), snapshot()];
        let current = Arc::new(AtomicPtr::new(snapshots[0]));
        let slots = joined(&domain, true);
        let reader = {
            let (domain, current) = (Arc::clone(&domain), Arc::clone(&current));
            loom::thread::spawn(move || {
                let slot = &slots.below(1)[0];
                if word == Word::TooEarly {
                    slots.demand_fences();
                    slots.confirm_fences();
                }
                Reader::WithoutFence.read(slot, &current);
                if word == Word::Before {
                    slots.demand_fences();
                    slots.confirm_fences();
                    Reader::AsItIs.read(slot, &current);
                }
                domain.leave(Arc::as_ptr(&slots));
            })
        };
        let old = current.swap(snapshots[1], Ordering::AcqRel);
        domain.push(Retired { pointer: old as usize, free: mark_freed });
        domain.collect(None);
        reader.join().unwrap();
        domain.collect(None);
        assert_eq!(domain.waiting(), (0, 0), "everything is freed in the end");
        assert_eq!(snapshots.map(|pointer| state_of(pointer)), [FREED, ALIVE]);
        for pointer in snapshots {
            // SAFETY: made by `Box::into_raw`, and the reader has ended.
            drop(unsafe { Box::from_raw(pointer) });
        }
    });
}

#[test]
fn a_reader_says_that_it_fences() {
    a_reader_turns_to_fences(Word::Before);
}

#[test]
fn a_reader_ends_without_a_word() {
    a_reader_turns_to_fences(Word::Never);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_word_given_too_early_fails() {
    a_reader_turns_to_fences(Word::TooEarly);
}

/// A reader that collects if its slot is marked, as calls do, against two changes. Unlinked
/// snapshots are freed without a further change: no mark is lost between two scans, or cleared
/// after one.
#[test]
fn the_last_reader_frees() {
    loom::model(|| {
        let domain = Arc::new(Domain::new());
        let snapshots = [snapshot(), snapshot(), snapshot()];
        let current = Arc::new(AtomicPtr::new(snapshots[0]));
        let slots = joined(&domain, false);
        let reader = {
            let (domain, current) = (Arc::clone(&domain), Arc::clone(&current));
            loom::thread::spawn(move || {
                let slot = &slots.below(1)[0];
                Reader::AsItIs.read(slot, &current);
                // In place of membarrier; also a step between release and check.
                barrier::full();
                let _ = current.load(Ordering::Relaxed);
                if slot.is_marked() {
                    domain.collect(Some(&slots));
                }
                slots
            })
        };
        for pair in snapshots.windows(2) {
            let old = current.swap(pair[1], Ordering::AcqRel);
            domain.push(Retired { pointer: old as usize, free: mark_freed });
            domain.collect(None);
        }
        let slots = reader.join().unwrap();
        assert_eq!(domain.waiting().0, 0, "nobody waits any more");
        assert_eq!(snapshots.map(|pointer| state_of(pointer)), [FREED, FREED, ALIVE]);
        domain.leave(Arc::as_ptr(&slots));
        for pointer in snapshots {
            // SAFETY: made by `Box::into_raw`, and the reader has ended.
            drop(unsafe { Box::from_raw(pointer) });
        }
    });
}
