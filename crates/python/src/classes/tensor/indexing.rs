//! `x[...]`: whole numbers, slices, `...`, `None`, masks and arrays of positions, as in NumPy.
//!
//! Whole numbers and slices give views, one operator call each; masks and arrays of positions give
//! copies, by `aten::index`. Assignment writes through the same views.

use keyfold_core::{Device, ErrorKind};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_layers::vmap;
use keyfold_tensor::Tensor;
use keyfold_tensor::index::{self, Entry, Pick, Step};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyInt, PyList, PySlice, PyTuple};

use crate::classes::aten;
use crate::classes::tensor::arithmetic::{EQ, Operand, operand, requires_grad_here};
use crate::classes::tensor::materialize;
use crate::marshal::arrays::{self, numpy_array};
use crate::marshal::describe::describe_object;
use crate::marshal::errors::{IntoPyResult, error, from_pyerr};
use crate::marshal::tensor::{PyTensor, wrap};
use crate::marshal::values;

type Any<'py> = Bound<'py, PyAny>;

/// One entry of an index.
fn entry<'py>(given: &Any<'py>) -> PyResult<Entry<Any<'py>>> {
    let py = given.py();
    if given.is_none() {
        return Ok(Entry::NewAxis);
    }
    if given.is_instance_of::<PyEllipsis>() {
        return Ok(Entry::Ellipsis);
    }
    if let Ok(slice) = given.cast::<PySlice>() {
        let part = |name: &str| slice.getattr(name).and_then(bound);
        let (start, stop, step) = (part("start")?, part("stop")?, part("step")?);
        return Ok(Entry::Slice { start, stop, step: step.unwrap_or(1) });
    }
    if let Ok(flag) = given.cast::<PyBool>() {
        return Ok(Entry::Flag(flag.is_true()));
    }
    if given.is_instance_of::<PyInt>() {
        return position(given).map(Entry::At);
    }
    if given.is_instance_of::<PyList>() {
        let array = numpy_array::as_array(given).py(py)?;
        // NumPy makes floats out of nothing.
        let size: usize = array.getattr("size")?.extract()?;
        let array = if size == 0 { array.call_method1("astype", ("int64",))? } else { array };
        return array_entry(&array);
    }
    if arrays::look(given).py(py)?.is_some() {
        return array_entry(given);
    }
    if given.hasattr("__index__")? {
        return position(given).map(Entry::At);
    }
    let message = format!(
        "a tensor is indexed by whole numbers, slices, ..., None, masks and arrays of whole numbers, \
         not by {}",
        describe_object(given)
    );
    Err(error(py, ErrorKind::Binding, message))
}

fn position(given: &Any<'_>) -> PyResult<i64> {
    given.extract::<i64>().map_err(|raised| {
        if raised.is_instance_of::<pyo3::exceptions::PyOverflowError>(given.py()) {
            return error(given.py(), ErrorKind::Index, format!("index {given} is out of range"));
        }
        raised
    })
}

fn array_entry<'py>(array: &Any<'py>) -> PyResult<Entry<Any<'py>>> {
    let py = array.py();
    let view = arrays::view(array).py(py)?;
    // A position that differs from example to example stays a tensor; any other is read.
    if view.dtype().is_integral() && vmap::batch_of(&view).is_some() {
        return Ok(Entry::Array(array.clone(), 1));
    }
    let may_read = || materialize::check(py, &view, "use as an index").map_err(from_pyerr);
    Entry::array(array.clone(), &view, may_read).py(py)
}

/// A bound of a slice; one beyond 64 bits is as good as the end.
fn bound(given: Any<'_>) -> PyResult<Option<i64>> {
    if given.is_none() {
        return Ok(None);
    }
    match given.extract::<i64>() {
        Ok(number) => Ok(Some(number)),
        Err(raised) if raised.is_instance_of::<pyo3::exceptions::PyOverflowError>(given.py()) => {
            Ok(Some(if given.lt(0)? { i64::MIN + 1 } else { i64::MAX }))
        }
        Err(_) => {
            let message = format!(
                "a slice is bounded by whole numbers or None, not {}",
                describe_object(&given)
            );
            Err(error(given.py(), ErrorKind::Binding, message))
        }
    }
}

/// A planned index: a view, and the elements picked out of it.
struct Found<'py> {
    view: Any<'py>,
    /// How the view was made, step by step, each with what it was made of.
    steps: Vec<(Any<'py>, Step)>,
    /// An entry for each dimension, `None` for all of it; `None` where there are no arrays.
    picks: Option<Bound<'py, PyList>>,
    /// Whether what is read without picks is a copy nevertheless.
    copies: bool,
    /// Masks that can't be read, which say whether anything is picked at all.
    masks: Vec<Any<'py>>,
}

/// The view of a step: one call of an operator.
fn step_view<'py>(step: &Step, base: &Any<'py>) -> PyResult<Any<'py>> {
    let py = base.py();
    match *step {
        Step::Select(dim, place) => aten::SELECT.call(py, (base, dim, place)),
        Step::Slice(dim, start, stop, step) => aten::SLICE.call(py, (base, dim, start, stop, step)),
        Step::Unsqueeze(dim) => aten::UNSQUEEZE.call(py, (base, dim)),
        Step::Permute(ref dims) => aten::PERMUTE.call(py, (base, dims.clone())),
    }
}

/// The base of a step with other elements in its view.
fn step_scatter<'py>(step: &Step, base: &Any<'py>, part: &Any<'py>) -> PyResult<Any<'py>> {
    let py = base.py();
    match *step {
        Step::Select(dim, place) => aten::SELECT_SCATTER.call(py, (base, part, dim, place)),
        Step::Slice(dim, start, stop, step) => {
            aten::SLICE_SCATTER.call(py, (base, part, dim, start, stop, step))
        }
        Step::Unsqueeze(dim) => aten::SQUEEZE.call(py, (part, dim)),
        Step::Permute(ref dims) => {
            let mut back = vec![0; dims.len()];
            for (place, dim) in dims.iter().enumerate() {
                back[*dim] = place;
            }
            aten::PERMUTE.call(py, (part, back))
        }
    }
}

fn find<'py>(tensor: &Bound<'py, PyTensor>, key: &Any<'py>) -> PyResult<Found<'py>> {
    let py = tensor.py();
    let entries = match key.cast::<PyTuple>() {
        Ok(keys) => keys.iter().map(|key| entry(&key)).collect::<PyResult<Vec<_>>>()?,
        Err(_) => vec![entry(key)?],
    };
    let plan = index::plan(tensor.get().tensor.shape(), entries).py(py)?;
    let mut view = tensor.clone().into_any();
    let mut steps = Vec::with_capacity(plan.steps.len());
    for step in plan.steps {
        let next = step_view(&step, &view)?;
        steps.push((std::mem::replace(&mut view, next), step));
    }
    let picks = plan.picks.map(|picks| {
        let device = tensor.get().tensor.device();
        let picks = picks.into_iter().map(|pick| picked(py, pick, device));
        PyList::new(py, picks.collect::<PyResult<Vec<_>>>()?)
    });
    Ok(Found { view, steps, picks: picks.transpose()?, copies: plan.copies, masks: plan.masks })
}

/// Converts the pick of a dimension to an argument of `aten::index`.
fn picked<'py>(py: Python<'py>, pick: Pick<Any<'py>>, device: Device) -> PyResult<Any<'py>> {
    // Positions that are numbers, lists or arrays of the host are put where the tensor is. Meta has no
    // place for them, and needs none.
    let device = if device == Device::META { Device::CPU } else { device };
    let positions = match pick {
        Pick::All => return Ok(py.None().into_bound(py)),
        Pick::At(position) => Tensor::from_vec(vec![position], &[]),
        Pick::Nothing => Tensor::from_vec(Vec::<i64>::new(), &[0]),
        Pick::Array(array, _) if device == Device::CPU || array.is_instance_of::<PyTensor>() => {
            return Ok(array);
        }
        Pick::Array(array, _) => arrays::view(&array),
    };
    let positions = positions.and_then(|positions| positions.to_device(device)).py(py)?;
    Ok(wrap(py, positions)?.into_any())
}

/// Writes into a view, or into what is picked out of it.
fn write<'py>(
    view: &Any<'py>,
    picks: Option<&Bound<'py, PyList>>,
    value: &Any<'py>,
) -> PyResult<()> {
    let py = view.py();
    let written = match picks {
        Some(picks) => aten::INDEX_PUT_IN_PLACE.call(py, (view, picks, assigned(view, value)?)),
        None if operand(value) == Operand::Number => aten::FILL.call(py, (view, value)),
        None => aten::COPY.call(py, (view, assigned(view, value)?)),
    };
    written.map(drop)
}

/// Writes where gradients are recorded: the tensor's place in the graph becomes that of a copy with
/// the new elements in the view, which then is written over the tensor.
fn write_recorded<'py>(
    tensor: &Bound<'py, PyTensor>,
    found: Found<'py>,
    value: &Any<'py>,
) -> PyResult<()> {
    let py = tensor.py();
    let Found { view, steps, picks, .. } = found;
    let mut part = if let Some(picks) = picks {
        aten::INDEX_PUT.call(py, (&view, picks, assigned(&view, value)?))?
    } else {
        // All of it is replaced, so its history doesn't count.
        let part = aten::CLONE.call(py, (aten::DETACH.call(py, (&view,))?,))?;
        write(&part, None, value)?;
        part
    };
    // The tensor shares its memory with no other one when it is written.
    drop(view);
    for (base, step) in steps.into_iter().rev() {
        part = step_scatter(&step, &base, &part)?;
    }
    aten::COPY.call(py, (tensor, part)).map(drop)
}

/// Converts an assigned value to an operand of the assignment.
fn assigned<'py>(view: &Any<'py>, value: &Any<'py>) -> PyResult<Any<'py>> {
    let py = value.py();
    match operand(value) {
        Operand::Array => Ok(value.clone()),
        Operand::Other => numpy_array::as_array(value).py(py),
        Operand::Number => {
            let dtype = arrays::view(view).py(py)?.dtype();
            let number = values::value_from(value, &Type::Scalar).py(py)?;
            let number = number.as_ref().and_then(|number| number.as_ref().scalar());
            let Some(number) = number else {
                let message = format!("{value} can't be written into a tensor of {dtype}");
                return Err(error(py, ErrorKind::DType, message));
            };
            let number = Tensor::from_scalar(number, dtype).map_err(|error| error.at("x[...] = y"));
            Ok(wrap(py, number.py(py)?)?.into_any())
        }
    }
}

/// Goes through a tensor along its first dimension.
#[pyclass(name = "TensorIterator", module = "keyfold")]
pub(crate) struct PyTensorIterator {
    tensor: Py<PyTensor>,
    next: usize,
}

#[pymethods]
impl PyTensorIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Any<'py>>> {
        let tensor = self.tensor.bind(py);
        if self.next >= tensor.get().tensor.shape().first().copied().unwrap_or(0) {
            return Ok(None);
        }
        let item = aten::SELECT.call(py, (tensor, 0, self.next))?;
        self.next += 1;
        Ok(Some(item))
    }

    fn __length_hint__(&self, py: Python<'_>) -> usize {
        let length = self.tensor.bind(py).get().tensor.shape().first().copied();
        length.unwrap_or(0).saturating_sub(self.next)
    }
}

#[pymethods]
impl PyTensor {
    /// Elements picked by whole numbers and slices (a view), or by masks and arrays (a copy).
    fn __getitem__<'py>(slf: &Bound<'py, Self>, key: &Any<'py>) -> PyResult<Any<'py>> {
        let Found { view, picks, copies, masks, .. } = find(slf, key)?;
        if let Some(mask) = masks.first() {
            materialize::check(slf.py(), &arrays::view(mask).py(slf.py())?, "use as an index")?;
        }
        match picks {
            Some(picks) => aten::INDEX.call(slf.py(), (view, picks)),
            None if copies => aten::CLONE.call(slf.py(), (view,)),
            // `x[...]` is another tensor on the same memory, as each other index.
            None if view.is(slf) => aten::ALIAS.call(slf.py(), (slf,)),
            None => Ok(view),
        }
    }

    /// Writes into the elements that the index picks; of a place picked twice the last one stays.
    fn __setitem__<'py>(slf: &Bound<'py, Self>, key: &Any<'py>, value: &Any<'py>) -> PyResult<()> {
        let py = slf.py();
        slf.get().tensor.check_writable().py(py)?;
        let mut found = find(slf, key)?;
        let mut value = value.clone();
        for mask in std::mem::take(&mut found.masks) {
            let elements = assigned(&found.view, &value)?;
            value = aten::WHERE.call(py, (mask, elements, &found.view))?;
        }
        let writes_part = !found.steps.is_empty() || found.picks.is_some();
        if writes_part && requires_grad_here(slf, &value)? {
            return write_recorded(slf, found, &value);
        }
        write(&found.view, found.picks.as_ref(), &value)
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTensorIterator>> {
        if slf.get().tensor.ndim() == 0 {
            let message = "a tensor without dimensions can't be iterated over";
            return Err(error(slf.py(), ErrorKind::Binding, message));
        }
        Bound::new(slf.py(), PyTensorIterator { tensor: slf.clone().unbind(), next: 0 })
    }

    fn __contains__<'py>(slf: &Bound<'py, Self>, value: &Any<'py>) -> PyResult<bool> {
        let py = slf.py();
        if operand(value) == Operand::Other {
            return Ok(false);
        }
        aten::ANY.call(py, (EQ.call(slf, value)?,))?.is_truthy()
    }
}
