//! What is left of a range, by thread: the owner takes parts from the front, and who has nothing
//! left takes the upper half of another's rest.
//!
//! A share is one word: the first part and the one after the last, 32 bits each. Nothing else says
//! what is left, so a compare-and-exchange that succeeds is right whatever happened in between.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::Schedule;

/// A cache line of its own (two, for the processors that fetch pairs).
#[repr(align(128))]
pub(super) struct Share(AtomicU64);

fn pack(from: u32, to: u32) -> u64 {
    u64::from(from) << 32 | u64::from(to)
}

fn unpack(share: u64) -> (u32, u32) {
    ((share >> 32) as u32, share as u32)
}

impl Share {
    /// The next part of the thread's own.
    fn pop(&self) -> Option<u32> {
        let mut share = self.0.load(Ordering::Relaxed);
        loop {
            let (from, to) = unpack(share);
            if from >= to {
                return None;
            }
            match self.exchange(share, pack(from + 1, to)) {
                Ok(()) => return Some(from),
                Err(now) => share = now,
            }
        }
    }

    /// The upper half of what is left, the larger one if it is odd.
    fn split(&self) -> Option<(u32, u32)> {
        let mut share = self.0.load(Ordering::Relaxed);
        loop {
            let (from, to) = unpack(share);
            if from >= to {
                return None;
            }
            let middle = from + (to - from) / 2;
            match self.exchange(share, pack(from, middle)) {
                Ok(()) => return Some((middle, to)),
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

/// The parts of a job, numbered from 0, until somebody takes them.
pub(super) enum Shares {
    /// Whole shares: one part per thread.
    Uniform { next: AtomicUsize, parts: u32 },
    /// One share of parts for each thread.
    Adaptive(Box<[Share]>),
}

impl Shares {
    pub(super) fn new(schedule: Schedule, parts: u32, threads: usize) -> Shares {
        match schedule {
            Schedule::Uniform => Shares::Uniform { next: AtomicUsize::new(0), parts },
            Schedule::Adaptive => Shares::Adaptive(
                (0..threads)
                    .map(|at| {
                        let bound =
                            |at: usize| (u64::from(parts) * at as u64 / threads as u64) as u32;
                        Share(AtomicU64::new(pack(bound(at), bound(at + 1))))
                    })
                    .collect(),
            ),
        }
    }

    /// A part for this thread (each taking part has a number below `threads`), if any is left.
    pub(super) fn take(&self, thread: usize) -> Option<u32> {
        let shares = match self {
            Shares::Uniform { next, parts } => {
                let part = next.fetch_add(1, Ordering::Relaxed);
                return u32::try_from(part).ok().filter(|part| part < parts);
            }
            Shares::Adaptive(shares) => shares,
        };
        let own = &shares[thread];
        if let Some(part) = own.pop() {
            return Some(part);
        }
        for other in (thread + 1..shares.len()).chain(0..thread) {
            if let Some((from, to)) = shares[other].split() {
                // Nobody else puts anything into an empty share.
                own.0.store(pack(from + 1, to), Ordering::Relaxed);
                return Some(from);
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
        for schedule in [Schedule::Uniform, Schedule::Adaptive] {
            for parts in [0, 1, 2, 7, 1000] {
                for threads in [1, 2, 3, 8] {
                    let shares = Shares::new(schedule, parts, threads);
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
    }

    #[test]
    fn a_thread_alone_takes_what_the_absent_ones_would() {
        let shares = Shares::new(Schedule::Adaptive, 100, 4);
        assert_eq!(std::iter::from_fn(|| shares.take(2)).count(), 100);
    }
}
