//! The decision when to wake sleeping workers.
//!
//! Waking a worker takes some microseconds of the caller's time, 15 and more on a virtual machine, and
//! the worker starts 50 microseconds later. So the caller of a job of many small pieces runs some of
//! them first, and estimates the time that the rest would take it alone. Short jobs in close succession
//! count together: none of them is worth waking a worker for, but their sum may be.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::cost::PIECE_NANOSECONDS;
use super::workers::MAX_SPIN_TIME;

/// Jobs of fewer pieces per thread wake workers at once: their pieces may be long.
const MANY_PIECES: usize = 16;

/// The caller runs pieces for at least this time; the estimate from less is unreliable.
const MIN_SAMPLE: Duration = Duration::from_micros(4);

/// Remaining work that takes the caller this long alone is worth waking workers for.
const WORTH_WAKING: Duration = Duration::from_nanos(2 * PIECE_NANOSECONDS as u64);

/// The estimate for a job whose possible helpers all sleep or are busy.
pub(super) struct WakeEstimate {
    begin: Instant,
    pieces: usize,
    done: usize,
}

impl WakeEstimate {
    /// Starts the estimate; `None` if workers are to be woken at once.
    pub(super) fn new(
        alone_series: &AloneSeries,
        pieces: usize,
        threads: usize,
    ) -> Option<WakeEstimate> {
        let begin = Instant::now();
        let at_once = pieces < threads.saturating_mul(MANY_PIECES) || alone_series.is_long(begin);
        (!at_once).then_some(WakeEstimate { begin, pieces, done: 0 })
    }

    /// Counts a piece, and returns whether the remaining work is worth waking workers for.
    pub(super) fn count(&mut self) -> bool {
        self.done += 1;
        // Reading the clock takes longer than running a small piece.
        self.done.is_power_of_two() && self.is_worth(self.begin.elapsed())
    }

    fn is_worth(&self, elapsed: Duration) -> bool {
        let left = self.pieces.saturating_sub(self.done) as f64 / self.done as f64;
        elapsed >= MIN_SAMPLE && elapsed.as_secs_f64() * left >= WORTH_WAKING.as_secs_f64()
    }

    /// Adds the job, which the caller ran alone, to the series.
    pub(super) fn end(self, alone_series: &AloneSeries) {
        alone_series.add(self.begin, Instant::now());
    }
}

/// A series of jobs that their callers ran alone, each a short time after the one before it. Several
/// callers may write at the same time; one of their times is lost then.
pub(super) struct AloneSeries {
    start: Instant,
    /// The end of the last job, in nanoseconds since `start`; `taken` is the time of all jobs.
    end: AtomicU64,
    taken: AtomicU64,
}

impl Default for AloneSeries {
    fn default() -> Self {
        AloneSeries { start: Instant::now(), end: AtomicU64::new(0), taken: AtomicU64::new(0) }
    }
}

impl AloneSeries {
    fn nanoseconds(&self, at: Instant) -> u64 {
        at.duration_since(self.start).as_nanos() as u64
    }

    /// Whether a job that begins now continues the series.
    fn continues(&self, now: Instant) -> bool {
        let pause = self.nanoseconds(now).saturating_sub(self.end.load(Ordering::Relaxed));
        pause < MAX_SPIN_TIME.as_nanos() as u64
    }

    /// Whether the series that a job beginning now continues was worth waking workers for.
    fn is_long(&self, now: Instant) -> bool {
        self.taken.load(Ordering::Relaxed) >= WORTH_WAKING.as_nanos() as u64 && self.continues(now)
    }

    fn add(&self, begin: Instant, end: Instant) {
        let before = if self.continues(begin) { self.taken.load(Ordering::Relaxed) } else { 0 };
        let taken = end.duration_since(begin).as_nanos() as u64;
        self.taken.store(before + taken, Ordering::Relaxed);
        self.end.store(self.nanoseconds(end), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_worth_waking_when_the_remaining_work_is_long() {
        let alone_series = AloneSeries::default();
        assert!(WakeEstimate::new(&alone_series, 2 * MANY_PIECES - 1, 2).is_none());
        let mut estimate = WakeEstimate::new(&alone_series, 100, 2).unwrap();
        estimate.done = 4;
        // The remaining pieces take 24 times as long.
        assert!(estimate.is_worth(WORTH_WAKING / 4) && !estimate.is_worth(WORTH_WAKING / 30));
        estimate.done = 1;
        assert!(!estimate.is_worth(MIN_SAMPLE / 2), "too little was done to tell");
        estimate.done = 96;
        assert!(!estimate.is_worth(WORTH_WAKING) && estimate.is_worth(WORTH_WAKING * 25));
        estimate.done = 100;
        assert!(!estimate.is_worth(WORTH_WAKING * 100), "nothing is left");
    }

    #[test]
    fn consecutive_short_jobs_count_together_until_a_pause() {
        let alone_series = AloneSeries::default();
        let at = |microseconds| alone_series.start + Duration::from_micros(microseconds);
        alone_series.add(at(1000), at(1025));
        assert!(!alone_series.is_long(at(1030)));
        alone_series.add(at(1030), at(1050));
        assert!(alone_series.is_long(at(1060)) && !alone_series.is_long(at(1050 + 201)));
        alone_series.add(at(2000), at(2020));
        assert!(!alone_series.is_long(at(2021)), "the row began anew");
    }
}
