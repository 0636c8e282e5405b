//! Which backend a type of device has, and who wants to know.

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

/// Is told of each backend, those that are registered already first. What it returns is dropped when
/// the backend is removed.
pub type Observer =
    Arc<dyn Fn(DeviceType, &Arc<dyn GpuBackend>) -> Result<Box<dyn Any + Send>> + Send + Sync>;

struct Entry {
    id: u64,
    kind: DeviceType,
    backend: Arc<dyn GpuBackend>,
    /// Of the memory; none for the CPU, whose memory is built in.
    memory: Option<device::Registration>,
    /// What the observers returned.
    observed: Vec<Box<dyn Any + Send>>,
}

struct Registry {
    entries: Vec<Entry>,
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
    // SAFETY: `before_fork` took it, on this thread or on the one that it continues.
    unsafe { REGISTRY.release() };
}

/// A registered backend. Dropping it changes nothing; [`Registration::remove`] takes the backend out.
pub struct Registration {
    kind: DeviceType,
    id: u64,
}

impl Registration {
    /// The type of device.
    pub fn device_type(&self) -> DeviceType {
        self.kind
    }

    /// Takes the backend out of the registry, with the kernels that operators have for it and its
    /// memory; `None` if it was taken out before. Tensors on its devices stay valid: their buffers keep
    /// their memory, so they can be copied to another device.
    pub fn remove(&self) -> Option<Arc<dyn GpuBackend>> {
        take(self.id, true)
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registration(backend of {})", self.kind)
    }
}

/// A backend that wasn't registered.
#[derive(Debug)]
pub struct Refused {
    /// Why, and which backend is registered in its place.
    pub error: Error,
    /// The backend that was to be registered.
    pub backend: Arc<dyn GpuBackend>,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        refused.error
    }
}

/// Gives a type of device its backend and, unless it is the CPU, the backend's memory. The type gets its
/// dispatch key, if it has none yet.
///
/// # Errors
/// The backend, if the type has one already, which the error names ([`ErrorKind::Registration`]), or
/// has memory of somebody else's; or if an observer fails. Nothing of it is registered then.
pub fn register(kind: DeviceType, backend: Arc<dyn GpuBackend>) -> Result<Registration, Refused> {
    // SAFETY: the functions touch a lock of ours only.
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
    let entry = Entry { id, kind, backend: backend.clone(), memory: None, observed: Vec::new() };
    registry.entries.push(entry);
    let observers = registry.observers.clone();
    drop(registry);
    // Foreign code runs without the lock.
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

/// Changes a registered backend's entry, if it is there still.
fn with(id: u64, change: impl FnOnce(&mut Entry)) {
    if let Some(entry) = REGISTRY.lock().entries.iter_mut().find(|entry| entry.id == id) {
        change(entry);
    }
}

/// Takes an entry out and drops what belongs to it: kernels first, then the memory.
fn take(id: u64, note: bool) -> Option<Arc<dyn GpuBackend>> {
    let mut registry = REGISTRY.lock();
    let at = registry.entries.iter().position(|entry| entry.id == id)?;
    let entry = registry.entries.remove(at);
    if note {
        // Under the lock, so that the note can't be about a backend that was registered since.
        note_removed_backend(entry.kind);
    }
    drop(registry);
    let Entry { kind, backend, memory, observed, .. } = entry;
    forget(kind);
    drop(observed);
    if let Some(memory) = memory {
        memory.remove();
    }
    Some(backend)
}

/// Has an observer told of each backend, from those that are registered already on.
///
/// # Errors
/// The observer's, about one that is registered already; it isn't told of others then.
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

/// The backend of a device, if it has one.
pub fn backend(device: Device) -> Option<Arc<dyn GpuBackend>> {
    let registry = REGISTRY.lock();
    let entry = registry.entries.iter().find(|entry| entry.kind == device.kind())?;
    Some(entry.backend.clone())
}

/// Whether a device has a backend.
pub fn has_backend(device: Device) -> bool {
    backend(device).is_some()
}

/// All backends with their types of device, in the order of those.
pub fn backends() -> Vec<(DeviceType, Arc<dyn GpuBackend>)> {
    let mut all: Vec<_> =
        REGISTRY.lock().entries.iter().map(|entry| (entry.kind, entry.backend.clone())).collect();
    all.sort_by_key(|(kind, _)| *kind);
    all
}
