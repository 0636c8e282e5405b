//! Finds the OpenCL loader and the devices behind it.

use std::ffi::c_void;

use keyfold_plugin::{Error, ErrorKind, Result};
use libloading::Library;

use crate::api::{self, Api, Handle, Status, status_name};

/// The environment variable with the path of the loader.
pub const VARIABLE: &str = "KEYFOLD_OPENCL";

const NAMES: &[&str] = if cfg!(target_os = "macos") {
    &["/System/Library/Frameworks/OpenCL.framework/OpenCL"]
} else if cfg!(windows) {
    &["OpenCL.dll"]
} else {
    &["libOpenCL.so.1", "libOpenCL.so"]
};

/// A device that the backend can use, in a context that it shares with its platform's others.
pub struct Found {
    pub id: Handle,
    pub context: Handle,
}

/// Returns the error of a status other than success.
///
/// # Errors
/// That one.
pub fn check(status: Status, what: &str) -> Result<()> {
    let (kind, advice) = match status {
        api::SUCCESS => return Ok(()),
        -4 | -6 | -61 => (
            ErrorKind::Memory,
            ", the device has no memory left for it; drop tensors that aren't needed, or compute \
             smaller parts",
        ),
        // Of a kernel that crashed or took too long, drivers say so, too.
        -5 => (
            ErrorKind::KernelFailed,
            ", the device has no memory or other resources left for it, or a kernel failed there",
        ),
        -2 | -33 | -34 | -36 | api::NVIDIA_ILLEGAL_ACCESS => (ErrorKind::KernelFailed, LOST),
        _ => (ErrorKind::KernelFailed, ""),
    };
    Err(Error::new(kind, format!("{what}: {}{advice}", status_name(status))))
}

/// The words of errors after which nothing works on a device.
const LOST: &str =
    ", the device is lost: its tensors can only be dropped, a new process may use it";

/// Returns whether an error tells that its device is lost.
pub fn tells_loss(error: &Error) -> bool {
    error.message().contains(LOST)
}

/// Returns the error of each call after the one that lost the device.
pub fn lost(device: &str) -> Error {
    Error::new(ErrorKind::KernelFailed, format!("{device} failed before{LOST}"))
}

fn missing(text: String) -> Error {
    Error::new(ErrorKind::Device, text)
}

/// Opens the loader.
///
/// # Errors
/// What is missing, and what to install.
pub fn open() -> Result<Api> {
    let named = std::env::var(VARIABLE).ok().filter(|path| !path.is_empty());
    let names: Vec<&str> = named.as_deref().map_or_else(|| NAMES.to_vec(), |name| vec![name]);
    let mut errors = Vec::new();
    for name in &names {
        // SAFETY: the initialisers of an OpenCL loader have no conditions.
        match unsafe { Library::new(*name) } {
            Ok(library) => {
                return Api::new(library).map_err(|function| {
                    missing(format!(
                        "{name} has no function {function}: it isn't an OpenCL loader of version \
                         1.2 or later"
                    ))
                });
            }
            Err(error) => errors.push(match std::error::Error::source(&error) {
                Some(reason) => format!("{name}: {reason}"),
                None => format!("{name}: {error}"),
            }),
        }
    }
    Err(missing(format!(
        "there is no OpenCL loader ({}); install one (Debian: ocl-icd-libopencl1, Fedora: ocl-icd) \
         and a device's driver (pocl-opencl-icd runs on any CPU), or set {VARIABLE} to its path",
        errors.join("; ")
    )))
}

/// Returns a value that a function with the signature of `clGetDeviceInfo` tells.
fn bytes(get: impl Fn(usize, *mut c_void, *mut usize) -> Status) -> Option<Vec<u8>> {
    let mut size = 0;
    if get(0, std::ptr::null_mut(), &raw mut size) != api::SUCCESS {
        return None;
    }
    let mut bytes = vec![0; size];
    let status = get(size, bytes.as_mut_ptr().cast(), std::ptr::null_mut());
    (status == api::SUCCESS).then_some(bytes)
}

fn text(bytes: Option<Vec<u8>>) -> String {
    let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
    text.trim_end_matches('\0').trim().to_owned()
}

/// Returns a property of a device as text.
pub fn device_text(api: &Api, device: Handle, property: u32) -> String {
    // SAFETY: a device of the loader, and memory of the size that was told.
    text(bytes(|size, to, told| unsafe { (api.clGetDeviceInfo)(device, property, size, to, told) }))
}

/// Returns a property of a device as a number, of 4 or 8 bytes in the device's interface.
pub fn device_number(api: &Api, device: Handle, property: u32) -> u64 {
    // SAFETY: as above.
    let bytes =
        bytes(|size, to, told| unsafe { (api.clGetDeviceInfo)(device, property, size, to, told) });
    let mut number = [0; 8];
    for (to, from) in number.iter_mut().zip(bytes.unwrap_or_default()) {
        *to = from;
    }
    u64::from_le_bytes(number)
}

/// Returns why a device can't be used.
fn unfit(api: &Api, device: Handle) -> Option<&'static str> {
    let version = device_text(api, device, api::DEVICE_VERSION);
    let version = version.strip_prefix("OpenCL ").unwrap_or("0");
    let required = [
        (api::DEVICE_AVAILABLE, "it isn't available"),
        (api::DEVICE_COMPILER_AVAILABLE, "it has no compiler"),
        (api::DEVICE_ENDIAN_LITTLE, "its numbers are big-endian"),
    ];
    if version.starts_with("1.0") || version.starts_with("1.1") || version.starts_with('0') {
        return Some("it is older than OpenCL 1.2");
    }
    if device_text(api, device, api::DEVICE_PROFILE) != "FULL_PROFILE" {
        return Some("it only has the embedded profile");
    }
    required.iter().find(|(property, _)| device_number(api, device, *property) == 0).map(|r| r.1)
}

/// Returns a list that the loader tells.
fn handles(get: impl Fn(u32, *mut Handle, *mut u32) -> Status) -> (Status, Vec<Handle>) {
    let mut count = 0;
    let status = get(0, std::ptr::null_mut(), &raw mut count);
    if status != api::SUCCESS || count == 0 {
        return (status, Vec::new());
    }
    let mut handles = vec![std::ptr::null_mut(); count as usize];
    let status = get(count, handles.as_mut_ptr(), std::ptr::null_mut());
    (status, handles)
}

/// Returns the devices of all platforms, in the loader's order.
///
/// # Errors
/// If there is none: what each platform said.
pub fn devices(api: &Api) -> Result<Vec<Found>> {
    // SAFETY: memory for as many handles as are asked for.
    let (status, platforms) =
        handles(|count, to, told| unsafe { (api.clGetPlatformIDs)(count, to, told) });
    if platforms.is_empty() {
        let known = [api::SUCCESS, api::PLATFORM_NOT_FOUND].contains(&status);
        let status = if known { String::new() } else { format!(" ({})", status_name(status)) };
        return Err(missing(format!(
            "the OpenCL loader has no platform{status}; install a device's driver \
             (pocl-opencl-icd runs on any CPU)"
        )));
    }
    let (mut found, mut said) = (Vec::new(), Vec::new());
    for platform in platforms {
        // SAFETY: a platform of the loader, and memory of the size that was told.
        let name = text(bytes(|size, to, told| unsafe {
            (api.clGetPlatformInfo)(platform, api::PLATFORM_NAME, size, to, told)
        }));
        // SAFETY: as above.
        let (status, ids) = handles(|count, to, told| unsafe {
            (api.clGetDeviceIDs)(platform, api::DEVICE_TYPE_ALL, count, to, told)
        });
        if ids.is_empty() {
            let reason = match status {
                api::SUCCESS | api::DEVICE_NOT_FOUND => "has no device".to_owned(),
                status => format!("failed, {}", status_name(status)),
            };
            said.push(format!("{name} {reason}"));
        }
        let mut usable = Vec::new();
        for id in ids {
            match unfit(api, id) {
                None => usable.push(id),
                Some(reason) => {
                    let device = device_text(api, id, api::DEVICE_NAME);
                    said.push(format!("{name} has {device}, but {reason}"));
                }
            }
        }
        if usable.is_empty() {
            continue;
        }
        let properties = [api::CONTEXT_PLATFORM, platform as isize, 0];
        let mut status = 0;
        // SAFETY: devices of that platform, and a list of properties that ends with 0.
        let context = unsafe {
            (api.clCreateContext)(
                properties.as_ptr(),
                usable.len() as u32,
                usable.as_ptr(),
                std::ptr::null(),
                std::ptr::null_mut(),
                &raw mut status,
            )
        };
        match status {
            api::SUCCESS => found.extend(usable.into_iter().map(|id| Found { id, context })),
            _ => said.push(format!("{name} makes no context, {}", status_name(status))),
        }
    }
    if found.is_empty() {
        return Err(missing(format!(
            "no OpenCL platform has a usable device: {}",
            said.join("; ")
        )));
    }
    found.truncate(256);
    Ok(found)
}
