//! The place of the greatest or the smallest element: the first of several, and the first NaN if
//! there is one.
//!
//! As sums are, the work is cut into parts that depend on nothing but shape and layout.

mod columns;
mod search;
mod turned;

use keyfold_core::{DType, Result, bf16, f16};
use keyfold_tensor::Tensor;

use self::columns::Columns;
use super::blocks::{Input, Sink};
use super::convert::{To, Truth};
use super::extreme::End;
use super::geometry::{Geometry, Reduction};
use super::monoid::{All, Any, Extreme, Greatest, Monoid, Ordered, Pick, Smallest};
use super::ops::Loops;
use super::rows::Rows;
use super::{base, out_base};

/// Writes the places in the lanes of `x` into a tensor of int64 of the reduction's shape.
///
/// # Errors
/// When a tensor's memory can't be reached, or the result's not be written.
pub(crate) fn compute_into(
    end: End,
    reduction: &Reduction,
    x: &Tensor,
    out: &Tensor,
) -> Result<()> {
    macro_rules! of {
        ($type:ty, $stored:ty as $number:ty) => {
            of!(Search::<$type, $number>::of(end), $type, $stored)
        };
        ($search:expr, $type:ty, $stored:ty) => {
            into(
                &$search,
                reduction.geometry(x, out, true),
                Input::plain::<$type>(base::<$stored>(x)?),
                out,
            )
        };
    }
    match x.dtype() {
        // The first that is true, or false, decides.
        DType::Bool => match end {
            End::Greatest => of!(Search::<Truth, u8>::with::<Greatest, Any<u8>>(), Truth, u8),
            End::Smallest => of!(Search::<Truth, u8>::with::<Smallest, All<u8>>(), Truth, u8),
        },
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
        // Refused by `extreme::plan`.
        DType::C64 | DType::C128 => Ok(()),
    }
}

fn into<S, T>(
    search: &Search<S, T>,
    geometry: Geometry,
    mut input: Input<S>,
    out: &Tensor,
) -> Result<()>
where
    S: To<T> + Copy + 'static,
    T: Ordered + To<T>,
{
    let mut sink = Sink::<Best<T>>::of::<i64>(out_base(out)?);
    if geometry.lanes() == 0 {
        return Ok(());
    }
    input.base = input.at(geometry.x_base);
    sink.base = sink.at(geometry.out_base);
    if turned::is_turned(&geometry) {
        turned::search(search, &geometry, input, sink)
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
    fn of(end: End) -> Self {
        match end {
            End::Greatest => Search::with::<Greatest, Extreme<Greatest, T>>(),
            End::Smallest => Search::with::<Smallest, Extreme<Smallest, T>>(),
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
