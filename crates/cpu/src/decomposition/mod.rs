//! Decompositions of matrices, and linear systems.
//!
//! Each matrix of a stack is copied to dense float64, decomposed by the crate faer, and its results are
//! rounded once to their dtype. So those of float32 are as exact as they can be, and only half as much
//! machine code is needed. The matrices of a stack are shared by the threads.

mod factor;
mod kernels;
mod stack;

use std::sync::LazyLock;

use keyfold_backend::{DecompositionParams, Execute, Kernels, Offer, Operation};
use keyfold_core::{DType, Result};
use keyfold_kit::axes::{DispatchTable, Dtype, F32, F64, plain};
use keyfold_tensor::Tensor;

use self::kernels::Work;
use crate::HostBackend;
use crate::kernel::{SeveralKernel, offer_several};

type Kernel = SeveralKernel<DecompositionParams>;
type Table = DispatchTable<(Dtype,), Kernel>;

impl Kernels<DecompositionParams> for HostBackend {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<DecompositionParams>> {
        static KERNELS: LazyLock<Vec<(Operation, Table)>> = LazyLock::new(|| {
            OPERATIONS.map(|(name, kernel)| (Operation::new(name), table(name, kernel))).into()
        });
        let Some((_, table)) = KERNELS.iter().find(|(known, _)| known == op) else {
            return Offer::No(format!("it has no operation named '{}'", op.name()).into());
        };
        let Some(&dtype) = inputs.first() else {
            return Offer::No("a decomposition has an input".into());
        };
        let others = inputs.iter().chain(outputs);
        // The number of a leading minor or of a pivot is an integer.
        if let Some(other) = others.copied().find(|other| *other != dtype && *other != DType::I32) {
            return Offer::No(format!("its decompositions of {dtype} give no {other}").into());
        }
        offer_several(table, (dtype,))
    }
}

type Function = fn(&DecompositionParams, &[&Tensor], &[&Tensor]) -> Result<()>;

const OPERATIONS: [(&str, Function); 8] = [
    ("svd", |params, inputs, outputs| kernels::run(Work::Svd, params, inputs, outputs)),
    ("eigh", |params, inputs, outputs| kernels::run(Work::Eigh, params, inputs, outputs)),
    ("qr", |params, inputs, outputs| kernels::run(Work::Qr, params, inputs, outputs)),
    ("cholesky", |params, inputs, outputs| kernels::run(Work::Cholesky, params, inputs, outputs)),
    ("solve", |params, inputs, outputs| kernels::run(Work::Solve, params, inputs, outputs)),
    ("solve_triangular", |params, inputs, outputs| {
        kernels::run(Work::SolveTriangular, params, inputs, outputs)
    }),
    ("det", |params, inputs, outputs| kernels::run(Work::Det, params, inputs, outputs)),
    ("slogdet", |params, inputs, outputs| kernels::run(Work::Slogdet, params, inputs, outputs)),
];

fn table(name: &str, kernel: Function) -> Table {
    let table = Table::builder(name)
        .cover((F32,), plain("of_float32", SeveralKernel::new(kernel)))
        .cover((F64,), plain("of_float64", SeveralKernel::new(kernel)));
    table.build().expect("each dtype is covered once")
}
