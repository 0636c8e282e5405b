//! Pointwise bodies.

use keyfold_core::{Element, Error, ErrorKind, Result};

use super::any_view::{Index, Inputs, Output, ViewDescription};
use super::plan::LoopPlan;
use super::tile_loop::{self, Row};
use super::write_guard::WriteGuard;
use super::{Coordinates, schedule_on_cpu};
use crate::isa::{self, Isa, Work};

/// A body that is compiled for each instruction level, and knows its level.
///
/// `call` should be `#[inline(always)]`: only inlined code is compiled for the level.
pub trait Body<Values>: Sync {
    /// The type of the output's elements.
    type Output;

    /// Computes one element from the inputs' elements.
    fn call<I: Isa>(&self, values: Values) -> Self::Output;
}

/// Writes `f` of the inputs' elements to each element of `out`.
///
/// All views have as many elements as `out`, in the same order; ranked ones have the same sizes.
/// An input may be `out` itself, or have exactly its elements in its order: in place.
///
/// # Errors
/// [`ErrorKind::Shape`] for sizes that differ; [`ErrorKind::Value`] for an input that overlaps `out`
/// in any other way; [`ErrorKind::Device`] for coordinates of a device without a backend in this
/// build; [`ErrorKind::KernelPanic`] when `f` panics (some elements are written then).
pub fn map<O: Output, In: Inputs>(
    coords: impl Coordinates,
    out: O,
    inputs: In,
    f: impl Fn(In::Values) -> O::Element + Sync,
) -> Result<()> {
    struct Closure<F>(F);
    impl<V, R, F: Fn(V) -> R + Sync> Body<V> for Closure<F> {
        type Output = R;
        #[inline(always)]
        fn call<I: Isa>(&self, values: V) -> R {
            (self.0)(values)
        }
    }
    map_with(coords, out, inputs, Closure(f))
}

/// As [`map`], with a body that knows the instruction level that it is compiled for.
///
/// # Errors
/// As [`map`].
pub fn map_with<O: Output, In: Inputs>(
    coords: impl Coordinates,
    out: O,
    inputs: In,
    body: impl Body<In::Values, Output = O::Element>,
) -> Result<()> {
    struct Loop<'a, In: Inputs, B, T> {
        rows: In::Rows,
        out: *mut T,
        len: usize,
        body: &'a B,
    }
    impl<In: Inputs, T: Element, B: Body<In::Values, Output = T>> Work for Loop<'_, In, B, T> {
        type Output = ();
        #[inline(always)]
        fn run<I: Isa>(self) {
            for k in 0..self.len {
                // SAFETY: rows have `len` elements; see `Row`.
                unsafe { self.out.add(k).write(self.body.call::<I>(In::values(self.rows, k))) };
            }
        }
    }
    let row = |row: &Row<'_>| {
        let (rows, out) = (In::rows(row.inputs), row.out.cast::<O::Element>());
        isa::dispatch(Loop::<'_, In, _, O::Element> { rows, out, len: row.len, body: &body });
    };
    run("map", &coords, &out.describe(), &inputs.describe(), false, &row)
}

/// As [`map`], with a body that gets the element's index in front of the values.
///
/// # Errors
/// As [`map`].
pub fn map_indexed<O: Output, In: Inputs>(
    coords: impl Coordinates,
    out: O,
    inputs: In,
    f: impl Fn(O::Index, In::Values) -> O::Element + Sync,
) -> Result<()> {
    struct Loop<'a, O: Output, In: Inputs, F> {
        row: &'a Row<'a>,
        rows: In::Rows,
        out: *mut O::Element,
        f: &'a F,
    }
    impl<O: Output, In: Inputs, F> Work for Loop<'_, O, In, F>
    where
        F: Fn(O::Index, In::Values) -> O::Element,
    {
        type Output = ();
        #[inline(always)]
        fn run<I: Isa>(self) {
            let (start, axis, step) = (self.row.index, self.row.axis, self.row.step);
            for k in 0..self.row.len {
                let index = O::Index::step(start, axis, step, k);
                // SAFETY: rows have `len` elements; see `Row`.
                unsafe { self.out.add(k).write((self.f)(index, In::values(self.rows, k))) };
            }
        }
    }
    let row = |row: &Row<'_>| {
        let (rows, out) = (In::rows(row.inputs), row.out.cast::<O::Element>());
        isa::dispatch(Loop::<'_, O, In, _> { row, rows, out, f: &f });
    };
    run("map_indexed", &coords, &out.describe(), &inputs.describe(), true, &row)
}

/// Writes `f` of its index to each element of `out`. The body may read other memory, at any index.
///
/// # Errors
/// As [`map`].
pub fn generate<O: Output>(
    coords: impl Coordinates,
    out: O,
    f: impl Fn(O::Index) -> O::Element + Sync,
) -> Result<()> {
    map_indexed(coords, out, (), |index, ()| f(index))
}

/// Checks the views against each other, and runs the body.
fn run(
    operator: &str,
    coords: &impl Coordinates,
    out: &ViewDescription,
    inputs: &[ViewDescription],
    indexed: bool,
    row: &(dyn Fn(&Row<'_>) + Sync),
) -> Result<()> {
    let schedule = schedule_on_cpu(operator, coords)?;
    for (n, input) in inputs.iter().enumerate() {
        check_sizes(operator, out, n, input)?;
    }
    if out.count == 0 {
        return Ok(());
    }
    let plan = LoopPlan::new(out, inputs, indexed)?;
    for (n, input) in inputs.iter().enumerate() {
        if !plan.is_in_place(n) && input.extent.touches(&out.extent) {
            return Err(Error::new(
                ErrorKind::Value,
                format!(
                    "{operator}: input {n} overlaps the output but isn't the same elements in the \
                     same order; give a copy of it"
                ),
            ));
        }
    }
    let views = std::iter::once(out).chain(inputs.iter().filter(|input| input.is_writing));
    let _writing = WriteGuard::begin(operator, &out.extent, views.map(|view| &view.extent))?;
    tile_loop::run(operator, schedule, &plan, row)
}

fn check_sizes(
    operator: &str,
    out: &ViewDescription,
    n: usize,
    input: &ViewDescription,
) -> Result<()> {
    let told = |view: &ViewDescription| match &view.sizes {
        Some(sizes) => format!("sizes {sizes:?}"),
        None => format!("{} elements", view.count),
    };
    let differ = match (&out.sizes, &input.sizes) {
        (Some(a), Some(b)) => a != b,
        _ => out.count != input.count,
    };
    if !differ {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Shape,
        format!(
            "{operator}: input {n} has {} and the output has {}; broadcast the input first",
            told(input),
            told(out)
        ),
    ))
}
