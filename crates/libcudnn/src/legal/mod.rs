//! The legaliser: the ways to compute a graph by graphs that libcudnn's engines take.

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_cudnn::{Policy, Uid, ValidGraph};

use crate::planning::PartDocument;

/// A way to compute a graph: graphs for libcudnn, one behind the other.
#[derive(Debug)]
pub struct Program {
    /// The graphs.
    pub parts: Vec<Part>,
    /// What was changed, in words.
    pub steps: Vec<String>,
}

/// A graph for libcudnn.
#[derive(Clone, Debug)]
pub struct Part {
    /// The graph.
    pub graph: Arc<ValidGraph>,
    /// The tensors that are another view of a tensor of the whole graph, by number.
    pub aliases: Vec<(Uid, Uid)>,
}

impl Program {
    /// Places the tensors that are passed between parts behind the parts' own scratch memory, which is one area.
    pub(crate) fn lay_out(&self, parts: &[PartDocument], alignment: u64) -> (Vec<(Uid, u64)>, u64) {
        let own = parts.iter().map(|part| part.workspace_bytes).max().unwrap_or(0);
        (Vec::new(), own.next_multiple_of(alignment.max(1)).max(own) * u64::from(own > 0))
    }
}

/// Returns the ways to compute a graph, the most direct first.
pub(crate) fn programs(graph: &ValidGraph, _policy: &Policy) -> Result<Vec<Program>> {
    let whole = Arc::new(graph.spec().clone().validate()?);
    Ok(vec![Program { parts: vec![Part { graph: whole, aliases: Vec::new() }], steps: Vec::new() }])
}
