//! Work stealing: each thread has a share of the parts. The owner takes parts from one end; a thread
//! whose share is empty takes half of another's share, from the other end.
//!
//! Every other thread begins at the back of its share. So both ends of the range are begun first, where
//! expensive parts often are, and the parts that remain when a thread runs out can be divided again.
//!
//! A share is one word: the first part and the one after the last, 32 bits each. No other state says
//! which parts remain, so a compare-and-exchange that succeeds is right whatever happened in between.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

/// A thread's remaining parts, in a cache line of its own (two, for processors that fetch pairs).
#[repr(align(128))]
struct WorkShare(AtomicU64);

/// The parts from the first number to before the second.
type Parts = (u32, u32);

fn pack((from, to): Parts) -> u64 {
    u64::from(from) << 32 | u64::from(to)
}

fn unpack(share: u64) -> Parts {
    ((share >> 32) as u32, share as u32)
}

/// Whether a thread takes its parts from the back.
fn takes_from_back(thread: usize) -> bool {
    thread % 2 == 1
}

/// Splits off the part that a thread takes first.
fn first(thread: usize, (from, to): Parts) -> (u32, Parts) {
    if takes_from_back(thread) { (to - 1, (from, to - 1)) } else { (from, (from + 1, to)) }
}

/// Splits off the half that is far from the owner's end, the larger one if they differ.
fn far_half(owner: usize, (from, to): Parts) -> (Parts, Parts) {
    if takes_from_back(owner) {
        let middle = to - (to - from) / 2;
        ((from, middle), (middle, to))
    } else {
        let middle = from + (to - from) / 2;
        ((middle, to), (from, middle))
    }
}

impl WorkShare {
    /// Splits the parts by `f`, which returns the taken and the remaining ones; `None` if the share is
    /// empty.
    fn split<T>(&self, f: impl Fn(Parts) -> (T, Parts)) -> Option<T> {
        let mut share = self.0.load(Ordering::Relaxed);
        loop {
            let parts = unpack(share);
            if parts.0 >= parts.1 {
                return None;
            }
            let (taken, rest) = f(parts);
            match self.exchange(share, pack(rest)) {
                Ok(()) => return Some(taken),
                Err(now) => share = now,
            }
        }
    }

    // Relaxed: no other data is published through a share. The job's count of workers orders the writes
    // of the parts.
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        self.0.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed).map(|_| ())
    }
}

/// The parts of a job that no thread has taken yet, numbered from 0: one share for each thread.
pub(super) struct WorkShares(SmallVec<[WorkShare; 4]>);

impl WorkShares {
    pub(super) fn new(parts: u32, threads: usize) -> WorkShares {
        let bound = |at: usize| (u64::from(parts) * at as u64 / threads as u64) as u32;
        let share = |at: usize| WorkShare(AtomicU64::new(pack((bound(at), bound(at + 1)))));
        WorkShares((0..threads).map(share).collect())
    }

    /// Takes a part for this thread (threads are numbered), or `None` if none is left.
    pub(super) fn take(&self, thread: usize) -> Option<u32> {
        let WorkShares(shares) = self;
        let own = &shares[thread];
        if let Some(part) = own.split(|parts| first(thread, parts)) {
            return Some(part);
        }
        for other in (thread + 1..shares.len()).chain(0..thread) {
            if let Some(half) = shares[other].split(|parts| far_half(other, parts)) {
                let (part, rest) = first(thread, half);
                // No other thread writes to an empty share.
                own.0.store(pack(rest), Ordering::Relaxed);
                return Some(part);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_taken_once_by_any_threads() {
        for parts in [0, 1, 2, 7, 1000] {
            for threads in [1, 2, 3, 8] {
                let shares = WorkShares::new(parts, threads);
                let mut taken = Vec::new();
                // One thread takes three parts for each part of the others.
                let mut turn = [0, 0, 0].into_iter().chain(0..threads).cycle();
                let mut idle = 0;
                while idle < 2 * threads + 6 {
                    match shares.take(turn.next().unwrap()) {
                        Some(part) => taken.push(part),
                        None => idle += 1,
                    }
                }
                taken.sort_unstable();
                assert_eq!(taken, (0..parts).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_single_thread_takes_the_parts_of_absent_threads() {
        let shares = WorkShares::new(100, 4);
        assert_eq!(std::iter::from_fn(|| shares.take(2)).count(), 100);
    }

    #[test]
    fn both_ends_begin_first_and_stolen_parts_are_far_from_their_owner() {
        let shares = WorkShares::new(16, 2);
        assert_eq!([shares.take(0), shares.take(1)], [Some(0), Some(15)]);
        // The first thread takes its share while the second runs one part, and then steals from the far
        // end.
        let alone: Vec<_> = (0..9).map(|_| shares.take(0).unwrap()).collect();
        assert_eq!(alone, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(shares.take(1), Some(14));
        let back = std::iter::from_fn(|| shares.take(1)).collect::<Vec<_>>();
        assert_eq!(back, [13, 12, 11, 10]);
        let shares = WorkShares::new(16, 2);
        let alone: Vec<_> = std::iter::from_fn(|| shares.take(1)).collect();
        assert_eq!(alone, [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
    }
}
