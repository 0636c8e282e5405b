//! What a cache tells of itself.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::{DataType, GraphSpec, Operation, Signature};

/// The counters of a cache, or of one kind of operation in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many asked for a plan that was there.
    pub hits: u64,
    /// How many asked for one that wasn't: each of them began a build, or had asked for what is
    /// there only.
    pub misses: u64,
    /// How many waited for another thread's build, and got its plan.
    pub waits: u64,
    /// How many builds failed or were cancelled.
    pub failures: u64,
    /// How many plans went because of the bounds.
    pub evictions: u64,
    /// The time of all builds.
    pub build_time: Duration,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        let Counts { hits, misses, waits, failures, evictions, build_time } = other;
        self.hits += hits;
        self.misses += misses;
        self.waits += waits;
        self.failures += failures;
        self.evictions += evictions;
        self.build_time += build_time;
    }
}

/// The counters of a kind, which its entries share.
#[derive(Debug, Default)]
pub(super) struct KindCounts(Mutex<Counts>);

impl KindCounts {
    pub(super) fn note(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn read(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An entry of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryInfo {
    /// The graph's main operation.
    pub operation: &'static str,
    /// The dtype of the first tensor that it reads.
    pub dtype: Option<DataType>,
    /// The graph's signature.
    pub signature: Signature,
    /// The device; empty for a marker.
    pub device: String,
    /// The engine; empty for a marker.
    pub engine: String,
    /// The size of the scratch memory, in bytes.
    pub workspace_bytes: u64,
    /// What the entry counts for in the cache's bound, in bytes.
    pub bytes: u64,
    /// How long its build took.
    pub build_time: Duration,
    /// How many asked for it since it is there.
    pub hits: u64,
    /// Whether it has no plan.
    pub is_marker: bool,
}

/// What [`PlanCache::stats`](crate::PlanCache::stats) returns. It prints as a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// The most entries.
    pub capacity: usize,
    /// The most bytes.
    pub capacity_bytes: u64,
    /// The bytes of all entries.
    pub bytes: u64,
    /// The counters of all kinds together.
    pub total: Counts,
    /// The counters by the graphs' main operation.
    pub by_operation: BTreeMap<&'static str, Counts>,
    /// The number of entries by main operation and its dtype.
    pub by_dtype: BTreeMap<(&'static str, Option<DataType>), usize>,
    /// The entries, the one used last first.
    pub entries: Vec<EntryInfo>,
}

impl Stats {
    pub(super) fn new(
        capacity: usize,
        capacity_bytes: u64,
        by_operation: BTreeMap<&'static str, Counts>,
        entries: Vec<EntryInfo>,
    ) -> Stats {
        let mut total = Counts::default();
        by_operation.values().for_each(|&counts| total.add(counts));
        let mut by_dtype = BTreeMap::new();
        for entry in &entries {
            *by_dtype.entry((entry.operation, entry.dtype)).or_default() += 1;
        }
        let bytes = entries.iter().map(|entry| entry.bytes).sum();
        Stats { capacity, capacity_bytes, bytes, total, by_operation, by_dtype, entries }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { hits, misses, waits, failures, evictions, build_time } = self.total;
        let (len, bytes) = (self.entries.len(), self.bytes);
        writeln!(f, "{len} of {} plans, {bytes} of {} bytes", self.capacity, self.capacity_bytes)?;
        writeln!(
            f,
            "{hits} hits, {misses} misses, {waits} waits, {failures} failed builds, {evictions} \
             evictions, {:.1} ms of builds",
            milliseconds(build_time)
        )?;
        if self.entries.is_empty() {
            return Ok(());
        }
        let mut rows = vec![
            ["operation", "dtype", "signature", "device", "engine", "workspace", "build", "hits"]
                .map(String::from),
        ];
        rows.extend(self.entries.iter().map(|entry| {
            let engine = if entry.is_marker { "(no plan)" } else { &entry.engine };
            [
                entry.operation.to_string(),
                entry.dtype.map_or_else(|| "-".to_string(), |dtype| dtype.to_string()),
                entry.signature.to_string(),
                entry.device.clone(),
                engine.to_string(),
                entry.workspace_bytes.to_string(),
                format!("{:.1} ms", milliseconds(entry.build_time)),
                entry.hits.to_string(),
            ]
        }));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> = (0..8).map(|column| width(column).unwrap_or(0)).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                // Numbers to the right.
                if column < 5 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns a graph's main operation and its dtype: that which most of a run's time goes to, as a
/// rule.
pub(super) fn kind(graph: &GraphSpec) -> (&'static str, Option<DataType>) {
    let rank = |operation: &Operation| match operation {
        Operation::Sdpa(_) | Operation::SdpaBackward(_) => 0,
        Operation::ConvFprop(_) | Operation::ConvDgrad(_) | Operation::ConvWgrad(_) => 1,
        Operation::Matmul | Operation::GroupedMatmul => 2,
        Operation::Norm(_) | Operation::NormBackward(_) => 3,
        Operation::Resample(_) | Operation::ResampleBackward(_) => 4,
        Operation::Softmax | Operation::Reduction(_) | Operation::GenStats => 5,
        Operation::Pointwise(_) | Operation::DiagonalBandMask(_) => 6,
        Operation::Reshape
        | Operation::Transpose(_)
        | Operation::Slice(_)
        | Operation::Concatenate(_) => 7,
    };
    let ranked = graph.operations.iter().map(|op| {
        let first = op.inputs.iter().min_by_key(|input| input.0);
        let dtype = first.and_then(|input| graph.tensor(input.1)).and_then(|tensor| tensor.dtype);
        (rank(&op.operation), op.operation.name(), dtype)
    });
    ranked.min().map_or(("empty", None), |(_, name, dtype)| (name, dtype))
}
