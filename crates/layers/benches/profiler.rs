//! The cost of an event, and of the layer while it is off.
//!
//! The operator is a no-op of two tensors, so the call and the event are measured. Since machines are noisy,
//! the cases run interleaved in many short rounds; the result is the median over the rounds of each case's
//! difference from the plain call of the same round. Instruction counts are exact: the program runs itself
//! under callgrind, each case with two numbers of calls, and divides the difference. While the layer is off, a
//! call must take as many instructions with the layers registered as without them.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

use keyfold_core::DType;
use keyfold_dispatch::{DispatchKey, Dispatcher, Kernel, TypedOperator, include_keys};
use keyfold_layers::profiler::{self, Options, Session};
use keyfold_tensor::{Tensor, Value};

type Typed = TypedOperator<Value, (&'static Tensor, &'static Tensor), i64>;

const ROUNDS: usize = 201;
const CALLS: u64 = 2_000;

/// The limit of an event's cost, in nanoseconds.
const BAR: f64 = 200.0;

/// The variable of a run under callgrind: the case's number and the number of calls.
const COUNT: &str = "KEYFOLD_BENCH_COUNT";

struct Case {
    name: &'static str,
    /// Calls the operator that many times and returns the duration.
    run: Box<dyn Fn(u64) -> Duration>,
}

fn main() {
    let cases = cases();
    if let Ok(task) = std::env::var(COUNT) {
        let (case, times) = task.split_once(' ').expect("a case and a number of calls");
        (cases[case.parse::<usize>().unwrap()].run)(times.parse().unwrap());
        return;
    }
    let times = measure(&cases);
    println!("{:<34} {:>8} {:>10} {:>13}", "", "ns", "above off", "instructions");
    let mut counts = Vec::new();
    let mut above_off = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let total = median(times[at].clone());
        let above = median(times[at].iter().zip(&times[0]).map(|(t, off)| t - off).collect());
        let count = instructions(at);
        let shown = match &count {
            Ok(count) => format!("{count:.1}"),
            Err(why) => why.clone(),
        };
        println!("{:<34} {total:>8.2} {above:>10.2} {shown:>13}", case.name);
        counts.push(count);
        above_off.push(above);
    }
    println!("({ROUNDS} rounds of {CALLS} calls, medians)\n");
    for at in [2, 3, 4] {
        let verdict = if above_off[at] <= BAR { "holds" } else { "FAILS" };
        let what = cases[at].name;
        println!("{what:<34} {:>8.2} ns per event, at most {BAR}: {verdict}", above_off[at]);
    }
    match (&counts[0], &counts[1]) {
        (Ok(without), Ok(with)) => {
            let verdict = if (with - without).abs() < 0.5 { "holds" } else { "FAILS" };
            println!("off: {without:.2} and {with:.2} instructions, the same: {verdict}");
        }
        (Err(why), _) | (_, Err(why)) => println!("off: {why}"),
    }
}

/// Returns every case; the first two have no layer on.
fn cases() -> Vec<Case> {
    let (bare, layered) = (operator(false), operator(true));
    let tensors: &'static [Tensor; 2] = Box::leak(Box::new(
        [(); 2].map(|()| Tensor::zeros(&[32, 64], DType::F32, keyfold_core::Device::CPU).unwrap()),
    ));
    let off = |name, operator: &Typed| {
        let operator = operator.clone();
        Case { name, run: Box::new(move |times| time(times, &operator, tensors)) }
    };
    let mut cases =
        vec![off("off, no layer registered", &bare), off("off, all layers registered", &layered)];
    let on = [
        ("profiled", Options { nested: false, memory: true }, false),
        ("profiled, without memory", Options { nested: false, memory: false }, false),
        ("profiled, nested", Options { nested: true, memory: true }, false),
        ("profiled, inside a range", Options { nested: false, memory: true }, true),
    ];
    for (name, options, ranged) in on {
        let operator = layered.clone();
        let run = move |times| {
            let session = Session::new(options);
            let recording = session.start().unwrap();
            let range = ranged.then(|| profiler::range("step"));
            // The first call interns the operator's name.
            time(1, &operator, tensors);
            let took = time(times, &operator, tensors);
            drop(range);
            recording.stop().unwrap();
            took
        };
        cases.push(Case { name, run: Box::new(run) });
    }
    // The part of an event that the layer's kernel costs alone: dispatch, the boxed call, and redispatch.
    let operator = layered;
    let run = move |times| {
        let _key = include_keys(DispatchKey::Profiler.into());
        time(times, &operator, tensors)
    };
    cases.push(Case { name: "the key alone, no session", run: Box::new(run) });
    let run = |times| {
        let start = Instant::now();
        for _ in 0..times {
            black_box((Instant::now(), Instant::now()));
        }
        start.elapsed()
    };
    cases.push(Case { name: "the clock read twice", run: Box::new(run) });
    cases
}

/// Makes a no-op operator in a new dispatcher.
fn operator(layers: bool) -> Typed {
    let dispatcher: &'static Dispatcher<Value> = Box::leak(Box::new(Dispatcher::new()));
    if layers {
        keyfold_layers::register(dispatcher).unwrap();
    }
    dispatcher.define("bench::noop(Tensor a, Tensor b) -> int").unwrap();
    let kernel = Kernel::typed(|_: &Tensor, _: &Tensor| Ok(7_i64));
    dispatcher.register("bench::noop", DispatchKey::CPU, kernel).unwrap();
    dispatcher.typed("bench::noop").unwrap()
}

#[inline(never)]
fn time(times: u64, operator: &Typed, [a, b]: &'static [Tensor; 2]) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        let result = black_box(operator).call(black_box(a), black_box(b));
        assert_eq!(black_box(result).unwrap(), 7);
    }
    start.elapsed()
}

/// Measures nanoseconds per call, by case and round.
fn measure(cases: &[Case]) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::with_capacity(ROUNDS); cases.len()];
    for case in cases {
        (case.run)(CALLS);
    }
    for _ in 0..ROUNDS {
        for (case, times) in cases.iter().zip(&mut times) {
            times.push((case.run)(CALLS).as_nanos() as f64 / CALLS as f64);
        }
    }
    times
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Counts instructions per call by callgrind, or returns the reason why it can't.
fn instructions(case: usize) -> Result<f64, String> {
    // Start-up varies from run to run with hash seeds, so cheap cases make many calls.
    let (few, many) = (1_000_u64, if case < 2 { 1_001_000 } else { 21_000 });
    let difference = collected(case, many)? - collected(case, few)?;
    Ok(difference / (many - few) as f64)
}

fn collected(case: usize, times: u64) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .env(COUNT, format!("{case} {times}"))
        .output()
        .map_err(|_| "not measured: valgrind missing".to_owned())?;
    let report = String::from_utf8_lossy(&output.stderr);
    let line = report.lines().find_map(|line| line.split_once("Collected : "));
    line.and_then(|(_, number)| number.trim().parse().ok())
        .ok_or_else(|| "not measured: valgrind failed".to_owned())
}
