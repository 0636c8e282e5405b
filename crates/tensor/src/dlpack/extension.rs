//! Devices that DLPack doesn't define: its `kDLExtDev`, with a number per device type.
//!
//! The device's id is the type's number times 256 plus the device's index. The number belongs to
//! the type's name ([`DeviceType::index`]) for the life of the process, also after its backend is
//! removed.
//!
//! Only the backend can use the address in a struct: the buffer's, if its memory has addresses,
//! else its [opaque handle](crate::DeviceBuffer::opaque_handle), else the address of an object of
//! keyfold. As long as an exported struct exists, the
//! address identifies the buffer, so that a tensor that is imported again has the same memory,
//! whichever library passed it on.

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

/// The number of indices of a device type.
const INDICES: i32 = 1 << u8::BITS;

/// Returns a device type's number among DLPack's extension devices; `None` for those that DLPack
/// defines.
pub fn extension_number(kind: DeviceType) -> Option<u8> {
    USER_DEVICE_TYPES.contains(&kind.index()).then_some(kind.index())
}

/// Returns the fields `data`, `byte_offset` and `device` of the struct that a foreign function gets
/// for a tensor on a device other than the CPU.
///
/// # Errors
/// [`ErrorKind::Device`], with a correction, for memory without an address or an
/// [opaque handle](crate::DeviceBuffer::opaque_handle), and for memory of a removed backend whose
/// device has another one now, to which its handle would mean something else; as
/// [`exported_device`].
pub fn foreign_address(tensor: &Tensor) -> Result<(*mut c_void, u64, DLDevice)> {
    tensor.check_backend()?;
    let device = exported_device(tensor.device())?;
    let handle = tensor.buffer().opaque_handle().filter(|_| tensor.numel() > 0);
    Ok(match handle {
        Some(handle) => {
            let offset = tensor.offset() * tensor.dtype().size();
            (handle.as_ptr().cast(), offset as u64, device)
        }
        None => (tensor.exchange_ptr()?.cast(), 0, device),
    })
}

/// Returns the standard's code of an exported tensor's device.
///
/// # Errors
/// [`ErrorKind::Exchange`] for meta, which has no memory.
pub fn exported_device(device: Device) -> Result<DLDevice> {
    match extension_number(device.kind()) {
        Some(number) => {
            let device_id = i32::from(number) * INDICES + i32::from(device.index());
            Ok(DLDevice { device_type: DL_EXT_DEV, device_id })
        }
        None => device_to_dl(device),
    }
}

/// Returns the device of an extension device's id.
///
/// # Errors
/// [`ErrorKind::Device`] for a number without a device type, with the known ones.
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

/// An object whose address represents memory without one.
#[repr(align(64))]
struct AddressHandle([u8; 64]);

/// A buffer shared by exported structs.
struct SharedBuffer {
    buffer: BufferHandle,
    /// The number of bytes from the address on that belong to it: 1 for a handle, which has no
    /// offsets.
    reach: usize,
    exports: usize,
}

/// An address with its memory: equal addresses may belong to two devices, or to a removed backend
/// and the next one of its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BufferKey {
    device: Device,
    memory: usize,
    address: usize,
}

/// The lock is held for a look-up and for the clone of a handle.
static SHARED: ForkLock<BTreeMap<BufferKey, SharedBuffer>> = ForkLock::new(BTreeMap::new());
static AT_FORK: AtFork = AtFork::new();

unsafe extern "C" fn before_fork() {
    SHARED.acquire();
}

unsafe extern "C" fn after_fork() {
    // SAFETY: `before_fork` acquired it, on this thread or on the one that it continues.
    unsafe { SHARED.release() };
}

/// An address that identifies a buffer until this is dropped.
pub(super) struct Address {
    start: *mut c_void,
    place: BufferKey,
    _handle: Option<Box<AddressHandle>>,
}

impl Address {
    /// Returns the address of a tensor's buffer.
    ///
    /// # Errors
    /// As [`BufferHandle::locate`], and if the C library can't register the fork handlers.
    pub(super) fn of(tensor: &Tensor) -> Result<Address> {
        // SAFETY: the functions only use a lock of this module.
        unsafe { AT_FORK.register(before_fork, after_fork, after_fork)? };
        let buffer = tensor.buffer().clone();
        let (located, mut handle) = (buffer.locate()?, None);
        let (start, reach): (*mut c_void, usize) = match buffer.opaque_handle() {
            _ if !located.is_null() => (located.cast(), buffer.len() * buffer.dtype().size()),
            Some(opaque) => (opaque.as_ptr().cast(), 1),
            None => {
                let made = handle.insert(Box::new(AddressHandle([0; 64])));
                (std::ptr::from_ref(&made.0).cast_mut().cast(), 1)
            }
        };
        let memory = buffer.memory().map_or(0, |memory| memory.identity());
        let place = BufferKey { device: buffer.device(), memory, address: start.addr() };
        let shared = SharedBuffer { buffer, reach, exports: 0 };
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
        // Without the lock, since freeing memory runs the backend's code.
        drop(last);
    }
}

/// Returns the buffer that an address on a device belongs to, and the offset in bytes from its
/// start. A buffer of the present memory comes before those of removed ones.
fn find(device: Device, address: usize) -> Option<(BufferHandle, usize)> {
    let now = memory_of(device).map_or(0, |memory| memory.identity());
    let all = SHARED.lock();
    let in_memory = |memory: usize| {
        let range =
            BufferKey { device, memory, address: 0 }..=BufferKey { device, memory, address };
        let (start, shared) = all.range(range).next_back()?;
        let behind = address - start.address;
        (behind < shared.reach).then(|| (shared.buffer.clone(), behind))
    };
    let of_device = || all.keys().filter(|place| place.device == device);
    in_memory(now).or_else(|| of_device().find_map(|place| in_memory(place.memory)))
}

/// Returns the tensor of a struct on an extension device, in the memory that its address
/// identifies.
///
/// # Errors
/// [`ErrorKind::Device`] if the backend was removed; [`ErrorKind::Exchange`] for an address that
/// isn't keyfold's; as [`Tensor::from_parts`].
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
