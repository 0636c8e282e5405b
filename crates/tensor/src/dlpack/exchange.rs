//! DLPack's C exchange API (since 1.3): a table of functions of an array class, faster than
//! `__dlpack__` since they neither call Python nor make a capsule.
//!
//! From the description at <https://dmlc.github.io/dlpack/latest/c_api.html>. The class has the
//! table in a capsule, `__dlpack_c_exchange_api__`, which lives as long as the process.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use super::abi::{DLManagedTensorVersioned, DLPACK_MAJOR_VERSION, DLPackVersion, DLTensor};

/// The capsule's name.
pub const EXCHANGE_API_NAME: &std::ffi::CStr = c"dlpack_exchange_api";

/// Reports an allocation's error: context, kind, message.
pub type SetError = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);

/// The fields that all versions share.
#[repr(C)]
#[derive(Debug)]
pub struct ExchangeHeader {
    /// The version of the table.
    pub version: DLPackVersion,
    /// A table of an older version, or null.
    pub older: *const ExchangeHeader,
}

/// The table of major version 1.
#[repr(C)]
#[derive(Debug)]
pub struct ExchangeApi {
    /// Version and older tables.
    pub header: ExchangeHeader,
    /// Allocates memory like a prototype.
    pub allocate: Option<
        unsafe extern "C" fn(
            *mut DLTensor,
            *mut *mut DLManagedTensorVersioned,
            *mut c_void,
            SetError,
        ) -> c_int,
    >,
    /// Exports an object's memory, kept alive until the struct's deleter is called.
    pub export:
        Option<unsafe extern "C" fn(*mut c_void, *mut *mut DLManagedTensorVersioned) -> c_int>,
    /// Makes an object of the class from a struct and takes ownership of it.
    pub import:
        Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned, *mut *mut c_void) -> c_int>,
    /// Describes an object's memory for the duration of a call; may be absent.
    pub describe: Option<unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int>,
    /// Returns the library's current stream.
    pub stream: Option<unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int>,
}

// SAFETY: the table is constant for the life of the process.
unsafe impl Sync for ExchangeApi {}

impl ExchangeApi {
    /// Returns the table of the known major version: the one behind a capsule's pointer or one of
    /// the older ones linked from it. `None` if there is none, or if it lacks required functions.
    ///
    /// # Safety
    /// `header` is null or the pointer of a capsule named [`EXCHANGE_API_NAME`].
    pub unsafe fn find(header: *const c_void) -> Option<&'static ExchangeApi> {
        let mut header = header.cast::<ExchangeHeader>();
        // Bounded, against a cyclic chain.
        for _ in 0..64 {
            let found = NonNull::new(header.cast_mut())?;
            // SAFETY: the caller's contract: every version begins with this header.
            let (major, older) = unsafe { (found.as_ref().version.major, found.as_ref().older) };
            if major == DLPACK_MAJOR_VERSION {
                // SAFETY: the version has this layout; tables live as long as the process.
                let api = unsafe { found.cast::<ExchangeApi>().as_ref() };
                return (api.export.is_some() && api.import.is_some()).then_some(api);
            }
            header = older;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use super::*;

    unsafe extern "C" fn export(_: *mut c_void, _: *mut *mut DLManagedTensorVersioned) -> c_int {
        -1
    }

    unsafe extern "C" fn import(_: *mut DLManagedTensorVersioned, _: *mut *mut c_void) -> c_int {
        -1
    }

    fn table(major: u32, older: *const ExchangeHeader) -> ExchangeApi {
        let version = DLPackVersion { major, minor: 3 };
        let header = ExchangeHeader { version, older };
        let (export, import) = (Some(export as _), Some(import as _));
        ExchangeApi { header, allocate: None, export, import, describe: None, stream: None }
    }

    #[test]
    fn the_table_of_our_version_is_found_behind_newer_ones() {
        let ours = table(1, null());
        let newer = table(2, &raw const ours.header);
        let newest = table(3, &raw const newer.header);
        let find = |table: &ExchangeApi| {
            // SAFETY: tables of this layout.
            unsafe { ExchangeApi::find(std::ptr::from_ref(table).cast()) }.map(std::ptr::from_ref)
        };
        assert_eq!(find(&newest), Some(&raw const ours));
        assert_eq!(find(&ours), Some(&raw const ours));
        assert_eq!(find(&table(2, null())), None);
        assert_eq!(find(&ExchangeApi { export: None, ..table(1, null()) }), None);
        // SAFETY: null is allowed.
        assert!(unsafe { ExchangeApi::find(null()) }.is_none());
    }

    #[test]
    fn a_chain_that_bites_its_tail_ends() {
        let mut own = table(2, null());
        let this = &raw const own.header;
        own.header.older = this;
        // SAFETY: a table of this layout.
        assert!(unsafe { ExchangeApi::find((&raw const own).cast()) }.is_none());
    }
}
