//! A backend as the ABI's table of functions.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

use super::{
    Backend, Compiler, Content, DeviceTensor, Execution, Language, Launch, Operation, Source,
    Statistics,
};
use crate::abi::device::{self as abi, DeviceSpec, DeviceStatistics};
use crate::abi::{DLTensor, HostError, HostRegistrar, HostTable1, Text};
use crate::error::{Error, Result, drop_boxed};

/// A backend and the table for its errors: the data of its slots.
struct Registered<B> {
    backend: B,
    host: &'static HostTable1,
}

/// Registers a backend.
///
/// # Errors
/// The host's.
///
/// # Safety
/// The host's registrar.
pub(crate) unsafe fn register<B: Backend>(
    host: &'static HostTable1,
    registrar: *mut HostRegistrar,
    name: &str,
    backend: B,
) -> Result<()> {
    let spec = spec(host, name, backend);
    // SAFETY: the table's function, with the host's registrar; the host takes ownership of the data
    // in any case.
    unsafe { Error::from_host(&host.base, (host.device)(registrar, &raw const spec)) }
}

/// Registers a backend that compiles expressions.
///
/// # Errors
/// The host's.
///
/// # Safety
/// The host's registrar.
pub(crate) unsafe fn register_compiler<B: Compiler>(
    host: &'static HostTable1,
    registrar: *mut HostRegistrar,
    name: &str,
    backend: B,
) -> Result<()> {
    let language = match backend.language() {
        Language::CudaC => abi::DEVICE_CUDA_C,
        Language::OpenClC => abi::DEVICE_OPENCL_C,
    };
    let plain = spec(host, name, backend);
    let spec = DeviceSpec {
        flags: plain.flags | language,
        compile: Some(compile::<B>),
        program_release: Some(program_release::<B>),
        launch: Some(launch::<B>),
        ..plain
    };
    // SAFETY: as in `register`.
    unsafe { Error::from_host(&host.base, (host.device)(registrar, &raw const spec)) }
}

/// Returns the spec of a backend, which owns it.
fn spec<B: Backend>(host: &'static HostTable1, name: &str, backend: B) -> DeviceSpec {
    let has_events = backend.is_asynchronous() || backend.stream_count() > 1;
    let groups = backend.groups().0;
    DeviceSpec {
        size: size_of::<DeviceSpec>() as u32,
        flags: if backend.is_asynchronous() { abi::DEVICE_ASYNCHRONOUS } else { 0 },
        name: Text::new(name),
        device_count: backend.device_count(),
        stream_count: backend.stream_count(),
        groups,
        data: Box::into_raw(Box::new(Registered { backend, host })).cast(),
        drop: Some(drop_data::<B>),
        allocate: Some(allocate::<B>),
        release: Some(release::<B>),
        upload: Some(upload::<B>),
        upload_pinned: Some(upload_pinned::<B>),
        download: Some(download::<B>),
        copy: Some(copy::<B>),
        fill: Some(fill::<B>),
        synchronize: Some(synchronize::<B>),
        record: has_events.then_some(record::<B>),
        event_release: has_events.then_some(event_release::<B>),
        wait: has_events.then_some(wait::<B>),
        is_done: has_events.then_some(is_done::<B>),
        elapsed: has_events.then_some(elapsed::<B>),
        statistics: Some(statistics::<B>),
        set_limit: Some(set_limit::<B>),
        support: (groups != 0).then_some(support::<B>),
        execute: (groups != 0).then_some(execute::<B>),
        count_true: Some(count_true::<B>),
        compile: None,
        program_release: None,
        launch: None,
    }
}

/// Runs a slot: returns null for success.
///
/// # Safety
/// `data` is a live [`Registered`] of a `B`.
unsafe fn slot<B: Backend>(
    data: *mut c_void,
    run: impl FnOnce(&B) -> Result<()>,
) -> *mut HostError {
    // SAFETY: the contract.
    let registered = unsafe { &*data.cast::<Registered<B>>() };
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&registered.backend)))
        .unwrap_or_else(|panic| Err(Error::panicked(panic)));
    outcome.map_or_else(|error| error.into_host1(registered.host), |()| null_mut())
}

/// # Safety
/// `dl` is the host's, alive for `'a`, with a handle of this backend.
unsafe fn tensor<'a, B: Backend>(dl: *const DLTensor) -> DeviceTensor<'a, B::Buffer> {
    // SAFETY: the contract.
    unsafe { DeviceTensor::new(&*dl) }
}

// The slots below are called by the host as the ABI specifies: with the data of the spec, with
// tensors whose handles are this backend's, and with writable places for results.

unsafe extern "C" fn drop_data<B: Backend>(data: *mut c_void) {
    // SAFETY: the spec's data, not used any more.
    unsafe { drop_boxed::<Registered<B>>(data) }
}

unsafe extern "C" fn release<B: Backend>(_data: *mut c_void, handle: *mut c_void) {
    // SAFETY: a handle of `allocate`, not used any more.
    unsafe { drop_boxed::<B::Buffer>(handle) }
}

unsafe extern "C" fn event_release<B: Backend>(_data: *mut c_void, event: *mut c_void) {
    // SAFETY: an event of `record`, not used any more.
    unsafe { drop_boxed::<B::Event>(event) }
}

unsafe extern "C" fn allocate<B: Backend>(
    data: *mut c_void,
    device: u32,
    bytes: u64,
    content: u32,
    handle: *mut *mut c_void,
) -> *mut HostError {
    let content = match content {
        abi::CONTENT_ZEROS => Content::Zeros,
        _ => Content::Arbitrary,
    };
    let run = |backend: &B| {
        let buffer = Box::new(backend.allocate(device, bytes as usize, content)?);
        // SAFETY: a writable place.
        unsafe { handle.write(Box::into_raw(buffer).cast()) };
        Ok(())
    };
    // SAFETY: the spec's data.
    unsafe { slot(data, run) }
}

/// Returns the bytes of the host that are copied to a contiguous part. The pointer to no bytes may
/// be null, which no slice may be.
///
/// # Safety
/// `bytes` points to as many bytes as the part has.
unsafe fn host_bytes<'a, T>(bytes: *const c_void, part: &DeviceTensor<'_, T>) -> &'a [u8] {
    match part.numel() * part.element_size() {
        0 => &[],
        // SAFETY: the contract.
        len => unsafe { std::slice::from_raw_parts(bytes.cast(), len) },
    }
}

unsafe extern "C" fn upload<B: Backend>(
    data: *mut c_void,
    bytes: *const c_void,
    target: *const DLTensor,
    stream: u32,
) -> *mut HostError {
    // SAFETY: the spec's data; as many bytes as the part has.
    unsafe {
        let target = tensor::<B>(target);
        slot(data, |backend: &B| backend.upload(host_bytes(bytes, &target), &target, stream))
    }
}

unsafe extern "C" fn upload_pinned<B: Backend>(
    data: *mut c_void,
    bytes: *const c_void,
    target: *const DLTensor,
    stream: u32,
) -> *mut HostError {
    // SAFETY: as in `upload`.
    unsafe {
        let target = tensor::<B>(target);
        slot(data, |backend: &B| backend.upload_pinned(host_bytes(bytes, &target), &target, stream))
    }
}

unsafe extern "C" fn download<B: Backend>(
    data: *mut c_void,
    source: *const DLTensor,
    bytes: *mut c_void,
    stream: u32,
) -> *mut HostError {
    // SAFETY: the spec's data; as many writable bytes as the part has.
    unsafe {
        let source = tensor::<B>(source);
        slot(data, |backend: &B| {
            let bytes: &mut [u8] = match source.numel() * source.element_size() {
                0 => &mut [],
                len => std::slice::from_raw_parts_mut(bytes.cast(), len),
            };
            backend.download(&source, bytes, stream)
        })
    }
}

unsafe extern "C" fn copy<B: Backend>(
    data: *mut c_void,
    source: *const DLTensor,
    target: *const DLTensor,
    stream: u32,
) -> *mut HostError {
    // SAFETY: the spec's data and the host's tensors.
    unsafe {
        let (source, target) = (tensor::<B>(source), tensor::<B>(target));
        slot(data, |backend: &B| backend.copy(&source, &target, stream))
    }
}

unsafe extern "C" fn fill<B: Backend>(
    data: *mut c_void,
    target: *const DLTensor,
    element: *const c_void,
    stream: u32,
) -> *mut HostError {
    // SAFETY: the spec's data; an element has as many bytes as its size says.
    unsafe {
        let target = tensor::<B>(target);
        slot(data, |backend: &B| {
            let element = std::slice::from_raw_parts(element.cast(), target.element_size());
            backend.fill(&target, element, stream)
        })
    }
}

unsafe extern "C" fn synchronize<B: Backend>(data: *mut c_void, device: u32) -> *mut HostError {
    // SAFETY: the spec's data.
    unsafe { slot(data, |backend: &B| backend.synchronize(device)) }
}

unsafe extern "C" fn record<B: Backend>(
    data: *mut c_void,
    device: u32,
    stream: u32,
    event: *mut *mut c_void,
) -> *mut HostError {
    let run = |backend: &B| {
        let recorded = Box::new(backend.record(device, stream)?);
        // SAFETY: a writable place.
        unsafe { event.write(Box::into_raw(recorded).cast()) };
        Ok(())
    };
    // SAFETY: the spec's data.
    unsafe { slot(data, run) }
}

unsafe extern "C" fn wait<B: Backend>(
    data: *mut c_void,
    device: u32,
    stream: u32,
    event: *mut c_void,
) -> *mut HostError {
    // SAFETY: the spec's data and a live event.
    unsafe {
        let event = &*event.cast::<B::Event>();
        slot(data, |backend: &B| backend.wait(device, stream, event))
    }
}

unsafe extern "C" fn is_done<B: Backend>(
    data: *mut c_void,
    event: *mut c_void,
    done: *mut u32,
) -> *mut HostError {
    // SAFETY: the spec's data, a live event and a writable place.
    unsafe {
        let event = &*event.cast::<B::Event>();
        slot(data, |backend: &B| {
            done.write(u32::from(backend.is_done(event)?));
            Ok(())
        })
    }
}

unsafe extern "C" fn elapsed<B: Backend>(
    data: *mut c_void,
    start: *mut c_void,
    end: *mut c_void,
    nanoseconds: *mut i64,
) -> *mut HostError {
    // SAFETY: the spec's data, live events and a writable place.
    unsafe {
        let (start, end) = (&*start.cast::<B::Event>(), &*end.cast::<B::Event>());
        slot(data, |backend: &B| {
            nanoseconds.write(backend.elapsed(start, end)?);
            Ok(())
        })
    }
}

unsafe extern "C" fn statistics<B: Backend>(
    data: *mut c_void,
    device: u32,
    out: *mut DeviceStatistics,
) -> *mut HostError {
    // SAFETY: the spec's data, and a struct that the host has filled.
    unsafe {
        let out = &mut *out;
        slot(data, |backend: &B| {
            let DeviceStatistics { in_use, cached, peak, allocations, limit, .. } = *out;
            let counted = Statistics { in_use, cached, peak, allocations, limit };
            let known = backend.statistics(device, counted)?;
            (out.in_use, out.cached, out.peak) = (known.in_use, known.cached, known.peak);
            (out.allocations, out.limit) = (known.allocations, known.limit);
            Ok(())
        })
    }
}

unsafe extern "C" fn set_limit<B: Backend>(
    data: *mut c_void,
    device: u32,
    limit: u64,
) -> *mut HostError {
    let limit = (limit != abi::LIMIT_DEFAULT).then_some(limit);
    // SAFETY: the spec's data.
    unsafe { slot(data, |backend: &B| backend.set_limit(device, limit)) }
}

unsafe extern "C" fn support<B: Backend>(
    data: *mut c_void,
    operation: *const abi::Operation,
) -> *mut HostError {
    // SAFETY: the spec's data, and the host's operation.
    unsafe {
        let operation = Operation::new(&*operation);
        slot(data, |backend: &B| backend.support(&operation))
    }
}

unsafe extern "C" fn execute<B: Backend>(
    data: *mut c_void,
    call: *const abi::Execution,
) -> *mut HostError {
    // SAFETY: the spec's data, and the host's call with tensors of this backend.
    unsafe {
        let call = Execution::new(&*call);
        slot(data, |backend: &B| backend.execute(&call))
    }
}

unsafe extern "C" fn count_true<B: Backend>(
    data: *mut c_void,
    mask: *const DLTensor,
    stream: u32,
    count: *mut u64,
) -> *mut HostError {
    // SAFETY: the spec's data, the host's tensor and a writable place.
    unsafe {
        let mask = tensor::<B>(mask);
        slot(data, |backend: &B| {
            count.write(backend.count_true(&mask, stream)?);
            Ok(())
        })
    }
}

unsafe extern "C" fn compile<B: Compiler>(
    data: *mut c_void,
    source: *const abi::Source,
    program: *mut *mut c_void,
) -> *mut HostError {
    // SAFETY: the spec's data, the host's source and a writable place.
    unsafe {
        let source = Source::new(&*source);
        slot(data, |backend: &B| {
            program.write(Box::into_raw(Box::new(backend.compile(&source)?)).cast());
            Ok(())
        })
    }
}

unsafe extern "C" fn program_release<B: Compiler>(_data: *mut c_void, program: *mut c_void) {
    // SAFETY: a program of `compile`, not used any more.
    unsafe { drop_boxed::<B::Program>(program) }
}

unsafe extern "C" fn launch<B: Compiler>(
    data: *mut c_void,
    call: *const abi::Launch,
) -> *mut HostError {
    // SAFETY: the spec's data, and the host's launch with a program and buffers of this backend.
    unsafe {
        let call = Launch::new(&*call);
        slot(data, |backend: &B| backend.launch(&call))
    }
}
