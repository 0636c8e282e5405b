//! The registry of memories by device type.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result};
use keyfold_dispatch::backend_was_removed;
use keyfold_dispatch::forklock::{AtFork, ForkLock};

use super::{HostMemory, Memory, MetaMemory};

static HOST: HostMemory = HostMemory;
static META: MetaMemory = MetaMemory;

struct MemoryEntry {
    id: u64,
    memory: Arc<dyn Memory>,
}

/// By device type number. The lock is held while an `Arc` is cloned.
static ENTRIES: ForkLock<[Option<MemoryEntry>; 16]> = ForkLock::new([const { None }; 16]);
static AT_FORK: AtFork = AtFork::new();
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

unsafe extern "C" fn before_fork() {
    ENTRIES.acquire();
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` acquired it, on this thread or on the one that it continues.
    unsafe { ENTRIES.release() };
}

/// A memory by reference: a built-in one, one held elsewhere, or a registered one.
#[derive(Clone, Debug)]
pub enum MemoryRef<'a> {
    /// Held elsewhere.
    Borrowed(&'a dyn Memory),
    /// A counted reference.
    Shared(Arc<dyn Memory>),
}

impl Deref for MemoryRef<'_> {
    type Target = dyn Memory;

    fn deref(&self) -> &dyn Memory {
        match self {
            MemoryRef::Borrowed(memory) => *memory,
            MemoryRef::Shared(memory) => &**memory,
        }
    }
}

/// A registered memory. Dropping this changes nothing; [`Registration::remove`] unregisters.
pub struct Registration {
    kind: DeviceType,
    id: u64,
}

impl Registration {
    /// Returns the type of device.
    pub fn device_type(&self) -> DeviceType {
        self.kind
    }

    /// Removes the memory from the registry and returns it; `None` if it was removed before. Later
    /// allocations on the device fail. Existing tensors stay valid and can be copied, since their
    /// buffers keep their memory.
    pub fn remove(&self) -> Option<Arc<dyn Memory>> {
        let mut entries = ENTRIES.lock();
        let entry = &mut entries[usize::from(self.kind.index())];
        let taken = entry.take_if(|entry| entry.id == self.id);
        drop(entries);
        taken.map(|entry| entry.memory)
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration(memory of {})", self.kind)
    }
}

/// The error of a refused registration, with the memory.
pub struct Refused {
    /// The reason, and the memory registered in its place.
    pub error: Error,
    /// The refused memory.
    pub memory: Arc<dyn Memory>,
}

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).field("memory", &self.memory).finish()
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        refused.error
    }
}

/// Registers the memory of a device type.
///
/// # Errors
/// The refused memory, if the type has one already, which the error names
/// ([`ErrorKind::Registration`]), as `cpu` and `meta` always do; or if the C library can't register
/// the fork handlers.
pub fn register(kind: DeviceType, memory: Arc<dyn Memory>) -> Result<Registration, Refused> {
    if let Some(first) = built_in(kind) {
        return Err(refused(kind, first, memory));
    }
    // SAFETY: the functions only use a lock of this module.
    if let Err(error) = unsafe { AT_FORK.register(before_fork, after_fork, after_fork) } {
        return Err(Refused { error, memory });
    }
    let mut entries = ENTRIES.lock();
    let entry = &mut entries[usize::from(kind.index())];
    if let Some(first) = entry {
        // The first memory's Debug runs without the lock, since it is foreign code.
        let first = Arc::clone(&first.memory);
        drop(entries);
        return Err(refused(kind, &*first, memory));
    }
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    *entry = Some(MemoryEntry { id, memory });
    Ok(Registration { kind, id })
}

#[cold]
fn refused(kind: DeviceType, first: &dyn Memory, memory: Arc<dyn Memory>) -> Refused {
    let message = format!(
        "{kind} has a memory already: {first:?}; remove that before {memory:?} is registered"
    );
    Refused { error: Error::new(ErrorKind::Registration, message), memory }
}

fn built_in(kind: DeviceType) -> Option<&'static dyn Memory> {
    match kind {
        DeviceType::CPU => Some(&HOST),
        DeviceType::META => Some(&META),
        _ => None,
    }
}

/// Returns the memory of a device type, if it has one. Finding those of `cpu` and `meta` takes no
/// lock.
pub fn memory(kind: DeviceType) -> Option<MemoryRef<'static>> {
    if let Some(memory) = built_in(kind) {
        return Some(MemoryRef::Borrowed(memory));
    }
    let entries = ENTRIES.lock();
    let entry = entries[usize::from(kind.index())].as_ref()?;
    Some(MemoryRef::Shared(Arc::clone(&entry.memory)))
}

/// Returns the memory of an existing device.
///
/// # Errors
/// [`ErrorKind::Device`], with the existing devices, for a device type without memory or an index
/// out of range.
pub fn memory_of(device: Device) -> Result<MemoryRef<'static>> {
    let Some(found) = memory(device.kind()) else { return Err(no_memory(device)) };
    if usize::from(device.index()) < found.device_count() {
        return Ok(found);
    }
    Err(no_index(device, &*found))
}

/// Returns all devices with memory.
pub fn devices() -> Vec<Device> {
    let kinds = (0..16).filter_map(DeviceType::from_index);
    let counts = kinds.filter_map(|kind| Some((kind, memory(kind)?.device_count())));
    counts.flat_map(|(kind, count)| indices(count).map(move |i| Device::new(kind, i))).collect()
}

/// Returns the indices of `count` devices; an index is a byte.
fn indices(count: usize) -> impl Iterator<Item = u8> {
    (0..=u8::MAX).take(count)
}

fn listed(devices: impl IntoIterator<Item = Device>) -> String {
    devices.into_iter().map(|device| device.to_string()).collect::<Vec<_>>().join(", ")
}

#[cold]
fn no_memory(device: Device) -> Error {
    let removed = match backend_was_removed(device.kind()) {
        true => format!(": the backend of {} was removed", device.kind()),
        false => String::new(),
    };
    let known = listed(devices());
    Error::new(
        ErrorKind::Device,
        format!("there is no memory for {device}{removed}; devices with memory are {known}"),
    )
}

#[cold]
fn no_index(device: Device, memory: &dyn Memory) -> Error {
    let (kind, count) = (device.kind(), memory.device_count());
    let known = listed(indices(count).map(|index| Device::new(kind, index)));
    let message = match count {
        0 => format!("{kind} has no devices here; there is no {device}"),
        1 => format!("{kind} has 1 device: {known}; there is no {device}"),
        _ => format!("{kind} has {count} devices: {known}; there is no {device}"),
    };
    Error::new(ErrorKind::Device, message)
}
