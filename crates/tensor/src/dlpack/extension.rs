//! Devices that DLPack doesn't know: its `kDLExtDev`, with a number for each type of device.
//!
//! The device's id is the type's number times 256, and the device's index. The number is the one of the
//! type's name ([`DeviceType::index`]) for the life of the process, also when its backend is removed.
//!
//! The address in a struct is for the backend alone: the buffer's, where its memory has addresses, else
//! that of a handle, an object of keyfold's without elements. It leads back to the buffer for as long as
//! an exported struct has it, so a tensor that comes back has the very memory, whoever passed it on.

use std::collections::BTreeMap;
use std::ffi::c_void;

use keyfold_core::{
    DType, Device, DeviceType, Error, ErrorKind, Result, Shape, Strides, USER_DEVICE_TYPES,
};
use keyfold_dispatch::forklock::{AtFork, ForkLock};

use super::abi::{DL_EXT_DEV, DLDevice, DLTensor};
use super::export::device_to_dl;
use crate::buffer::BufferHandle;
use crate::device::memory_of;
use crate::tensor::Tensor;

/// How many indices a type of device has.
const INDICES: i32 = 1 << u8::BITS;

/// The number of a type of device among DLPack's extension devices; none for those that DLPack knows.
pub fn extension_number(kind: DeviceType) -> Option<u8> {
    USER_DEVICE_TYPES.contains(&kind.index()).then_some(kind.index())
}

/// The standard's code for the device of a tensor that is exported.
///
/// # Errors
/// [`ErrorKind::Exchange`] for meta, which has no memory to share.
pub fn exported_device(device: Device) -> Result<DLDevice> {
    match extension_number(device.kind()) {
        Some(number) => {
            let device_id = i32::from(number) * INDICES + i32::from(device.index());
            Ok(DLDevice { device_type: DL_EXT_DEV, device_id })
        }
        None => device_to_dl(device),
    }
}

/// The device of an id.
///
/// # Errors
/// [`ErrorKind::Device`] for a number that no type of device has here, with those that there are.
pub(super) fn extension_device(id: i32) -> Result<Device> {
    let number = u8::try_from(id / INDICES).ok().filter(|n| USER_DEVICE_TYPES.contains(n));
    match number.and_then(DeviceType::from_index).filter(|_| id >= 0) {
        Some(kind) => Ok(Device::new(kind, (id % INDICES) as u8)),
        None => Err(unknown(id)),
    }
}

#[cold]
fn unknown(id: i32) -> Error {
    let kinds = USER_DEVICE_TYPES.filter_map(DeviceType::from_index);
    let known: Vec<String> = kinds.map(|kind| format!("{} for {kind}", kind.index())).collect();
    let known = match known.is_empty() {
        true => "there are none".to_owned(),
        false => format!("there are {}", known.join(", ")),
    };
    let (number, index) = (id.div_euclid(INDICES), id.rem_euclid(INDICES));
    let message = format!(
        "DLPack's extension device {id} has number {number} (and index {index}), which no type of \
         device has in this process; {known}"
    );
    Error::new(ErrorKind::Device, message)
}

/// The object whose address stands for memory that has none.
#[repr(align(64))]
struct Handle([u8; 64]);

/// A buffer that exported structs share.
struct Shared {
    buffer: BufferHandle,
    /// How many bytes from the address on lead to it: 1 for a handle, which isn't to be counted from.
    reach: usize,
    exports: usize,
}

/// Which memory an address is one of: addresses of two devices, and those of a removed backend and of
/// the next one of the name, may be the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    device: Device,
    memory: usize,
    address: usize,
}

/// The lock is held for a look, and for the clone of a handle.
static SHARED: ForkLock<BTreeMap<Place, Shared>> = ForkLock::new(BTreeMap::new());
static AT_FORK: AtFork = AtFork::new();

unsafe extern "C" fn before_fork() {
    SHARED.acquire();
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` took it, on this thread or on the one that it continues.
    unsafe { SHARED.release() };
}

/// An address that leads to a buffer until this is dropped.
pub(super) struct Address {
    start: *mut c_void,
    place: Place,
    _handle: Option<Box<Handle>>,
}

impl Address {
    /// The address of a tensor's buffer.
    ///
    /// # Errors
    /// As [`BufferHandle::locate`], and when the C library has no room to note the handlers of fork.
    pub(super) fn of(tensor: &Tensor) -> Result<Address> {
        // SAFETY: the functions touch a lock of ours only.
        unsafe { AT_FORK.register(before_fork, after_fork, after_fork)? };
        let buffer = tensor.buffer().clone();
        let located = buffer.locate()?;
        let handle = located.is_null().then(|| Box::new(Handle([0; 64])));
        let (start, reach): (*mut c_void, usize) = match &handle {
            Some(handle) => (std::ptr::from_ref(&handle.0).cast_mut().cast(), 1),
            None => (located.cast(), buffer.len() * buffer.dtype().size()),
        };
        let memory = buffer.memory().map_or(0, |memory| memory.identity());
        let place = Place { device: buffer.device(), memory, address: start.addr() };
        let shared = Shared { buffer, reach, exports: 0 };
        SHARED.lock().entry(place).or_insert(shared).exports += 1;
        Ok(Address { start, place, _handle: handle })
    }

    pub(super) fn start(&self) -> *mut c_void {
        self.start
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        let mut all = SHARED.lock();
        let Some(shared) = all.get_mut(&self.place) else { return };
        shared.exports -= 1;
        let last = if shared.exports == 0 { all.remove(&self.place) } else { None };
        drop(all);
        // Freeing memory runs the backend's code, so without the lock.
        drop(last);
    }
}

/// The buffer of a device that an address leads to, and how many bytes behind its start that is: one of
/// the memory that is there now, else one of a memory that was there before.
fn find(device: Device, address: usize) -> Option<(BufferHandle, usize)> {
    let now = memory_of(device).map_or(0, |memory| memory.identity());
    let all = SHARED.lock();
    let in_memory = |memory: usize| {
        let range = Place { device, memory, address: 0 }..=Place { device, memory, address };
        let (start, shared) = all.range(range).next_back()?;
        let behind = address - start.address;
        (behind < shared.reach).then(|| (shared.buffer.clone(), behind))
    };
    let of_device = || all.keys().filter(|place| place.device == device);
    in_memory(now).or_else(|| of_device().find_map(|place| in_memory(place.memory)))
}

/// The tensor that a struct describes on an extension device, in the memory that its address leads to.
///
/// # Errors
/// [`ErrorKind::Device`] where the backend was removed; [`ErrorKind::Exchange`] for an address that
/// keyfold didn't give; as [`Tensor::from_parts`].
pub(super) fn tensor_of(
    given: &DLTensor,
    (dtype, device): (DType, Device),
    (shape, strides): (Shape, Strides),
) -> Result<Tensor> {
    memory_of(device)?;
    if shape.contains(&0) {
        return Tensor::empty(&shape, dtype, device);
    }
    let wrong = |why: String| {
        Error::new(ErrorKind::Exchange, format!("a DLPack tensor on {device}: {why}"))
    };
    let address = given.data.addr();
    let (buffer, behind) = find(device, address).ok_or_else(|| {
        wrong(format!(
            "address {address:#x} leads to no memory of its backend; only tensors that this process \
             exported, and that are held still, come back from DLPack"
        ))
    })?;
    let bytes =
        usize::try_from(given.byte_offset).ok().and_then(|offset| offset.checked_add(behind));
    let offset = bytes.filter(|bytes| bytes.is_multiple_of(dtype.size())).ok_or_else(|| {
        wrong(format!(
            "byte_offset {} is no multiple of {}, as {dtype} needs",
            given.byte_offset,
            dtype.size()
        ))
    })?;
    let tensor =
        Tensor::from_parts(buffer.with_dtype(dtype)?, shape, strides, offset / dtype.size())?;
    tensor.check_backend()?;
    Ok(tensor)
}
