//! Times every way to call a no-op in one run and prints a table: nanoseconds above the direct
//! call, the ratio to it, instructions, and the project's limits.
//!
//! Machines are noisy, so the cases alternate in many short rounds. The result of a case is the
//! median, over the rounds, of its difference from the direct call of the same round. Instructions
//! are exact: the program runs itself under callgrind, each case with two numbers of calls, and
//! divides the difference.

#![allow(clippy::print_stdout, reason = "the table is the result")]

mod subject;

use std::process::Command;

use subject::Case;

/// The number of rounds, and of calls per case and round.
const ROUNDS: usize = 301;
const CALLS: u64 = 20_000;

/// The environment variable of a run under callgrind: the case's number and its number of calls.
const COUNT: &str = "KEYFOLD_BENCH_COUNT";

fn main() {
    let cases = subject::cases();
    if let Ok(task) = std::env::var(COUNT) {
        let (case, times) = task.split_once(' ').expect("a case and a number of calls");
        (cases[case.parse::<usize>().unwrap()].run)(times.parse().unwrap());
        return;
    }
    let times = measure(&cases);
    let direct = median(times[0].clone());
    println!("{:<34} {:>8} {:>10} {:>8} {:>13}", "", "ns", "net ns", "ratio", "instructions");
    let mut net = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let total = median(times[at].clone());
        let above = median(times[at].iter().zip(&times[0]).map(|(t, d)| t - d).collect());
        net.push((case.name, total, above));
        let count = match instructions(at) {
            Ok(count) => format!("{count:.0}"),
            Err(why) => why,
        };
        let ratio = total / direct;
        println!("{:<34} {total:>8.2} {above:>10.2} {ratio:>8.2} {count:>13}", case.name);
    }
    println!("(net: above the direct call; {ROUNDS} rounds of {CALLS} calls, medians)\n");
    let of = |name| net.iter().find(|(n, ..)| *n == name).map(|(_, total, net)| (*total, *net));
    let (Some((typed, typed_net)), Some((_, boxed_net))) = (of("typed, 1 key"), of("boxed")) else {
        panic!("the cases that the bars are about are there");
    };
    bar("typed, above the direct call, ns", typed_net, "at most", 5.0);
    bar("boxed, above the direct call, ns", boxed_net, "at most", 25.0);
    let (four, _) = of("typed, 4 keys").unwrap_or((typed, typed_net));
    for name in ["naive, 4 keys", "naive, 4 keys, name copied once"] {
        let (naive, _) = of(name).expect("a case of that name");
        bar(&format!("({name}) / (typed, 4 keys)"), naive / four, "at least", 20.0);
    }
}

fn bar(what: &str, value: f64, relation: &str, limit: f64) {
    let holds = if relation == "at most" { value <= limit } else { value >= limit };
    let verdict = if holds { "holds" } else { "FAILS" };
    println!("{what:<54} {value:>7.2}  {relation} {limit}: {verdict}");
}

/// Nanoseconds per call, by case and round.
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

/// Returns instructions per call, counted by callgrind; or the reason why there is no count.
fn instructions(case: usize) -> Result<f64, String> {
    let (few, many) = (1_000_u64, 11_000_u64);
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
