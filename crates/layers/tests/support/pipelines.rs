//! Helpers of the tests of pipelines: blocks, numbers, and bits to compare.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::Arc;

use keyfold::cpu::HostBackend;
use keyfold::ops::aten;
use keyfold_core::{Complex, DType, DTypeKind, Result};
use keyfold_layers::pipeline::{Ending, Options, Session, Statistics};
use keyfold_tensor::Tensor;

/// Has small tensors computed tile by tile, as large ones are.
pub(crate) fn prepare() {
    keyfold::init();
    HostBackend::set_tile_cache(0);
}

/// Runs a block in a pipeline; returns its result, the outcome and the counters.
pub(crate) fn within<R>(
    options: Options,
    f: impl FnOnce(&Arc<Session>) -> R,
) -> (R, Result<()>, Statistics) {
    prepare();
    let session: Arc<Session> = Session::new(options).unwrap();
    session.open();
    let guard = session.enter();
    let result = f(&session);
    guard.close().unwrap();
    let ended = session.close(Ending::Run);
    (result, ended, session.statistics())
}

/// Makes numbers from -3 to 3.
pub(crate) fn numbers(shape: &[usize], dtype: DType) -> Tensor {
    prepare();
    let count = shape.iter().product::<usize>();
    let numbers: Vec<f64> = (0..count).map(|at| (at as f64 * 0.7).sin() * 3.0).collect();
    aten::to(&Tensor::from_vec(numbers, shape).unwrap(), dtype).unwrap()
}

/// Returns what tells elements apart, in row-major order.
pub(crate) fn bits(tensor: &Tensor) -> Vec<u64> {
    let to = |dtype| aten::to(tensor, dtype).unwrap();
    match tensor.dtype().kind() {
        DTypeKind::Bool | DTypeKind::Int => {
            let whole = to(DType::I64).to_vec::<i64>().unwrap();
            whole.into_iter().map(i64::cast_unsigned).collect()
        }
        DTypeKind::UInt => to(DType::U64).to_vec::<u64>().unwrap(),
        DTypeKind::Float => {
            let wide = to(DType::F64).to_vec::<f64>().unwrap();
            wide.into_iter().map(f64::to_bits).collect()
        }
        DTypeKind::Complex => {
            let wide = to(DType::C128).to_vec::<Complex<f64>>().unwrap();
            wide.into_iter().flat_map(|x| [x.re.to_bits(), x.im.to_bits()]).collect()
        }
    }
}
