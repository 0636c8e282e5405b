//! The tensors of a step, walked together in blocks of the type that the step computes in.
//!
//! Elements that lie densely in that type are read and written in place. Others (halves, strided layouts) are
//! converted to a block in the first-level cache and back, so a step is compiled once for each computed
//! type and not for each combination of dtypes and layouts.

use std::mem::MaybeUninit;
use std::ops::Range;

use keyfold_core::{DType, Element, Result, bf16, f16};
use keyfold_kit::interpreter::access::Access;
use keyfold_kit::pool::{Schedule, parallel_for};
use keyfold_tensor::{Tensor, Walk};

/// The tensors of a step: the parameters, their gradients, and up to three buffers of state.
pub(super) const OPERANDS: usize = 5;

/// Elements that are converted at once: the blocks of all operands fit in the first-level cache.
const BLOCK: usize = 512;

/// Elements per task of one thread.
const TASK: usize = 1 << 14;

/// The arithmetic of a step, over one run of elements of each operand; the addresses of absent operands
/// aren't used.
pub(super) trait Step<T>: Sync {
    /// # Safety
    /// The run's elements of each operand that the step has can be read, those of written operands also
    /// written, and no other thread accesses these.
    unsafe fn run(&self, at: [*mut T; OPERANDS], len: usize);
}

/// A tensor of a step.
#[derive(Clone, Copy)]
struct Operand {
    /// The address of the first element; null where the step has no such operand.
    base: *mut u8,
    access: Access,
    /// Whether the elements are stored in the type that the step computes in.
    direct: bool,
    is_written: bool,
}

/// All operands, at the places that the step knows them by.
struct Operands([Operand; OPERANDS]);

// SAFETY: threads write to different elements of tensors that outlive the step.
unsafe impl Sync for Operands {}

/// A tensor of a step, and whether the step writes to it.
pub(super) type Given<'a> = Option<(&'a Tensor, bool)>;

/// Returns the address of a tensor's first element, and counts the write to it.
fn base((tensor, is_written): (&Tensor, bool)) -> Result<*mut u8> {
    fn of<T: Element>(tensor: &Tensor, is_written: bool) -> Result<*mut u8> {
        match is_written {
            true => tensor.data_mut_ptr::<T>().map(<*mut T>::cast),
            false => tensor.data_ptr::<T>().map(|at| at.cast_mut().cast()),
        }
    }
    match tensor.dtype() {
        DType::F16 => of::<f16>(tensor, is_written),
        DType::BF16 => of::<bf16>(tensor, is_written),
        DType::F64 => of::<f64>(tensor, is_written),
        _ => of::<f32>(tensor, is_written),
    }
}

/// Runs a step over all elements of tensors of one shape, of which the first is always there.
///
/// # Errors
/// If the host can't access a tensor's memory.
///
/// # Safety
/// Written tensors overlap nothing, and no other code accesses them; the tensors that the step uses are
/// given, of dtypes that are computed in `T`.
pub(super) unsafe fn run<T: Element>(
    step: &impl Step<T>,
    given: [Given<'_>; OPERANDS],
) -> Result<()> {
    let Some((first, _)) = given[0] else { return Ok(()) };
    let strides = given.map(|given| &**given.map_or(first, |(tensor, _)| tensor).strides());
    let walk = Walk::unordered(first.shape(), strides)?;
    let absent = Operand {
        base: std::ptr::null_mut(),
        access: Access::new(T::DTYPE),
        direct: true,
        is_written: false,
    };
    let mut operands = [absent; OPERANDS];
    for (operand, given) in operands.iter_mut().zip(given) {
        let Some((tensor, is_written)) = given else { continue };
        let direct = tensor.dtype() == T::DTYPE;
        let access = Access::new(tensor.dtype());
        *operand = Operand { base: base((tensor, is_written))?, access, direct, is_written };
    }
    let operands = &Operands(operands);
    parallel_for(Schedule::Adaptive, 0..first.numel(), TASK, |part| {
        // SAFETY: the caller's promise; each part has elements of its own.
        unsafe { part_of(step, operands, &walk, part) };
        Ok(())
    })
}

/// Runs a step over a part of the elements.
///
/// # Safety
/// As [`Step::run`], for the elements of the part.
unsafe fn part_of<T: Element>(
    step: &impl Step<T>,
    operands: &Operands,
    walk: &Walk<OPERANDS>,
    part: Range<usize>,
) {
    let steps = walk.run_steps();
    let in_place = |n: usize| {
        let operand = &operands.0[n];
        operand.base.is_null() || (operand.direct && steps[n] == 1)
    };
    let in_place: [bool; OPERANDS] = std::array::from_fn(in_place);
    let most = if in_place == [true; OPERANDS] { usize::MAX } else { BLOCK };
    let mut blocks = [[MaybeUninit::<T>::uninit(); BLOCK]; OPERANDS];
    walk.runs_of(part, |offsets, len| {
        let mut done = 0;
        while done < len {
            let count = most.min(len - done);
            let place = |n: usize| {
                let operand = &operands.0[n];
                let offset = offsets[n] + steps[n] * done as isize;
                operand.base.wrapping_offset(offset * operand.access.size as isize)
            };
            let mut at = [std::ptr::null_mut::<T>(); OPERANDS];
            for n in 0..OPERANDS {
                at[n] = if in_place[n] { place(n).cast() } else { blocks[n].as_mut_ptr().cast() };
                if !in_place[n] {
                    // SAFETY: the elements of the part are readable, and at most a block of them is
                    // converted, to the type that blocks have.
                    unsafe { (operands.0[n].access.load)(at[n].cast(), place(n), steps[n], count) };
                }
            }
            // SAFETY: the caller's promise; blocks are this thread's own, and were filled above.
            unsafe { step.run(at, count) };
            for n in (0..OPERANDS).filter(|n| !in_place[*n] && operands.0[*n].is_written) {
                // SAFETY: the elements are writable, as the caller promises.
                unsafe { (operands.0[n].access.store)(place(n), steps[n], at[n].cast(), count) };
            }
            done += count;
        }
    });
}
