//! The building blocks of CPU kernels.
//!
//! | module | contents |
//! | --- | --- |
//! | [`axes`] | tables over axes: a kernel is written once, and a call selects its instance |
//! | [`view`] | typed views of memory in any layout |
//! | [`for_each`] | loops over views: the author writes the body for one element |
//! | [`pool`] | the thread pool, and dividing a range among threads |
//! | [`scan`] | inclusive scans, with the same result for any number of threads |
//! | [`evaluate`] | expressions over whole tensors |
//! | [`interpreter`] | expressions over blocks of elements; [`evaluate`] is built on it |
//! | [`math`] | elementary functions without branches, for vector code |
//! | [`random`] | counter-based random numbers |
//! | [`half`] | conversions between halves (float16, bfloat16) and float32 |
//! | [`isa`] | instruction levels, and code that is compiled once for each |

#[macro_use]
pub mod axes;
pub mod evaluate;
pub mod for_each;
pub mod half;
pub mod interpreter;
pub mod isa;
pub mod math;
pub mod pool;
pub mod random;
pub mod scan;
pub mod view;
