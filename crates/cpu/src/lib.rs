//! Writing a kernel once for the CPU: thread pools, views, `for_each`, tables over axes, and
//! expressions over tensors.

pub mod evaluate;
pub mod pool;

pub use keyfold_expr::isa;
