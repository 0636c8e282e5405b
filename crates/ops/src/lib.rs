//! keyfold's built-in operators, in namespace `aten`: their rows, the checks and shape inference that all
//! backends share, and registration at the key of each backend.
//!
//! - factories: `empty`, `zeros`, `ones`, `full`, `arange`; random: `rand`, `randn`, `dropout`
//! - pointwise, see [`pointwise`]: `add`, `sub`, `mul`, `div`, `floor_divide`, `remainder`,
//!   `maximum`, `minimum`, `pow`, bit operations, `eq`, `ne`, `lt`, `le`, `gt`, `ge` (each also with a
//!   number: `.Scalar`; on the left: `rsub`, `rdiv`, `rpow`, `rfloor_divide`, `rremainder`, and the shifts),
//!   `logical_not`, `where`, and the functions of one tensor; [`rows`] lists all operators
//! - reductions: `sum`, `mean`, `max`, `min`, `amax`, `amin`, `argmax`, `argmin`, `all`, `any`,
//!   `softmax`, `log_softmax`; scans: `cumsum`, `cumprod`
//! - products: `matmul`, `mm`, `bmm`, `mv`, `dot`, `addmm`, `baddbmm`, `linear`, and in namespace `keyfold`
//!   `matmul_mixed` and `linear_activation`
//! - shapes: `reshape`, `contiguous`, `clone`, `to`, `detach`, `alias`, `transpose`, `permute`,
//!   `unsqueeze`, `squeeze`, `expand`, `flip`, `select`, `slice`, `cat`, `stack`
//! - indexing: `index`, `index_select`, `masked_select`, `gather`; `index_put`, `index_add`,
//!   `scatter_add`, `select_scatter`, `slice_scatter`; in place `index_put_`, `copy_`, `fill_`
//!
//! Operators that compute into new memory have an overload `out`, which writes into a tensor of the caller's,
//! except random numbers and composite operators. Each operator supports every dtype for which it is
//! defined; indices are of any integer dtype. Operands broadcast as in NumPy, and promote:
//!
//! - within a kind to the wider dtype; bool < integer < float; `int64` with `float32` gives `float64`;
//! - `float16` with `bfloat16` gives `float32`; either alone is computed in `float32` and rounded once;
//! - Python numbers are weak: the tensor's dtype is kept where it can hold the number's kind;
//! - `div`, `mean`, `softmax` and the functions of floats (`exp`, `sin`, ...) of integers and bools give
//!   `float64`, sums and cumulative products of them `int64` or `uint64`, comparisons bool.
//!
//! Integers wrap around, floats follow IEEE 754, and `maximum`, `max` and `argmax` propagate NaN as in NumPy.
//! Results are new, contiguous, and don't require grad; views share memory.
//!
//! ```
//! use std::sync::Arc;
//!
//! use keyfold_backend::GpuBackend;
//! use keyfold_core::DeviceType;
//! use keyfold_cpu::HostBackend;
//! use keyfold_dispatch::Dispatcher;
//! use keyfold_tensor::{Tensor, Value, ValueRef};
//!
//! let dispatcher = Dispatcher::<Value>::new();
//! keyfold_ops::register(&dispatcher)?;
//! let cpu: Arc<dyn GpuBackend> = Arc::new(HostBackend);
//! keyfold_ops::install(&dispatcher, DeviceType::CPU, &cpu)?.keep();
//! let x = Tensor::from_slice(&[1.0, 2.0, 3.0], &[3])?;
//! let y = dispatcher.call("aten::add", &[ValueRef::Tensor(&x), ValueRef::Tensor(&x)])?;
//! assert_eq!(y.into_tensor()?.to_vec::<f64>()?, [2.0, 4.0, 6.0]);
//! # Ok::<(), keyfold_core::Error>(())
//! ```

mod activation;
mod arg_values;
pub mod aten;
mod attention;
mod convert;
mod convolution;
mod cow;
mod decomposition;
mod device_kernel;
mod factories;
mod in_place;
mod index;
mod index_dtype;
mod infer;
mod inferred;
mod jvp;
mod linalg;
mod naming;
mod norm;
mod op;
mod optim;
pub mod pointwise;
mod pool;
mod promote;
mod random;
mod recurrent;
mod reduce;
mod register;
mod row;
mod scan;
mod shape;
mod sign;
mod to_device;
mod vjp;

use std::sync::LazyLock;

use keyfold_core::Result;

pub use inferred::{Aliasing, Inferred};
pub use naming::{Form, Naming, Public, Signature};
pub use register::{Installed, install, register};
pub use row::{Batching, Gradient, Layers, Row, Rule, Tangent};
pub use sign::Sign;

/// Returns the rows of the built-in operators. An overload `out` belongs to the row of its operator.
pub fn rows() -> &'static [Row] {
    &known().0
}

/// Returns the families of operators, each a name and its rows.
pub fn families() -> Vec<(&'static str, &'static [Row])> {
    let (mut rest, sizes) = (rows(), &known().1);
    let named = FAMILIES.iter().zip(sizes).map(|((name, _), size)| {
        let (family, others) = rest.split_at(*size);
        rest = others;
        (*name, family)
    });
    named.collect()
}

/// A function that makes the rows of a family.
type MakeRows = fn() -> Result<Vec<Row>>;

const FAMILIES: [(&str, MakeRows); 17] = [
    ("factories", factories::rows),
    ("pointwise", pointwise::rows),
    ("linalg", linalg::rows),
    ("reduce", reduce::rows),
    ("scan", scan::rows),
    ("shape", shape::rows),
    ("index", index::rows),
    ("in_place", in_place::rows),
    ("random", random::rows),
    ("norm", norm::rows),
    ("optim", optim::rows),
    ("attention", attention::rows),
    ("pool", pool::rows),
    ("device", to_device::rows),
    ("decomposition", decomposition::rows),
    ("recurrent", recurrent::rows),
    ("convolution", convolution::rows),
];

/// All rows, and the number of each family's.
fn known() -> &'static (Vec<Row>, [usize; FAMILIES.len()]) {
    static ROWS: LazyLock<(Vec<Row>, [usize; FAMILIES.len()])> = LazyLock::new(|| {
        let made = FAMILIES.map(|(_, rows)| {
            rows().expect("the schemas and expressions of the built-in operators parse")
        });
        let sizes = made.each_ref().map(Vec::len);
        (made.into_iter().flatten().collect(), sizes)
    });
    &ROWS
}
