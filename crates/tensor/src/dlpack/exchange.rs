//! DLPack's C exchange API (since 1.3): what an array class offers besides `__dlpack__`, a table of
//! functions that neither call Python nor make a capsule.
//!
//! Written after the description at <https://dmlc.github.io/dlpack/latest/c_api.html>. The table hangs
//! on the class as a capsule, `__dlpack_c_exchange_api__`, and lives as long as the process.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::NonNull;

use super::abi::{DLManagedTensorVersioned, DLPACK_MAJOR_VERSION, DLPackVersion, DLTensor};

/// The capsule's name.
pub const EXCHANGE_API_NAME: &std::ffi::CStr = c"dlpack_exchange_api";

/// How an allocation says what went wrong: context, kind, message.
pub type SetError = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);

/// What stays the same in every version.
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
    /// Makes memory like a prototype.
    pub allocate: Option<
        unsafe extern "C" fn(
            *mut DLTensor,
            *mut *mut DLManagedTensorVersioned,
            *mut c_void,
            SetError,
        ) -> c_int,
    >,
    /// An object's memory, held until the struct's deleter is called.
    pub export:
        Option<unsafe extern "C" fn(*mut c_void, *mut *mut DLManagedTensorVersioned) -> c_int>,
    /// An object of the class out of a struct, which is taken over.
    pub import:
        Option<unsafe extern "C" fn(*mut DLManagedTensorVersioned, *mut *mut c_void) -> c_int>,
    /// A description of an object's memory for the time of a call; may be absent.
    pub describe: Option<unsafe extern "C" fn(*mut c_void, *mut DLTensor) -> c_int>,
    /// The stream that the library works on.
    pub stream: Option<unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int>,
}

// SAFETY: the table is constant for the life of the process.
unsafe impl Sync for ExchangeApi {}

impl ExchangeApi {
    /// The table of our major version behind a capsule's pointer, or among the older ones that it
    /// names; `None` if there is none, or one without the functions that a table must have.
    ///
    /// # Safety
    /// `header` is null or what a capsule named [`EXCHANGE_API_NAME`] holds.
    pub unsafe fn find(header: *const c_void) -> Option<&'static ExchangeApi> {
        let mut header = header.cast::<ExchangeHeader>();
        // A chain that never ends would be the producer's mistake; none is longer than this.
        for _ in 0..64 {
            let found = NonNull::new(header.cast_mut())?;
            // SAFETY: the caller's promise: every version begins with this header.
            let (major, older) = unsafe { (found.as_ref().version.major, found.as_ref().older) };
            if major == DLPACK_MAJOR_VERSION {
                // SAFETY: the version says that this is the layout; tables live for the process.
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
            // SAFETY: tables as the layout says.
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
        // SAFETY: a table as the layout says.
        assert!(unsafe { ExchangeApi::find((&raw const own).cast()) }.is_none());
    }
}
