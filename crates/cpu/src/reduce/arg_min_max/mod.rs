//! argmax and argmin: the index of the greatest or the smallest element. Among equal elements it is the
//! first, and a NaN, if there is one, comes before all numbers.
//!
//! As for sums, the division into parts depends only on shape and layout.

mod columns;
mod search;
mod transposed;

use keyfold_backend::ReduceParams;
use keyfold_core::{Error, ErrorKind, Result};
use keyfold_kit::axes::{Body, Bool, FLOATS, HasDtype, I64, INTS, Output};
use keyfold_tensor::Tensor;

use self::columns::Columns;
use super::blocks::{Input, Sink};
use super::call::{ReduceCall, ReduceKernel, Step};
use super::convert::{BoolByte, ReductionTypes, To};
use super::geometry::{Geometry, Reduction};
use super::kernels::{Erased, LaneKernels, erase};
use super::monoid::{AllOrAny, Extreme, Monoid, Ordered, beyond};
use super::rows::Rows;
use super::{Kernel, Kernels};
use crate::element::HasBits;

/// The kernels of argmin and argmax.
pub(crate) fn kernels<const MIN: bool>(name: &str) -> Kernels {
    let table = Kernels::builder(name)
        .cover((INTS, Output(I64)), ArgMinMax::<MIN>)
        .cover((FLOATS, Output(I64)), ArgMinMax::<MIN>)
        .cover((Bool, Output(I64)), ArgMinMaxOfBool::<MIN>);
    table.build().expect("each dtype is covered once")
}

#[derive(Clone, Copy)]
struct ArgMinMax<const MIN: bool>;

impl<C, const MIN: bool> Body<C, Kernel> for ArgMinMax<MIN>
where
    C: HasDtype<Element: ReductionTypes<Number: Ordered> + To<Number<C>>>,
{
    fn instance(&self, _: C) -> Kernel {
        ReduceKernel(|call| {
            let input = Input::<C::Element>::plain(call.base::<C::Element>()?);
            launch(Search::new::<Extreme<Number<C>, MIN>, MIN>(), call, input)
        })
    }
}

type Number<C> = <<C as HasDtype>::Element as ReductionTypes>::Number;

/// The argument reduction of bools: the first true, or the first false, decides.
#[derive(Clone, Copy)]
struct ArgMinMaxOfBool<const MIN: bool>;

impl<C: HasDtype, const MIN: bool> Body<C, Kernel> for ArgMinMaxOfBool<MIN> {
    fn instance(&self, _: C) -> Kernel {
        ReduceKernel(|call| {
            let input = Input::<BoolByte>::plain(call.base::<C::Element>()?);
            launch(Search::new::<AllOrAny<u8, MIN>, MIN>(), call, input)
        })
    }
}

fn launch<S, T>(search: Search<S, T>, call: &ReduceCall<'_>, input: Input<S>) -> Result<()>
where
    S: Erased,
    T: HasBits<Bits: Sync>,
{
    let Step::Whole { x, out } = call.step else {
        return Err(Error::new(ErrorKind::NotSupported, "positions aren't found part by part"));
    };
    let sink = Sink::<Best<T>>::of::<i64>(call.out_base()?);
    launch_erased(&search.erased(), call.params, (x, input.erased()), (out, sink.erased()))
}

/// Compiled once for all searches of types of the same sizes.
#[inline(never)]
fn launch_erased<S, T>(
    search: &Search<S, T>,
    params: &ReduceParams,
    (x, mut input): (&Tensor, Input<S>),
    (out, mut sink): (&Tensor, Sink<Best<T>>),
) -> Result<()>
where
    S: Copy + 'static,
    T: Copy + Send + Sync + 'static,
{
    let geometry = Reduction::new(params, x).geometry(x, out, true);
    if geometry.lanes() == 0 {
        return Ok(());
    }
    input.base = input.at(geometry.x_base);
    sink.base = sink.at(geometry.out_base);
    if transposed::is_transposed(&geometry) {
        transposed::search(search, &geometry, input, sink)
    } else {
        search_dims(search, &geometry, input, sink)
    }
}

fn search_dims<S, T>(
    search: &Search<S, T>,
    geometry: &Geometry,
    input: Input<S>,
    sink: Sink<Best<T>>,
) -> Result<()>
where
    S: Copy + 'static,
    T: Copy + Send + Sync + 'static,
{
    if geometry.along_rows() || geometry.is_narrow() {
        Rows { geometry, input, loops: &search.loops, sink }.reduce()
    } else {
        columns::search_columns(&Columns { geometry, input, search, sink })
    }
}

/// The best number so far, and its index; [`NO_INDEX`] before the first.
#[derive(Clone, Copy)]
#[repr(C)]
struct Best<T> {
    number: T,
    index: i64,
}

const NO_INDEX: i64 = -1;

// SAFETY: the layout is that of C, and follows from the number's size and alignment.
unsafe impl<T: HasBits> Erased for Best<T> {
    type Bits = Best<T::Bits>;
}

impl<T> To<i64> for Best<T> {
    #[inline(always)]
    fn convert(self) -> i64 {
        self.index
    }
}

/// The loops of a search, compiled for each instruction level.
struct Search<S, T> {
    loops: LaneKernels<S, Best<T>>,
    /// Converts the elements of a row to numbers.
    convert_row: unsafe fn(*const S, &mut [T]),
    /// Compares rows, a step apart, with the best numbers so far; where an element is better it replaces
    /// the number, and its row's number the index. The first row's number is the last argument.
    rows: SearchRows<S, T>,
}

type SearchRows<S, T> = unsafe fn(*const S, isize, usize, &mut [T], &mut [u32], u32);

impl<S: To<T> + Copy + 'static, T: Ordered> Search<S, T> {
    /// The loops of a search in which `M` finds the best number.
    fn new<M: Monoid<Number = T>, const MIN: bool>() -> Self {
        let loops = LaneKernels {
            empty: Best { number: M::IDENTITY, index: NO_INDEX },
            lanes: search::lanes::<M, S, MIN>,
            join: |all, part| *all = first_best::<T, MIN>(*all, *part),
            add_offset: |best, by| best.index += by as i64,
            is_absorbing: |best| M::is_absorbing(best.number),
            has_absorbing: M::HAS_ABSORBING,
        };
        let convert_row = columns::convert_row::<S, T>;
        Search { loops, convert_row, rows: columns::rows::<S, T, MIN> }
    }
}

impl<S: Erased, T: HasBits> Search<S, T> {
    /// Returns the same loops for the bits of elements and numbers.
    fn erased(self) -> Search<S::Bits, T::Bits> {
        let loops = self.loops.erased();
        // SAFETY: the types differ by `Erased` behind pointers.
        unsafe { Search { loops, convert_row: erase(self.convert_row), rows: erase(self.rows) } }
    }
}

/// Whether `b` is better than `a`.
#[inline(always)]
fn is_better<T: Ordered, const MIN: bool>(a: T, b: T) -> bool {
    beyond::<T, MIN>(a, b) | (b.is_nan() & !a.is_nan())
}

/// The better of two, or the first of equals; `b` comes after `a`.
fn first_best<T: Ordered, const MIN: bool>(a: Best<T>, b: Best<T>) -> Best<T> {
    let better = a.index == NO_INDEX || is_better::<T, MIN>(a.number, b.number);
    if better && b.index != NO_INDEX { b } else { a }
}
