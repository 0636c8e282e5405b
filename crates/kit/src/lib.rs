//! What CPU kernels are written with.
//!
//! | module | what it has |
//! | --- | --- |
//! | [`axes`] | tables over axes: a kernel is written once, and a call picks its instance |
//! | [`view`] | typed views of memory in any layout |
//! | [`for_each`] | loops over views: the author writes what happens to one element |
//! | [`pool`] | the thread pool, and sharing a range out among threads |
//! | [`scan`] | inclusive scans, the same for any number of threads |
//! | [`evaluate`] | expressions over whole tensors |
//! | [`eval`] | expressions over blocks of elements, which [`evaluate`] is made of |
//! | [`math`] | elementary functions without branches, for vector code |
//! | [`random`] | random numbers by counter |
//! | [`half`] | float16 and bfloat16 to float32 and back |
//! | [`isa`] | the instruction sets, and code that is compiled once for each |

#[macro_use]
pub mod axes;
pub mod eval;
pub mod evaluate;
pub mod for_each;
pub mod half;
pub mod isa;
pub mod math;
pub mod pool;
pub mod random;
pub mod scan;
pub mod view;
