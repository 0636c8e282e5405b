//! The table: events aggregated by operator and key path.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use keyfold_core::{Error, ErrorKind};

use super::event::{EventKind, Profile, add};
use super::text;

/// The order of a table's rows: numbers descending, names ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SortBy {
    /// Time without children.
    #[default]
    SelfTime,
    /// Time with children.
    Total,
    /// Mean time with children per call.
    Mean,
    /// Device time, on an asynchronous device.
    Device,
    /// The number of calls.
    Calls,
    /// Bytes in and out.
    Bytes,
    /// Memory allocated.
    Allocated,
    /// The operator's name.
    Name,
}

impl SortBy {
    const NAMES: [(&'static str, SortBy); 8] = [
        ("self", SortBy::SelfTime),
        ("total", SortBy::Total),
        ("mean", SortBy::Mean),
        ("device", SortBy::Device),
        ("calls", SortBy::Calls),
        ("bytes", SortBy::Bytes),
        ("allocated", SortBy::Allocated),
        ("operator", SortBy::Name),
    ];
}

impl FromStr for SortBy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = SortBy::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|(_, sort)| *sort).ok_or_else(|| {
            let names = SortBy::NAMES.map(|(name, _)| format!("{name:?}")).join(", ");
            let message =
                format!("a profile's table can't be sorted by {text:?}; there are {names}");
            Error::new(ErrorKind::Value, message)
        })
    }
}

/// The selection and order of a table's rows.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// The order.
    pub sort: SortBy,
    /// The most rows; `None` for all.
    pub limit: Option<usize>,
}

impl Default for TableOptions {
    fn default() -> Self {
        TableOptions { sort: SortBy::SelfTime, limit: Some(20) }
    }
}

/// The calls of one operator over one key path, or the ranges of one name. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Row {
    /// Calls or ranges.
    pub kind: EventKind,
    /// The operator, or the range.
    pub name: Arc<str>,
    /// The key path; empty for a range.
    pub keys: Arc<str>,
    /// The number of calls or ranges.
    pub calls: u64,
    /// The number of failed ones.
    pub failed: u64,
    /// Time without children.
    pub self_time: u64,
    /// Time with children; a call inside another one of the same row counts once.
    pub total: u64,
    /// Device time, counted as `total`; `None` if there is none.
    pub device_time: Option<u64>,
    /// `self_time` as a fraction of all rows' sum, from 0 to 1.
    pub share: f64,
    /// Bytes in and out.
    pub bytes: u64,
    /// Memory allocated, without children's.
    pub allocated: u64,
}

impl Row {
    /// Returns the mean time with children per call.
    pub fn mean(&self) -> u64 {
        self.total / self.calls.max(1)
    }
}

/// An aggregated profile. Prints as text with aligned columns.
#[derive(Clone, Debug)]
pub struct Table {
    /// The rows, sorted, up to the limit.
    pub rows: Vec<Row>,
    /// The number of rows beyond the limit.
    pub left_out: usize,
    /// The number of events in all rows, including those beyond the limit.
    pub events: usize,
    /// The sum of all rows' self time, in nanoseconds.
    pub self_total: u64,
    /// The total device time: [`Profile::device_time`].
    pub device_time: Option<u64>,
    /// The time for which the profile was open.
    pub recorded: Duration,
    /// Whether it was still open.
    pub is_open: bool,
    memory: bool,
    excluded: bool,
}

impl Table {
    pub(super) fn new(profile: &Profile, options: &TableOptions) -> Table {
        let mut places: HashMap<(EventKind, &str, &str), usize> = HashMap::new();
        let mut rows: Vec<Row> = Vec::new();
        let mut row_of = Vec::with_capacity(profile.events.len());
        for event in &profile.events {
            let place =
                *places.entry((event.kind, &event.name, &event.keys)).or_insert_with(|| {
                    rows.push(Row {
                        kind: event.kind,
                        name: Arc::clone(&event.name),
                        keys: Arc::clone(&event.keys),
                        calls: 0,
                        failed: 0,
                        self_time: 0,
                        total: 0,
                        device_time: None,
                        share: 0.0,
                        bytes: 0,
                        allocated: 0,
                    });
                    rows.len() - 1
                });
            let row = &mut rows[place];
            row.calls += 1;
            row.failed += u64::from(event.failed);
            row.self_time += event.self_time;
            row.bytes += event.bytes_in + event.bytes_out;
            row.allocated += event.self_allocated;
            let mut around = event.parent;
            while let Some(at) = around.filter(|at| row_of[*at] != place) {
                around = profile.events[at].parent;
            }
            if around.is_none() {
                row.total += event.duration;
                add(&mut row.device_time, event.device_time);
            }
            row_of.push(place);
        }
        let self_total: u64 = rows.iter().map(|row| row.self_time).sum();
        for row in &mut rows {
            row.share = row.self_time as f64 / self_total.max(1) as f64;
        }
        sort(&mut rows, options.sort);
        let shown = options.limit.unwrap_or(rows.len()).min(rows.len());
        let left_out = rows.len() - shown;
        rows.truncate(shown);
        Table {
            rows,
            left_out,
            events: profile.events.len(),
            self_total,
            device_time: profile.device_time(),
            recorded: profile.total,
            is_open: profile.is_open,
            memory: profile.options.memory,
            excluded: profile.excluded && profile.events.is_empty(),
        }
    }

    /// Returns the column headers and the cells of each row, as they are printed.
    pub fn cells(&self) -> (Vec<&'static str>, Vec<Vec<String>>) {
        let mut heads =
            vec!["operator", "keys", "calls", "self", "total", "mean", "share", "bytes"];
        if self.device_time.is_some() {
            heads.push("device");
        }
        if self.memory {
            heads.push("allocated");
        }
        let rows = self.rows.iter().map(|row| {
            let keys = match row.kind {
                EventKind::Call => row.keys.to_string(),
                EventKind::Range => "(range)".to_owned(),
            };
            let calls = match row.failed {
                0 => text::count(row.calls),
                failed => format!("{} ({} failed)", text::count(row.calls), text::count(failed)),
            };
            let mut cells = vec![
                row.name.to_string(),
                keys,
                calls,
                text::time(row.self_time),
                text::time(row.total),
                text::time(row.mean()),
                format!("{:.1} %", 100.0 * row.share),
                text::bytes(row.bytes),
            ];
            if self.device_time.is_some() {
                cells.push(row.device_time.map_or_else(String::new, text::time));
            }
            if self.memory {
                cells.push(text::bytes(row.allocated));
            }
            cells
        });
        (heads, rows.collect())
    }

    /// Returns the lines below the rows: omitted rows, and totals.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.left_out > 0 {
            let rows = if self.left_out == 1 { "row" } else { "rows" };
            notes.push(format!("... and {} more {rows}", text::count(self.left_out as u64)));
        }
        let events = if self.events == 1 { "event" } else { "events" };
        let recorded = text::time(self.recorded.as_nanos() as u64);
        let on_devices = match self.device_time {
            Some(time) => format!(", {} on devices", text::time(time)),
            None => String::new(),
        };
        notes.push(format!(
            "{} {events}, {} in them{on_devices}, {recorded} recorded",
            text::count(self.events as u64),
            text::time(self.self_total),
        ));
        if self.is_open {
            notes.push("still open: what has not ended is missing".to_owned());
        }
        if self.excluded {
            notes.push(
                "empty, since the key Profiler is excluded where it was opened: by exclude_keys, or \
                 inside a call that another profile records (nested=True lets inner profiles in)"
                    .to_owned(),
            );
        }
        notes
    }
}

fn sort(rows: &mut [Row], by: SortBy) {
    rows.sort_by(|a, b| match by {
        SortBy::SelfTime => b.self_time.cmp(&a.self_time),
        SortBy::Total => b.total.cmp(&a.total),
        SortBy::Mean => b.mean().cmp(&a.mean()),
        SortBy::Device => b.device_time.cmp(&a.device_time),
        SortBy::Calls => b.calls.cmp(&a.calls),
        SortBy::Bytes => b.bytes.cmp(&a.bytes),
        SortBy::Allocated => b.allocated.cmp(&a.allocated),
        SortBy::Name => (&a.name, &a.keys, a.kind).cmp(&(&b.name, &b.keys, b.kind)),
    });
}

/// The number of text columns, which are aligned left.
const WORDS: usize = 2;

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (heads, rows) = self.cells();
        let widths: Vec<usize> = heads
            .iter()
            .enumerate()
            .map(|(column, head)| {
                let cells = rows.iter().map(|row| row[column].chars().count());
                cells.chain([head.len()]).max().unwrap_or(0)
            })
            .collect();
        let line = |cells: &[&str]| {
            let mut line = String::new();
            for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                let cell = match column {
                    0..WORDS => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                };
                line.push_str(&cell);
                line.push_str("  ");
            }
            line.truncate(line.trim_end().len());
            line
        };
        if !rows.is_empty() {
            writeln!(f, "{}", line(&heads))?;
            let rules: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
            writeln!(f, "{}", line(&rules.iter().map(String::as_str).collect::<Vec<_>>()))?;
        }
        for row in &rows {
            writeln!(f, "{}", line(&row.iter().map(String::as_str).collect::<Vec<_>>()))?;
        }
        f.write_str(&self.notes().join("\n"))
    }
}
