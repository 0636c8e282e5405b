//! Sums of the half-precision floats compared with float32: the same numbers in the same layout, in one
//! run on one thread. The only differences are the conversions, and half the memory.
//!
//!   cargo bench -p keyfold-cpu --bench halves

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::time::Instant;

use keyfold_backend::{GpuBackend, Operation, ReduceParams};
use keyfold_core::{Element, bf16, f16};
use keyfold_cpu::HostBackend;
use keyfold_tensor::Tensor;

const SUM: &Operation = &Operation::new("sum");
const SIDE: usize = 512;
const ROUNDS: usize = 60;

/// A matrix with twice as many columns as are summed. If `subnormal`, a sixteenth of the numbers are
/// subnormal as float16.
fn matrix<T: Element>(subnormal: bool, of: impl Fn(f32) -> T) -> Tensor {
    let number = |at: usize| match at % 16 {
        5 if subnormal => of(3e-6),
        at => of(at as f32 / 16.0),
    };
    Tensor::from_vec((0..2 * SIDE * SIDE).map(number).collect(), &[SIDE, 2 * SIDE])
        .expect("a matrix")
}

/// A repeatable sum in one dtype.
struct Sum {
    input: Tensor,
    output: Tensor,
    params: ReduceParams,
}

impl Sum {
    fn new(matrix: &Tensor, layout: &str) -> Sum {
        let (step, dims) = match layout {
            "all, dense" => (1, 0b11),
            "all, every other" => (2, 0b11),
            "rows, every other" => (2, 0b10),
            "columns" => (1, 0b01),
            _ => (1, 0b10),
        };
        let end = if step == 1 { SIDE as i64 } else { 2 * SIDE as i64 };
        let part = matrix.slice(1, Some(0), Some(end), step).expect("a part");
        // Dense, unless the layout takes every other column.
        let input = if step == 1 { part.contiguous().expect("memory") } else { part };
        let shape: &[usize] = if dims == 0b11 { &[] } else { &[SIDE] };
        let output = Tensor::empty(shape, matrix.dtype(), matrix.device()).expect("memory");
        Sum { input, output, params: ReduceParams { op: SUM, keepdim: 0, dims } }
    }

    /// Returns the time of a sum in microseconds.
    fn time(&self) -> f64 {
        let dtype = self.input.dtype();
        let reduce = HostBackend.reduce().expect("the CPU has every group");
        let kernel = reduce.reduce(SUM, dtype, dtype).kernel().expect("it is native");
        let start = Instant::now();
        // SAFETY: no other code accesses the output.
        unsafe { kernel.launch(&self.params, &[&self.input], &self.output) }.expect("a sum");
        start.elapsed().as_secs_f64() * 1e6
    }
}

fn lower_quartile(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

fn main() {
    keyfold_kit::pool::set_num_threads(1).expect("one thread");
    println!(
        "{:<20} {:>11} {:>9} {:>11} {:>9}",
        "time over float32's", "float32, us", "float16", "subnormals", "bfloat16"
    );
    for layout in ["all, dense", "rows", "columns", "all, every other", "rows, every other"] {
        let sums = [
            matrix(false, |x| x),
            matrix(false, f16::from_f32),
            matrix(true, f16::from_f32),
            matrix(false, bf16::from_f32),
        ]
        .map(|matrix| Sum::new(&matrix, layout));
        let mut times = [const { Vec::new() }; 4];
        for _ in 0..ROUNDS {
            for (times, sum) in times.iter_mut().zip(&sums) {
                times.push(sum.time());
            }
        }
        let [single, half, subnormal, brain] = times.map(lower_quartile);
        println!(
            "{layout:<20} {single:>11.1} {:>9.2} {:>11.2} {:>9.2}",
            half / single,
            subnormal / single,
            brain / single
        );
    }
}
