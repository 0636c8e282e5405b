//! Checks of operators on another stream than the default one, and on several threads.

use keyfold_core::{DType, Result};
use keyfold_ops::{Row, rows};
use keyfold_tensor::device::{Content, Part, StreamId, random, set_current_stream};

use crate::case::{Case, Change};
use crate::checks::Checks;
use crate::report::Symptom;
use crate::run::{Fault, Outcome, Target, run};

/// An operator of each group of kernels.
const OPERATORS: [&str; 6] = [
    "aten::mul",
    "aten::exp",
    "aten::sum.dim",
    "aten::softmax",
    "aten::matmul",
    "aten::index_select",
];
const THREADS: u64 = 4;
/// The calls of each thread.
const CALLS: u64 = 4;
/// The bytes that the default stream fills again and again, to be busy.
const BUSY_BYTES: usize = 1 << 22;

/// Runs all checks.
pub(crate) fn check(checks: &mut Checks<'_>) {
    let target = checks.target;
    for name in OPERATORS {
        let Some(row) = rows().iter().find(|row| row.schema().name.to_string() == name) else {
            continue;
        };
        checks.outcome("operators on a stream", name, &mut || on_other_stream(target, row));
        checks.outcome("operators on threads", name, &mut || on_threads(target, row));
    }
}

/// Returns the last stream of a device with several.
pub(crate) fn other_stream(target: &Target) -> Option<StreamId> {
    let last = target.memory.stream_count(target.device) as u32 - 1;
    (last > 0).then(|| StreamId::new(last.min(7)))
}

/// Runs a function with another current stream.
pub(crate) fn on_stream<T>(target: &Target, stream: StreamId, f: impl FnOnce() -> T) -> Result<T> {
    let before = set_current_stream(target.device, stream)?;
    let result = f();
    set_current_stream(target.device, before)?;
    Ok(result)
}

/// Runs a case of contiguous float32 tensors.
fn call(target: &Target, row: &'static Row, seed: u64) -> Outcome {
    let case = Case { row, dtype: DType::F32, number: 0, seed };
    match case.plan(target.device, &Change::default()) {
        Ok(Some(plan)) => run(target, row, &plan),
        Ok(None) => Outcome::NothingRan,
        Err(error) => Outcome::Failed(error.into()),
    }
}

/// Runs an operator on another stream while the default one is busy, so that a kernel that is queued
/// there runs too late.
fn on_other_stream(target: &Target, row: &'static Row) -> Result<Outcome, Fault> {
    let Some(stream) = other_stream(target) else { return Ok(Outcome::NothingRan) };
    let memory = &*target.memory;
    let busy = memory.allocate(target.device, BUSY_BYTES, Content::Zeros)?;
    let shape = [BUSY_BYTES / 16];
    for byte in 0..8 {
        let part = Part::new(&*busy, 0, &shape, &[1], 16)?;
        // SAFETY: nothing else refers to the buffer.
        unsafe { memory.fill(&part, &[byte; 16], StreamId::DEFAULT)? };
    }
    let outcome = on_stream(target, stream, || call(target, row, 0))?;
    memory.synchronize(target.device)?;
    Ok(named(outcome, Symptom::OtherStream, &format!("on stream {}", stream.number())))
}

/// Runs an operator on several threads at a time.
fn on_threads(target: &Target, row: &'static Row) -> Result<Outcome, Fault> {
    let state = random::state(target.device)?;
    let calls = |thread: u64| {
        let outcomes = (0..CALLS).map(|at| call(target, row, thread * CALLS + at));
        outcomes.fold(Outcome::NothingRan, |worst, outcome| match worst {
            Outcome::Failed(_) => worst,
            _ => outcome,
        })
    };
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || calls(thread))).collect();
        let panicked = |_| Outcome::Failed(Fault::new(Symptom::Threads, "a thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    random::set_state(state)?;
    let is_failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_));
    let at = outcomes.iter().position(is_failed).unwrap_or(0);
    let worst = outcomes.into_iter().nth(at).unwrap_or(Outcome::NothingRan);
    Ok(named(worst, Symptom::Threads, &format!("on one of {THREADS} threads")))
}

/// Returns an outcome whose wrong values are those of a symptom.
fn named(outcome: Outcome, symptom: Symptom, place: &str) -> Outcome {
    match outcome {
        Outcome::Failed(fault) => {
            let message = format!("{place}: {}", fault.message);
            Outcome::Failed(Fault { symptom, message, ..fault })
        }
        outcome => outcome,
    }
}
