//! The registry of backends by device type, and its observers.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result};
use keyfold_dispatch::forklock::{AtFork, ForkLock};
use keyfold_dispatch::{note_removed_backend, register_backend};
use keyfold_tensor::device;

use crate::GpuBackend;
use crate::fallback::forget;

/// Called for each backend, including those registered already. Its result is dropped when the
/// backend is removed.
pub type Observer =
    Arc<dyn Fn(DeviceType, &Arc<dyn GpuBackend>) -> Result<Box<dyn Any + Send>> + Send + Sync>;

struct BackendEntry {
    id: u64,
    kind: DeviceType,
    backend: Arc<dyn GpuBackend>,
    /// The memory's registration; none for the CPU, whose memory is built in.
    memory: Option<device::Registration>,
    /// The observers' results.
    observed: Vec<Box<dyn Any + Send>>,
}

struct Registry {
    entries: Vec<BackendEntry>,
    observers: Vec<Observer>,
}

static REGISTRY: ForkLock<Registry> =
    ForkLock::new(Registry { entries: Vec::new(), observers: Vec::new() });
static AT_FORK: AtFork = AtFork::new();
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

unsafe extern "C" fn before_fork() {
    REGISTRY.acquire();
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` acquired it, on this thread or on the one that it continues.
    unsafe { REGISTRY.release() };
}

/// A registered backend. Dropping this changes nothing; [`Registration::remove`] unregisters.
pub struct Registration {
    kind: DeviceType,
    id: u64,
}

impl Registration {
    /// Returns the type of device.
    pub fn device_type(&self) -> DeviceType {
        self.kind
    }

    /// Removes the backend, with its operators' kernels and its memory, and returns it; `None` if
    /// it was removed before. Tensors on its devices stay valid and can be copied to another
    /// device, since their buffers keep their memory.
    pub fn remove(&self) -> Option<Arc<dyn GpuBackend>> {
        take(self.id, true)
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration(backend of {})", self.kind)
    }
}

/// The error of a refused registration, with the backend.
#[derive(Debug)]
pub struct Refused {
    /// The reason, and the backend registered in its place.
    pub error: Error,
    /// The refused backend.
    pub backend: Arc<dyn GpuBackend>,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        refused.error
    }
}

/// Registers the backend of a device type and, except for the CPU, its memory. Registers a dispatch
/// key for the type, if it has none.
///
/// # Errors
/// The refused backend, if the type has one already, which the error names
/// ([`ErrorKind::Registration`]), or another memory; or if an observer fails. Nothing is registered
/// then.
pub fn register(kind: DeviceType, backend: Arc<dyn GpuBackend>) -> Result<Registration, Refused> {
    // SAFETY: the functions only use a lock of this module.
    let noted = unsafe { AT_FORK.register(before_fork, after_fork, after_fork) };
    if let Err(error) = noted.and_then(|()| register_backend(&kind.name()).map(drop)) {
        return Err(Refused { error, backend });
    }
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let mut registry = REGISTRY.lock();
    if let Some(first) = registry.entries.iter().find(|entry| entry.kind == kind) {
        let first = first.backend.clone();
        drop(registry);
        let message = format!(
            "{kind} has backend '{}' already; remove that before '{}' is registered",
            first.name(),
            backend.name()
        );
        return Err(Refused { error: Error::new(ErrorKind::Registration, message), backend });
    }
    let entry =
        BackendEntry { id, kind, backend: backend.clone(), memory: None, observed: Vec::new() };
    registry.entries.push(entry);
    let observers = registry.observers.clone();
    drop(registry);
    // Without the lock, since this runs foreign code.
    let refuse = |error| {
        take(id, false);
        Err(Refused { error, backend: backend.clone() })
    };
    if kind != DeviceType::CPU {
        match device::register(kind, backend.memory()) {
            Ok(memory) => with(id, |entry| entry.memory = Some(memory)),
            Err(refused) => return refuse(refused.error),
        }
    }
    for observer in observers {
        match observer(kind, &backend) {
            Ok(observed) => with(id, |entry| entry.observed.push(observed)),
            Err(error) => return refuse(error),
        }
    }
    Ok(Registration { kind, id })
}

/// Changes a registered backend's entry, unless it was removed.
fn with(id: u64, change: impl FnOnce(&mut BackendEntry)) {
    if let Some(entry) = REGISTRY.lock().entries.iter_mut().find(|entry| entry.id == id) {
        change(entry);
    }
}

/// Removes an entry and drops its parts: kernels first, then the memory.
fn take(id: u64, note: bool) -> Option<Arc<dyn GpuBackend>> {
    let mut registry = REGISTRY.lock();
    let at = registry.entries.iter().position(|entry| entry.id == id)?;
    let entry = registry.entries.remove(at);
    if note {
        // Under the lock, so that a backend registered since isn't marked as removed.
        note_removed_backend(entry.kind);
    }
    drop(registry);
    let BackendEntry { kind, backend, memory, observed, .. } = entry;
    forget(kind);
    drop(observed);
    if let Some(memory) = memory {
        memory.remove();
    }
    Some(backend)
}

/// Calls an observer for each backend, registered already or later.
///
/// # Errors
/// The observer's error about a backend registered already; it isn't called for others then.
pub fn observe(observer: Observer) -> Result<()> {
    let mut registry = REGISTRY.lock();
    let known: Vec<_> =
        registry.entries.iter().map(|e| (e.id, e.kind, e.backend.clone())).collect();
    registry.observers.push(observer.clone());
    drop(registry);
    for (id, kind, backend) in known {
        match observer(kind, &backend) {
            Ok(observed) => with(id, |entry| entry.observed.push(observed)),
            Err(error) => {
                REGISTRY.lock().observers.retain(|known| !Arc::ptr_eq(known, &observer));
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Returns the backend of a device, if it has one.
pub fn backend(device: Device) -> Option<Arc<dyn GpuBackend>> {
    let registry = REGISTRY.lock();
    let entry = registry.entries.iter().find(|entry| entry.kind == device.kind())?;
    Some(entry.backend.clone())
}

/// Returns whether a device has a backend.
pub fn has_backend(device: Device) -> bool {
    backend(device).is_some()
}

/// Returns all backends with their device types, in the order of the types.
pub fn backends() -> Vec<(DeviceType, Arc<dyn GpuBackend>)> {
    let mut all: Vec<_> =
        REGISTRY.lock().entries.iter().map(|entry| (entry.kind, entry.backend.clone())).collect();
    all.sort_by_key(|(kind, _)| *kind);
    all
}
