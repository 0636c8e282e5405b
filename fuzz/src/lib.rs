//! What the fuzz targets share: naive models that the engine's answers are compared with.
//!
//! A target is a function of bytes in `fuzz_targets`; libFuzzer calls it with whatever reaches new
//! code. It panics where an answer is wrong; AddressSanitizer ends it where memory is touched that
//! it shouldn't be.

pub mod dice;
pub mod dlpack;
pub mod expression;
pub mod graph;
pub mod schema;
pub mod text;
pub mod tvm;
