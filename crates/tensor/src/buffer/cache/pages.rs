//! Memory from the system: aligned, and zero when fresh.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// From this size on blocks are mapped and page-aligned; smaller ones are the C library's.
pub(super) const OWN_PAGES: usize = 256 << 10;
/// From this size on fresh pages are faster than clearing. Measured with `cargo bench -p
/// keyfold-tensor --bench memory`: clearing 80 MiB takes 40 ms and faulting fresh pages 19 ms; for
/// 8 MiB 0.44 and 0.24 ms, for 1 MiB 0.02 and 0.35 ms.
pub(super) const REMAPPED: usize = 16 << 20;
/// A cache line, and the widest vector register, in bytes.
const ALIGN: usize = 64;
/// The size of the system's large pages, which take one fault each.
#[cfg(target_os = "linux")]
const LARGE_PAGE: usize = 2 << 20;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGN).ok()
}

/// Allocates zeroed memory; `None` if there is none left. `bytes` isn't zero.
pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    #[cfg(target_os = "linux")]
    if bytes >= OWN_PAGES {
        return map(bytes);
    }
    // SAFETY: the size isn't zero.
    NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) })
}

/// Frees memory.
///
/// # Safety
/// `start` came from [`allocate`] with this size, and nothing accesses it any more.
pub(super) unsafe fn free(start: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    if bytes >= OWN_PAGES {
        // SAFETY: a mapping of `allocate`. Unmapping fails only if the system can't record the rest
        // of a larger mapping; then the memory stays mapped, unused.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
        return;
    }
    if let Some(layout) = layout(bytes) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(start.as_ptr(), layout) };
    }
}

/// Zeroes memory by mapping fresh pages; returns whether that worked.
///
/// # Safety
/// `start` came from [`allocate`] with this size, [`OWN_PAGES`] or more, and nothing else accesses
/// it.
pub(super) unsafe fn remap_zeroed(start: NonNull<u8>, bytes: usize) -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: a private mapping of `allocate`, whose pages read as zero afterwards.
    let renewed = unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) == 0 };
    #[cfg(not(target_os = "linux"))]
    let renewed = {
        let _ = (start, bytes);
        false
    };
    renewed
}

#[cfg(target_os = "linux")]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    if bytes < LARGE_PAGE {
        return map_pages(bytes);
    }
    // Maps enough to begin at a multiple of a large page, and unmaps the surplus at once.
    let whole = map_pages(bytes.checked_add(LARGE_PAGE)?)?;
    let before = whole.addr().get().next_multiple_of(LARGE_PAGE) - whole.addr().get();
    // SAFETY: both parts lie in the mapping, at multiples of a page, and nothing uses them; the
    // rest stays. Failing to unmap a part, or to get large pages, is harmless.
    unsafe {
        let start = whole.add(before);
        if before > 0 {
            libc::munmap(whole.as_ptr().cast(), before);
        }
        if before < LARGE_PAGE {
            libc::munmap(start.add(bytes).as_ptr().cast(), LARGE_PAGE - before);
        }
        libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
        Some(start)
    }
}

#[cfg(target_os = "linux")]
fn map_pages(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: fresh memory at an address that the system chooses.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}
