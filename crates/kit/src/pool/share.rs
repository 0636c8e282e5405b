//! What is left of a range, by thread: the owner takes parts from one end, and who has nothing left takes the
//! half at the other end of another's rest.
//!
//! Every other thread begins at the back of its share, so that what costs most is begun first wherever it is
//! near an end of the range, and what is left when a thread runs out can be shared again.
//!
//! A share is one word: the first part and the one after the last, 32 bits each. Nothing else says
//! what is left, so a compare-and-exchange that succeeds is right whatever happened in between.

use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

/// A cache line of its own (two, for the processors that fetch pairs).
#[repr(align(128))]
struct Share(AtomicU64);

/// Parts from the first to before the second.
type Parts = (u32, u32);

fn pack((from, to): Parts) -> u64 {
    u64::from(from) << 32 | u64::from(to)
}

fn unpack(share: u64) -> Parts {
    ((share >> 32) as u32, share as u32)
}

/// Whether a thread takes its parts from the back.
fn backwards(thread: usize) -> bool {
    thread % 2 == 1
}

/// The part that a thread takes first, and the others.
fn first(thread: usize, (from, to): Parts) -> (u32, Parts) {
    if backwards(thread) { (to - 1, (from, to - 1)) } else { (from, (from + 1, to)) }
}

/// The half that is far from where its owner takes parts, the larger one, and what stays.
fn far_half(owner: usize, (from, to): Parts) -> (Parts, Parts) {
    if backwards(owner) {
        let middle = to - (to - from) / 2;
        ((from, middle), (middle, to))
    } else {
        let middle = from + (to - from) / 2;
        ((middle, to), (from, middle))
    }
}

impl Share {
    /// Takes what `f` gives first, and leaves the rest; `None` if nothing is there.
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

    // Relaxed: a share carries no data but itself. What parts write is ordered by the job's count of
    // helpers at work.
    fn exchange(&self, old: u64, new: u64) -> Result<(), u64> {
        self.0.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed).map(|_| ())
    }
}

/// The parts of a job, numbered from 0, until somebody takes them: one share for each thread.
pub(super) struct Shares(SmallVec<[Share; 4]>);

impl Shares {
    pub(super) fn new(parts: u32, threads: usize) -> Shares {
        let bound = |at: usize| (u64::from(parts) * at as u64 / threads as u64) as u32;
        let share = |at: usize| Share(AtomicU64::new(pack((bound(at), bound(at + 1)))));
        Shares((0..threads).map(share).collect())
    }

    /// A part for this thread (each taking part has a number below `threads`), if any is left.
    pub(super) fn take(&self, thread: usize) -> Option<u32> {
        let Shares(shares) = self;
        let own = &shares[thread];
        if let Some(part) = own.split(|parts| first(thread, parts)) {
            return Some(part);
        }
        for other in (thread + 1..shares.len()).chain(0..thread) {
            if let Some(half) = shares[other].split(|parts| far_half(other, parts)) {
                let (part, rest) = first(thread, half);
                // Nobody else puts anything into an empty share.
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
    fn each_part_is_taken_once_whoever_takes() {
        for parts in [0, 1, 2, 7, 1000] {
            for threads in [1, 2, 3, 8] {
                let shares = Shares::new(parts, threads);
                let mut taken = Vec::new();
                // A thread that takes three for each of the others' one.
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
    fn a_thread_alone_takes_what_the_absent_ones_would() {
        let shares = Shares::new(100, 4);
        assert_eq!(std::iter::from_fn(|| shares.take(2)).count(), 100);
    }

    #[test]
    fn both_ends_are_begun_first_and_what_is_taken_from_others_is_far_from_where_they_are() {
        let shares = Shares::new(16, 2);
        assert_eq!([shares.take(0), shares.take(1)], [Some(0), Some(15)]);
        // The first does its share while the second is at its part, and then what is far from there.
        let alone: Vec<_> = (0..9).map(|_| shares.take(0).unwrap()).collect();
        assert_eq!(alone, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(shares.take(1), Some(14));
        let back = std::iter::from_fn(|| shares.take(1)).collect::<Vec<_>>();
        assert_eq!(back, [13, 12, 11, 10]);
        let shares = Shares::new(16, 2);
        let alone: Vec<_> = std::iter::from_fn(|| shares.take(1)).collect();
        assert_eq!(alone, [15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
    }
}
