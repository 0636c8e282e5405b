//! The interpreter loop: runs a program's instructions on one block.

use smallvec::SmallVec;

use super::compile::{Action, Gather, Instruction};
use super::kernel::Kernel;
use super::streaming::{CHUNK, MemoryWork, PendingStores};
use super::value::Value;
use super::{Fault, Program};

/// A ranked input: its address, and as many sizes and strides (in elements) as its rank.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// The first element.
    pub ptr: *const u8,
    /// Its sizes.
    pub shape: &'a [usize],
    /// Its strides, in elements.
    pub strides: &'a [isize],
}

/// The memory that a program runs on, for one block.
#[derive(Debug)]
pub struct Frame<'a> {
    /// Pointers to inputs, iota operands, the output, kept values and registers, all aligned. Those
    /// of ranked inputs aren't used.
    pub slots: &'a mut [*mut u8],
    /// The uniform values that [`Program::prepare`] computed.
    pub values: &'a [Value],
    /// A table per input; only those of ranked inputs are used.
    pub tables: &'a [Table<'a>],
    /// Workspace for the element offsets of a gather, a block long; null if the program gathers nothing.
    pub gather_offsets: *mut i64,
    /// Workspace for gathered elements before their conversion, likewise.
    pub gathered: *mut u8,
}

impl Program {
    /// Computes a block of `len` elements.
    ///
    /// # Errors
    /// The fault of an element; the results computed before it are unspecified, but initialised.
    ///
    /// # Safety
    /// `len` is at most [`Program::block`], or the program [is one chain](Program::is_one_chain). The slots are as
    /// many as [`Program::slots`], each valid
    /// for `len` aligned elements of what is computed: inputs and kept values initialised, the
    /// output and the registers writable and apart from each other and from all others. Tables
    /// describe memory that can be read.
    pub unsafe fn run(&self, frame: &Frame<'_>, len: usize) -> Result<(), Fault> {
        for instruction in &self.code.instructions {
            // SAFETY: the caller's promise.
            unsafe { step(instruction, frame, len)? };
        }
        Ok(())
    }

    /// As [`Program::run`], with prefetches and non-temporal stores. Each input is prefetched `ahead`
    /// bytes behind this block's addresses (0: it isn't prefetched). The non-temporal stores write
    /// `pending` and, if `streams_result` is set, this block's results; only a program that
    /// [can](Program::streams_result) may set it.
    ///
    /// # Errors
    /// As [`Program::run`].
    ///
    /// # Safety
    /// As [`Program::run`], of a program that [has a streaming kernel](Program::has_streaming_kernel).
    /// The pending results are in no register that the program uses, and have at most `per_chunk` cache
    /// lines for each of the block's whole chunks (64 elements). If `streams_result` is set, the block
    /// is a number of whole chunks, and the output's slot begins at a cache line.
    pub unsafe fn run_streaming(
        &self,
        frame: &Frame<'_>,
        len: usize,
        ahead: &[isize],
        pending: PendingStores,
        streams_result: bool,
    ) -> Result<(), Fault> {
        let mut next = SmallVec::<[(*const u8, usize); 4]>::new();
        for ((access, ahead), slot) in self.accesses.iter().zip(ahead).zip(&*frame.slots) {
            if access.direct && *ahead != 0 {
                next.push((slot.wrapping_offset(*ahead).cast_const(), CHUNK * access.size));
            }
        }
        let mut work = MemoryWork {
            prefetches: &next,
            pending,
            streams_results: streams_result,
            first: 0,
            every: self.code.streaming,
        };
        for instruction in &self.code.instructions {
            let dst = frame.slots[instruction.dst as usize];
            match &instruction.action {
                Action::Run(Kernel { streaming: Some(streaming), .. }) => {
                    let [a, b, c] = instruction.pointers(frame.slots);
                    // SAFETY: the caller's promise.
                    unsafe { streaming(dst, a, b, c, len, &work) };
                    work.first += 1;
                }
                Action::Chain(chain) => {
                    // SAFETY: the caller's promise.
                    unsafe { chain.run(frame, dst, len, &work) };
                    work.first += 1;
                }
                // SAFETY: the caller's promise.
                _ => unsafe { step(instruction, frame, len)? },
            }
        }
        Ok(())
    }
}

impl Instruction {
    /// The operand pointers of an instruction's kernel.
    #[inline(always)]
    fn pointers(&self, slots: &[*mut u8]) -> [*const u8; 3] {
        let [a, b, c] = self.operands.map(|slot| slots[slot as usize].cast_const());
        [a, b, self.constants.as_ref().map_or(c, |constants| constants.as_ptr().cast())]
    }
}

/// # Safety
/// As [`Program::run`].
#[inline(always)]
unsafe fn step(instruction: &Instruction, frame: &Frame<'_>, len: usize) -> Result<(), Fault> {
    let slots = &*frame.slots;
    let dst = slots[instruction.dst as usize];
    match &instruction.action {
        Action::Run(kernel) => {
            let [a, b, c] = instruction.pointers(slots);
            // SAFETY: the caller's promise; the compiler allocated every step a register that holds none
            // of its operands.
            if unsafe { (kernel.run)(dst, a, b, c, len) } {
                return Err(Fault::NegativePower);
            }
        }
        Action::Chain(chain) => {
            // SAFETY: as above.
            unsafe { chain.run(frame, dst, len, &MemoryWork::NONE) };
        }
        Action::Fill(load, value) => {
            // SAFETY: as above; a value is as large as any element.
            unsafe { load(dst, frame.values[*value as usize].0.as_ptr(), 0, len) };
        }
        Action::Copy(load) => {
            let from = slots[instruction.operands[0] as usize];
            // SAFETY: as above.
            unsafe { load(dst, from, 1, len) };
        }
        Action::Gather(gather) => {
            // SAFETY: as above.
            unsafe { gather_block(gather, frame, dst, len)? };
        }
    }
    Ok(())
}

/// # Safety
/// As [`Program::run`].
unsafe fn gather_block(
    gather: &Gather,
    frame: &Frame<'_>,
    dst: *mut u8,
    len: usize,
) -> Result<(), Fault> {
    let table = &frame.tables[gather.input as usize];
    // SAFETY: the frame has room for a block of offsets.
    let offsets = unsafe { std::slice::from_raw_parts_mut(frame.gather_offsets, len) };
    offsets.fill(0);
    for (dim, slot) in gather.indices.iter().enumerate() {
        let (size, stride) = (table.shape[dim] as i64, table.strides[dim] as i64);
        // SAFETY: the operand is a block of int64.
        let indices = unsafe {
            std::slice::from_raw_parts(frame.slots[*slot as usize].cast::<i64>().cast_const(), len)
        };
        let mut outside = false;
        for (offset, index) in offsets.iter_mut().zip(indices) {
            let from_start = index + if *index < 0 { size } else { 0 };
            outside |= from_start as u64 >= size as u64;
            *offset = offset.wrapping_add(from_start.wrapping_mul(stride));
        }
        if outside {
            let value = indices.iter().copied().find(|i| *i < -size || *i >= size).unwrap_or(0);
            let input = gather.input;
            return Err(Fault::IndexOutOfRange { input, dim: dim as u32, value, size });
        }
    }
    let target = if gather.convert.is_some() { frame.gathered } else { dst };
    // SAFETY: every index is inside the table's shape, and the target has room for a block.
    unsafe {
        match gather.size {
            1 => gather_elements::<u8>(target, table.ptr, offsets),
            2 => gather_elements::<u16>(target, table.ptr, offsets),
            4 => gather_elements::<u32>(target, table.ptr, offsets),
            8 => gather_elements::<[u32; 2]>(target, table.ptr, offsets),
            _ => gather_elements::<[u64; 2]>(target, table.ptr, offsets),
        }
        if let Some(convert) = gather.convert {
            convert(dst, target, 1, len);
        }
    }
    Ok(())
}

/// # Safety
/// `src` is valid for reading at all offsets, `dst` for writing as many elements.
unsafe fn gather_elements<T: Copy>(dst: *mut u8, src: *const u8, offsets: &[i64]) {
    let (dst, src) = (dst.cast::<T>(), src.cast::<T>());
    for (i, offset) in offsets.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { *dst.add(i) = *src.offset(*offset as isize) };
    }
}
