//! The place of the greatest or the smallest element: the first of several, and the first NaN if
//! there is one.
//!
//! As sums are, the work is cut into parts that depend on nothing but shape and layout.

mod columns;
mod search;
mod transposed;

use keyfold_backend::ReduceParams;
use keyfold_core::{DType, Element, Result, bf16, f16};
use keyfold_tensor::Tensor;

use self::columns::Columns;
use super::blocks::{Input, Sink};
use super::convert::{To, Truth};
use super::geometry::{Geometry, Reduction};
use super::min_max::MinMax;
use super::monoid::{All, Any, Extreme, Greatest, Monoid, Ordered, Pick, Smallest};
use super::ops::Loops;
use super::rows::Rows;
use super::{Kernel, base, out_base};
use crate::kernel::HostKernel;

/// The kernel for elements of a dtype; none for complex numbers, which have no order.
pub(crate) fn kernel(end: MinMax, dtype: DType) -> Option<Kernel> {
    macro_rules! of {
        // The type that stands for an element, the one that it is stored as, its number.
        ($type:ty, $stored:ty as $number:ty) => {
            of!(
                $type,
                $stored,
                Search::<$type, $number>::of(MinMax::Max),
                Search::<$type, $number>::of(MinMax::Min)
            )
        };
        ($type:ty, $stored:ty, $max:expr, $min:expr) => {
            match end {
                MinMax::Max => HostKernel::new(|params, inputs, out| {
                    launch::<$type, $stored, _>(&$max, params, inputs[0], out)
                }),
                MinMax::Min => HostKernel::new(|params, inputs, out| {
                    launch::<$type, $stored, _>(&$min, params, inputs[0], out)
                }),
            }
        };
    }
    Some(match dtype {
        // The first that is true, or false, decides.
        DType::Bool => of!(
            Truth,
            u8,
            Search::<Truth, u8>::with::<Greatest, Any<u8>>(),
            Search::<Truth, u8>::with::<Smallest, All<u8>>()
        ),
        DType::F16 => of!(f16, f16 as f32),
        DType::BF16 => of!(bf16, bf16 as f32),
        DType::U8 => of!(u8, u8 as u8),
        DType::U16 => of!(u16, u16 as u16),
        DType::U32 => of!(u32, u32 as u32),
        DType::U64 => of!(u64, u64 as u64),
        DType::I8 => of!(i8, i8 as i8),
        DType::I16 => of!(i16, i16 as i16),
        DType::I32 => of!(i32, i32 as i32),
        DType::I64 => of!(i64, i64 as i64),
        DType::F32 => of!(f32, f32 as f32),
        DType::F64 => of!(f64, f64 as f64),
        DType::C64 | DType::C128 => return None,
    })
}

fn launch<S, D, T>(
    search: &Search<S, T>,
    params: &ReduceParams,
    x: &Tensor,
    out: &Tensor,
) -> Result<()>
where
    S: To<T> + To<S> + Copy + 'static,
    D: Element,
    T: Ordered + To<T>,
{
    let geometry = Reduction::new(params, x).geometry(x, out, true);
    let mut input = Input::<S>::plain::<S>(base::<D>(x)?);
    let mut sink = Sink::<Best<T>>::of::<i64>(out_base(out)?);
    if geometry.lanes() == 0 {
        return Ok(());
    }
    input.base = input.at(geometry.x_base);
    sink.base = sink.at(geometry.out_base);
    if transposed::is_transposed(&geometry) {
        transposed::search(search, &geometry, input, sink)
    } else {
        one_way(search, &geometry, input, sink)
    }
}

fn one_way<S, T>(
    search: &Search<S, T>,
    geometry: &Geometry,
    input: Input<S>,
    sink: Sink<Best<T>>,
) -> Result<()>
where
    S: To<T> + Copy + 'static,
    T: Ordered,
{
    if geometry.along_rows() || geometry.is_narrow() {
        Rows { geometry, input, loops: &search.loops, sink }.reduce()
    } else {
        columns::search_columns(&Columns { geometry, input, search, sink })
    }
}

/// The best number so far, and its place; none yet at place `NONE`.
#[derive(Clone, Copy)]
struct Best<T> {
    number: T,
    place: i64,
}

const NONE: i64 = -1;

impl<T> To<i64> for Best<T> {
    #[inline(always)]
    fn convert(self) -> i64 {
        self.place
    }
}

/// The loops, compiled for each level.
struct Search<S, T> {
    loops: Loops<S, Best<T>>,
    /// Puts the numbers of rows, a step apart, that are better in the place of those there are, and
    /// the row's number with them, the first row's given.
    rows: RowsOf<S, T>,
}

type RowsOf<S, T> = unsafe fn(*const S, isize, usize, &mut [T], &mut [u32], u32);

impl<S: To<T> + Copy + 'static, T: Ordered + To<T>> Search<S, T> {
    fn of(end: MinMax) -> Self {
        match end {
            MinMax::Max => Search::with::<Greatest, Extreme<Greatest, T>>(),
            MinMax::Min => Search::with::<Smallest, Extreme<Smallest, T>>(),
        }
    }

    /// `M` finds the number that `P` picks.
    fn with<P: Pick, M: Monoid<Number = T>>() -> Self {
        let loops = Loops {
            none: Best { number: P::worst(), place: NONE },
            lanes: search::lanes::<P, M, S>,
            join: first_best::<P, T>,
            forward: |best, by| Best { place: best.place + by as i64, ..best },
            is_final: |best| M::is_final(best.number),
            decides: M::DECIDES,
        };
        Search { loops, rows: columns::rows::<P, S, T> }
    }
}

/// Whether the second takes the place of the first.
#[inline(always)]
fn is_better<P: Pick, T: Ordered>(a: T, b: T) -> bool {
    P::beyond(a, b) | (b.is_nan() & !a.is_nan())
}

/// The better of two, the first of equals; `b` lies behind `a`.
fn first_best<P: Pick, T: Ordered>(a: Best<T>, b: Best<T>) -> Best<T> {
    let better = a.place == NONE || is_better::<P, T>(a.number, b.number);
    if better && b.place != NONE { b } else { a }
}
