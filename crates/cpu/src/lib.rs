//! Writing a kernel once for the CPU: thread pools, views, `for_each`, tables over axes, and
//! expressions over tensors.

#[macro_use]
pub mod axes;
pub mod evaluate;
pub mod for_each;
pub mod pool;
pub mod view;

pub use keyfold_expr::isa;
