//! What must hold for any text that is given as a cuDNN graph, and for changes of valid graphs.

use keyfold_core::{Error, ErrorKind};
use keyfold_cudnn::{Graph, GraphSpec, ValidGraph};

#[path = "../../crates/cudnn/tests/support/changes.rs"]
mod changes;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../crates/cudnn/tests/support/samples.rs"]
mod samples;

/// Checks a text, or, where it doesn't begin as JSON, a valid graph with the changes that the bytes say.
pub fn check_input(data: &[u8]) {
    match data {
        [b'{', ..] => check_text(&String::from_utf8_lossy(data)),
        _ => check_text(&changes::changed(data)),
    }
}

/// Reads a graph from a text, writes it, and asks everything of it that takes a graph.
pub fn check_text(text: &str) {
    let spec = match GraphSpec::from_json(text) {
        Ok(spec) => spec,
        Err(error) => return check_error(&error, "the graph's text "),
    };
    let written = spec.to_json();
    let again = GraphSpec::from_json(&written).expect("what is written can be read");
    assert_eq!(again, spec, "{written}");
    let canonical = spec.canonical();
    assert_eq!(canonical.key.as_bytes(), again.canonical().key.as_bytes(), "{written}");
    assert!(spec.to_dot().contains("digraph"), "{written}");
    spec.to_mermaid();
    let mut graph = Graph::from_spec(spec.clone());
    if let Some(tensor) = spec.tensors.first() {
        // Other sizes are followed or refused; a refusal changes nothing.
        let dims: Vec<i64> = tensor.dims.iter().map(|size| size.saturating_mul(2)).collect();
        if graph.set_dims(tensor.uid, &dims).is_err() {
            assert_eq!(*graph.spec(), spec, "{written}");
        }
    }
    match spec.validate() {
        Ok(valid) => check_valid(&valid),
        Err(error) => check_error(&error, "graph"),
    }
}

fn check_error(error: &Error, start: &str) {
    let kinds = [ErrorKind::Value, ErrorKind::Shape, ErrorKind::DType, ErrorKind::Index];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    assert!(error.message().starts_with(start), "{error:?}");
}

/// Operations read what is there: inputs of the graph, or what operations before them wrote.
fn check_valid(graph: &ValidGraph) {
    let spec = graph.spec();
    let writes = |uid| spec.operations.iter().any(|op| op.outputs.iter().any(|e| e.1 == uid));
    let mut written = Vec::new();
    for op in graph.operations() {
        for (port, uid) in &op.inputs {
            assert!(
                !writes(*uid) || written.contains(uid),
                "{port} of {}: {}",
                op.label(),
                spec.to_json()
            );
        }
        for (_, uid) in &op.outputs {
            assert!(!written.contains(uid), "{}", spec.to_json());
            written.push(*uid);
        }
    }
    let count = graph.operations().count();
    assert_eq!(count, spec.operations.len());
    for tensor in &spec.tensors {
        assert!(tensor.numel().is_some_and(|count| count > 0), "{}", spec.to_json());
        assert!(tensor.dtype.is_some() && tensor.strides.len() == tensor.rank());
    }
}
