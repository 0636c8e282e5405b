//! Writing a kernel once for the CPU: thread pools, views, `for_each`, tables over axes, and
//! expressions over tensors.

#[macro_use]
pub mod axes;
pub mod eval;
pub mod evaluate;
pub mod for_each;
pub mod half;
pub mod isa;
pub mod math;
pub mod pool;
pub mod view;
