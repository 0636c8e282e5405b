//! Graphs of cuDNN for `keyfold.cudnn`: building them, plans, the plan cache.

pub(crate) mod cache;
pub(crate) mod cards;
pub(crate) mod graph;
pub(crate) mod library;
pub(crate) mod plan;
