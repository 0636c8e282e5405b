//! The scan kernels: one function per algorithm, generic over the coordinates.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_kit::axes::{
    AxisValue, Contiguity, Determinism, Device, Dtype, Has, HasDtype, Placement,
};
use keyfold_kit::scan::inclusive_scan;

use crate::array::{Array, Number};

/// The axes of both tables.
pub(crate) type Axes5 = (Device, Dtype, Contiguity, Placement, Determinism);

/// The type of the tables' instances. `input` is `None` if the scan is in place.
pub(crate) type ScanFn = fn(input: Option<&Array>, output: &mut Array) -> Result<Outcome>;

/// The result of an instance.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// The sums are in the output.
    Scanned,
    /// The CUDA C source to compile and launch, and the size of its blocks.
    Kernel(String, usize),
}

keyfold_kit::axis! {
    /// The number of threads of a block on the GPU: not an axis of the table, but a parameter that
    /// bodies add to their coordinates.
    pub(crate) enum BlockSize("block size") {
        Block128 = "128",
        Block256 = "256",
        Block512 = "512",
    }
}

impl BlockSize {
    fn threads(self) -> usize {
        [128, 256, 512][self as usize]
    }
}

/// A parallel scan with the same bits for any number of threads, so determinism costs nothing.
pub(crate) fn on_cpu<C>(coords: C, input: Option<&Array>, output: &mut Array) -> Result<Outcome>
where
    C: HasDtype<Element: Number> + Has<Contiguity> + Has<Placement>,
{
    walk(coords, input, output, |items| {
        inclusive_scan(items, C::Element::widen, C::Element::plus, C::Element::narrow)
    })
}

/// Calls `f` with all items, read from the input if there is one, and writes `f`'s changes to the
/// output.
fn walk<C>(
    coords: C,
    input: Option<&Array>,
    output: &mut Array,
    f: impl FnOnce(&mut [C::Element]) -> Result<()>,
) -> Result<Outcome>
where
    C: HasDtype + Has<Contiguity> + Has<Placement>,
{
    if coords.value::<Placement>() == Placement::OutOfPlace {
        let input = input.ok_or_else(|| {
            Error::new(
                ErrorKind::Binding,
                "scan: argument 'input' is missing; out of place needs it",
            )
        })?;
        let (from, from_step) = input.read::<C::Element>()?;
        let (to, to_step) = output.write::<C::Element>()?;
        for (to, from) in to.iter_mut().step_by(to_step).zip(from.iter().step_by(from_step)) {
            *to = *from;
        }
    }
    let (data, step) = output.write::<C::Element>()?;
    // Both values are known at compile time, so only one branch is compiled.
    match coords.value::<Contiguity>() {
        Contiguity::Contiguous => f(data)?,
        Contiguity::Strided => {
            let mut items: Vec<_> = data.iter().step_by(step).copied().collect();
            f(&mut items)?;
            for (place, item) in data.iter_mut().step_by(step).zip(items) {
                *place = item;
            }
        }
    }
    Ok(Outcome::Scanned)
}

/// The kernel for a GPU: blocks of 256 threads, but 512 for elements of at most 2 bytes, and 128 for
/// elements of 16 bytes.
pub(crate) fn on_gpu<C>(coords: C, _: Option<&Array>, _: &mut Array) -> Result<Outcome>
where
    C: HasDtype + Has<Placement> + Has<Determinism>,
{
    match size_of::<C::Element>() {
        1 | 2 => launch(coords.with(Block512)),
        16 => launch(coords.with(Block128)),
        _ => launch(coords.with(Block256)),
    }
}

/// Requires the block size in addition to the table's axes.
fn launch<C>(coords: C) -> Result<Outcome>
where
    C: HasDtype + Has<Placement> + Has<Determinism> + Has<BlockSize>,
{
    let threads = coords.value::<BlockSize>().threads();
    let in_place = coords.get::<Placement>().value() == Placement::InPlace;
    let between = match coords.value::<Determinism>() {
        Determinism::Required => "reduce_then_scan",
        Determinism::NotRequired => "decoupled_look_back",
    };
    let dtype = coords.value::<Dtype>().short_name();
    let text = format!(
        "{between}<{dtype}, {threads}>(const {dtype} *input, {dtype} *output = {})",
        if in_place { "input" } else { "other memory" }
    );
    Ok(Outcome::Kernel(text, threads))
}
