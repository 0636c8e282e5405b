//! Steps of optimizers: one pass over the parameters, their gradients and the optimizer's state.

mod arithmetic;
mod blocks;

use std::sync::LazyLock;

use keyfold_backend::{Execute, Kernels, Offer, Operation, OptimParams};
use keyfold_core::{DType, Element, Result};
use keyfold_kit::axes::{BF16, DispatchTable, Dtype, F16, F32, F64, HALVES, Output, plain};
use keyfold_tensor::Tensor;

use self::arithmetic::{Adam, Descent, Real};
use self::blocks::{Given, OPERANDS, run};
use crate::HostBackend;
use crate::kernel::{SeveralKernel, offer_several};

type Kernel = SeveralKernel<OptimParams>;
/// The dtype of the parameters, and that of the state.
type Table = DispatchTable<(Dtype, Output<Dtype>), Kernel>;

impl Kernels<OptimParams> for HostBackend {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<OptimParams>> {
        static ADAM: LazyLock<Table> =
            LazyLock::new(|| table("adam", Kernel::new(adam::<f32>), Kernel::new(adam::<f64>)));
        static SGD: LazyLock<Table> =
            LazyLock::new(|| table("sgd", Kernel::new(sgd::<f32>), Kernel::new(sgd::<f64>)));
        let table = match op.name() {
            "adam" => &ADAM,
            "sgd" => &SGD,
            other => return Offer::No(format!("it has no operation named '{other}'").into()),
        };
        let ([grad], [param, state @ ..]) = (inputs, outputs) else {
            return Offer::No("a step has one gradient, and parameters that it writes".into());
        };
        let state_dtype = state.first().copied().unwrap_or(*param);
        if grad != param || state.iter().any(|dtype| *dtype != state_dtype) {
            let reason = "the gradient has to have the parameters' dtype, and all state one dtype";
            return Offer::No(reason.into());
        }
        offer_several(table, (*param, Output(state_dtype)))
    }
}

/// The kernels of a step, which is computed in float64 for float64, and in float32 for all others.
fn table(name: &str, single: Kernel, double: Kernel) -> Table {
    let table = Table::builder(name)
        .cover((F64, Output(F64)), plain("float64", double))
        .cover((F32, Output(F32)), plain("float32", single.clone()))
        .cover((HALVES, Output(F32)), plain("float32", single.clone()))
        .cover((F16, Output(F16)), plain("float32", single.clone()))
        .cover((BF16, Output(BF16)), plain("float32", single));
    table.build().expect("each pair of dtypes is covered once")
}

/// Returns the operands of a step: the parameters, the gradient, and the state, of which some may be absent.
fn operands<'a>(inputs: &[&'a Tensor], outputs: &[&'a Tensor]) -> [Given<'a>; OPERANDS] {
    let mut operands = [None; OPERANDS];
    operands[1] = inputs.first().map(|tensor| (*tensor, false));
    for (place, tensor) in [0, 2, 3, 4].into_iter().zip(outputs) {
        operands[place] = Some((*tensor, true));
    }
    operands
}

fn adam<T: Real + Element>(
    params: &OptimParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    // SAFETY: outputs overlap nothing and no other code accesses them (`Execute::execute`), and the contract
    // of the operation says which there are.
    unsafe { run::<T>(&Adam::<T>::new(params), operands(inputs, outputs)) }
}

fn sgd<T: Real + Element>(
    params: &OptimParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    // SAFETY: as above.
    unsafe { run::<T>(&Descent::<T>::new(params, outputs.len() > 1), operands(inputs, outputs)) }
}
