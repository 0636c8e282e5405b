//! Which devices' operators may run elsewhere when their backend doesn't offer them.
//!
//! No operator runs on another device than its arguments' unless that was allowed for the two types of
//! device. Each time it is counted, and an observer is told.

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
    /// How often.
    pub count: u64,
}

/// By the number of a device type: that of the type that its operators may run on and 1, or 0.
static ALLOWED: [AtomicU8; 16] = [const { AtomicU8::new(0) }; 16];
static COUNTS: ForkLock<Vec<Fallback>> = ForkLock::new(Vec::new());
static AT_FORK: AtFork = AtFork::new();
static OBSERVER: OnceLock<fn(&Fallback)> = OnceLock::new();

unsafe extern "C" fn before_fork() {
    COUNTS.acquire();
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` took it, on this thread or on the one that it continues.
    unsafe { COUNTS.release() };
}

/// Lets operators that the backend of one type of device doesn't offer run on another: their arguments
/// are copied there, and their results back. `None` takes that back.
///
/// # Errors
/// [`ErrorKind::Device`] for the same type twice, for meta, which has no elements, and for permissions
/// that would lead back to the first type.
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

/// Takes back the permission of a type of device whose backend is removed, and its counts.
pub(crate) fn forget(from: DeviceType) {
    ALLOWED[usize::from(from.index())].store(0, Ordering::Relaxed);
    COUNTS.lock().retain(|fallback| fallback.from != from);
}

/// The type of device that operators of another one may run on.
pub fn fallback_of(from: DeviceType) -> Option<DeviceType> {
    match ALLOWED[usize::from(from.index())].load(Ordering::Relaxed) {
        0 => None,
        number => DeviceType::from_index(number - 1),
    }
}

/// Counts an operator that ran on another device, and tells the observer.
///
/// # Errors
/// When the C library has no room to note the handlers of fork.
pub fn note_fallback(op: &str, from: DeviceType, to: DeviceType) -> Result<()> {
    // SAFETY: the functions touch a lock of ours only.
    unsafe { AT_FORK.register(before_fork, after_fork, after_fork)? };
    let mut counts = COUNTS.lock();
    let known = counts.iter().position(|f| f.op == op && f.from == from && f.to == to);
    let place = known.unwrap_or_else(|| {
        counts.push(Fallback { op: op.to_owned(), from, to, count: 0 });
        counts.len() - 1
    });
    counts[place].count += 1;
    let noted = counts[place].clone();
    // Foreign code runs without the lock.
    drop(counts);
    if let Some(observer) = OBSERVER.get() {
        observer(&noted);
    }
    Ok(())
}

/// The operators that ran on another device than their arguments', with how often.
pub fn fallbacks() -> Vec<Fallback> {
    COUNTS.lock().clone()
}

/// Has a function told of each such call from now on. The first function that is given stays.
pub fn observe_fallbacks(observer: fn(&Fallback)) {
    let _ = OBSERVER.set(observer);
}
