//! Copies of strided elements on the host, multi-threaded for large ones.

use std::ops::Range;
use std::sync::OnceLock;

use keyfold_core::Result;

use crate::strided::Walk;

/// A function that calls `copy` once with each number below `parts`, on any threads, and returns
/// after the last call: the argument of [`share_copies`].
pub type Share = fn(parts: usize, copy: &(dyn Fn(usize) + Sync)) -> Result<()>;

static SHARE: OnceLock<Share> = OnceLock::new();

/// Sets the function that runs host copies of a megabyte and more in parts. Returns false, without
/// effect, if one is set already. Without one, copies run on the calling thread. This crate has no
/// threads of its own; `keyfold::init()` sets the pool of `keyfold-kit`.
pub fn share_copies(share: Share) -> bool {
    SHARE.set(share).is_ok()
}

/// The size in bytes from which copies run on several threads. Waking a sleeping worker takes as
/// long as copying half of that.
const LARGE: usize = 1 << 20;

/// Returns whether a copy of so many bytes runs on several threads.
#[inline]
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= LARGE
}

/// The approximate size of a part in bytes, which takes 20 to 200 microseconds to copy.
const PART: usize = 256 << 10;

/// The most elements of a row that are copied before continuing with the next row, if the source's
/// neighbours lie along the next row: the source's cache lines then stay cached until all of their
/// elements are read.
const STRIP: usize = 64;

/// The size of a cache line in bytes.
const LINE: usize = 64;

/// Copies `numel` elements of `size` bytes between two strided layouts on the host. Strides count
/// elements.
///
/// # Errors
/// [`ErrorKind::Shape`](keyfold_core::ErrorKind::Shape) if the numbers of strides and sizes differ;
/// the errors of the function given to [`share_copies`].
///
/// # Safety
/// The shape has `numel` elements. Every element that shape and strides reach from `from` is valid
/// for reads, and from `to` for writes. The two share no bytes, and neither do two elements of
/// `to`.
#[inline]
pub(crate) unsafe fn copy_elements(
    (from, from_strides): (*const u8, &[isize]),
    (to, to_strides): (*mut u8, &[isize]),
    shape: &[usize],
    (numel, size): (usize, usize),
) -> Result<()> {
    if is_large(numel * size) {
        // SAFETY: the caller's contract.
        return unsafe { copy_large((from, from_strides), (to, to_strides), shape, size) };
    }
    let copy = Copy { from, to, size, walk: Walk::new(shape, [from_strides, to_strides])? };
    let (run, len, steps) = (copy.choose(), copy.walk.run_len(), copy.walk.run_steps());
    copy.walk.runs(|offsets| {
        let (from, to) = copy.at(offsets);
        // SAFETY: the walk stays inside both layouts, which share no elements.
        unsafe { run(from, to, size, len, steps) };
    });
    Ok(())
}

/// Copies bytes.
///
/// # Errors
/// As [`copy_elements`].
///
/// # Safety
/// `to` has room for them, and nothing else accesses that memory.
#[inline]
pub(crate) unsafe fn copy_bytes(from: &[u8], to: *mut u8) -> Result<()> {
    if is_large(from.len()) {
        // SAFETY: the caller's contract.
        return unsafe { copy_many_bytes(from, to) };
    }
    // SAFETY: the caller's contract.
    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    Ok(())
}

/// As [`copy_bytes`], on several threads.
///
/// # Safety
/// As [`copy_bytes`].
#[cold]
unsafe fn copy_many_bytes(from: &[u8], to: *mut u8) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { copy_parts((from.as_ptr(), &[1]), (to, &[1]), &[from.len()], 1) }
}

/// As [`copy_elements`], on several threads.
///
/// # Safety
/// As [`copy_elements`].
#[cold]
unsafe fn copy_large(
    (from, from_strides): (*const u8, &[isize]),
    (to, to_strides): (*mut u8, &[isize]),
    shape: &[usize],
    size: usize,
) -> Result<()> {
    let far = |stride: isize| stride.unsigned_abs() * size >= LINE;
    let near = |dim: &usize| from_strides[*dim] != 0 && !far(from_strides[*dim]) && shape[*dim] > 1;
    if let Some(last) = shape.len().checked_sub(1)
        && far(from_strides[last])
        && shape[last] * size >= LINE
        && let Some(next) = (0..last).find(near)
    {
        let strip = shape[last].min(STRIP);
        let (strips, rest) = (shape[last] / strip, shape[last] % strip);
        // Strips are the outermost dimension; the source's neighbours lie along dimension `next`.
        let others = || (0..last).filter(move |dim| *dim != next).chain([next]);
        let split = |strides: &[isize]| -> Vec<isize> {
            let all = [strides[last] * strip as isize].into_iter();
            all.chain(others().map(|dim| strides[dim])).chain([strides[last]]).collect()
        };
        let mut sizes = vec![strips];
        sizes.extend(others().map(|dim| shape[dim]).chain([strip]));
        // SAFETY: a subset of the same elements: full strips.
        unsafe {
            copy_parts((from, &split(from_strides)), (to, &split(to_strides)), &sizes, size)?;
        };
        let mut left = shape.to_vec();
        left[last] = rest;
        let done = (shape[last] - rest) as isize * size as isize;
        let from = from.wrapping_offset(from_strides[last] * done);
        let to = to.wrapping_offset(to_strides[last] * done);
        // SAFETY: the rest of each row.
        return unsafe { copy_parts((from, from_strides), (to, to_strides), &left, size) };
    }
    // SAFETY: the caller's contract.
    unsafe { copy_parts((from, from_strides), (to, to_strides), shape, size) }
}

/// As [`copy_elements`], in parts.
///
/// # Safety
/// As [`copy_elements`].
unsafe fn copy_parts(
    (from, from_strides): (*const u8, &[isize]),
    (to, to_strides): (*mut u8, &[isize]),
    shape: &[usize],
    size: usize,
) -> Result<()> {
    let copy = Copy { from, to, size, walk: Walk::new(shape, [from_strides, to_strides])? };
    let numel = shape.iter().product::<usize>();
    let parts = (numel * size).div_ceil(PART);
    let part = numel.div_ceil(parts.max(1));
    // SAFETY: the caller's contract; parts are disjoint.
    let each = |at: usize| unsafe { copy.elements(at * part..numel.min((at + 1) * part)) };
    match SHARE.get() {
        Some(share) if parts > 1 => share(parts, &each),
        _ => {
            (0..parts).for_each(each);
            Ok(())
        }
    }
}

/// A copy of elements along a walk.
struct Copy {
    from: *const u8,
    to: *mut u8,
    size: usize,
    walk: Walk<2>,
}

// SAFETY: threads read memory that isn't written meanwhile, and write disjoint elements.
unsafe impl Sync for Copy {}

impl Copy {
    /// Returns the addresses of the elements at those offsets.
    #[inline]
    fn at(&self, [from, to]: [isize; 2]) -> (*const u8, *mut u8) {
        let size = self.size as isize;
        (self.from.wrapping_offset(from * size), self.to.wrapping_offset(to * size))
    }

    /// Returns the function that copies a run.
    #[inline]
    fn choose(&self) -> CopyRun {
        match self.size {
            _ if self.walk.run_steps() == [1, 1] => copy_dense,
            1 => copy_run::<1>,
            2 => copy_run::<2>,
            4 => copy_run::<4>,
            8 => copy_run::<8>,
            16 => copy_run::<16>,
            _ => copy_odd,
        }
    }

    /// Copies the elements with these indices in the walk.
    ///
    /// # Safety
    /// As [`copy_elements`]; no other thread copies these.
    unsafe fn elements(&self, elements: Range<usize>) {
        let (run, steps) = (self.choose(), self.walk.run_steps());
        self.walk.runs_of(elements, |offsets, len| {
            let (from, to) = self.at(offsets);
            // SAFETY: the walk stays inside both layouts, which share no elements.
            unsafe { run(from, to, self.size, len, steps) };
        });
    }
}

/// Copies one run of `len` elements of `size` bytes; steps count elements. All elements on both
/// sides must be valid, and the sides disjoint.
type CopyRun = unsafe fn(*const u8, *mut u8, usize, usize, [isize; 2]);

/// A [`CopyRun`] of elements without gaps.
///
/// # Safety
/// As [`CopyRun`].
unsafe fn copy_dense(from: *const u8, to: *mut u8, size: usize, len: usize, _: [isize; 2]) {
    // SAFETY: the caller's contract.
    unsafe { to.copy_from_nonoverlapping(from, len * size) };
}

/// A [`CopyRun`] of elements of `N` bytes.
///
/// # Safety
/// As [`CopyRun`].
unsafe fn copy_run<const N: usize>(
    from: *const u8,
    to: *mut u8,
    _size: usize,
    len: usize,
    [from_step, to_step]: [isize; 2],
) {
    let (from, to) = (from.cast::<[u8; N]>(), to.cast::<[u8; N]>());
    for i in 0..len as isize {
        // SAFETY: the caller's contract; byte arrays need no alignment.
        unsafe { *to.wrapping_offset(i * to_step) = *from.wrapping_offset(i * from_step) };
    }
}

/// A [`CopyRun`] of elements of a size that no dtype has.
///
/// # Safety
/// As [`CopyRun`].
unsafe fn copy_odd(
    from: *const u8,
    to: *mut u8,
    size: usize,
    len: usize,
    [from_step, to_step]: [isize; 2],
) {
    for i in 0..len as isize {
        let from = from.wrapping_offset(i * from_step * size as isize);
        let to = to.wrapping_offset(i * to_step * size as isize);
        // SAFETY: the caller's contract.
        unsafe { to.copy_from_nonoverlapping(from, size) };
    }
}
