//! The conformance kit: proves a backend without reading its code, and without reading keyfold's.
//!
//! Cases are generated from the operators' rows: each operator with each dtype that it takes, with
//! tensors of several layouts, shapes and elements, into new memory and into an `out` between guard
//! bytes. The reference is a naive model of each operator, in float64 and in integers of 128 bits,
//! which shares no code with any kernel; tolerances follow from the dtype in which an operation
//! accumulates and from its length. Other groups of cases prove the device's memory: copies,
//! streams, events, late errors, caches, leaks.
//!
//! Four verdicts: passed, claimed but failed, works but unclaimed, lacking with the backend's
//! reason.
//!
//! ```
//! use keyfold_conformance::{Options, run};
//! use keyfold_core::DeviceType;
//!
//! keyfold::init();
//! let options = Options { only: Some("aten::softplus".into()), ..Options::default() };
//! let report = run(DeviceType::CPU, &options)?;
//! assert!(report.conforms(), "{report}");
//! # Ok::<(), keyfold_core::Error>(())
//! ```

pub mod array;
mod block;
pub mod case;
mod checks;
mod concurrent;
mod diagnose;
pub mod elements;
mod errors;
mod forced;
mod grad;
mod json;
mod memory;
pub mod model;
pub mod number;
mod perf;
mod process;
pub mod report;
mod run;
pub mod sample;
mod shrink;
mod stale;
mod streams;
mod suite;

pub use process::{CHILD, assert_conforms, run_child, run_isolated};
pub use report::{Finding, Group, Report, Symptom, Timing, Verdict};
pub use suite::{Mode, Options, groups, run, run_with};
