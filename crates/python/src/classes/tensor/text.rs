//! A tensor's text, as NumPy prints values.

use keyfold_core::{DType, Device, DeviceType, bf16};
use keyfold_layers::{autograd, vmap};
use keyfold_tensor::Tensor;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::marshal::arrays::numpy_array::into_numpy;
use crate::marshal::errors::IntoPyResult;

/// The values as a NumPy array: over the same memory where NumPy has the dtype, else converted
/// (bfloat16 to float32, which holds each of its values). From a device they are downloaded.
pub(crate) fn host_values<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let plain = match tensor.device().kind() {
        DeviceType::CPU => tensor.detach(),
        _ => py.detach(|| tensor.to_device(Device::CPU)).py(py)?,
    };
    if plain.dtype() == DType::BF16 {
        let values = plain.to_vec::<bf16>().py(py)?.into_iter().map(f32::from).collect();
        return into_numpy(py, Tensor::from_vec(values, tensor.shape()).py(py)?);
    }
    into_numpy(py, plain)
}

/// The values that are printed of a tensor: of one that is summarized, the first and last `edge` of
/// each dimension and one between them, so that no more than those come from a device.
fn printed_values<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    axis: usize,
    edge: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(size) = tensor.shape().get(axis) else { return host_values(py, tensor) };
    if *size as i64 <= 2 * edge + 1 {
        return printed_values(py, tensor, axis + 1, edge);
    }
    let at = axis as i64;
    let ends = [
        tensor.slice(at, None, Some(edge + 1), 1).py(py)?,
        tensor.slice(at, Some(-edge), None, 1).py(py)?,
    ];
    let ends: Vec<_> =
        ends.iter().map(|end| printed_values(py, end, axis + 1, edge)).collect::<PyResult<_>>()?;
    py.import("numpy")?.call_method1("concatenate", (ends, axis))
}

/// Dtypes that a reader takes for granted: what NumPy makes of Python's own numbers.
fn is_default(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::I64 | DType::Bool | DType::C128)
}

/// The shape as Python writes a tuple.
fn shape_text(tensor: &Tensor) -> String {
    let sizes: Vec<_> = tensor.shape().iter().map(ToString::to_string).collect();
    let comma = if sizes.len() == 1 { "," } else { "" };
    format!("({}{comma})", sizes.join(", "))
}

/// `Tensor(example of a batch of 5, level 1, shape=(3,), dtype=float64)`: it has no values.
fn example(tensor: &Tensor, batch: &vmap::Batched) -> String {
    let mut text = format!(
        "Tensor(example of a batch of {}, level {}, shape={}, dtype={}",
        batch.size(),
        batch.level,
        shape_text(tensor),
        tensor.dtype()
    );
    if tensor.device().kind() != DeviceType::CPU {
        text += &format!(", device='{}'", tensor.device());
    }
    text + in_graph(tensor) + ")"
}

/// Returns the part of a tensor's text about derivatives.
fn in_graph(tensor: &Tensor) -> &'static str {
    match (autograd::requires_grad(tensor), autograd::has_tangent(tensor)) {
        (false, false) => "",
        (true, false) => ", requires_grad=True",
        (false, true) => ", with a tangent",
        (true, true) => ", requires_grad=True, with a tangent",
    }
}

/// `Tensor([1., 2.], dtype=float32)`; without values where there are none to read.
pub(crate) fn repr(py: Python<'_>, tensor: &Tensor) -> PyResult<String> {
    if let Some(batch) = vmap::batch_of(tensor) {
        return Ok(example(tensor, &batch));
    }
    let (dtype, device) = (tensor.dtype(), tensor.device());
    let on_cpu = device.kind() == DeviceType::CPU;
    // An empty tensor's values say neither shape nor dtype.
    let readable = on_cpu || tensor.can_download();
    let empty = readable && tensor.numel() == 0;
    let mut text = if readable {
        let options = PyDict::new(py);
        options.set_item("separator", ", ")?;
        options.set_item("prefix", "Tensor(")?;
        let numpy = py.import("numpy")?;
        let settings = numpy.call_method0("get_printoptions")?;
        let most: f64 = settings.get_item("threshold")?.extract()?;
        let values = if on_cpu || tensor.numel() as f64 <= most {
            host_values(py, tensor)?
        } else {
            options.set_item("threshold", 0)?;
            let edge = settings.get_item("edgeitems")?.extract::<u32>()?;
            printed_values(py, tensor, 0, i64::from(edge).max(1))?
        };
        let printed = numpy.call_method("array2string", (values,), Some(&options))?;
        format!("Tensor({printed}")
    } else {
        "Tensor(...".to_owned()
    };
    if !readable || (empty && tensor.ndim() != 1) {
        text += &format!(", shape={}", shape_text(tensor));
    }
    if !readable || empty || !is_default(dtype) {
        text += &format!(", dtype={dtype}");
    }
    if !on_cpu {
        text += &format!(", device='{device}'");
    }
    Ok(text + in_graph(tensor) + ")")
}
