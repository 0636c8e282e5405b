//! Chains of arithmetic in one loop.
//!
//! Between two loops over a block, each value is stored and loaded again, which takes longer than a sum
//! or product. A chain is computed tile by tile instead: a tile is as many elements as fit in the
//! processor's registers, where they stay from the first operation to the last. Which operation comes
//! next is looked up once per tile.

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
pub(super) use vector::Float;
use vector::Vector;

/// An operation on the value so far and, except for the last six, another operand.
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
            DType::F64 => dispatch(self.of::<f64>(frame, dst, len, work)),
            _ => dispatch(self.of::<f32>(frame, dst, len, work)),
        }
    }

    fn of<'a, T: Float>(
        &self,
        frame: &Frame<'_>,
        dst: *mut u8,
        len: usize,
        work: &'a MemoryWork<'a>,
    ) -> Loop<'a, T> {
        let links = self.links.iter().map(|(op, operand)| match operand {
            Operand::Block(slot) => {
                let at = frame.slots[*slot as usize].cast_const().cast();
                Link { op: *op, uniform: false, at }
            }
            Operand::Uniform(value) => {
                let value: *const Value = &raw const frame.values[*value as usize];
                Link { op: *op, uniform: true, at: value.cast() }
            }
        });
        let first = frame.slots[self.first as usize].cast_const().cast();
        Loop { dst: dst.cast(), first, links: links.collect(), len, work }
    }
}

/// An operation, with the address of its operand.
#[derive(Clone, Copy)]
struct Link<T> {
    op: Op,
    uniform: bool,
    at: *const T,
}

struct Loop<'a, T> {
    dst: *mut T,
    first: *const T,
    links: SmallVec<[Link<T>; 32]>,
    len: usize,
    work: &'a MemoryWork<'a>,
}

impl<T: Float> Work for Loop<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        // The tiles leave registers for an operand, and for the masks of minimum and maximum.
        // SAFETY: the level is that of the vectors; the contract of `Chain::run`.
        unsafe {
            match I::LEVEL {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => self.block::<I, T::Avx512, 16>(),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => self.block::<I, T::Avx2, 8>(),
                // Programs have chains only where the level is above this one when they are compiled.
                _ => self.block::<I, T, 16>(),
            }
        }
    }
}

/// The most cache lines of a tile.
const MOST: usize = 16;

/// The results of a tile before their non-temporal stores.
#[repr(C, align(64))]
struct Lines(MaybeUninit<[[u8; LINE]; MOST]>);

/// The most elements of a vector of registers.
const LONGEST: usize = 16;

impl<T: Float> Loop<'_, T> {
    /// Computes the block by tiles of `N` vectors, or of fewer if it is short.
    ///
    /// # Safety
    /// As [`Chain::run`]; the processor has the vectors' level.
    #[inline(always)]
    unsafe fn block<I: Isa, V: Vector<Element = T>, const N: usize>(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.len >= N * V::LEN {
                self.tiles::<I, V, N>();
            } else if self.len >= 4 * V::LEN {
                self.tiles::<I, V, 4>();
            } else if self.len >= V::LEN {
                self.tiles::<I, V, 1>();
            } else if self.len > 0 {
                self.short::<I, V>();
            }
        }
    }

    /// Computes the block by tiles of `N` vectors, at least one.
    ///
    /// # Safety
    /// As [`Loop::block`].
    #[inline(always)]
    unsafe fn tiles<I: Isa, V: Vector<Element = T>, const N: usize>(&self) {
        const { assert!(N * V::LEN * size_of::<T>() <= MOST * LINE && V::LEN <= LONGEST) };
        let (mut at, mut next) = (0, self.work.first);
        while at < self.len {
            // The last tile computes some elements of the one before again.
            let start = at.min(self.len - N * V::LEN);
            at = start + N * V::LEN;
            // SAFETY: the caller's promise: the tile lies within the block.
            unsafe { self.tile::<I, V, N>(start) };
            // The memory work of the chunks that are complete by now.
            while next < at / CHUNK {
                // SAFETY: the caller's promise.
                unsafe { self.work.chunk::<I>(next) };
                next += self.work.every;
            }
        }
    }

    /// Computes the elements of `N` vectors from `at` on.
    ///
    /// # Safety
    /// As [`Loop::block`]; the elements lie within the block.
    #[inline(always)]
    unsafe fn tile<I: Isa, V: Vector<Element = T>, const N: usize>(&self, at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut values = [V::load(self.first.add(at)); N];
            for (i, value) in values.iter_mut().enumerate().skip(1) {
                *value = V::load(self.first.add(at + i * V::LEN));
            }
            for link in &self.links {
                link.apply(&mut values, at);
            }
            let place = self.dst.add(at);
            let mut lines = Lines(MaybeUninit::uninit());
            let target = match self.work.streams_results {
                true => lines.0.as_mut_ptr().cast(),
                false => place,
            };
            for (i, value) in values.into_iter().enumerate() {
                value.store(target.add(i * V::LEN));
            }
            if self.work.streams_results {
                let lines = N * V::LEN * size_of::<T>() / LINE;
                let (to, from) = (place.cast(), target.cast_const().cast());
                PendingStores { to, from, lines, per_chunk: lines }.chunk::<I>(0);
            }
        }
    }

    /// Computes a block that is shorter than a vector, from copies of its operands.
    ///
    /// # Safety
    /// As [`Loop::block`].
    #[inline(always)]
    unsafe fn short<I: Isa, V: Vector<Element = T>>(&self) {
        let copy = |from: *const T| {
            let mut elements = [T::default(); LONGEST];
            // SAFETY: the operand has that many elements, and a vector has more.
            unsafe { std::ptr::copy_nonoverlapping(from, elements.as_mut_ptr(), self.len) };
            elements
        };
        let first = copy(self.first);
        let operands: SmallVec<[Option<[T; LONGEST]>; 8]> =
            self.links.iter().map(|link| (!link.uniform).then(|| copy(link.at))).collect();
        let links = self.links.iter().zip(&operands).map(|(link, copy)| {
            let at = copy.as_ref().map_or(link.at, |elements| elements.as_ptr());
            Link { at, ..*link }
        });
        let mut results = [T::default(); LONGEST];
        let (dst, first) = (results.as_mut_ptr(), first.as_ptr());
        let whole = Loop { dst, first, links: links.collect(), len: V::LEN, work: self.work };
        // SAFETY: all copies are as long as a vector; the block is as long as what is copied to it, and a
        // block that streams results has whole chunks.
        unsafe {
            whole.tile::<I, V, 1>(0);
            std::ptr::copy_nonoverlapping(dst, self.dst, self.len);
        }
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
    Negated(value, _operand) = value.negated();
    Absolute(value, _operand) = value.absolute();
    Root(value, _operand) = value.root();
    Squared(value, _operand) = value.times(value);
    ToF16(value, _operand) = value.to_f16();
    ToBf16(value, _operand) = value.to_bf16();
}

impl<T: Float> Link<T> {
    /// Applies the operation to the values of a tile that begins at `at`.
    ///
    /// # Safety
    /// As [`Loop::tile`].
    #[inline(always)]
    unsafe fn apply<V: Vector<Element = T>, const N: usize>(&self, values: &mut [V; N], at: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.op {
                Op::Add => self.combine::<Plus, V, N>(values, at),
                Op::Mul => self.combine::<Times, V, N>(values, at),
                Op::Sub => self.combine::<Minus, V, N>(values, at),
                Op::SubFrom => self.combine::<MinusFrom, V, N>(values, at),
                Op::Div => self.combine::<Over, V, N>(values, at),
                Op::DivInto => self.combine::<OverInto, V, N>(values, at),
                Op::Min => self.combine::<Least, V, N>(values, at),
                Op::MinOf => self.combine::<LeastOf, V, N>(values, at),
                Op::Max => self.combine::<Greatest, V, N>(values, at),
                Op::MaxOf => self.combine::<GreatestOf, V, N>(values, at),
                Op::Neg => self.combine::<Negated, V, N>(values, at),
                Op::Abs => self.combine::<Absolute, V, N>(values, at),
                Op::Sqrt => self.combine::<Root, V, N>(values, at),
                Op::Square => self.combine::<Squared, V, N>(values, at),
                Op::ToF16 => self.combine::<ToF16, V, N>(values, at),
                Op::ToBf16 => self.combine::<ToBf16, V, N>(values, at),
            }
        }
    }

    /// # Safety
    /// As [`Loop::tile`].
    #[inline(always)]
    unsafe fn combine<C: Combine, V: Vector<Element = T>, const N: usize>(
        &self,
        values: &mut [V; N],
        at: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.uniform {
                let operand = V::splat(*self.at);
                for value in values {
                    *value = C::of(*value, operand);
                }
            } else {
                for (i, value) in values.iter_mut().enumerate() {
                    *value = C::of(*value, V::load(self.at.add(at + i * V::LEN)));
                }
            }
        }
    }
}
