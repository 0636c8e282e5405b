//! Memory from the system: zero when it is fresh, and aligned.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// From here on blocks are pages of their own, aligned to pages; below they are the C library's.
pub(super) const OWN_PAGES: usize = 256 << 10;
/// From here on fresh pages are quicker than clearing the old ones. Measured by `cargo bench -p
/// keyfold-tensor --bench memory`: clearing 80 MiB takes 40 ms, and the faults of fresh pages 19 ms; for
/// 8 MiB it is 0.44 and 0.24, for 1 MiB 0.02 and 0.35.
pub(super) const RENEWED: usize = 16 << 20;
/// A cache line, and the widest vector register.
const ALIGN: usize = 64;
/// The system's large pages: with one fault for each, not for each small page.
#[cfg(target_os = "linux")]
const LARGE_PAGE: usize = 2 << 20;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGN).ok()
}

/// Memory, all zero; none where there isn't any. `bytes` isn't zero.
pub(super) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    #[cfg(target_os = "linux")]
    if bytes >= OWN_PAGES {
        return map(bytes);
    }
    // SAFETY: the size isn't zero.
    NonNull::new(unsafe { alloc_zeroed(layout(bytes)?) })
}

/// Gives it back.
///
/// # Safety
/// `start` came from [`allocate`] with this size, and nobody uses it any more.
pub(super) unsafe fn free(start: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    if bytes >= OWN_PAGES {
        // SAFETY: a mapping of ours. It can fail only where the system has no memory to note what is
        // left of a larger one; then it stays mapped, which nobody sees.
        unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
        return;
    }
    if let Some(layout) = layout(bytes) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(start.as_ptr(), layout) };
    }
}

/// Makes memory zero by fresh pages, if it can.
///
/// # Safety
/// `start` came from [`allocate`] with this size, [`OWN_PAGES`] or more, and nobody else uses it.
pub(super) unsafe fn renew(start: NonNull<u8>, bytes: usize) -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: a private mapping of ours, whose pages read as zero from then on.
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
    // Room to begin at a multiple of a large page; what is too much goes back at once.
    let whole = map_pages(bytes.checked_add(LARGE_PAGE)?)?;
    let before = whole.addr().get().next_multiple_of(LARGE_PAGE) - whole.addr().get();
    // SAFETY: both parts lie in the mapping, at multiples of a page, and nobody uses them; the rest
    // stays. That a piece can't be given back, or that there are no large pages, does no harm.
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
