//! Kernels of the CPU: functions, as the tables hold them.

use keyfold_backend::{Launch, Offer};
use keyfold_core::{DType, Result};
use keyfold_kit::axes::{BF16, DispatchTable, Dtype, F16, OneOf};
use keyfold_tensor::Tensor;

/// The dtypes that have no arithmetic of their own: their elements are computed in float32.
pub(crate) const HALVES: OneOf<(F16, BF16)> = OneOf::new();

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

/// The offer of what a table has for a dtype.
#[inline]
pub(crate) fn offer<P: 'static>(
    table: &DispatchTable<(Dtype,), HostKernel<P>>,
    dtype: DType,
) -> Offer<&dyn Launch<P>> {
    match table.try_select((dtype,)) {
        Some(kernel) => Offer::Native(kernel),
        None => Offer::No(format!("its {} takes no {dtype}", table.name()).into()),
    }
}
