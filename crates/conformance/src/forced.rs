//! Finds operations that a backend computes but doesn't claim.
//!
//! A kernel's parameters name the operation, and tensors have their dtypes, so that one object can
//! be the kernel of a whole group. Where the backend offers no kernel, the one of another operation
//! of the group, on the same dtypes, is launched in its place: if the result is right, the backend
//! does what it doesn't claim. Other dtypes are tried only if their elements have the same size, so
//! that the kernel stays inside its tensors.

use std::any::Any;
use std::sync::Arc;

use keyfold_backend::{
    Execute, GpuBackend, Groups, Index, IndexParams, Kernels, Launch, Linalg, Offer, Operation,
    Params, Pointwise, Positions, Random, RandomParams, Reduce, ReduceParams, RowParams, Rows,
    Scan, ScanParams,
};
use keyfold_core::{DType, Result};
use keyfold_dispatch::Dispatcher;
use keyfold_tensor::Value;
use keyfold_tensor::device::Memory;

use crate::run::Target;

/// Operations whose kernels may serve others.
const REDUCTIONS: [&Operation; 8] = [
    &Operation::new("sum"),
    &Operation::new("mean"),
    &Operation::new("max"),
    &Operation::new("min"),
    &Operation::new("argmax"),
    &Operation::new("argmin"),
    &Operation::new("all"),
    &Operation::new("any"),
];
const ROWS: [&Operation; 2] = [&Operation::new("softmax"), &Operation::new("log_softmax")];
const SCANS: [&Operation; 2] = [&Operation::new("sum"), &Operation::new("prod")];
const INDEXING: [&Operation; 5] = [
    &Operation::new("take"),
    &Operation::new("put"),
    &Operation::new("put_add"),
    &Operation::new("gather"),
    &Operation::new("scatter_add"),
];
const RANDOM: [&Operation; 2] = [&Operation::new("uniform"), &Operation::new("normal")];

/// A backend that offers other kernels in the place of those that it lacks.
#[derive(Debug)]
struct Forced(Arc<dyn GpuBackend>);

/// Returns a dispatcher with the operators on the target's device, where no kernel is refused if
/// its group has another one.
///
/// # Errors
/// If the operators can't be registered.
pub(crate) fn dispatcher(target: &Target) -> Result<Dispatcher<Value>> {
    let dispatcher = Dispatcher::new();
    keyfold_ops::register(&dispatcher)?;
    let forced: Arc<dyn GpuBackend> = Arc::new(Forced(Arc::clone(&target.backend)));
    keyfold_ops::install(&dispatcher, target.device.kind(), &forced)?.keep();
    Ok(dispatcher)
}

/// Returns the first offer with a kernel, or the one asked for.
fn first<K>(asked: Offer<K>, others: impl IntoIterator<Item = Offer<K>>) -> Offer<K> {
    match asked {
        Offer::No(reason) => {
            let found = others.into_iter().find(|offer| !matches!(offer, Offer::No(_)));
            found.unwrap_or(Offer::No(reason))
        }
        offer => offer,
    }
}

fn same_size(dtype: DType) -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(move |other| other.size() == dtype.size())
}

impl GpuBackend for Forced {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn memory(&self) -> Arc<dyn Memory> {
        self.0.memory()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        self.0.pointwise()
    }

    fn reduce(&self) -> Option<&dyn Reduce> {
        self.0.reduce().map(|_| self as _)
    }

    fn rows(&self) -> Option<&dyn Rows> {
        self.0.rows().map(|_| self as _)
    }

    fn scan(&self) -> Option<&dyn Scan> {
        self.0.scan().map(|_| self as _)
    }

    fn linalg(&self) -> Option<&dyn Linalg> {
        self.0.linalg().map(|_| self as _)
    }

    fn index(&self) -> Option<&dyn Index> {
        self.0.index().map(|_| self as _)
    }

    fn random(&self) -> Option<&dyn Random> {
        self.0.random().map(|_| self as _)
    }

    fn groups(&self) -> Groups<'_> {
        self.0.groups().offered_by(self, |_| true)
    }
}

/// The reason of a group that isn't there, which `Forced` never returns.
fn no_group<K>() -> Offer<K> {
    Offer::No("it doesn't have this group of operations".into())
}

impl Reduce for Forced {
    fn reduce(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>> {
        let Some(group) = self.0.reduce() else { return no_group() };
        let others = REDUCTIONS.into_iter().map(|op| group.reduce(op, input, output));
        first(group.reduce(op, input, output), others)
    }
}

impl Rows for Forced {
    fn rows(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<RowParams>> {
        let Some(group) = self.0.rows() else { return no_group() };
        let others = ROWS.into_iter().map(|op| group.rows(op, input, output));
        first(group.rows(op, input, output), others)
    }
}

impl Scan for Forced {
    fn scan(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ScanParams>> {
        let Some(group) = self.0.scan() else { return no_group() };
        let others = SCANS.into_iter().map(|op| group.scan(op, input, output));
        first(group.scan(op, input, output), others)
    }
}

impl Linalg for Forced {
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>> {
        let Some(group) = self.0.linalg() else { return no_group() };
        let others = same_size(input).map(|dtype| group.matmul(dtype, dtype));
        first(group.matmul(input, output), others.filter(|_| input == output))
    }
}

impl Index for Forced {
    fn index(&self, op: &'static Operation, elements: DType) -> Offer<&dyn Launch<IndexParams>> {
        let Some(group) = self.0.index() else { return no_group() };
        let others = INDEXING.into_iter().map(|op| group.index(op, elements));
        let sizes = same_size(elements).map(|dtype| group.index(op, dtype));
        first(group.index(op, elements), others.chain(sizes))
    }

    fn positions(&self) -> Offer<&dyn Positions> {
        self.0.index().map_or_else(no_group, Index::positions)
    }
}

impl Random for Forced {
    fn random(&self, op: &'static Operation, output: DType) -> Offer<&dyn Launch<RandomParams>> {
        let Some(group) = self.0.random() else { return no_group() };
        let others = RANDOM.into_iter().map(|op| group.random(op, output));
        first(group.random(op, output), others)
    }
}

// The operations of these groups have tensors and parameters of their own, so that none serves for
// another; other dtypes are tried where each tensor's elements keep their size.
impl<P: Params> Kernels<P> for Forced {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<P>> {
        let Some(group) = P::group(&self.0.groups()) else { return no_group() };
        let replaced = |from: DType, to: DType| {
            let all = |dtypes: &[DType]| -> Vec<DType> {
                dtypes.iter().map(|dtype| if *dtype == from { to } else { *dtype }).collect()
            };
            group.kernel(op, &all(inputs), &all(outputs))
        };
        let first = inputs.iter().chain(outputs).next().copied();
        let others = first.into_iter().flat_map(|from| {
            same_size(from).map(move |to| (from, to)).filter(|(from, to)| from != to)
        });
        self::first(group.kernel(op, inputs, outputs), others.map(|(from, to)| replaced(from, to)))
    }
}
