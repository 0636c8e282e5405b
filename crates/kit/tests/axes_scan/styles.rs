//! The table in two styles: bodies that are free functions, and a struct with associated functions.
//!
//! The coverage is sparse. The CPU covers everything, deterministically. On CUDA, integer sums are the
//! same in any order, so one body covers both values of determinism. Deterministic float sums need two
//! passes there, which read the whole input, so they aren't available in place.

use keyfold_core::Result;
use keyfold_kit::axes::{
    Body, Contiguity, Cpu, Cuda, Determinism, Device, DispatchTable, FLOATS, Has, HasDtype, INTS,
    NotRequired, OutOfPlace, Placement, Required,
};
use keyfold_kit::body;

use crate::array::{Array, Number};
use crate::kernels::{Axes5, Outcome, ScanFn, on_cpu, on_gpu};

/// A function for each sub-space.
pub(crate) fn free_functions() -> Result<DispatchTable<Axes5, ScanFn>> {
    let gpu = body!(
        on_gpu(input, output) -> ScanFn where HasDtype + Has<Placement> + Has<Determinism>
    );
    DispatchTable::builder("inclusive_scan")
        .cover(
            (Cpu,),
            body!(
                on_cpu(input, output) -> ScanFn
                where HasDtype<Element: Number> + Has<Contiguity> + Has<Placement>
            ),
        )
        .cover((Cuda, INTS), gpu)
        .cover((Cuda, FLOATS, NotRequired), gpu)
        .cover((Cuda, FLOATS, Required, OutOfPlace), gpu)
        .build()
}

/// One struct for all sub-spaces: the compiler selects the associated function from the coordinates.
struct Scan;

impl Scan {
    fn on_cpu<C>(input: Option<&Array>, output: &mut Array) -> Result<Outcome>
    where
        C: HasDtype<Element: Number> + Has<Contiguity> + Has<Placement>,
    {
        on_cpu(C::default(), input, output)
    }

    fn on_cuda<C>(input: Option<&Array>, output: &mut Array) -> Result<Outcome>
    where
        C: HasDtype + Has<Placement> + Has<Determinism>,
    {
        on_gpu(C::default(), input, output)
    }
}

impl<C> Body<C, ScanFn> for Scan
where
    C: HasDtype<Element: Number>
        + Has<Device>
        + Has<Contiguity>
        + Has<Placement>
        + Has<Determinism>,
{
    fn instance(&self, coords: C) -> ScanFn {
        match coords.value::<Device>() {
            Device::Cpu => Self::on_cpu::<C>,
            Device::Cuda => Self::on_cuda::<C>,
        }
    }
}

pub(crate) fn one_struct() -> Result<DispatchTable<Axes5, ScanFn>> {
    DispatchTable::builder("inclusive_scan")
        .cover((Cpu,), Scan)
        .cover((Cuda, INTS), Scan)
        .cover((Cuda, FLOATS, NotRequired), Scan)
        .cover((Cuda, FLOATS, Required, OutOfPlace), Scan)
        .build()
}
