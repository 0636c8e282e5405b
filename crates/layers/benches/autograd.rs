//! The costs of recording a node: a small operator with and without a tensor that requires grad, backward per
//! node, and dropping the graph. In nanoseconds, as medians over many short interleaved rounds. The limit is
//! 300 ns above the same call without recording.

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::hint::black_box;
use std::time::Instant;

use keyfold::dispatcher;
use keyfold_layers::autograd::{self, Options};
use keyfold_tensor::Tensor;

const ROUNDS: usize = 201;
const CALLS: usize = 1000;

fn main() {
    let add = dispatcher().typed::<(&'static Tensor, &'static Tensor), Tensor>("aten::add");
    let mul = dispatcher().typed::<(&'static Tensor, &'static Tensor), Tensor>("aten::mul");
    let (add, mul) = (add.unwrap(), mul.unwrap());
    let plain = Tensor::from_slice(&[1.0_f64], &[1]).unwrap();
    let leaf = Tensor::from_slice(&[1.0_f64], &[1]).unwrap();
    autograd::set_requires_grad(&leaf, true).unwrap();

    let chain = |op: &dyn Fn(&Tensor) -> Tensor, start: &Tensor| -> (Tensor, f64) {
        let begun = Instant::now();
        let mut y = op(start);
        for _ in 1..CALLS {
            y = op(&y);
        }
        (y, begun.elapsed().as_nanos() as f64 / CALLS as f64)
    };
    let add_to = |y: &Tensor| add.call(y, &plain).unwrap();
    let mul_by = |y: &Tensor| mul.call(y, &plain).unwrap();
    let mut rows: [(&str, Vec<f64>); 8] = [
        ("add, nothing recorded", vec![]),
        ("add, recorded", vec![]),
        ("add, way back", vec![]),
        ("add, dropping the graph", vec![]),
        ("mul, nothing recorded", vec![]),
        ("mul, recorded", vec![]),
        ("mul, way back", vec![]),
        ("mul, dropping the graph", vec![]),
    ];
    for _ in 0..ROUNDS {
        for (at, op) in [(0, &add_to as &dyn Fn(&Tensor) -> Tensor), (4, &mul_by)] {
            let (y, time) = chain(op, &plain);
            rows[at].1.push(time);
            drop(black_box(y));
            let (y, time) = chain(op, &leaf);
            rows[at + 1].1.push(time);
            let begun = Instant::now();
            let options = Options { retain_graph: true, create_graph: false };
            autograd::backward(std::slice::from_ref(&y), &[], options, &|| Ok(())).unwrap();
            rows[at + 2].1.push(begun.elapsed().as_nanos() as f64 / CALLS as f64);
            let begun = Instant::now();
            drop(black_box(y));
            rows[at + 3].1.push(begun.elapsed().as_nanos() as f64 / CALLS as f64);
        }
    }
    let medians: Vec<f64> = rows.iter().map(|(_, times)| median(times.clone())).collect();
    for ((name, _), time) in rows.iter().zip(&medians) {
        println!("{name:<26} {time:>8.1} ns");
    }
    for (name, at) in [("add", 0), ("mul", 4)] {
        let above = medians[at + 1] - medians[at];
        let met = if above <= 300.0 { "met" } else { "MISSED" };
        println!("{name}: recording a node costs {above:.1} ns (bar 300: {met})");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
