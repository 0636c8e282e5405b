//! The kernels of a group: functions that are launched on the host, in a table for each operation.

use keyfold_backend::{Execute, Launch, Offer, Operation};
use keyfold_core::Result;
use keyfold_kit::axes::{
    Axes, Bool, C64, C128, DispatchTable, F32, F64, I8, I16, I32, I64, OneOf, Query, U8, U16, U32,
    U64,
};
use keyfold_tensor::Tensor;

/// The dtypes of bools and integers, as types.
type Whole = (Bool, U8, U16, U32, U64, I8, I16, I32, I64);

/// The dtypes of bools and integers.
pub(crate) const BOOL_AND_INTEGERS: OneOf<Whole> = OneOf::new();

/// The dtypes of floats and complex numbers that have arithmetic of their own; halves are computed in
/// float32.
pub(crate) const NATIVE_FLOATS: OneOf<(F32, F64, C64, C128)> = OneOf::new();

/// A kernel's function, of the parameters, the inputs, and the output, which no other code accesses.
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

/// The function of a kernel with several outputs, which no other code accesses.
type SeveralFunction<P> = fn(&P, &[&Tensor], &[&Tensor]) -> Result<()>;

/// A kernel of the CPU with any number of outputs.
pub(crate) struct SeveralKernel<P>(SeveralFunction<P>);

impl<P> Clone for SeveralKernel<P> {
    fn clone(&self) -> Self {
        SeveralKernel(self.0)
    }
}

impl<P> SeveralKernel<P> {
    pub(crate) fn new(function: SeveralFunction<P>) -> Self {
        SeveralKernel(function)
    }
}

impl<P> Execute<P> for SeveralKernel<P> {
    unsafe fn execute(&self, params: &P, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
        (self.0)(params, inputs, outputs)
    }
}

/// As [`offer`], for kernels with several outputs.
pub(crate) fn offer_several<S: Axes, P: 'static>(
    table: &DispatchTable<S, SeveralKernel<P>>,
    point: impl Query<S>,
) -> Offer<&dyn Execute<P>> {
    match table.select(point) {
        Ok(kernel) => Offer::Native(kernel),
        Err(error) => Offer::No(error.message().to_owned().into()),
    }
}

/// Returns the table's kernel at a point as an offer.
#[inline]
fn select<S: Axes, K: Clone + 'static>(
    table: &DispatchTable<S, K>,
    point: impl Query<S>,
) -> Offer<&K> {
    match table.select(point) {
        Ok(kernel) => Offer::Native(kernel),
        Err(error) => Offer::No(error.message().to_owned().into()),
    }
}

pub(crate) type Table<S, P> = DispatchTable<S, HostKernel<P>>;

/// As [`select`], for kernels that are launched.
#[inline]
pub(crate) fn offer<S: Axes, P: 'static>(
    table: &Table<S, P>,
    point: impl Query<S>,
) -> Offer<&dyn Launch<P>> {
    select(table, point).map(|kernel| kernel as _)
}

/// Makes the table of the operation of a name.
type Build<S, K> = fn(&str) -> DispatchTable<S, K>;

/// The kernels of a group, of type `K`: a table for each operation.
pub(crate) struct Group<S: Axes, K: Clone + 'static>(Vec<(Operation, DispatchTable<S, K>)>);

impl<S: Axes, K: Clone + 'static> Group<S, K> {
    /// Makes the tables of the operations of these names.
    pub(crate) fn new<const N: usize>(operations: [(&'static str, Build<S, K>); N]) -> Self {
        Group(operations.map(|(name, table)| (Operation::new(name), table(name))).into())
    }

    /// Offers an operation's kernel at a point of its table.
    #[inline]
    pub(crate) fn select(&self, op: &Operation, point: impl Query<S>) -> Offer<&K> {
        let Some((_, table)) = self.0.iter().find(|(known, _)| known == op) else {
            return Offer::No(format!("it has no operation named '{}'", op.name()).into());
        };
        select(table, point)
    }
}

impl<S: Axes, P: 'static> Group<S, HostKernel<P>> {
    /// As [`Group::select`], for kernels that are launched.
    #[inline]
    pub(crate) fn offer(&self, op: &Operation, point: impl Query<S>) -> Offer<&dyn Launch<P>> {
        self.select(op, point).map(|kernel| kernel as _)
    }
}
