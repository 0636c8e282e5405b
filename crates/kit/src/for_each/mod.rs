//! Loops over views: the author writes a body for one element; the engine does blocks, vectors, tails
//! and threads.
//!
//! * [`map`]: `out = f(inputs)`, element by element, over views of any layout. The body takes and
//!   returns values.
//! * [`map_indexed`] and [`generate`]: the body takes the element's index, too, or only the index: a
//!   linear index for flat views, an array of indices for ranked ones.
//! * [`for_each`]: the body is called with every index below a count, and returns nothing.
//!
//! ```
//! use keyfold_kit::for_each::map;
//! use keyfold_kit::view::{FlatView, FlatViewMut};
//!
//! let (x, y) = (vec![1.0_f32; 1000], vec![2.0_f32; 1000]);
//! let mut sum = vec![0.0_f32; 1000];
//! let inputs = (FlatView::new(&x), FlatView::new(&y));
//! map((), FlatViewMut::new(&mut sum), inputs, |(x, y)| x + y)?;
//! assert_eq!(sum, [3.0; 1000]);
//! # Ok::<(), keyfold_core::Error>(())
//! ```
//!
//! The loop around the body is compiled for every level of [`isa`], with the body inlined, so that a
//! body of plain arithmetic becomes vector code. A body that needs to know the level (for the functions
//! of [`math`](crate::math)) is a struct that implements [`Body`], passed to [`map_with`].

mod any_view;
mod common_dims;
mod compute;
mod coordinates;
mod copy;
mod map;
mod measured_grain;
mod plan;
mod tile_loop;
mod write_guard;

use keyfold_core::{DeviceType, Error, ErrorKind, Result};

use crate::isa::{self, Isa, Work};
use crate::pool::Schedule;

pub use any_view::{AnyView, Index, Inputs, Output};
pub use compute::Compute;
pub use coordinates::Coordinates;
pub use map::{Body, generate, map, map_indexed, map_with};

/// # Errors
/// [`ErrorKind::Device`] for a device that Rust code doesn't run on.
fn schedule_on_cpu(operator: &str, coords: &impl Coordinates) -> Result<Schedule> {
    let device = coords.device();
    if device.kind() == DeviceType::CPU {
        return Ok(coords.schedule());
    }
    Err(Error::new(
        ErrorKind::Device,
        format!(
            "{operator}: the coordinates say {device}, but this build runs Rust bodies on cpu only; \
             a kernel for {device} is an expression or source code of its own"
        ),
    ))
}

/// Calls `f` with every index below `count`, each exactly once, on any thread and in any order.
///
/// # Errors
/// [`ErrorKind::Device`] for coordinates of a device without a backend in this build,
/// [`ErrorKind::KernelPanic`] when `f` panics (the other indices may or may not have been done),
/// [`ErrorKind::Value`] for a malformed `KEYFOLD_NUM_THREADS`.
pub fn for_each<F: Fn(usize) + Sync>(coords: impl Coordinates, count: usize, f: F) -> Result<()> {
    struct Loop<'a, F> {
        range: std::ops::Range<usize>,
        f: &'a F,
    }
    impl<F: Fn(usize)> Work for Loop<'_, F> {
        type Output = ();
        #[inline(always)]
        fn run<I: Isa>(self) {
            for index in self.range {
                (self.f)(index);
            }
        }
    }
    let schedule = schedule_on_cpu("for_each", &coords)?;
    measured_grain::run_with_measured_grain("for_each", schedule, count, |range| {
        isa::dispatch(Loop { range, f: &f });
    })
}
