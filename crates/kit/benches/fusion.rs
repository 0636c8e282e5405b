//! Chains of pointwise operations on float32: fused into one program, written as one expression by
//! hand, and computed one by one; the time that fusing takes. Prints tables of times and ratios, and
//! the project's limits for them.
//!
//! Machines are noisy, so the subjects alternate over many rounds, and the reported time is the lower
//! quartile of a subject's times.
//!
//!   cargo bench -p keyfold-kit --bench fusion [-- threads]

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyfold_core::{DType, Device, Result};
use keyfold_expr::fuse::{Fused, Fusion, Group, GroupInput, Limits, Member, Source};
use keyfold_expr::{Expr, Lowered};
use keyfold_kit::evaluate::{evaluate, evaluate_all};
use keyfold_kit::interpreter::Program;
use keyfold_kit::pool::set_num_threads;
use keyfold_tensor::Tensor;

/// The operations of a chain, `v` the value so far, repeated as often as needed.
const ARITHMETIC: [&str; 4] = ["v * x", "v + y", "v * 0.75", "v - x"];
const FUNCTIONS: [&str; 4] = ["v * x", "tanh(v)", "v + y", "sigmoid(v)"];

/// The expression of one operation, of the value and, in this order, `x` or `y`.
fn member(text: &str, at: usize) -> Member {
    let value = if at == 0 { Source::Input(0) } else { Source::Member(at as u32 - 1) };
    let other = [("x", 0), ("y", 1)].into_iter().find(|(name, _)| text.ends_with(name));
    let sources: Vec<Source> =
        std::iter::once(value).chain(other.map(|(_, input)| Source::Input(input))).collect();
    Member::new(Arc::new(Expr::parse(text).expect("an operation")), &sources)
}

fn group(operations: &[&str; 4], length: usize, results: &[u32]) -> Group {
    let input = GroupInput { dtype: DType::F32, rank: None };
    let members = (0..length).map(|at| member(operations[at % 4], at)).collect();
    Group { inputs: vec![input; 2], params: vec![], members, results: results.into() }
}

fn fuse(group: &Group) -> Fused {
    match group.fuse(&Limits::default()).expect("the chain is defined") {
        Fusion::Program(fused) => fused,
        cut => panic!("the chain is small: {cut:?}"),
    }
}

/// The chain as one expression of `x` and `y`.
fn by_hand(operations: &[&str; 4], length: usize) -> Lowered {
    // Names of values keep the text short: `v` occurs once in each operation.
    let mut lines = String::from("v0 = x\n");
    for at in 0..length {
        let operation = operations[at % 4].replace('v', &format!("v{at}"));
        lines += &match at + 1 == length {
            true => operation,
            false => format!("v{} = {operation}\n", at + 1),
        };
    }
    let expr = Expr::parse(&lines).expect("the chain");
    Lowered::new(&expr, &[DType::F32; 2], &[], None).expect("the chain is defined")
}

/// Runs the subjects alternately, forwards and backwards, since the one before leaves its data in the
/// caches; returns the lower quartile of each one's times.
fn measure(rounds: usize, subjects: &mut [&mut dyn FnMut()]) -> Vec<Duration> {
    let mut times = vec![Vec::with_capacity(rounds); subjects.len()];
    subjects.iter_mut().for_each(|subject| subject());
    let count = subjects.len();
    for round in 0..rounds {
        for turn in 0..count {
            let at = if round % 2 == 0 { turn } else { count - 1 - turn };
            let start = Instant::now();
            subjects[at]();
            times[at].push(start.elapsed());
        }
    }
    times
        .into_iter()
        .map(|mut times| {
            times.sort_unstable();
            times[times.len() / 4]
        })
        .collect()
}

fn tensor(size: usize) -> Tensor {
    Tensor::zeros(&[size], DType::F32, Device::CPU).expect("memory")
}

fn ignore(result: Result<()>) {
    result.expect("the evaluation succeeds");
}

fn chains(name: &str, operations: &[&str; 4]) {
    println!("\n{name}: {}", operations.join(", "));
    println!("elements  ops  fused      by hand    one by one  2 results  fused / by hand");
    for size in [4_000, 100_000, 1_000_000, 10_000_000] {
        let values = |scale: f32| {
            let values: Vec<f32> = (0..size).map(|i| (i % 1000) as f32 * scale - 0.9).collect();
            // A copy, in aligned memory as all of keyfold's.
            Tensor::from_slice(&values, &[size]).and_then(|x| x.copy()).expect("memory")
        };
        let (x, y, out, other) = (values(0.001), values(0.002), tensor(size), tensor(size));
        let inputs = [&x, &y];
        for length in [4, 8, 16, 32] {
            let group_of = |results: &[u32]| group(operations, length, results);
            let last = length as u32 - 1;
            let one = Program::fused(&fuse(&group_of(&[last]))).expect("kernels");
            let two = Program::fused(&fuse(&group_of(&[last / 2, last]))).expect("kernels");
            let hand = Program::new(&by_hand(operations, length)).expect("kernels");
            // Each operation, and the input beside the value that it reads.
            let singles: Vec<(Program, Option<&Tensor>)> = (0..length)
                .map(|at| {
                    let member = member(operations[at % 4], at);
                    let dtypes = &[DType::F32; 2][..member.sources.len()];
                    let lowered = Lowered::new(&member.expr, dtypes, &[], None);
                    let program = Program::new(&lowered.expect("an operation")).expect("kernels");
                    let other = member.sources.get(1).map(|source| match source {
                        Source::Input(input) => inputs[*input as usize],
                        Source::Member(_) => unreachable!("it is the first operand"),
                    });
                    (program, other)
                })
                .collect();
            // As eager calls: each result is a tensor of its own, which is freed after its use.
            let mut eager = || {
                let mut value = x.clone();
                for (program, other) in &singles {
                    let operands: Vec<&Tensor> =
                        std::iter::once(&value).chain(other.iter().copied()).collect();
                    let next = Tensor::empty(&[size], DType::F32, Device::CPU).expect("memory");
                    // SAFETY: nobody else has the new tensor.
                    ignore(unsafe { evaluate(program, &operands, &[], &next) });
                    value = next;
                }
                black_box(&value);
            };
            // SAFETY: nobody else uses the outputs.
            let mut fused = || ignore(unsafe { evaluate(&one, &inputs, &[], &out) });
            // SAFETY: as above.
            let mut hand = || ignore(unsafe { evaluate(&hand, &inputs, &[], &out) });
            // SAFETY: as above.
            let mut several =
                || ignore(unsafe { evaluate_all(&two, &inputs, &[], &[&other, &out]) });
            let rounds = (40_000_000 / size / length).clamp(15, 200);
            let times = measure(rounds, &mut [&mut fused, &mut hand, &mut eager, &mut several]);
            let ms = |at: usize| times[at].as_secs_f64() * 1e3;
            println!(
                "{size:<9} {length:<4} {:<10.4} {:<10.4} {:<11.4} {:<10.4} {:.2}",
                ms(0),
                ms(1),
                ms(2),
                ms(3),
                ms(0) / ms(1)
            );
        }
    }
}

fn preparation() {
    println!("\nmicroseconds of a chain with functions");
    println!("ops  lowered by hand  group fused  program compiled  group hashed and compared");
    for length in [4, 8, 16, 32] {
        let group = group(&FUNCTIONS, length, &[length as u32 - 1]);
        let fused = fuse(&group);
        let known = std::collections::HashMap::from([(group.clone(), ())]);
        let times = measure(
            2000,
            &mut [
                &mut || drop(black_box(by_hand(&FUNCTIONS, length))),
                &mut || drop(black_box(fuse(&group))),
                &mut || drop(black_box(Program::fused(&fused))),
                &mut || assert!(black_box(known.contains_key(&group))),
            ],
        );
        let us = |at: usize| times[at].as_secs_f64() * 1e6;
        println!("{length:<4} {:<16.1} {:<12.1} {:<17.1} {:.2}", us(0), us(1), us(2), us(3));
    }
}

fn main() {
    let threads = std::env::args().find_map(|argument| argument.parse::<usize>().ok());
    if let Some(threads) = threads {
        set_num_threads(threads).expect("a number of threads");
    }
    println!("times in milliseconds; the limit of fused / by hand is 1.1");
    chains("arithmetic", &ARITHMETIC);
    chains("with functions", &FUNCTIONS);
    preparation();
}
