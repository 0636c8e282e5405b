//! The categories of the built-in operators. What isn't listed is left alone.

use keyfold_core::Result;
use keyfold_dispatch::Dispatcher;
use keyfold_tensor::Value;

use super::{Category, register_rule};

/// Products, which are worth it.
const LOWER: [&str; 1] = ["aten::matmul"];

/// What has a wide range of values, or adds many up.
const FULL: [&str; 16] = [
    "aten::exp",
    "aten::expm1",
    "aten::log",
    "aten::log1p",
    "aten::log_softmax",
    "aten::mean",
    "aten::mean.dim",
    "aten::pow",
    "aten::pow.Scalar",
    "aten::rdiv.Scalar",
    "aten::rpow.Scalar",
    "aten::softmax",
    "aten::sum",
    "aten::sum.dim",
    "aten::index_add",
    "aten::scatter_add",
];

/// What puts several tensors together, which must agree on a dtype.
const WIDEST: [&str; 20] = [
    "aten::add",
    "aten::sub",
    "aten::mul",
    "aten::div",
    "aten::floor_divide",
    "aten::remainder",
    "aten::maximum",
    "aten::minimum",
    "aten::eq",
    "aten::ne",
    "aten::lt",
    "aten::le",
    "aten::gt",
    "aten::ge",
    "aten::where",
    "aten::cat",
    "aten::stack",
    "aten::index_put",
    "aten::select_scatter",
    "aten::slice_scatter",
];

/// Registers the rules of those operators that the dispatcher has.
pub(super) fn register(dispatcher: &Dispatcher<Value>) -> Result<()> {
    let all = [
        (&LOWER[..], Category::LowerPrecision),
        (&FULL[..], Category::FullPrecision),
        (&WIDEST[..], Category::Widest),
    ];
    for (names, category) in all {
        for name in names {
            if dispatcher.operator(name).is_ok() {
                register_rule(dispatcher, name, category)?;
            }
        }
    }
    Ok(())
}
