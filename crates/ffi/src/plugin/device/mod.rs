//! Devices of plugins: the host's side of `keyfold_plugin::abi::device`.
//!
//! - this module: a device's checked spec, and the errors of its slots
//! - `memory`: its memory; `kernels`: its operations
//! - `programs`: expressions that the plugin compiles
//!
//! A slot's error keeps its kind, and its message ends with device, plugin and slot. Nothing runs
//! elsewhere if a slot fails.

mod kernels;
mod memory;
mod programs;

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use keyfold_backend::{GpuBackend, Registration};
use keyfold_core::{Device, DeviceType, Error, ErrorKind, Result};
use keyfold_dispatch::{call_path, register_backend};
use keyfold_plugin::abi::device::{
    DEVICE_ASYNCHRONOUS, DEVICE_CUDA_C, DEVICE_OPENCL_C, DeviceSpec, GROUP_POINTWISE, GROUPS,
};
use keyfold_plugin::abi::{HostError, Text};

use self::kernels::PluginBackend;
use super::library::Library;
use super::table::{self, HeldError};

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
    _data: Data,
}

// SAFETY: the ABI requires that any thread may call the slots, several at a time.
unsafe impl Send for PluginDevice {}
// SAFETY: as above.
unsafe impl Sync for PluginDevice {}

/// Returns a text of a plugin.
///
/// # Errors
/// The reason if it is null or isn't UTF-8.
///
/// # Safety
/// `text` points to `len` bytes, alive for `'a`, unless it is null.
unsafe fn checked_text<'a>(text: Text) -> Result<&'a str, &'static str> {
    if text.data.is_null() {
        return Err("it is null");
    }
    // SAFETY: the contract.
    let bytes = unsafe { std::slice::from_raw_parts(text.data, text.len) };
    std::str::from_utf8(bytes).map_err(|_| "it isn't UTF-8")
}

fn refused(reason: &str) -> Error {
    Error::new(ErrorKind::Registration, reason)
}

impl PluginDevice {
    /// Checks a spec and takes ownership of its data, also if it fails. Registers the dispatch key.
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
        let needed = size_of::<DeviceSpec>();
        if size < needed {
            let reason =
                format!("a device's spec has {size} bytes and must have at least {needed}");
            return Err(refused(&reason));
        }
        let mut copy = MaybeUninit::<DeviceSpec>::uninit();
        // SAFETY: the contract; later versions append fields that aren't read here.
        let spec = unsafe {
            copy.as_mut_ptr().copy_from_nonoverlapping(spec, 1);
            copy.assume_init()
        };
        let data = Data { data: spec.data, drop: spec.drop, _library: Arc::clone(library) };
        // SAFETY: text that is valid for the call.
        let name = unsafe { checked_text(spec.name) }.map_err(|why| {
            refused(&format!("a device's name is at fault: {why}; give \"npu\", say"))
        })?;
        let kind = check(&spec, name)?;
        let counts = (0..spec.device_count).map(|_| Counts::default()).collect();
        let label = format!("{} {}", library.name(), library.version());
        Ok(PluginDevice { spec, kind, name: label, counts, _data: data })
    }

    /// Returns the name of the device type.
    pub(super) fn device_type(&self) -> DeviceType {
        self.kind
    }

    /// Registers the device as a backend.
    ///
    /// # Errors
    /// As [`keyfold_backend::register`].
    pub(super) fn register(self) -> Result<Registration> {
        let kind = self.kind;
        let backend: Arc<dyn GpuBackend> = Arc::new(PluginBackend::new(Arc::new(self)));
        keyfold_backend::register(kind, backend).map_err(|refused| refused.error)
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

/// Checks a spec, and returns its device type, with a registered key.
fn check(spec: &DeviceSpec, name: &str) -> Result<DeviceType> {
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
    match register_backend(name).and_then(|_| name.parse()) {
        Ok(kind) => Ok(kind),
        Err(error) => wrong(error.message()),
    }
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
