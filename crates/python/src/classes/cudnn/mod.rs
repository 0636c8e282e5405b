//! Graphs of cuDNN for `keyfold.cudnn`.

pub(crate) mod graph;
