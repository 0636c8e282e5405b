//! The shared library of the extension module `keyfold._core`, whose code is `keyfold-python`.
//!
//! cargo begins to compile a shared library when every crate in it is compiled. A crate that isn't one needs only the
//! types of the others, so the binding is compiled beside the kernels, and only the link is left for this crate.

#![forbid(unsafe_code)]

// The module's entry, `PyInit__core`, is exported from there.
use keyfold_python as _;
