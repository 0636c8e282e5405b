//! The call: arguments bound and looked at, a kernel chosen and run, its results handed to the caller.

pub(crate) mod borrowed;
pub(crate) mod context;
pub(crate) mod current;
pub(crate) mod finish;
pub(crate) mod homes;
pub(crate) mod invoke;
pub(crate) mod native;
pub(crate) mod operator;
pub(crate) mod panics;
pub(crate) mod params;
pub(crate) mod pykernel;
pub(crate) mod results;
pub(crate) mod returned;
pub(crate) mod signature;
#[cfg(not(feature = "abi3"))]
pub(crate) mod vectorcall;

/// Called once, at import.
pub(crate) fn init(py: pyo3::Python<'_>) {
    operator::init(py);
    invoke::init();
}
