//! The names of operations in the ABI, so that the numbers of enums aren't part of it.

use keyfold_backend::{IndexOp, RandomOp, ReduceOp, RowOp};

pub(super) const fn reduction(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "sum",
        ReduceOp::Mean => "mean",
        ReduceOp::Max => "max",
        ReduceOp::Min => "min",
        ReduceOp::ArgMax => "argmax",
        ReduceOp::ArgMin => "argmin",
        ReduceOp::All => "all",
        ReduceOp::Any => "any",
    }
}

pub(super) const fn row(op: RowOp) -> &'static str {
    match op {
        RowOp::Softmax => "softmax",
        RowOp::LogSoftmax => "log_softmax",
    }
}

pub(super) const fn indexing(op: IndexOp) -> &'static str {
    match op {
        IndexOp::Take => "take",
        IndexOp::Put => "put",
        IndexOp::PutAdd => "put_add",
        IndexOp::Gather => "gather",
        IndexOp::ScatterAdd => "scatter_add",
    }
}

pub(super) const fn drawing(op: RandomOp) -> &'static str {
    match op {
        RandomOp::Uniform => "uniform",
        RandomOp::Normal => "normal",
    }
}
