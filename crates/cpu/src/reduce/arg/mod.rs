//! The place of the greatest or the smallest element: the first of several, and the first NaN if
//! there is one.
//!
//! As sums are, the work is cut into parts that depend on nothing but shape and layout.

mod columns;
mod search;
mod transposed;

use keyfold_backend::ReduceParams;
use keyfold_core::Result;
use keyfold_kit::axes::{Body, Bool, FLOATS, HasDtype, I64, INTS, Output};
use keyfold_tensor::Tensor;

use self::columns::Columns;
use super::blocks::{Input, Sink};
use super::convert::{Reduced, To, Truth};
use super::geometry::{Geometry, Reduction};
use super::monoid::{Decision, Extreme, Monoid, Ordered, beyond};
use super::ops::Loops;
use super::rows::Rows;
use super::{Kernel, Kernels, base, out_base};
use crate::kernel::HostKernel;

/// The kernels for the place of the smallest element, or of the greatest.
pub(crate) fn kernels<const MIN: bool>(name: &str) -> Kernels {
    let table = Kernels::builder(name)
        .cover((INTS, Output(I64)), Place::<MIN>)
        .cover((FLOATS, Output(I64)), Place::<MIN>)
        .cover((Bool, Output(I64)), PlaceOfBool::<MIN>);
    table.build().expect("each dtype is covered once")
}

#[derive(Clone, Copy)]
struct Place<const MIN: bool>;

impl<C, const MIN: bool> Body<C, Kernel> for Place<MIN>
where
    C: HasDtype<Element: Reduced<Number: Ordered> + To<C::Element> + To<Number<C>>>,
{
    fn instance(&self, _: C) -> Kernel {
        HostKernel::new(|params, inputs, out| {
            let x = inputs[0];
            let search = Search::with::<Extreme<Number<C>, MIN>, MIN>();
            launch(
                &search,
                params,
                (x, Input::<C::Element>::plain::<C::Element>(base::<C::Element>(x)?)),
                out,
            )
        })
    }
}

type Number<C> = <<C as HasDtype>::Element as Reduced>::Number;

/// The first that is true, or false, decides.
#[derive(Clone, Copy)]
struct PlaceOfBool<const MIN: bool>;

impl<C: HasDtype, const MIN: bool> Body<C, Kernel> for PlaceOfBool<MIN> {
    fn instance(&self, _: C) -> Kernel {
        HostKernel::new(|params, inputs, out| {
            let x = inputs[0];
            let search = Search::with::<Decision<u8, MIN>, MIN>();
            launch(
                &search,
                params,
                (x, Input::<Truth>::plain::<Truth>(base::<C::Element>(x)?)),
                out,
            )
        })
    }
}

/// Compiled once for all searches of these types.
#[inline(never)]
fn launch<S, T>(
    search: &Search<S, T>,
    params: &ReduceParams,
    (x, mut input): (&Tensor, Input<S>),
    out: &Tensor,
) -> Result<()>
where
    S: To<T> + To<S> + Copy + 'static,
    T: Ordered,
{
    let geometry = Reduction::new(params, x).geometry(x, out, true);
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

impl<S: To<T> + Copy + 'static, T: Ordered> Search<S, T> {
    /// `M` finds the number.
    fn with<M: Monoid<Number = T>, const MIN: bool>() -> Self {
        let loops = Loops {
            none: Best { number: M::IDENTITY, place: NONE },
            lanes: search::lanes::<M, S, MIN>,
            join: first_best::<T, MIN>,
            forward: |best, by| Best { place: best.place + by as i64, ..best },
            is_final: |best| M::is_final(best.number),
            decides: M::DECIDES,
        };
        Search { loops, rows: columns::rows::<S, T, MIN> }
    }
}

/// Whether the second takes the place of the first.
#[inline(always)]
fn is_better<T: Ordered, const MIN: bool>(a: T, b: T) -> bool {
    beyond::<T, MIN>(a, b) | (b.is_nan() & !a.is_nan())
}

/// The better of two, the first of equals; `b` lies behind `a`.
fn first_best<T: Ordered, const MIN: bool>(a: Best<T>, b: Best<T>) -> Best<T> {
    let better = a.place == NONE || is_better::<T, MIN>(a.number, b.number);
    if better && b.place != NONE { b } else { a }
}
