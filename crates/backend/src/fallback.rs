//! Fallbacks: operators that run on another device if their backend doesn't offer them.
//!
//! An operator runs on its arguments' device, unless a fallback was allowed for the two types of
//! device. Every fallback is counted and reported to an observer.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use keyfold_core::{DeviceType, Error, ErrorKind, Result};
use keyfold_dispatch::forklock::{AtFork, ForkLock};

/// An operator that ran on another device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fallback {
    /// The operator, with its overload.
    pub op: String,
    /// The type of device that its arguments are on.
    pub from: DeviceType,
    /// The type of device that it ran on.
    pub to: DeviceType,
    /// The number of times.
    pub count: u64,
}

/// By device type number: 1 plus the number of the type that its operators may run on, or 0.
static ALLOWED: [AtomicU8; 16] = [const { AtomicU8::new(0) }; 16];
static COUNTS: ForkLock<Vec<Fallback>> = ForkLock::new(Vec::new());
static AT_FORK: AtFork = AtFork::new();
static OBSERVER: OnceLock<fn(&Fallback)> = OnceLock::new();

unsafe extern "C" fn before_fork() {
    COUNTS.acquire();
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` acquired it, on this thread or on the one that it continues.
    unsafe { COUNTS.release() };
}

/// Allows operators that the backend of one device type doesn't offer to run on another: their
/// arguments are copied there, and their results back. `None` revokes it.
///
/// # Errors
/// [`ErrorKind::Device`] for equal types, for meta, which has no elements, and for a chain of
/// fallbacks that leads back to the first type.
pub fn allow_fallback(from: DeviceType, to: Option<DeviceType>) -> Result<()> {
    let kinds = [Some(from), to];
    if to == Some(from) || kinds.contains(&Some(DeviceType::META)) {
        let to = to.map_or("none".to_owned(), DeviceType::name);
        return Err(Error::new(
            ErrorKind::Device,
            format!("operators of {from} can't fall back to {to}; give two devices with elements"),
        ));
    }
    let mut next = to;
    while let Some(kind) = next {
        if kind == from {
            let to = to.map_or(String::new(), DeviceType::name);
            let message = format!(
                "operators of {from} can't fall back to {to}, whose own come back to {from}; take that \
                 permission back first"
            );
            return Err(Error::new(ErrorKind::Device, message));
        }
        next = fallback_of(kind);
    }
    let number = to.map_or(0, |to| to.index() + 1);
    ALLOWED[usize::from(from.index())].store(number, Ordering::Relaxed);
    Ok(())
}

/// Revokes the fallback of a device type whose backend is removed, and deletes its counts.
pub(crate) fn forget(from: DeviceType) {
    ALLOWED[usize::from(from.index())].store(0, Ordering::Relaxed);
    COUNTS.lock().retain(|fallback| fallback.from != from);
}

/// Returns the device type that operators of another one may run on.
pub fn fallback_of(from: DeviceType) -> Option<DeviceType> {
    match ALLOWED[usize::from(from.index())].load(Ordering::Relaxed) {
        0 => None,
        number => DeviceType::from_index(number - 1),
    }
}

/// Counts a fallback and calls the observer.
///
/// # Errors
/// If the C library can't register the fork handlers.
pub fn note_fallback(op: &str, from: DeviceType, to: DeviceType) -> Result<()> {
    // SAFETY: the functions only use a lock of this module.
    unsafe { AT_FORK.register(before_fork, after_fork, after_fork)? };
    let mut counts = COUNTS.lock();
    let known = counts.iter().position(|f| f.op == op && f.from == from && f.to == to);
    let place = known.unwrap_or_else(|| {
        counts.push(Fallback { op: op.to_owned(), from, to, count: 0 });
        counts.len() - 1
    });
    counts[place].count += 1;
    let noted = counts[place].clone();
    // Without the lock, since the observer is foreign code.
    drop(counts);
    if let Some(observer) = OBSERVER.get() {
        observer(&noted);
    }
    Ok(())
}

/// Returns the fallbacks so far, with their counts.
pub fn fallbacks() -> Vec<Fallback> {
    COUNTS.lock().clone()
}

/// Sets the function that is called for each fallback. A second call has no effect.
pub fn observe_fallbacks(observer: fn(&Fallback)) {
    let _ = OBSERVER.set(observer);
}
