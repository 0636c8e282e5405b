//! Times of allocating a buffer: from the cache, from the C library, and from the system with the
//! page faults of the first write. Medians over rounds in which the cases alternate.
//!
//!   cargo bench -p keyfold-tensor --bench memory

#![allow(clippy::print_stdout, reason = "the table is the result")]

use std::hint::black_box;
use std::time::Instant;

use keyfold_tensor::HostBuffer;
use keyfold_tensor::cache::{set_limit, trim};

/// Nanoseconds per call.
fn time(times: usize, mut run: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..times {
        run();
    }
    start.elapsed().as_nanos() as f64 / times as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

const CASES: [&str; 5] =
    ["recycled", "zeroed, from the cache", "no cache: zeroed", "kept, written", "fresh, written"];

fn run(case: usize, bytes: usize) {
    match case {
        0 => drop(black_box(HostBuffer::recycled(bytes))),
        1 | 2 => drop(black_box(HostBuffer::zeroed(bytes))),
        _ => {
            if case == 4 {
                trim();
            }
            let mut buffer = HostBuffer::recycled(bytes).expect("memory");
            // One write per page causes all page faults.
            buffer.as_bytes_mut().fill(1);
            drop(black_box(buffer));
        }
    }
}

fn main() {
    println!("nanoseconds for one buffer, allocated and freed\n");
    print!("{:>10}", "bytes");
    CASES.iter().for_each(|case| print!(" {case:>24}"));
    println!();
    for bytes in [64, 1024, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 80 << 20] {
        let mut times: [Vec<f64>; 5] = Default::default();
        let rounds = if bytes >= 8 << 20 { 11 } else { 51 };
        for _ in 0..rounds {
            for (case, times) in times.iter_mut().enumerate() {
                set_limit(if case == 2 { 0 } else { 1 << 30 });
                let calls = match case {
                    0 => 1000,
                    _ => ((4 << 20) / bytes).clamp(1, 1000),
                };
                run(case, bytes);
                times.push(time(calls, || run(case, bytes)));
            }
        }
        print!("{bytes:>10}");
        times.into_iter().for_each(|times| print!(" {:>24.0}", median(times)));
        println!();
    }
}
