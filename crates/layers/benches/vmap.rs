//! The speed-up of batching rules: operators on a batch of 1,000 examples, by their rule and by the loop. In
//! microseconds per call of the whole batch, as medians of interleaved rounds. The limit is a ratio of 10.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::hint::black_box;
use std::time::Instant;

use keyfold::dispatcher;
use keyfold_layers::vmap;
use keyfold_tensor::{Tensor, ValueRef};

const BATCH: usize = 1000;
const ROUNDS: usize = 21;

fn numbers(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    Tensor::from_vec((0..count).map(|i| (i % 97) as f64 / 50.0).collect(), shape).unwrap()
}

/// Returns one example of a batch of that shape.
fn example(shape: &[usize]) -> Tensor {
    vmap::wrap(numbers(&[&[BATCH], shape].concat()), 0, 1).unwrap()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let (vector, matrix) = (example(&[8]), example(&[4, 4]));
    let (weights, row) = (numbers(&[8, 8]), numbers(&[8]));
    let none = ValueRef::None;
    let rows: [(&str, Vec<ValueRef<'_>>); 8] = [
        ("aten::exp", vec![(&vector).into()]),
        ("aten::add", vec![(&vector).into(), (&vector).into()]),
        ("aten::mul", vec![(&vector).into(), (&row).into()]),
        ("aten::sum", vec![(&vector).into(), none]),
        ("aten::softmax", vec![(&vector).into(), 0_i64.into()]),
        ("aten::matmul", vec![(&vector).into(), (&weights).into()]),
        ("aten::matmul", vec![(&matrix).into(), (&matrix).into()]),
        ("aten::transpose", vec![(&matrix).into(), 0_i64.into(), 1_i64.into()]),
    ];
    println!("{:<16} {:>12} {:>12} {:>8}", "operator", "rule, us", "loop, us", "ratio");
    for (name, args) in rows {
        let operator = dispatcher().operator(name).unwrap();
        let (mut rule, mut general) = (vec![], vec![]);
        for _ in 0..ROUNDS {
            let begun = Instant::now();
            black_box(operator.call(&args).unwrap());
            rule.push(begun.elapsed().as_nanos() as f64 / 1e3);
            let begun = Instant::now();
            black_box(vmap::call_by_loop(&operator, &args).unwrap());
            general.push(begun.elapsed().as_nanos() as f64 / 1e3);
        }
        let (rule, general) = (median(rule), median(general));
        println!("{name:<16} {rule:>12.1} {general:>12.1} {:>8.1}", general / rule);
    }
}
