//! The number of threads.

use std::env::VarError;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_core::{Error, ErrorKind, Result};

use super::workers;

/// A larger number of threads is refused as a mistake.
pub const MAX_THREADS: usize = 4096;

/// The environment variable with the number of threads.
pub const THREADS_VARIABLE: &str = "KEYFOLD_NUM_THREADS";

/// The number of threads; 0 until it is first read.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// The number of threads that work on a job, the caller included.
///
/// # Errors
/// [`ErrorKind::Value`] if `KEYFOLD_NUM_THREADS` isn't a number from 1 to [`MAX_THREADS`], unless
/// [`set_num_threads`] was called; empty is treated as unset.
#[inline]
pub fn num_threads() -> Result<usize> {
    match THREADS.load(Ordering::Relaxed) {
        0 => find(),
        threads => Ok(threads),
    }
}

/// Sets the number of threads that work on later jobs, the caller included. Running jobs aren't
/// affected; surplus workers end when their jobs are done.
///
/// # Errors
/// [`ErrorKind::Value`] for 0, and for more than [`MAX_THREADS`].
pub fn set_num_threads(threads: usize) -> Result<()> {
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(Error::new(
            ErrorKind::Value,
            format!(
                "set_num_threads: argument 'n' is {threads}; it must be from 1 to {MAX_THREADS}"
            ),
        ));
    }
    THREADS.store(threads, Ordering::Relaxed);
    workers::resize(threads);
    Ok(())
}

#[cold]
fn find() -> Result<usize> {
    let threads = match std::env::var(THREADS_VARIABLE) {
        Ok(text) if !text.trim().is_empty() => parse(&text)?,
        Err(VarError::NotUnicode(text)) => parse(&text.to_string_lossy())?,
        // This takes affinity and control groups into account.
        _ => std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS),
    };
    // `set_num_threads` may have been called in between; its number stays.
    match THREADS.compare_exchange(0, threads, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Ok(threads),
        Err(set) => Ok(set),
    }
}

fn parse(text: &str) -> Result<usize> {
    text.trim().parse().ok().filter(|n| (1..=MAX_THREADS).contains(n)).ok_or_else(|| {
        Error::new(
            ErrorKind::Value,
            format!(
                "the environment variable {THREADS_VARIABLE} is '{text}'; it must be a number of \
                 threads from 1 to {MAX_THREADS}"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_number_of_threads_is_quoted() {
        for text in ["two", "0", "-3", "1.5", "4097", "99999999999999999999999", "4 4"] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Value);
            let start = format!("the environment variable KEYFOLD_NUM_THREADS is '{text}'; ");
            assert!(error.message().starts_with(&start), "{error}");
        }
        assert_eq!(parse(" 3\n").unwrap(), 3);
    }
}
