//! The time of recording an operation, and of replaying a recorded program.
//!
//! Tensors have one element, so that next to nothing is computed. A recorded operation's result is
//! dropped before the flush, which is outside of the time: it computes nothing. A program that was recorded
//! for the first time is given up; one that came before is recognised. The cases run interleaved in many
//! short rounds; each figure is the least over the rounds, per operation.
//!
//! `KEYFOLD_BENCH_COUNT="CASE CALLS"` runs one case that many times, for callgrind.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use keyfold::ops::aten;
use keyfold_layers::pipeline::{Ending, Options, Recording, Session};
use keyfold_tensor::Tensor;

const ROUNDS: usize = 400;
const CALLS: u64 = 1_000;

/// The most nanoseconds that recording an operation takes.
const RECORD: f64 = 250.0;
/// The most nanoseconds that replaying an operation takes.
const REPLAY: f64 = 100.0;

struct Case {
    name: String,
    bar: Option<f64>,
    /// The operations of a call.
    operations: u64,
    run: Box<dyn Fn(u64) -> Duration>,
}

fn time(times: u64, mut call: impl FnMut()) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        call();
    }
    start.elapsed()
}

fn one() -> Tensor {
    Tensor::from_slice(&[0.5_f32], &[1]).unwrap()
}

/// A chain of that many operations: products and sums in turn.
fn chain(x: &Tensor, length: u64) -> Tensor {
    let mut y = x.clone();
    for at in 0..length {
        y = match at % 2 {
            0 => aten::mul(&y, x).unwrap(),
            _ => aten::add(&y, x).unwrap(),
        };
    }
    y
}

/// A chain of 8 matrix products, which are computed one by one.
fn products(x: &Tensor) -> Tensor {
    (0..8).fold(x.clone(), |y, _| aten::matmul(&y, x).unwrap())
}

fn matrix() -> Tensor {
    Tensor::from_slice(&[0.25_f32; 16], &[4, 4]).unwrap()
}

fn recorded(x: &Tensor, program: impl FnOnce(&Tensor) -> Tensor) -> Recording {
    let session = Session::recorder();
    let placeholder = session.placeholder(x).unwrap();
    let guard = session.enter();
    let y = program(&placeholder);
    guard.close().unwrap();
    session.finish(&[placeholder], &[y]).unwrap()
}

/// Runs `f` in a pipeline, which ends so.
fn in_pipeline(ending: Ending, f: impl FnOnce() -> Duration) -> Duration {
    let session = Session::new(Options { max_ops: usize::MAX, ..Options::default() }).unwrap();
    session.open();
    let guard = session.enter();
    let took = f();
    guard.close().unwrap();
    session.close(ending).unwrap();
    took
}

fn cases() -> Vec<Case> {
    let case = |name: &str, bar, operations, run: Box<dyn Fn(u64) -> Duration>| Case {
        name: name.to_owned(),
        bar,
        operations,
        run,
    };
    let product = |times| {
        let x = one();
        time(times, || drop(black_box(aten::mul(&x, &x).unwrap())))
    };
    let recording = move |times| in_pipeline(Ending::GiveUp, || product(times));
    // The same program each time, however many calls there are.
    let known = move |times: u64| {
        let programs = (0..times / CALLS).map(|_| CALLS).chain([times % CALLS]);
        programs.map(|calls| in_pipeline(Ending::Run, || product(calls))).sum()
    };
    let flush = |times| {
        let x = one();
        time(times, || {
            let session = Session::new(Options::default()).unwrap();
            session.open();
            let guard = session.enter();
            let y = chain(&x, 32);
            guard.close().unwrap();
            session.close(Ending::Run).unwrap();
            drop(black_box(y));
        })
    };
    let mut cases = vec![
        case("a product, eager", None, 1, Box::new(product)),
        case("a product, recorded", Some(RECORD), 1, Box::new(recording)),
        case("a chain of 32, recorded and flushed", None, 32, Box::new(flush)),
        case("a product of a known program, recorded", Some(RECORD), 1, Box::new(known)),
    ];
    for length in [8, 32] {
        let recording = recorded(&one(), |x| chain(x, length));
        let run = move |times| {
            let x = [one()];
            time(times, || drop(black_box(recording.replay(&x).unwrap())))
        };
        let name = format!("a chain of {length}, replayed");
        cases.push(case(&name, Some(REPLAY), length, Box::new(run)));
    }
    let eager = |times| {
        let x = matrix();
        time(times, || drop(black_box(products(&x))))
    };
    cases.push(case("8 products of 4 x 4, eager", None, 8, Box::new(eager)));
    let recording = recorded(&matrix(), products);
    let replay = move |times| {
        let x = [matrix()];
        time(times, || drop(black_box(recording.replay(&x).unwrap())))
    };
    cases.push(case("8 products of 4 x 4, replayed", None, 8, Box::new(replay)));
    cases
}

fn main() {
    keyfold::init();
    let cases = cases();
    if let Ok(task) = std::env::var("KEYFOLD_BENCH_COUNT") {
        let (case, times) = task.split_once(' ').expect("a case and a number of calls");
        (cases[case.parse::<usize>().unwrap()].run)(times.parse().unwrap());
        return;
    }
    let mut least = vec![f64::INFINITY; cases.len()];
    for _ in 0..ROUNDS {
        for (case, least) in cases.iter().zip(&mut least) {
            let calls = (CALLS / case.operations).max(1);
            let took = (case.run)(calls).as_secs_f64() * 1e9;
            *least = least.min(took / (calls * case.operations) as f64);
        }
    }
    println!("{:<40} {:>10}", "nanoseconds per operation", "least");
    for (case, least) in cases.iter().zip(&least) {
        let verdict = match case.bar {
            Some(bar) if *least <= bar => format!("at most {bar}: holds"),
            Some(bar) => format!("at most {bar}: FAILS"),
            None => String::new(),
        };
        println!("{:<40} {least:>10.1} {verdict}", case.name);
    }
}
