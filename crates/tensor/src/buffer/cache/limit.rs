//! The limit of the cache.

use std::env::VarError;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_core::{Error, ErrorKind, Result};

/// The environment variable with the limit in bytes.
pub const LIMIT_VARIABLE: &str = "KEYFOLD_CACHE_BYTES";

/// The upper bound of the default limit.
const DEFAULT_MAX: usize = 4 << 30;
/// The default limit is the available memory divided by this.
const MEMORY_FRACTION: usize = 8;

const UNKNOWN: usize = usize::MAX;
static LIMIT: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// Returns the limit in bytes; 0 if there is no cache.
///
/// # Errors
/// [`ErrorKind::Value`] if `KEYFOLD_CACHE_BYTES` isn't a number of bytes, unless [`set_limit`] was
/// called. An empty variable counts as unset.
#[inline]
pub fn limit() -> Result<usize> {
    match LIMIT.load(Ordering::Relaxed) {
        UNKNOWN => find(),
        limit => Ok(limit),
    }
}

/// Sets the limit and returns memory above it to the system. 0 disables the cache.
pub fn set_limit(bytes: usize) {
    LIMIT.store(bytes.min(UNKNOWN - 1), Ordering::Relaxed);
    super::shrink(bytes);
}

/// Resets the limit to the environment variable's, or to the default.
///
/// # Errors
/// As [`limit`].
pub fn reset_limit() -> Result<()> {
    LIMIT.store(UNKNOWN, Ordering::Relaxed);
    super::shrink(limit()?);
    Ok(())
}

#[cold]
fn find() -> Result<usize> {
    let limit = match std::env::var(LIMIT_VARIABLE) {
        Ok(text) if !text.trim().is_empty() => parse(&text)?,
        Err(VarError::NotUnicode(text)) => parse(&text.to_string_lossy())?,
        _ => (available() / MEMORY_FRACTION).min(DEFAULT_MAX),
    };
    // A concurrent `set_limit` wins.
    match LIMIT.compare_exchange(UNKNOWN, limit, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Ok(limit),
        Err(set) => Ok(set),
    }
}

fn parse(text: &str) -> Result<usize> {
    text.trim().parse().ok().filter(|bytes| *bytes != UNKNOWN).ok_or_else(|| {
        Error::new(
            ErrorKind::Value,
            format!(
                "the environment variable {LIMIT_VARIABLE} is '{text}'; it must be a number of \
                 bytes, 0 for no cache"
            ),
        )
    })
}

/// Returns the memory in bytes that this process may use: the machine's, or its control group's
/// limit.
fn available() -> usize {
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group = group.iter().filter_map(|path| std::fs::read_to_string(path).ok());
    // "max" isn't a number and means no limit.
    let group = group.filter_map(|text| text.trim().parse::<usize>().ok()).min();
    machine().min(group.unwrap_or(usize::MAX))
}

#[cfg(unix)]
fn machine() -> usize {
    // SAFETY: two queries without pointers; they return -1 if unknown.
    let (pages, size) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    match (usize::try_from(pages), usize::try_from(size)) {
        (Ok(pages), Ok(size)) => pages.saturating_mul(size),
        _ => DEFAULT_MAX,
    }
}

#[cfg(not(unix))]
fn machine() -> usize {
    DEFAULT_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_no_number_of_bytes_is_quoted() {
        for text in ["lots", "-1", "1.5", "1G", "18446744073709551615", "99999999999999999999999"] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Value);
            let start = format!("the environment variable KEYFOLD_CACHE_BYTES is '{text}'; ");
            assert!(error.message().starts_with(&start), "{error}");
        }
        assert_eq!(parse(" 4096 ").unwrap(), 4096);
        assert_eq!(parse("0").unwrap(), 0);
    }

    #[test]
    fn the_default_is_a_part_of_the_memory() {
        assert!(available() >= 64 << 20);
    }
}
