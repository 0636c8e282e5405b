//! Kernels of the CPU: functions, as the tables hold them.

use keyfold_backend::{Launch, Offer};
use keyfold_core::Result;
use keyfold_kit::axes::{
    Axes, Bool, C64, C128, DispatchTable, F32, F64, I8, I16, I32, I64, OneOf, Query, U8, U16, U32,
    U64,
};
use keyfold_tensor::Tensor;

/// The dtypes of bools and whole numbers, as types.
type Whole = (Bool, U8, U16, U32, U64, I8, I16, I32, I64);

/// The dtypes of bools and whole numbers.
pub(crate) const WHOLE: OneOf<Whole> = OneOf::new();

/// The dtypes of floats, and of pairs of them, that have arithmetic of their own: halves are computed in
/// float32.
pub(crate) const NATIVE_FLOATS: OneOf<(F32, F64, C64, C128)> = OneOf::new();

/// A kernel's function, of the parameters, the inputs, and the output, whose memory nobody else uses.
type Function<P> = fn(&P, &[&Tensor], &Tensor) -> Result<()>;

/// A kernel of the CPU.
pub(crate) struct HostKernel<P>(Function<P>);

impl<P> Clone for HostKernel<P> {
    fn clone(&self) -> Self {
        HostKernel(self.0)
    }
}

impl<P> HostKernel<P> {
    pub(crate) fn new(function: Function<P>) -> Self {
        HostKernel(function)
    }
}

impl<P> Launch<P> for HostKernel<P> {
    unsafe fn launch(&self, params: &P, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        (self.0)(params, inputs, out)
    }
}

/// The offer of what a table has at a point.
#[inline]
pub(crate) fn offer<S: Axes, P: 'static>(
    table: &DispatchTable<S, HostKernel<P>>,
    point: impl Query<S>,
) -> Offer<&dyn Launch<P>> {
    match table.select(point) {
        Ok(kernel) => Offer::Native(kernel),
        Err(error) => Offer::No(error.message().to_owned().into()),
    }
}
