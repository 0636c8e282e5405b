//! The counters of a cache, and the list of its entries.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::sync::{Mutex, lock};
use crate::{DataType, GraphSpec, Operation, Signature};

/// A kind of graphs: the name of the main operation, and the dtype of the first tensor that it
/// reads.
pub type Kind = (&'static str, Option<DataType>);

/// The counters of a cache, or of one kind of graphs in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of entries that are kept now.
    pub entries: u64,
    /// How many requests found a plan in the cache.
    pub hits: u64,
    /// How many requests found none. Each began a build, or was a [`get`](crate::PlanCache::get).
    pub misses: u64,
    /// How many requests waited for another thread's build and got its plan.
    pub waits: u64,
    /// How many builds failed or were cancelled.
    pub failures: u64,
    /// How many plans were evicted because of the bounds.
    pub evictions: u64,
    /// The time of all builds.
    pub build_time: Duration,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        let Counts { entries, hits, misses, waits, failures, evictions, build_time } = other;
        self.entries += entries;
        self.hits += hits;
        self.misses += misses;
        self.waits += waits;
        self.failures += failures;
        self.evictions += evictions;
        self.build_time += build_time;
    }

    /// Returns the cells of a table's row.
    fn cells(&self) -> [String; 7] {
        let Counts { entries, hits, misses, waits, failures, evictions, build_time } = self;
        let [a, b, c, d, e, f] =
            [entries, hits, misses, waits, failures, evictions].map(ToString::to_string);
        [a, b, c, d, e, f, format!("{:.1} ms", milliseconds(*build_time))]
    }
}

/// The counters of a kind, which its entries share. The number of entries isn't counted here.
#[derive(Debug, Default)]
pub(super) struct KindCounts(Mutex<Counts>);

impl KindCounts {
    pub(super) fn note(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut lock(&self.0));
    }

    pub(super) fn read(&self) -> Counts {
        *lock(&self.0)
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

/// The result of [`PlanCache::stats`](crate::PlanCache::stats). It prints as two tables: the
/// counters by kind, and the entries.
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
    /// The counters by the graphs' main operation, of all dtypes together.
    pub by_operation: BTreeMap<&'static str, Counts>,
    /// The counters by main operation and its dtype.
    pub by_kind: BTreeMap<Kind, Counts>,
    /// The entries, the one used last first.
    pub entries: Vec<EntryInfo>,
}

impl Stats {
    pub(super) fn new(
        capacity: usize,
        capacity_bytes: u64,
        mut by_kind: BTreeMap<Kind, Counts>,
        entries: Vec<EntryInfo>,
    ) -> Stats {
        for entry in &entries {
            by_kind.entry((entry.operation, entry.dtype)).or_default().entries += 1;
        }
        let (mut total, mut by_operation) = (Counts::default(), BTreeMap::new());
        for (&(operation, _), &counts) in &by_kind {
            total.add(counts);
            by_operation.entry(operation).or_insert_with(Counts::default).add(counts);
        }
        let bytes = entries.iter().map(|entry| entry.bytes).sum();
        Stats { capacity, capacity_bytes, bytes, total, by_operation, by_kind, entries }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { hits, misses, waits, failures, evictions, build_time, .. } = self.total;
        let (len, bytes) = (self.entries.len(), self.bytes);
        writeln!(f, "{len} of {} plans, {bytes} of {} bytes", self.capacity, self.capacity_bytes)?;
        writeln!(
            f,
            "{hits} hits, {misses} misses, {waits} waits, {failures} failed builds, {evictions} \
             evictions, {:.1} ms of builds",
            milliseconds(build_time)
        )?;
        let of_kind = |(&(operation, dtype), counts): (&Kind, &Counts)| {
            let names = [operation.to_string(), dtype_name(dtype)];
            names.into_iter().chain(counts.cells()).collect()
        };
        let head = ["operation", "dtype", "plans", "hits", "misses", "waits", "failed"];
        let head = head.into_iter().chain(["evicted", "builds"]);
        write_table(f, head, self.by_kind.iter().map(of_kind), 2)?;
        let of_entry = |entry: &EntryInfo| {
            let engine = if entry.is_marker { "(no plan)" } else { &entry.engine };
            vec![
                entry.operation.to_string(),
                dtype_name(entry.dtype),
                entry.signature.to_string(),
                entry.device.clone(),
                engine.to_string(),
                entry.workspace_bytes.to_string(),
                format!("{:.1} ms", milliseconds(entry.build_time)),
                entry.hits.to_string(),
            ]
        };
        let head = ["operation", "dtype", "signature", "device", "engine", "workspace"];
        let head = head.into_iter().chain(["build", "hits"]);
        write_table(f, head, self.entries.iter().map(of_entry), 5)
    }
}

fn dtype_name(dtype: Option<DataType>) -> String {
    dtype.map_or_else(|| "-".to_string(), |dtype| dtype.to_string())
}

/// Writes a table whose first columns are aligned to the left and all others, numbers, to the
/// right. Nothing is written of a table without rows.
fn write_table(
    f: &mut fmt::Formatter<'_>,
    head: impl Iterator<Item = &'static str>,
    rows: impl Iterator<Item = Vec<String>>,
    left: usize,
) -> fmt::Result {
    let rows: Vec<Vec<String>> =
        [head.map(String::from).collect()].into_iter().chain(rows).collect();
    if rows.len() == 1 {
        return Ok(());
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..rows[0].len()).map(|column| width(column).unwrap_or(0)).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column < left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the kind of a graph. Its main operation is the one that takes most of a run's time as a
/// rule.
pub(super) fn kind(graph: &GraphSpec) -> Kind {
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
