//! When it is worth waking workers.
//!
//! Waking a worker takes some microseconds of the caller's time, 15 and more on a virtual machine, and the
//! worker comes 50 later. A caller of many small pieces does some first, and sees whether what is left takes
//! long enough alone. Short jobs in a row count together: none of them is worth waking anybody for, but
//! the next one after so many may be.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::cost::PIECE_NANOSECONDS;
use super::workers::LONGEST;

/// Jobs of fewer pieces per thread wake workers at once: their pieces may be long.
const MANY: usize = 16;

/// What a caller does first, at least: less says little about what is left.
const TELLING: Duration = Duration::from_micros(4);

/// What takes so long alone is worth waking somebody for.
const WORTH: Duration = Duration::from_nanos(2 * PIECE_NANOSECONDS as u64);

/// A job that workers could help with, who all sleep or are at work.
pub(super) struct Watch {
    begin: Instant,
    pieces: usize,
    done: usize,
}

impl Watch {
    /// Watches a job, unless workers are to be woken at once.
    pub(super) fn new(row: &Row, pieces: usize, threads: usize) -> Option<Watch> {
        let begin = Instant::now();
        let at_once = pieces < threads.saturating_mul(MANY) || row.is_long(begin);
        (!at_once).then_some(Watch { begin, pieces, done: 0 })
    }

    /// Counts a piece. Whether what is left is worth waking workers for.
    pub(super) fn count(&mut self) -> bool {
        self.done += 1;
        // The clock takes longer to read than a small piece takes.
        self.done.is_power_of_two() && self.is_worth(self.begin.elapsed())
    }

    fn is_worth(&self, elapsed: Duration) -> bool {
        let left = self.pieces.saturating_sub(self.done) as f64 / self.done as f64;
        elapsed >= TELLING && elapsed.as_secs_f64() * left >= WORTH.as_secs_f64()
    }

    /// Adds the job, which was done alone, to those before it.
    pub(super) fn end(self, row: &Row) {
        row.add(self.begin, Instant::now());
    }
}

/// Jobs that were done alone, each a short time after the one before it. Several callers may write here at
/// the same time; one of their times is lost then.
pub(super) struct Row {
    start: Instant,
    /// When the last one ended, in nanoseconds since the start, and how long all have taken.
    end: AtomicU64,
    taken: AtomicU64,
}

impl Default for Row {
    fn default() -> Self {
        Row { start: Instant::now(), end: AtomicU64::new(0), taken: AtomicU64::new(0) }
    }
}

impl Row {
    fn nanoseconds(&self, at: Instant) -> u64 {
        at.duration_since(self.start).as_nanos() as u64
    }

    /// Whether a job that begins now continues a row.
    fn goes_on(&self, now: Instant) -> bool {
        let pause = self.nanoseconds(now).saturating_sub(self.end.load(Ordering::Relaxed));
        pause < LONGEST.as_nanos() as u64
    }

    /// Whether workers would have been worth waking for the row that a job which begins now continues.
    fn is_long(&self, now: Instant) -> bool {
        self.taken.load(Ordering::Relaxed) >= WORTH.as_nanos() as u64 && self.goes_on(now)
    }

    fn add(&self, begin: Instant, end: Instant) {
        let before = if self.goes_on(begin) { self.taken.load(Ordering::Relaxed) } else { 0 };
        let taken = end.duration_since(begin).as_nanos() as u64;
        self.taken.store(before + taken, Ordering::Relaxed);
        self.end.store(self.nanoseconds(end), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_worth_it_when_what_is_left_is_long() {
        let row = Row::default();
        assert!(Watch::new(&row, 2 * MANY - 1, 2).is_none());
        let mut watch = Watch::new(&row, 100, 2).unwrap();
        watch.done = 4;
        // 24 times as long is left.
        assert!(watch.is_worth(WORTH / 4) && !watch.is_worth(WORTH / 30));
        watch.done = 1;
        assert!(!watch.is_worth(TELLING / 2), "too little was done to tell");
        watch.done = 96;
        assert!(!watch.is_worth(WORTH) && watch.is_worth(WORTH * 25));
        watch.done = 100;
        assert!(!watch.is_worth(WORTH * 100), "nothing is left");
    }

    #[test]
    fn short_jobs_in_a_row_count_together_until_there_is_a_pause() {
        let row = Row::default();
        let at = |microseconds| row.start + Duration::from_micros(microseconds);
        row.add(at(1000), at(1025));
        assert!(!row.is_long(at(1030)));
        row.add(at(1030), at(1050));
        assert!(row.is_long(at(1060)) && !row.is_long(at(1050 + 201)));
        row.add(at(2000), at(2020));
        assert!(!row.is_long(at(2021)), "the row began anew");
    }
}
