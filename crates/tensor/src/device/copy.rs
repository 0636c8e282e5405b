//! Copies of strided elements on the host, large ones by several threads.

use std::ops::Range;
use std::sync::OnceLock;

use keyfold_core::Result;

use crate::strided::Walk;

/// Calls a function once with each number below a count, on any threads, and returns when all calls have:
/// what [`share_copies`] takes.
pub type Share = fn(parts: usize, copy: &(dyn Fn(usize) + Sync)) -> Result<()>;

static SHARE: OnceLock<Share> = OnceLock::new();

/// Has copies on the host of a megabyte and more run in parts by this function from now on. Returns whether
/// it is the first one given; any other is left out. Without one they run on the calling thread. This crate
/// has no threads of its own; `keyfold::init()` gives the pool of `keyfold-kit`.
pub fn share_copies(share: Share) -> bool {
    SHARE.set(share).is_ok()
}

/// Copies of so many bytes are shared out. Waking a sleeping worker takes as long as copying half of that.
const LARGE: usize = 1 << 20;

/// Whether a copy of so many bytes is shared out.
#[inline]
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= LARGE
}

/// Bytes of a part, about: copying them takes 20 to 200 microseconds.
const PART: usize = 256 << 10;

/// The most elements of a row that are copied before those of the next row, where the source's nearest
/// elements are in the next row: its lines stay in the cache until they are read whole.
const STRIP: usize = 64;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// Copies `numel` elements of `size` bytes from one strided place on the host to another. Strides count
/// elements.
///
/// # Errors
/// [`ErrorKind::Shape`](keyfold_core::ErrorKind::Shape) when strides aren't as many as the sizes; what
/// [`share_copies`] was given reports.
///
/// # Safety
/// The shape has that many elements. Every element that shape and strides reach from `from` is valid for
/// reads, and from `to` for writes; the two have no byte in common, and neither have two elements of `to`.
#[inline]
pub(crate) unsafe fn copy_elements(
    (from, from_strides): (*const u8, &[isize]),
    (to, to_strides): (*mut u8, &[isize]),
    shape: &[usize],
    (numel, size): (usize, usize),
) -> Result<()> {
    if is_large(numel * size) {
        // SAFETY: the caller's promise.
        return unsafe { copy_large((from, from_strides), (to, to_strides), shape, size) };
    }
    let copy = Copy { from, to, size, walk: Walk::new(shape, [from_strides, to_strides])? };
    let (run, len, steps) = (copy.choose(), copy.walk.run_len(), copy.walk.run_steps());
    copy.walk.runs(|offsets| {
        let (from, to) = copy.at(offsets);
        // SAFETY: the walk stays inside both layouts, which don't share elements.
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
/// As many fit at `to`, and nobody else uses that memory.
#[inline]
pub(crate) unsafe fn copy_bytes(from: &[u8], to: *mut u8) -> Result<()> {
    if is_large(from.len()) {
        // SAFETY: the caller's promise.
        return unsafe { copy_many_bytes(from, to) };
    }
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    Ok(())
}

/// As [`copy_bytes`], by several threads.
///
/// # Safety
/// As [`copy_bytes`].
#[cold]
unsafe fn copy_many_bytes(from: &[u8], to: *mut u8) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { copy_parts((from.as_ptr(), &[1]), (to, &[1]), &[from.len()], 1) }
}

/// As [`copy_elements`], by several threads.
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
        // The strips are the outermost dimension, and the source's nearest elements are in the next row.
        let others = || (0..last).filter(move |dim| *dim != next).chain([next]);
        let split = |strides: &[isize]| -> Vec<isize> {
            let all = [strides[last] * strip as isize].into_iter();
            all.chain(others().map(|dim| strides[dim])).chain([strides[last]]).collect()
        };
        let mut sizes = vec![strips];
        sizes.extend(others().map(|dim| shape[dim]).chain([strip]));
        // SAFETY: the same elements, but for the rest of each row.
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
    // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise; each part has elements of its own.
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

// SAFETY: threads read what nobody writes meanwhile, and each writes elements of its own.
unsafe impl Sync for Copy {}

impl Copy {
    /// Where elements at those offsets are.
    #[inline]
    fn at(&self, [from, to]: [isize; 2]) -> (*const u8, *mut u8) {
        let size = self.size as isize;
        (self.from.wrapping_offset(from * size), self.to.wrapping_offset(to * size))
    }

    /// What copies a run.
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

    /// Copies the elements with these numbers in the walk.
    ///
    /// # Safety
    /// As [`copy_elements`]; no other thread copies these.
    unsafe fn elements(&self, elements: Range<usize>) {
        let (run, steps) = (self.choose(), self.walk.run_steps());
        self.walk.runs_of(elements, |offsets, len| {
            let (from, to) = self.at(offsets);
            // SAFETY: the walk stays inside both layouts, which don't share elements.
            unsafe { run(from, to, self.size, len, steps) };
        });
    }
}

/// Copies one run of so many elements of a size; steps count elements. All elements on both sides must
/// be valid, and the sides share none.
type CopyRun = unsafe fn(*const u8, *mut u8, usize, usize, [isize; 2]);

/// A [`CopyRun`] of elements without gaps.
///
/// # Safety
/// As [`CopyRun`] says.
unsafe fn copy_dense(from: *const u8, to: *mut u8, size: usize, len: usize, _: [isize; 2]) {
    // SAFETY: the caller's promise.
    unsafe { to.copy_from_nonoverlapping(from, len * size) };
}

/// A [`CopyRun`] of elements of `N` bytes.
///
/// # Safety
/// As [`CopyRun`] says.
unsafe fn copy_run<const N: usize>(
    from: *const u8,
    to: *mut u8,
    _size: usize,
    len: usize,
    [from_step, to_step]: [isize; 2],
) {
    let (from, to) = (from.cast::<[u8; N]>(), to.cast::<[u8; N]>());
    for i in 0..len as isize {
        // SAFETY: the caller's promise; byte arrays need no alignment.
        unsafe { *to.wrapping_offset(i * to_step) = *from.wrapping_offset(i * from_step) };
    }
}

/// A [`CopyRun`] of elements of a size that no dtype has.
///
/// # Safety
/// As [`CopyRun`] says.
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
        // SAFETY: the caller's promise.
        unsafe { to.copy_from_nonoverlapping(from, size) };
    }
}
