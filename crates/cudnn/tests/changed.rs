//! Valid graphs with values changed, doubled, renamed and left out: nothing panics, and whatever is valid runs
//! on the CPU or is refused by name.
//!
//! `KEYFOLD_GRAPHS=1000000 cargo test --release --test changed` does it for as many.

#[path = "support/changes.rs"]
mod changes;
#[allow(dead_code, reason = "the other tests use more of it")]
#[path = "support/samples.rs"]
mod samples;

use std::sync::Arc;

use keyfold::cudnn::{
    GraphSpec, Planner, Policy, Precision, Reference, TensorSpec, Uid, ValidGraph, VariantPack,
};
use keyfold::{Device, ErrorKind, Result, Tensor};
use keyfold_core::{Shape, Strides};

/// What became of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Its text isn't a graph's.
    Unread,
    /// It isn't valid.
    Invalid,
    /// It is valid, and too large for a test.
    Large,
    /// It ran.
    Ran,
    /// No plan or no kernel takes it.
    Refused,
}

/// Returns zeros for a tensor of a graph.
fn zeros(spec: &TensorSpec) -> Result<Tensor> {
    let reach: i64 = spec.dims.iter().zip(&spec.strides).map(|(d, s)| (d - 1) * s).sum();
    let dtype = spec.dtype.expect("valid").storage();
    let flat = Tensor::zeros(&[reach as usize + 1], dtype, Device::CPU)?;
    let shape: Vec<usize> = spec.dims.iter().map(|&size| size as usize).collect();
    let strides: Vec<isize> = spec.strides.iter().map(|&stride| stride as isize).collect();
    Tensor::from_parts(flat.buffer().clone(), Shape::new(&shape)?, Strides::new(&strides)?, 0)
}

fn is_small(spec: &TensorSpec) -> bool {
    let reach = spec.dims.iter().zip(&spec.strides).map(|(d, s)| (d - 1).saturating_mul(*s));
    spec.numel().is_some_and(|count| count <= 4096)
        && reach.fold(0_i64, i64::saturating_add) <= 1 << 16
}

fn run(graph: Arc<ValidGraph>) -> Result<()> {
    let planner = Reference::new(Device::CPU, Precision::AsSpec);
    let plan = planner.plan(graph.clone(), &Policy::default(), &|_| Ok(()))?;
    let given = graph.spec().tensors.iter().filter(|t| !t.is_virtual && t.scalar.is_none());
    let tensors: Vec<(Uid, Tensor)> =
        given.map(|spec| Ok((spec.uid, zeros(spec)?))).collect::<Result<_>>()?;
    let tensors: Vec<(Uid, &Tensor)> = tensors.iter().map(|(uid, tensor)| (*uid, tensor)).collect();
    let bytes = usize::try_from(plan.spec.workspace_bytes).expect("small");
    let workspace = Tensor::zeros(&[bytes], keyfold::DType::U8, Device::CPU)?;
    let workspace = (bytes > 0).then_some(&workspace);
    plan.runner.run(&VariantPack { tensors: &tensors, workspace })
}

/// Returns what became of the graph of a text, or the error of a valid one that isn't a refusal.
fn outcome(text: &str) -> std::result::Result<Outcome, String> {
    let Ok(spec) = GraphSpec::from_json(text) else { return Ok(Outcome::Unread) };
    assert_eq!(GraphSpec::from_json(&spec.to_json()).unwrap(), spec);
    let _ = spec.canonical();
    let valid = match spec.validate() {
        Ok(valid) => Arc::new(valid),
        Err(error) => {
            let kinds = [ErrorKind::Value, ErrorKind::Shape, ErrorKind::DType, ErrorKind::Index];
            assert!(kinds.contains(&error.kind()), "{error:?}");
            assert!(error.message().starts_with("graph"), "{error:?}");
            return Ok(Outcome::Invalid);
        }
    };
    if !valid.spec().tensors.iter().all(is_small) {
        return Ok(Outcome::Large);
    }
    match run(valid) {
        Ok(()) => Ok(Outcome::Ran),
        Err(error) if error.kind() == ErrorKind::NotSupported => Ok(Outcome::Refused),
        Err(error) => Err(format!("{error:?}\n{text}")),
    }
}

#[test]
fn samples_run_or_are_refused_by_name() {
    keyfold::init();
    for graph in samples::samples() {
        let name = graph.name.clone();
        let outcome = outcome(&graph.to_json()).unwrap();
        assert!(matches!(outcome, Outcome::Ran | Outcome::Refused), "{name}: {outcome:?}");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a test's counts, shown with --nocapture")]
fn changed_graphs_that_are_valid_run_or_are_refused_by_name() {
    keyfold::init();
    let count = std::env::var("KEYFOLD_GRAPHS").ok().and_then(|text| text.parse().ok());
    let count: u64 = count.unwrap_or(3000);
    let mut seen = [0_u64; 5];
    let mut failed = Vec::new();
    for number in 0..count {
        // A graph, and one to four changes of it.
        let mut bytes = Vec::new();
        let mut state = number;
        for _ in 0..2 {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bytes.extend((mixed ^ (mixed >> 31)).to_le_bytes());
        }
        bytes.truncate(4 + 3 * (number % 4) as usize);
        let text = changes::changed(&bytes);
        match outcome(&text) {
            Ok(outcome) => seen[outcome as usize] += 1,
            Err(error) => failed.push(error),
        }
    }
    let [unread, invalid, large, ran, refused] = seen;
    println!("{unread} unread, {invalid} invalid, {large} large, {ran} ran, {refused} refused");
    failed.truncate(10);
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(ran > count / 50 && invalid > count / 50 && unread > 0, "{seen:?}");
}
