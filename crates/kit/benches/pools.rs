//! Uniform and adaptive schedules beside rayon's own `par_iter`, on even and on skewed work, and
//! what an empty job costs: a table of times, ratios, and the bars that the project holds itself to.
//!
//! Machines are noisy, so the cases take turns in many rounds, and what counts is the median over
//! the rounds of each case's ratio to rayon (or to uniform) in the same round.
//!
//!   cargo bench -p keyfold-kit --bench pools [-- threads]

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use keyfold_core::Result;
use keyfold_kit::pool::{Schedule, parallel_for, set_num_threads};
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

const ROUNDS: usize = 201;

/// Some arithmetic that takes time in proportion to `amount`.
fn work(index: usize, amount: usize) -> f64 {
    let mut value = index as f64;
    for _ in 0..amount {
        value = value * 0.999_999 + 1.0;
    }
    value
}

/// Even work: each index costs the same.
fn even(part: Range<usize>) {
    for index in part {
        black_box(work(index, 8));
    }
}

const EVEN: usize = 200_000;

/// Skewed work: the cost grows along the range, from nothing to twice the mean.
fn skewed(part: Range<usize>) {
    for index in part {
        black_box(work(index, index / 512));
    }
}

const SKEWED: usize = 16_384;

/// A job as keyfold and as rayon run it.
struct Subject {
    name: &'static str,
    len: usize,
    grain: usize,
    body: fn(Range<usize>),
}

fn keyfold(schedule: Schedule, subject: &Subject) -> Result<()> {
    parallel_for(schedule, 0..subject.len, subject.grain, |part| {
        (subject.body)(part);
        Ok(())
    })
}

/// What somebody with rayon would write: one index per item, cut by rayon.
fn rayons(subject: &Subject) {
    (0..subject.len).into_par_iter().for_each(|index| (subject.body)(index..index + 1));
}

/// The same with the smallest cut at the grain.
fn rayons_with_grain(subject: &Subject) {
    (0..subject.len)
        .into_par_iter()
        .with_min_len(subject.grain)
        .for_each(|index| (subject.body)(index..index + 1));
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const CASES: [&str; 5] = ["one thread", "uniform", "adaptive", "rayon", "rayon, with_min_len"];

/// Seconds by case and round.
fn measure(subject: &Subject, pool: &rayon::ThreadPool) -> [Vec<f64>; 5] {
    let mut times: [Vec<f64>; 5] = Default::default();
    for round in 0..ROUNDS + 3 {
        // The order changes, so that nobody always follows the same neighbour.
        for at in 0..CASES.len() {
            let case = (at + round) % CASES.len();
            let time = seconds(|| match case {
                0 => (subject.body)(0..subject.len),
                1 => keyfold(Schedule::Uniform, subject).expect("work that doesn't fail"),
                2 => keyfold(Schedule::Adaptive, subject).expect("work that doesn't fail"),
                3 => pool.install(|| rayons(subject)),
                _ => pool.install(|| rayons_with_grain(subject)),
            });
            if round >= 3 {
                times[case].push(time);
            }
        }
    }
    times
}

fn ratio(a: &[f64], b: &[f64]) -> f64 {
    median(a.iter().zip(b).map(|(a, b)| a / b).collect())
}

fn bar(what: &str, value: f64, relation: &str, limit: f64) {
    let holds = if relation == "at most" { value <= limit } else { value >= limit };
    let verdict = if holds { "holds" } else { "FAILS" };
    println!("{what:<44} {value:>7.3}  {relation} {limit}: {verdict}");
}

fn main() {
    let number = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let threads: usize = number.unwrap_or(2);
    set_num_threads(threads).expect("a number of threads");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
    let subjects = [
        Subject { name: "even", len: EVEN, grain: 2048, body: even },
        Subject { name: "even, small", len: EVEN / 20, grain: 1024, body: even },
        Subject { name: "skewed", len: SKEWED, grain: 64, body: skewed },
    ];
    println!("{threads} threads, {ROUNDS} rounds, medians\n");
    println!("{:<14} {:<20} {:>10} {:>10}", "work", "", "ms", "to rayon");
    let mut bars = Vec::new();
    for subject in &subjects {
        let times = measure(subject, &pool);
        for (case, name) in CASES.iter().enumerate() {
            let time = median(times[case].clone()) * 1e3;
            let to_rayon = ratio(&times[case], &times[3]);
            println!("{:<14} {name:<20} {time:>10.3} {to_rayon:>10.3}", subject.name);
        }
        if subject.name == "skewed" {
            bars.push((
                "uniform / adaptive, skewed work",
                ratio(&times[1], &times[2]),
                "at least",
                1.3,
            ));
        } else if subject.name == "even" {
            for case in [1, 2] {
                let value = ratio(&times[case], &times[3]);
                let what = ["uniform / rayon, even work", "adaptive / rayon, even work"][case - 1];
                bars.push((what, value, "at most", 1.05));
            }
        }
    }
    println!();
    for (what, value, relation, limit) in bars {
        bar(what, value, relation, limit);
    }
    empty_jobs(&pool);
    short_jobs();
}

/// How much two threads gain on short jobs of two parts: what the serial cut-off comes from.
fn short_jobs() {
    println!("\n{:<20} {:>12} {:>18}", "one thread takes", "in a row", "after a pause");
    for parts in [1_usize, 2, 3, 4, 6, 8, 12, 16, 32, 64] {
        // Pairs of parts of 2.5 microseconds or so.
        let len = 200 * parts;
        let alone = || even(0..len);
        let shared = || {
            parallel_for(Schedule::Adaptive, 0..len, len.div_ceil(2), |part| {
                even(part);
                Ok(())
            })
            .expect("work that doesn't fail");
        };
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..300 {
            times[0].push(seconds(alone));
            times[1].push(seconds(shared));
            times[1].push(seconds(shared));
        }
        for _ in 0..300 {
            std::thread::sleep(std::time::Duration::from_micros(300));
            times[2].push(seconds(shared));
        }
        let [alone, row, pause] = times.map(median);
        let name = format!("{:.1} us", alone * 1e6);
        println!("{name:<20} {:>11.2}x {:>17.2}x", alone / row, alone / pause);
    }
}

/// What a job of two empty parts costs its caller: one after the other, and after a pause in which
/// the workers went to sleep.
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
    let pause = || std::thread::sleep(std::time::Duration::from_micros(300));
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..2000 {
        times[0].push(seconds(ours));
    }
    for _ in 0..2000 {
        times[1].push(seconds(theirs));
    }
    for _ in 0..500 {
        pause();
        times[2].push(seconds(ours));
        pause();
        times[3].push(seconds(theirs));
    }
    println!("\n{:<34} {:>10}", "an empty job of two parts", "us");
    let names = ["in a row", "rayon, in a row", "after a pause", "rayon, after a pause"];
    for (name, times) in names.iter().zip(times) {
        println!("{name:<34} {:>10.2}", median(times) * 1e6);
    }
}
