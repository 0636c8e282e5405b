//! The protocol, in every order in which its steps can meet (see `scripts/loom.sh`).
//!
//! A snapshot here is a cell whose accesses loom follows, and freeing it is a write. So loom
//! reports a read that isn't ordered before the free, and not only one that comes after it. The
//! memory itself stays until the end of an execution, since a wrong protocol is to be caught, too.
//!
//! Under loom there is no membarrier: as where it was denied after readers began to count on it.

use loom::cell::UnsafeCell;

use super::*;
use crate::sync::{AtomicPtr, Ordering};

const ALIVE: u32 = 7;
const FREED: u32 = 0;

#[repr(align(64))]
struct Snapshot(UnsafeCell<u32>);

fn snapshot() -> *mut Snapshot {
    Box::into_raw(Box::new(Snapshot(UnsafeCell::new(ALIVE))))
}

fn state_of(pointer: *const Snapshot) -> u32 {
    // SAFETY: snapshots stay allocated until the execution ends, and loom sees to it that no
    // write is concurrent.
    unsafe { (*pointer).0.with(|state| *state) }
}

unsafe fn mark_freed(pointer: usize) {
    // SAFETY: as in `state_of`.
    unsafe { (*(pointer as *const Snapshot)).0.with_mut(|state| *state = FREED) };
}

fn joined(domain: &Domain, asymmetric: bool) -> Arc<Slots> {
    let slots = domain.join(asymmetric, Entry::FastAbove(0));
    domain.reserve(&slots, 1);
    slots
}

/// How a reader gets at the pointer. All but the first are wrong, and loom must say so.
#[derive(Clone, Copy)]
enum Reader {
    AsItIs,
    /// Nothing is announced between the load and `hold`.
    WithoutBlockAll,
    /// The load may overtake the announcement.
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

/// Readers that join, read so many times and leave, while a writer swaps and collects.
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
            // SAFETY: made by `Box::into_raw`, once in the list, and the readers are gone.
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

/// Two writers that swap and collect beside each other free each snapshot once.
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
            // SAFETY: made by `Box::into_raw`, and nobody else has it any more.
            drop(unsafe { Box::from_raw(pointer) });
        }
    });
}

/// When a reader that left its fence out says that it fences from now on.
#[derive(Clone, Copy, PartialEq)]
enum Word {
    /// Before it reads with a fence.
    Before,
    /// Although it goes on without a fence: loom must say that this is wrong.
    TooEarly,
    /// Never: it ends.
    Never,
}

/// A reader that began without a fence, as long as it could count on membarrier, against a writer
/// to whom it is denied.
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
                    slots.pass_on();
                }
                Reader::WithoutFence.read(slot, &current);
                if word == Word::Before {
                    slots.demand_fences();
                    slots.pass_on();
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
            // SAFETY: made by `Box::into_raw`, and the reader is gone.
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

/// A reader that collects where its slot is noted, as calls do, against two changes. What is unlinked
/// is freed without any further change: no note is lost between two looks, or taken back after one.
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
                // In the place of membarrier; and a step between the release and the look.
                barrier::full();
                let _ = current.load(Ordering::Relaxed);
                if slot.is_noted() {
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
            // SAFETY: made by `Box::into_raw`, and the reader is gone.
            drop(unsafe { Box::from_raw(pointer) });
        }
    });
}
