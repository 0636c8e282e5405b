//! Strided operands of one shape, walked together.

mod loops;
mod walk;

pub use loops::Loops;
pub use walk::{Walk, for_each_offset};
