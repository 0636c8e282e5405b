//! Times keys of graphs, hits of the cache and prepared runs beside the naive design, in one run,
//! and prints a table with the project's limits.
//!
//! Machines are noisy, so the cases alternate in many short rounds. The result of a case is the
//! median.
//!
//!   cargo bench -p keyfold-cudnn --bench ratios

#![allow(clippy::print_stdout, reason = "the table is the result")]

mod subject;

use subject::Case;

/// The number of rounds, and of steps per case and round.
const ROUNDS: usize = 201;
const STEPS: u64 = 100;

fn main() {
    let sizes = [1, 6, 30];
    let times = measure(&subject::hits(&sizes));
    println!(
        "{:<22}{:>12}{:>12}{:>15}{:>13}",
        "ns, graphs of", "JSON", "std hasher", "canonical key", "hit by spec"
    );
    for (size, row) in sizes.iter().zip(times.chunks(4)) {
        let label = format!("{size} operations");
        println!("{label:<22}{:>12.0}{:>12.0}{:>15.0}{:>13.0}", row[0], row[1], row[2], row[3]);
    }
    println!("\nratios to the hit by spec");
    for (size, row) in sizes.iter().zip(times.chunks(4)) {
        let label = format!("{size} operations");
        println!("{label:<22}{:>12.2}{:>12.2}", row[0] / row[3], row[1] / row[3]);
    }
    let cases = subject::runs();
    let runs = measure(&cases);
    println!("\n{:<34}{:>8}", "runs of one convolution", "ns");
    for (case, time) in cases.iter().zip(&runs) {
        println!("{:<34}{time:>8.0}", case.name);
    }
    println!("(a plan that computes nothing; {ROUNDS} rounds of {STEPS}, medians)\n");
    let cases = subject::executed();
    let executed = measure(&cases);
    println!("{:<34}{:>8}{:>14}", "graphs of one operation", "ns", "above it");
    for (pair, times) in cases.chunks(2).zip(executed.chunks(2)) {
        println!("{:<34}{:>8.0}", pair[0].name, times[0]);
        println!("{:<34}{:>8.0}{:>14.0}", pair[1].name, times[1], times[1] - times[0]);
    }
    println!("(by the reference executor on 4 elements, behind the operator itself)\n");
    bar("a prepared run, above its plan alone, ns", runs[1] - runs[0], 1000.0);
    bar("a hit by spec of one convolution, ns", times[3], 2000.0);
}

fn bar(what: &str, value: f64, limit: f64) {
    let verdict = if value <= limit { "holds" } else { "FAILS" };
    println!("{what:<54} {value:>7.0}  at most {limit}: {verdict}");
}

/// Returns the median of the nanoseconds of each case.
fn measure(cases: &[Case]) -> Vec<f64> {
    let mut times = vec![Vec::with_capacity(ROUNDS); cases.len()];
    for case in cases {
        (case.run)(STEPS);
    }
    for _ in 0..ROUNDS {
        for (case, times) in cases.iter().zip(&mut times) {
            times.push((case.run)(STEPS).as_nanos() as f64 / STEPS as f64);
        }
    }
    times.into_iter().map(median).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
