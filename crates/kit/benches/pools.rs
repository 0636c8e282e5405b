//! Uniform and adaptive schedules compared with rayon's `par_iter`: work of four shapes and three sizes,
//! in jobs that follow each other closely and in jobs after a pause; the cost of an empty job; a scan of
//! ten million numbers. Prints tables of times and ratios, and the project's limits for them.
//!
//! Machines are noisy, so the subjects alternate over many rounds, and the reported time is the lower
//! quartile of a subject's times.
//!
//!   cargo bench -p keyfold-kit --bench pools [-- threads]

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::cell::RefCell;
use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

use keyfold_kit::pool::{Schedule, parallel_for, set_num_threads};
use keyfold_kit::scan::inclusive_scan;
use rayon::iter::{IntoParallelIterator, ParallelIterator};

/// Arithmetic that takes time in proportion to `amount`.
fn work(index: usize, amount: usize) {
    let mut value = index as f64;
    for _ in 0..amount {
        value = value * 0.999_999 + 1.0;
    }
    black_box(value);
}

/// The cost of an index in a range of a given length: 4 on average, for every shape.
type Cost = fn(usize, usize) -> usize;

fn even(_: usize, _: usize) -> usize {
    4
}

fn linear(index: usize, len: usize) -> usize {
    index * 8 / len
}

/// The last sixteenth of the indices costs as much as all others together.
fn last_sixteenth(index: usize, len: usize) -> usize {
    if index >= len - len / 16 { 32 } else { 2 }
}

/// The last index costs as much as all others together.
fn last_index(index: usize, len: usize) -> usize {
    if index == len - 1 { 2 * len } else { 2 }
}

const SHAPES: [(&str, Cost); 4] = [
    ("even", even),
    ("linear", linear),
    ("last sixteenth", last_sixteenth),
    ("last index", last_index),
];

/// The number of indices, and the number of consecutive jobs in a round.
const SIZES: [(usize, usize); 3] = [(1_000, 40), (100_000, 6), (1_000_000, 2)];

struct Job {
    len: usize,
    cost: Cost,
}

impl Job {
    fn part(&self, part: Range<usize>) {
        for index in part {
            work(index, (self.cost)(index, self.len));
        }
    }

    fn keyfold(&self, schedule: Schedule) {
        parallel_for(schedule, 0..self.len, (self.len / 64).min(2048), |part| {
            self.part(part);
            Ok(())
        })
        .expect("work that doesn't fail");
    }

    /// The same job in rayon's usual form: one index per item, split by rayon.
    fn rayon(&self) {
        (0..self.len).into_par_iter().for_each(|index| self.part(index..index + 1));
    }
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn lower_quartile(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

/// Calls `f` repeatedly for a duration.
fn repeat(time: Duration, f: impl Fn()) {
    let start = Instant::now();
    while start.elapsed() < time {
        f();
    }
}

/// Returns the lower quartile of each subject's times per call, over `rounds` rounds of `in_a_row`
/// calls. If `sleep` is given, a round is one call after the caller has slept that long.
fn measure<const N: usize>(
    rounds: usize,
    in_a_row: usize,
    sleep: Option<Duration>,
    subjects: [&dyn Fn(); N],
) -> [f64; N] {
    let mut times = [(); N].map(|()| Vec::new());
    for round in 0..rounds {
        // The order changes, so that no subject always follows the same other one.
        for at in 0..N {
            let at = (at + round) % N;
            match sleep {
                Some(time) => {
                    std::thread::sleep(time);
                    times[at].push(seconds(subjects[at]));
                }
                None => {
                    // Warm-up: the threads of the previous subject go to sleep, and this subject's
                    // threads wake.
                    repeat(Duration::from_micros(1500), std::hint::spin_loop);
                    repeat(Duration::from_micros(500), subjects[at]);
                    times[at].extend((0..in_a_row).map(|_| seconds(subjects[at])));
                }
            }
        }
    }
    times.map(lower_quartile)
}

fn shapes(pool: &rayon::ThreadPool) {
    println!("{:<8} {:<15} {:>9}   ratio to rayon", "", "", "rayon, us");
    println!(
        "{:<8} {:<15} {:>9} {:>9} {:>9} {:>11}",
        "indices", "work", "", "uniform", "adaptive", "one thread"
    );
    for (state, sleep) in
        [("in a row", None), ("after 3 ms of sleep", Some(Duration::from_millis(3)))]
    {
        println!("{state}");
        for (len, in_a_row) in SIZES {
            for (name, cost) in SHAPES {
                let job = Job { len, cost };
                let rounds = if sleep.is_some() { 100 } else { 30 };
                let [rayon, uniform, adaptive, alone] = measure(
                    rounds,
                    in_a_row,
                    sleep,
                    [
                        &|| pool.install(|| job.rayon()),
                        &|| job.keyfold(Schedule::Uniform),
                        &|| job.keyfold(Schedule::Adaptive),
                        &|| job.part(0..len),
                    ],
                );
                // A uniform schedule is for even work; its ratio on other shapes shows the cost of
                // choosing it wrongly.
                let bars = [uniform / rayon, adaptive / rayon];
                let barred = if name == "even" { &bars[..] } else { &bars[1..] };
                let verdict = if barred.iter().all(|bar| *bar <= 1.0) { "" } else { "  FAILS" };
                println!(
                    "{len:<8} {name:<15} {:>9.1} {:>9.2} {:>9.2} {:>11.2}{verdict}",
                    rayon * 1e6,
                    bars[0],
                    bars[1],
                    alone / rayon
                );
            }
        }
    }
}

/// The speedup of two threads on short jobs of two parts, from which the serial cut-off is derived.
fn short_jobs() {
    println!("\n{:<20} {:>12} {:>18}", "one thread takes", "in a row", "after a pause");
    for parts in [1_usize, 2, 3, 4, 6, 8, 12, 16, 32, 64] {
        // Pairs of parts of about a third of a microsecond.
        let job = Job { len: 200 * parts, cost: even };
        let alone = || job.part(0..job.len);
        let shared = || {
            parallel_for(Schedule::Adaptive, 0..job.len, job.len.div_ceil(2), |part| {
                job.part(part);
                Ok(())
            })
            .expect("work that doesn't fail");
        };
        let [one, row] = measure(10, 40, None, [&alone, &shared]);
        let [pause] = measure(300, 1, Some(Duration::from_micros(300)), [&shared]);
        let name = format!("{:.1} us", one * 1e6);
        println!("{name:<20} {:>11.2}x {:>17.2}x", one / row, one / pause);
    }
}

/// The time that a job of two empty parts takes its caller: in close succession, and after a pause in
/// which the workers went to sleep.
fn empty_jobs(pool: &rayon::ThreadPool) {
    let ours = || {
        parallel_for(Schedule::Adaptive, 0..2, 1, |part| {
            black_box(part);
            Ok(())
        })
        .expect("work that doesn't fail");
    };
    let theirs = || {
        pool.install(|| {
            (0..2).into_par_iter().for_each(|part| {
                black_box(part);
            });
        });
    };
    println!("\n{:<34} {:>10} {:>10}", "an empty job of two parts, us", "keyfold", "rayon");
    for (name, sleep) in [("in a row", None), ("after a pause", Some(Duration::from_millis(1)))] {
        let times = measure(300, 10, sleep, [&ours, &theirs]);
        println!("{name:<34} {:>10.2} {:>10.2}", times[0] * 1e6, times[1] * 1e6);
    }
}

/// A scan of ten million float32: by a plain loop, and by the kit on one thread and on all.
fn scans(threads: usize) {
    let items: Vec<f32> = (0..10_000_000).map(|index| (index % 1000) as f32 - 499.5).collect();
    let scratch = RefCell::new(items.clone());
    let plain = || {
        let mut sum = 0.0;
        for item in &mut *scratch.borrow_mut() {
            sum += *item;
            *item = sum;
        }
    };
    let kit = |threads| {
        set_num_threads(threads).expect("a number of threads");
        inclusive_scan(&mut scratch.borrow_mut(), |x| x, |a, b| a + b, |sum| sum)
            .expect("a scan that doesn't fail");
    };
    let [one, all] = [1, threads].map(|threads| {
        scratch.borrow_mut().copy_from_slice(&items);
        kit(threads);
        scratch.borrow().iter().map(|sum| sum.to_bits()).collect::<Vec<_>>()
    });
    assert!(one == all, "other bits on another number of threads");
    // Repeated scans overflow to infinity, which is added at the same speed.
    let [loops, alone, shared] = measure(20, 2, None, [&plain, &|| kit(1), &|| kit(threads)]);
    println!("\n{:<34} {:>10} {:>12}", "a scan of 10,000,000 float32", "ms", "to a loop");
    for (name, time) in
        [("a plain loop", loops), ("the kit, one thread", alone), ("the kit", shared)]
    {
        println!("{name:<34} {:>10.2} {:>12.2}", time * 1e3, time / loops);
    }
}

fn main() {
    let number = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let threads: usize = number.unwrap_or(2);
    set_num_threads(threads).expect("a number of threads");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    println!("{threads} threads, lower quartiles\n");
    shapes(&pool);
    empty_jobs(&pool);
    short_jobs();
    scans(threads);
}
