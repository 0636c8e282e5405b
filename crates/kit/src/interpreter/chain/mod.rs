//! Chains of arithmetic in one loop.
//!
//! Between two loops over a block, each value is stored and loaded again, which takes longer than a sum
//! or product. A chain is computed tile by tile instead: a tile is as many elements as fit in the
//! processor's registers, where they stay from the first operation to the last. Its operations are
//! [functions that call each other](threaded).

mod threaded;
mod vector;

use std::mem::MaybeUninit;

use keyfold_core::DType;
use keyfold_expr::{Binary, Unary};
use smallvec::SmallVec;

use super::compile::Slot;
use super::run::Frame;
use super::streaming::{CHUNK, LINE, MemoryWork, PendingStores};
use super::value::Value;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::isa::{Isa, Work, dispatch};
use threaded::{COPIES, Link, Registers, Run, tile};
pub(super) use vector::Float;
use vector::Vector;

/// An operation on the value so far and, from `Add` to `MaxOf`, another operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Add,
    Mul,
    Sub,
    /// Subtracts the value from the operand.
    SubFrom,
    Div,
    /// Divides the operand by the value.
    DivInto,
    Min,
    /// The minimum with the operand first: of equal numbers, as 0 and -0, it is the second.
    MinOf,
    Max,
    /// The maximum with the operand first.
    MaxOf,
    Neg,
    Abs,
    Sqrt,
    /// Multiplies the value by itself.
    Square,
    /// Rounds to float16.
    ToF16,
    /// Rounds to bfloat16.
    ToBf16,
}

impl Op {
    /// The number of operations.
    const COUNT: usize = Op::ToBf16 as usize + 1;

    /// The operation of a function of two numbers. `swapped`: the value so far is the second one.
    pub(crate) fn binary(op: Binary, swapped: bool) -> Option<Op> {
        Some(match (op, swapped) {
            (Binary::Add, _) => Op::Add,
            (Binary::Mul, _) => Op::Mul,
            (Binary::Sub, false) => Op::Sub,
            (Binary::Sub, true) => Op::SubFrom,
            (Binary::Div, false) => Op::Div,
            (Binary::Div, true) => Op::DivInto,
            (Binary::Min, false) => Op::Min,
            (Binary::Min, true) => Op::MinOf,
            (Binary::Max, false) => Op::Max,
            (Binary::Max, true) => Op::MaxOf,
            _ => return None,
        })
    }

    /// Whether two of them are one loop without a chain.
    pub(crate) fn has_pairs(self) -> bool {
        matches!(self, Op::Add | Op::Mul | Op::Sub | Op::SubFrom)
    }

    /// The operation that rounds to a half.
    pub(crate) fn round(to: DType) -> Option<Op> {
        match to {
            DType::F16 => Some(Op::ToF16),
            DType::BF16 => Some(Op::ToBf16),
            _ => None,
        }
    }

    /// The operation of a function of one number.
    pub(crate) fn unary(op: Unary) -> Option<Op> {
        match op {
            Unary::Neg => Some(Op::Neg),
            Unary::Abs => Some(Op::Abs),
            Unary::Sqrt => Some(Op::Sqrt),
            _ => None,
        }
    }
}

/// The operand of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    /// The block of a slot.
    Block(Slot),
    /// A uniform value.
    Uniform(u32),
}

/// A chain of operations on float32 or float64.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) dtype: DType,
    /// The block that the first operation reads.
    pub(crate) first: Slot,
    /// The operations, each with its operand; those of one number ignore theirs.
    pub(crate) links: Vec<(Op, Operand)>,
}

impl Chain {
    /// Computes a block of `len` elements, and does the memory work of its chunks.
    ///
    /// # Safety
    /// As [`Run`](super::kernel::Run), for the blocks of the chain's slots; the frame has the uniform
    /// values. As [`StreamingRun`](super::streaming::StreamingRun) if there is memory work.
    pub(crate) unsafe fn run(
        &self,
        frame: &Frame<'_>,
        dst: *mut u8,
        len: usize,
        work: &MemoryWork<'_>,
    ) {
        match self.dtype {
            DType::F64 => dispatch(Loop { chain: self, frame, dst: dst.cast::<f64>(), len, work }),
            _ => dispatch(Loop { chain: self, frame, dst: dst.cast::<f32>(), len, work }),
        }
    }
}

struct Loop<'a, T> {
    chain: &'a Chain,
    frame: &'a Frame<'a>,
    dst: *mut T,
    len: usize,
    work: &'a MemoryWork<'a>,
}

impl<T: Float> Work for Loop<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        // SAFETY: the level is that of the vectors; the contract of `Chain::run`.
        unsafe {
            match I::LEVEL {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => self.block::<I, T::Avx512>(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => self.block::<I, T::Avx2>(),
                // For programs that were compiled before the level was lowered.
                _ => self.block::<I, T>(),
            }
        }
    }
}

/// The most cache lines of a tile.
const MOST: usize = 8;

/// A tile in memory, and the results of one before their non-temporal stores.
#[repr(C, align(64))]
struct Lines([u8; MOST * LINE]);

impl<T: Float> Loop<'_, T> {
    /// Computes the block.
    ///
    /// # Safety
    /// As [`Chain::run`]; the processor has the vectors' level.
    #[inline(always)]
    unsafe fn block<I: Isa, V: Registers<Element = T>>(&self) {
        const { assert!(tile::<V>() * size_of::<T>() <= MOST * LINE) };
        // SAFETY: the caller's promise.
        unsafe {
            match self.len {
                0 => {}
                len if len < tile::<V>() => self.short::<V>(),
                _ => self.tiles::<I, V>(),
            }
        }
    }

    /// The address of an operand, and whether it is one element for all.
    fn place(&self, operand: Operand) -> (*const T, bool) {
        match operand {
            Operand::Block(slot) => (self.frame.slots[slot as usize].cast_const().cast(), false),
            Operand::Uniform(value) => {
                let value: *const Value = &raw const self.frame.values[value as usize];
                (value.cast(), true)
            }
        }
    }

    /// Returns an operation as a link.
    ///
    /// # Safety
    /// As [`Chain::run`].
    #[inline(always)]
    unsafe fn link<V: Registers<Element = T>>(
        &self,
        (op, operand): (Op, Operand),
        copy: usize,
    ) -> Link<V> {
        let (at, uniform) = self.place(operand);
        // SAFETY: the caller's promise: a uniform value is of the chain's dtype.
        let number = uniform.then(|| unsafe { *at });
        Link { run: run_of::<V>(op, number, copy), at }
    }

    /// Computes the block by tiles, at least one.
    ///
    /// # Safety
    /// As [`Loop::block`].
    #[inline(always)]
    unsafe fn tiles<I: Isa, V: Registers<Element = T>>(&self) {
        let first = self.place(Operand::Block(self.chain.first)).0;
        let lines_of_tile = tile::<V>() * size_of::<T>() / LINE;
        // A tile of the baseline may be shorter than a line.
        let streams = self.work.streams_results && lines_of_tile > 0;
        let mut lines = MaybeUninit::<Lines>::uninit();
        let lines: *mut u8 = lines.as_mut_ptr().cast();
        let mut links = SmallVec::<[Link<V>; 33]>::new();
        let mut earlier = [0; Op::COUNT];
        for (op, operand) in &self.chain.links {
            let copy = &mut earlier[*op as usize];
            // SAFETY: the caller's promise.
            links.push(unsafe { self.link((*op, *operand), *copy) });
            *copy = (*copy + 1) % COPIES;
        }
        links.push(match streams {
            true => Link { run: V::last_at_start(), at: lines.cast() },
            false => Link { run: V::last(), at: self.dst },
        });
        let links = links.as_ptr();
        let (mut at, mut next) = (0, self.work.first);
        while at < self.len {
            // The last tile computes some elements of the one before again.
            let start = at.min(self.len - tile::<V>());
            at = start + tile::<V>();
            // SAFETY: the caller's promise: the tile lies within the block.
            unsafe {
                V::begin(links, start, first.add(start));
                if streams {
                    let (to, from) = (self.dst.add(start).cast(), lines.cast_const());
                    let (lines, per_chunk) = (lines_of_tile, lines_of_tile);
                    PendingStores { to, from, lines, per_chunk }.chunk::<I>(0);
                }
            }
            // The memory work of the chunks that are complete by now.
            while next < at / CHUNK {
                // SAFETY: the caller's promise.
                unsafe { self.work.chunk::<I>(next) };
                next += self.work.every;
            }
        }
    }

    /// Computes a block that is shorter than a tile: operation by operation, on tiles that begin with copies of
    /// its elements.
    ///
    /// # Safety
    /// As [`Loop::block`].
    #[inline(always)]
    unsafe fn short<V: Registers<Element = T>>(&self) {
        let (mut values, mut others) = (Lines([0; MOST * LINE]), Lines([0; MOST * LINE]));
        let (values, others) =
            (values.0.as_mut_ptr().cast::<T>(), others.0.as_mut_ptr().cast::<T>());
        let first = self.place(Operand::Block(self.chain.first)).0;
        // SAFETY: the operands have that many elements, and a tile has more; a block that streams results has
        // whole chunks, and isn't short.
        unsafe {
            std::ptr::copy_nonoverlapping(first, values, self.len);
            for (op, operand) in &self.chain.links {
                let mut link: Link<V> = self.link((*op, *operand), 0);
                if matches!(operand, Operand::Block(_)) {
                    std::ptr::copy_nonoverlapping(link.at, others, self.len);
                    link.at = others;
                }
                let links = [link, Link { run: V::last_at_start(), at: values }];
                V::begin(links.as_ptr(), 0, values);
            }
            std::ptr::copy_nonoverlapping(values, self.dst, self.len);
        }
    }
}

/// Returns what computes an operation, the copy of this number. `number` is a uniform operand.
#[inline(always)]
fn run_of<V: Registers>(op: Op, number: Option<V::Element>, copy: usize) -> Run<V>
where
    V::Element: Float,
{
    #[inline(always)]
    fn run<V: Registers, C: Combine, const UNIFORM: bool>(copy: usize) -> Run<V> {
        match copy {
            0 => V::link::<C, UNIFORM, 0>(),
            1 => V::link::<C, UNIFORM, 1>(),
            2 => V::link::<C, UNIFORM, 2>(),
            _ => V::link::<C, UNIFORM, 3>(),
        }
    }
    // Of equal numbers that aren't zeros it doesn't matter which is returned, and only the value may be NaN:
    // that is one instruction instead of three.
    let is_number = number.is_some_and(|number| number.partial_cmp(&number).is_some());
    let is_other = is_number && number != Some(V::Element::default());
    let is_uniform = number.is_some();
    let either = |uniform: fn(usize) -> Run<V>, block: fn(usize) -> Run<V>| {
        if is_uniform { uniform(copy) } else { block(copy) }
    };
    match op {
        Op::Min if is_other => run::<V, LeastOfNumber, true>(copy),
        Op::MinOf if is_number => run::<V, LeastOfNumber, true>(copy),
        Op::Max if is_other => run::<V, GreatestOfNumber, true>(copy),
        Op::MaxOf if is_number => run::<V, GreatestOfNumber, true>(copy),
        Op::Add => either(run::<V, Plus, true>, run::<V, Plus, false>),
        Op::Mul => either(run::<V, Times, true>, run::<V, Times, false>),
        Op::Sub => either(run::<V, Minus, true>, run::<V, Minus, false>),
        Op::SubFrom => either(run::<V, MinusFrom, true>, run::<V, MinusFrom, false>),
        Op::Div => either(run::<V, Over, true>, run::<V, Over, false>),
        Op::DivInto => either(run::<V, OverInto, true>, run::<V, OverInto, false>),
        Op::Min => either(run::<V, Least, true>, run::<V, Least, false>),
        Op::MinOf => either(run::<V, LeastOf, true>, run::<V, LeastOf, false>),
        Op::Max => either(run::<V, Greatest, true>, run::<V, Greatest, false>),
        Op::MaxOf => either(run::<V, GreatestOf, true>, run::<V, GreatestOf, false>),
        // Their operand isn't read.
        Op::Neg => run::<V, Negated, false>(copy),
        Op::Abs => run::<V, Absolute, false>(copy),
        Op::Sqrt => run::<V, Root, false>(copy),
        Op::Square => run::<V, Squared, false>(copy),
        Op::ToF16 => run::<V, ToF16, false>(copy),
        Op::ToBf16 => run::<V, ToBf16, false>(copy),
    }
}

/// A function of the value so far and an operand, as a type: closures aren't compiled for the level of
/// their caller.
pub(super) trait Combine: 'static {
    /// # Safety
    /// As all methods of [`Vector`].
    unsafe fn of<V: Vector>(value: V, operand: V) -> V;
}

/// Declares types: a macro, since each is one line.
macro_rules! combine {
    ($($name:ident($value:ident, $operand:ident) = $result:expr;)*) => {$(
        pub(super) struct $name;
        impl Combine for $name {
            #[inline(always)]
            unsafe fn of<V: Vector>($value: V, $operand: V) -> V {
                // SAFETY: the caller's promise.
                unsafe { $result }
            }
        }
    )*};
}

combine! {
    Plus(value, operand) = value.plus(operand);
    Times(value, operand) = value.times(operand);
    Minus(value, operand) = value.minus(operand);
    MinusFrom(value, operand) = operand.minus(value);
    Over(value, operand) = value.over(operand);
    OverInto(value, operand) = operand.over(value);
    Least(value, operand) = value.least(operand);
    LeastOf(value, operand) = operand.least(value);
    Greatest(value, operand) = value.greatest(operand);
    GreatestOf(value, operand) = operand.greatest(value);
    LeastOfNumber(value, operand) = value.least_of_number(operand);
    GreatestOfNumber(value, operand) = value.greatest_of_number(operand);
    Negated(value, _operand) = value.negated();
    Absolute(value, _operand) = value.absolute();
    Root(value, _operand) = value.root();
    Squared(value, _operand) = value.times(value);
    ToF16(value, _operand) = value.to_f16();
    ToBf16(value, _operand) = value.to_bf16();
}
