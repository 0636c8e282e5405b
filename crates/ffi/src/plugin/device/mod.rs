//! Devices of plugins: the host's side of `keyfold_plugin::abi::device`.
//!
//! - this module: a device's checked spec, and the errors of its slots
//! - `memory`: its memory; `kernels`: its operations
//! - `programs`: expressions that the plugin compiles
//!
//! A slot's error keeps its kind, and its message ends with device, plugin and slot. Nothing runs
//! elsewhere if a slot fails.

mod groups;
mod kernels;
mod memory;
mod programs;

use std::mem::{MaybeUninit, offset_of};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_backend::{GpuBackend, Registration};
use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result};
use keyfold_dispatch::{call_path, check_backend_name, register_backend};
use keyfold_plugin::abi::HostError;
use keyfold_plugin::abi::device::{
    DEVICE_ASYNCHRONOUS, DEVICE_CUDA_C, DEVICE_OPENCL_C, DeviceSpec, GROUP_POINTWISE, GROUPS,
};

use self::kernels::{PluginBackend, Question};
use super::library::Library;
use super::table::{self, HeldError};
use super::text::checked;

/// The flags of devices that compile expressions.
const COMPILES: u32 = DEVICE_CUDA_C | DEVICE_OPENCL_C;

/// The host's counts of a device's buffers.
#[derive(Default)]
struct Counts {
    in_use: AtomicU64,
    peak: AtomicU64,
    allocations: AtomicU64,
    /// The limit that was set last.
    limit: AtomicU64,
}

/// The plugin's data of a device, released when the last user of it is dropped. Keeps the library
/// loaded.
struct Data {
    data: *mut std::ffi::c_void,
    drop: Option<unsafe extern "C" fn(*mut std::ffi::c_void)>,
    /// Dropped after `drop` ran: fields are dropped after the value's own `Drop`.
    _library: Arc<Library>,
}

impl Drop for Data {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: no slot is running or can be called, and the library is still loaded.
            unsafe { drop(self.data) }
        }
    }
}

/// A device type of a plugin.
pub(super) struct PluginDevice {
    spec: DeviceSpec,
    kind: DeviceType,
    /// The plugin's name and version.
    name: String,
    counts: Vec<Counts>,
    /// Questions to the slot `support` that it failed to answer.
    failures: Mutex<Vec<(Question, Error)>>,
    has_failures: AtomicBool,
    _data: Data,
}

// SAFETY: the ABI requires that any thread may call the slots, several at a time.
unsafe impl Send for PluginDevice {}
// SAFETY: as above.
unsafe impl Sync for PluginDevice {}

fn refused(reason: &str) -> Error {
    Error::new(ErrorKind::Registration, reason)
}

/// A device that a plugin described, whose name isn't registered yet.
pub(super) struct StagedDevice {
    spec: DeviceSpec,
    /// The name of the device type.
    name: String,
    /// The plugin's name and version.
    plugin: String,
    data: Data,
}

impl StagedDevice {
    /// Checks a spec and takes ownership of its data, also if it fails.
    ///
    /// # Errors
    /// [`ErrorKind::Registration`], with what would be right.
    ///
    /// # Safety
    /// `spec` is null or points to as many bytes as its size says, and its slots keep to the ABI.
    pub(super) unsafe fn new(spec: *const DeviceSpec, library: &Arc<Library>) -> Result<Self> {
        if spec.is_null() {
            return Err(refused(
                "a device's spec is null; it is a struct that begins with its size",
            ));
        }
        // SAFETY: the contract; the first field is the size.
        let size = unsafe { (&raw const (*spec).size).read() } as usize;
        if size < offset_of!(DeviceSpec, device_count) {
            return Err(too_short(size));
        }
        // SAFETY: the contract; the spec has at least these fields.
        let (data, drop) =
            unsafe { ((&raw const (*spec).data).read(), (&raw const (*spec).drop).read()) };
        let data = Data { data, drop, _library: Arc::clone(library) };
        if size < size_of::<DeviceSpec>() {
            return Err(too_short(size));
        }
        let mut copy = MaybeUninit::<DeviceSpec>::uninit();
        // SAFETY: the contract; later versions append fields that aren't read here.
        let spec = unsafe {
            copy.as_mut_ptr().copy_from_nonoverlapping(spec, 1);
            copy.assume_init()
        };
        // SAFETY: text that is valid for the call.
        let name = unsafe { checked(spec.name, "a device's name") }?.to_owned();
        check(&spec, &name)?;
        let plugin = format!("{} {}", library.name(), library.version());
        Ok(StagedDevice { spec, name, plugin, data })
    }

    /// Returns the name of the dispatch key that it will have.
    pub(super) fn key(&self) -> String {
        self.name.to_ascii_uppercase()
    }

    /// Registers the device type, its key, and the device as its backend.
    ///
    /// # Errors
    /// If all names of device types are taken; as [`keyfold_backend::register`].
    pub(super) fn register(self) -> Result<(DeviceType, Registration)> {
        let StagedDevice { spec, name, plugin, data } = self;
        register_backend(&name)?;
        let kind: DeviceType = name.parse()?;
        let counts = (0..spec.device_count).map(|_| Counts::default()).collect();
        let device = PluginDevice {
            spec,
            kind,
            name: plugin,
            counts,
            failures: Mutex::default(),
            has_failures: AtomicBool::new(false),
            _data: data,
        };
        let backend: Arc<dyn GpuBackend> = Arc::new(PluginBackend::new(Arc::new(device)));
        let registration = keyfold_backend::register(kind, backend);
        registration.map(|registration| (kind, registration)).map_err(|refused| refused.error)
    }
}

fn too_short(size: usize) -> Error {
    let needed = size_of::<DeviceSpec>();
    refused(&format!("a device's spec has {size} bytes and must have at least {needed}"))
}

impl PluginDevice {
    /// Notes that the slot `support` failed to answer a question.
    fn note_failure(&self, question: Question, error: Error) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.retain(|(known, _)| *known != question);
        failures.push((question, error));
        self.has_failures.store(true, Ordering::Release);
    }

    /// Returns the error of the slot `support`, if it failed to answer a question like this one.
    fn failure(&self, is_asked: impl Fn(&Question) -> bool) -> Option<Error> {
        if !self.has_failures.load(Ordering::Acquire) {
            return None;
        }
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let found = failures.iter().find(|(question, _)| is_asked(question));
        found.map(|(_, error)| Error::new(error.kind(), error.message()))
    }

    /// Returns device and plugin, for messages.
    fn label(&self) -> String {
        format!("device {} of the plugin {}", self.kind, self.name)
    }

    /// Returns whether its operations may run late.
    fn is_asynchronous(&self) -> bool {
        self.spec.flags & DEVICE_ASYNCHRONOUS != 0
    }

    /// Returns the name of the running operator, which late errors need, since it has returned when
    /// its operation runs; empty for a device that isn't asynchronous.
    fn running_operator(&self) -> String {
        if !self.is_asynchronous() {
            return String::new();
        }
        let mut operator = call_path().pop().map(|(name, _)| name).unwrap_or_default();
        operator.truncate(operator.find('.').unwrap_or(operator.len()));
        operator
    }

    /// Returns the index of one of the devices.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] for another one.
    fn index(&self, device: Device) -> Result<u32> {
        let index = u32::from(device.index());
        if device.kind() == self.kind && index < self.spec.device_count {
            return Ok(index);
        }
        Err(Error::new(ErrorKind::Device, format!("{} has no {device}", self.label())))
    }

    /// Returns a slot that may be null.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] for a null one.
    fn slot<F>(&self, name: &str, slot: Option<F>) -> Result<F> {
        slot.ok_or_else(|| {
            Error::new(
                ErrorKind::NotSupported,
                format!(
                    "{} doesn't support {name}: the plugin left that slot null; an author sets it in \
                     the device's spec",
                    self.label()
                ),
            )
        })
    }

    /// Returns the outcome of a slot. `call` names it.
    ///
    /// # Errors
    /// The slot's error.
    ///
    /// # Safety
    /// `error` is null or an error of the host's table that the slot gave up.
    unsafe fn outcome(&self, error: *mut HostError, call: impl FnOnce() -> String) -> Result<()> {
        // SAFETY: the contract.
        unsafe { table::take_held(error) }.map_or(Ok(()), |held| Err(self.failed(held, &call())))
    }

    /// Returns an error of a slot with its place.
    #[cold]
    fn failed(&self, held: HeldError, call: &str) -> Error {
        let HeldError { error, late, .. } = held;
        let (kind, place) = (error.kind(), format!("{}, {call}", self.label()));
        let error = match error.message().strip_prefix(table::PANICKED) {
            Some(text) if kind == ErrorKind::KernelPanic => {
                Error::new(kind, format!("{place} panicked: {text}"))
            }
            _ => Error::new(kind, format!("{} ({place})", error.message())),
        };
        if late { error.late() } else { error }
    }

    /// Returns a pointer that a slot has set.
    ///
    /// # Errors
    /// [`ErrorKind::KernelFailed`] if it is null.
    fn not_null<T>(&self, pointer: *mut T, slot: &str, what: &str) -> Result<NonNull<T>> {
        NonNull::new(pointer).ok_or_else(|| {
            Error::new(
                ErrorKind::KernelFailed,
                format!(
                    "{}, {slot}: it succeeded without setting {what}, a pointer that isn't null",
                    self.label()
                ),
            )
        })
    }
}

/// Checks a spec.
fn check(spec: &DeviceSpec, name: &str) -> Result<()> {
    let DeviceSpec { flags, device_count, stream_count, groups, .. } = *spec;
    let wrong = |reason: &str| Err(refused(&format!("the device {name:?} is refused: {reason}")));
    if !(1..=256).contains(&device_count) {
        return wrong(&format!("it has {device_count} devices; right are 1 to 256"));
    }
    if stream_count == 0 {
        return wrong("its devices have 0 streams; right is 1 or more");
    }
    if flags & !(DEVICE_ASYNCHRONOUS | COMPILES) != 0 {
        return wrong(&format!("its flags {flags:#x} have bits that this host doesn't know"));
    }
    if flags & COMPILES == COMPILES {
        return wrong("it compiles expressions from two languages; right is one");
    }
    if flags & COMPILES != 0 && groups & GROUP_POINTWISE == 0 {
        return wrong(
            "it compiles expressions but lacks the group pointwise, which they belong to",
        );
    }
    let known = GROUPS.iter().fold(0, |bits, (bit, _)| bits | bit);
    if groups & !known != 0 {
        return wrong(&format!("its groups {groups:#x} have bits that this host doesn't know"));
    }
    let missing = missing_slots(spec);
    if !missing.is_empty() {
        let (missing, mut why) = (missing.join(", "), "every device needs them");
        if spec.event_slots().iter().any(|(slot, _)| missing.contains(slot)) {
            why = "devices that are asynchronous or have several streams need all slots of events";
        } else if missing.contains("support") || missing.contains("execute") {
            why = "devices with groups of operations need them";
        } else if missing.contains("compile") || missing.contains("launch") {
            why = "devices that compile expressions need them";
        }
        return wrong(&format!("the slots {missing} are null; {why}"));
    }
    if matches!(name.to_ascii_lowercase().as_str(), "cpu" | "meta") {
        return wrong("keyfold has that device itself; choose another name");
    }
    check_backend_name(name).or_else(|error| wrong(error.message()))
}

/// The slots of events by name, and whether they are there.
trait EventSlots {
    fn event_slots(&self) -> [(&'static str, bool); 5];
}

impl EventSlots for DeviceSpec {
    fn event_slots(&self) -> [(&'static str, bool); 5] {
        [
            ("record", self.record.is_some()),
            ("event_release", self.event_release.is_some()),
            ("wait", self.wait.is_some()),
            ("is_done", self.is_done.is_some()),
            ("elapsed", self.elapsed.is_some()),
        ]
    }
}

/// Returns the names of the required slots that are null.
fn missing_slots(spec: &DeviceSpec) -> Vec<&'static str> {
    let mut required = vec![
        ("allocate", spec.allocate.is_some()),
        ("release", spec.release.is_some()),
        ("upload", spec.upload.is_some()),
        ("download", spec.download.is_some()),
        ("copy", spec.copy.is_some()),
        ("fill", spec.fill.is_some()),
        ("synchronize", spec.synchronize.is_some()),
    ];
    if spec.groups != 0 {
        required.push(("support", spec.support.is_some()));
        required.push(("execute", spec.execute.is_some()));
    }
    if spec.flags & COMPILES != 0 {
        required.push(("compile", spec.compile.is_some()));
        required.push(("program_release", spec.program_release.is_some()));
        required.push(("launch", spec.launch.is_some()));
    }
    let events = spec.event_slots();
    let needs_events = spec.flags & DEVICE_ASYNCHRONOUS != 0 || spec.stream_count > 1;
    if needs_events || events.iter().any(|(_, given)| *given) {
        required.extend(events);
    }
    required.into_iter().filter(|(_, given)| !given).map(|(name, _)| name).collect()
}
