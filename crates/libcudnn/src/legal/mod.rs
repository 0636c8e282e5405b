//! The legaliser: the ways to compute a graph by graphs that libcudnn's engines take.
//!
//! A graph that libcudnn refuses for the layout, the rank or the order of its operations is rewritten. Views cost
//! nothing: the same memory under other dimensions. A split computes a graph by several plans, with what is passed
//! between them in the scratch memory. Nothing is copied into another layout: no engine of libcudnn's does that, so there
//! is no way that would need a leave for it.

mod attention;
mod movement;
mod norm;
mod reduction;
mod rewrite;
mod sketch;
mod split;
mod view;

use std::sync::Arc;

use keyfold_core::Result;
use keyfold_cudnn::{DataType, Policy, Rewrite, Uid, ValidGraph};

use crate::planning::PartDocument;
use sketch::Sketch;
use split::Cut;

/// A way to compute a graph: graphs for libcudnn, one behind the other.
#[derive(Debug)]
pub struct Program {
    /// The graphs.
    pub parts: Vec<Part>,
    /// The tensors that are passed between them: number, dtype and how many elements their memory has.
    pub passed: Vec<(Uid, DataType, u64)>,
    /// The changes, in words.
    pub steps: Vec<String>,
}

/// A graph for libcudnn.
#[derive(Clone, Debug)]
pub struct Part {
    /// The graph.
    pub graph: Arc<ValidGraph>,
    /// The tensors that are another view of a tensor of the whole graph or of one that is passed.
    pub aliases: Vec<Alias>,
}

/// A tensor that lies in another tensor's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Alias {
    /// Its number.
    pub uid: Uid,
    /// The number of the other tensor.
    pub of: Uid,
    /// How many bytes behind that one's first element its own is.
    pub offset: u64,
}

impl Program {
    /// Places the tensors that are passed between parts behind the parts' own scratch memory, which is one area, and
    /// returns the places and the size of all of it.
    pub(crate) fn lay_out(&self, parts: &[PartDocument], alignment: u64) -> (Vec<(Uid, u64)>, u64) {
        let mut end = parts.iter().map(|part| part.workspace_bytes).max().unwrap_or(0);
        let mut places = Vec::new();
        for (uid, dtype, elements) in &self.passed {
            end = end.next_multiple_of(alignment);
            places.push((*uid, end));
            end += elements * dtype.size() as u64;
        }
        (places, end)
    }
}

/// Returns the ways to compute a graph that a policy allows, the most direct first.
///
/// # Errors
/// Those of a graph whose sizes overflow.
pub fn programs(graph: &ValidGraph, policy: &Policy) -> Result<Vec<Program>> {
    let mut all = Vec::new();
    let mut whole = Sketch::new(graph);
    // As one operation it is never planned.
    attention::expand_gradients(&mut whole)?;
    all.extend(whole.finish(&[Cut::Whole], false));
    all.extend(whole.finish(&[Cut::Whole], true));
    if policy.rewrite == Rewrite::View {
        return Ok(all);
    }
    let mut split = whole;
    rewrite::expand(&mut split)?;
    all.extend(split.finish(&[Cut::Whole, Cut::Epilogues, Cut::Anchors, Cut::Each], true));
    Ok(all)
}
