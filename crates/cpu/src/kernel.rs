//! Kernels of the CPU: functions, as the tables hold them.

use keyfold_backend::{Launch, Offer};
use keyfold_core::Result;
use keyfold_kit::axes::{Axes, DispatchTable, Query};
use keyfold_tensor::Tensor;

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
