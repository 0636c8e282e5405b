//! `x[...]`: whole numbers, slices, `...`, `None`, masks and arrays of positions, as in NumPy.
//!
//! Whole numbers and slices give views, one operator call each; masks and arrays of positions give
//! copies, by `aten::index`. Assignment writes through the same views.

use keyfold_core::{DType, Device, ErrorKind};
use keyfold_dispatch::Value as _;
use keyfold_dispatch::schema::Type;
use keyfold_layers::vmap;
use keyfold_tensor::Tensor;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyInt, PyList, PySlice, PyTuple};

use crate::arrays;
use crate::arrays::numpy_array;
use crate::aten;
use crate::convert;
use crate::errors::IntoPyResult;
use crate::readable;
use crate::tensor::{PyTensor, error, wrap};
use crate::tensor_ops::{Operand, operand, requires_grad_here};

type Any<'py> = Bound<'py, PyAny>;

/// One entry of an index.
enum Part<'py> {
    /// A position, counted from the end where it is negative.
    Place(i64),
    /// A position in an array without dimensions: what it picks is a copy, as with all arrays.
    ZeroDim(i64),
    Slice(Bound<'py, PySlice>),
    NewAxis,
    Ellipsis,
    /// `True` takes everything in a new dimension, `False` nothing.
    Flag(bool),
    /// A mask without dimensions whose value can't be read: an example's, or a traced one.
    Unread(Any<'py>),
    /// A mask or positions, and how many dimensions it indexes.
    Array(Any<'py>, usize),
    /// A mask without elements, which picks nothing of so many dimensions, whatever their sizes.
    EmptyMask(usize),
}

impl Part<'_> {
    /// The dimensions of the tensor that it indexes.
    fn takes(&self) -> usize {
        match self {
            Part::Place(_) | Part::ZeroDim(_) | Part::Slice(_) => 1,
            Part::Array(_, dims) | Part::EmptyMask(dims) => *dims,
            Part::NewAxis | Part::Ellipsis | Part::Flag(_) | Part::Unread(_) => 0,
        }
    }
}

fn parse<'py>(given: &Any<'py>) -> PyResult<Part<'py>> {
    let py = given.py();
    if given.is_none() {
        return Ok(Part::NewAxis);
    }
    if given.is_instance_of::<PyEllipsis>() {
        return Ok(Part::Ellipsis);
    }
    if let Ok(slice) = given.cast::<PySlice>() {
        return Ok(Part::Slice(slice.clone()));
    }
    if let Ok(flag) = given.cast::<PyBool>() {
        return Ok(Part::Flag(flag.is_true()));
    }
    if given.is_instance_of::<PyInt>() {
        return place(given).map(Part::Place);
    }
    if given.is_instance_of::<PyList>() {
        let array = numpy_array::as_array(given).py(py)?;
        // NumPy makes floats out of nothing.
        let empty: usize = array.getattr("size")?.extract()?;
        return parse_array(&if empty == 0 {
            array.call_method1("astype", ("int64",))?
        } else {
            array
        });
    }
    if arrays::look(given).py(py)?.is_some() {
        return parse_array(given);
    }
    if given.hasattr("__index__")? {
        return place(given).map(Part::Place);
    }
    let message = format!(
        "a tensor is indexed by whole numbers, slices, ..., None, masks and arrays of whole numbers, \
         not by {}",
        crate::foreign::describe_object(given)
    );
    Err(error(py, ErrorKind::Binding, message))
}

fn place(given: &Any<'_>) -> PyResult<i64> {
    given.extract::<i64>().map_err(|raised| {
        if raised.is_instance_of::<pyo3::exceptions::PyOverflowError>(given.py()) {
            return error(given.py(), ErrorKind::Index, format!("index {given} is out of range"));
        }
        raised
    })
}

fn parse_array<'py>(array: &Any<'py>) -> PyResult<Part<'py>> {
    let py = array.py();
    let view = arrays::view(array).py(py)?;
    let dtype = view.dtype();
    if dtype != DType::Bool && !dtype.is_integral() {
        let message = format!(
            "an array that indexes must be of whole numbers or bools, not {dtype}; convert it, or \
             compare for a mask"
        );
        return Err(error(py, ErrorKind::DType, message));
    }
    // A position that differs from example to example stays a tensor; any other is read.
    let stays = dtype.is_integral() && vmap::batch_of(&view).is_some();
    if view.ndim() == 0 && !stays {
        let read = readable::check(py, &view, "use as an index");
        if read.is_err() && dtype == DType::Bool {
            return Ok(Part::Unread(array.clone()));
        }
        read?;
    }
    match (view.ndim(), dtype) {
        (0, DType::Bool) => Ok(Part::Flag(view.item().py(py)?.is_nonzero())),
        (0, _) if !stays => match view.item().py(py)?.as_i64() {
            Some(number) => Ok(Part::ZeroDim(number)),
            None => Err(error(py, ErrorKind::Index, format!("index {array} is out of range"))),
        },
        (ndim, DType::Bool) if view.numel() == 0 => Ok(Part::EmptyMask(ndim)),
        (ndim, DType::Bool) => Ok(Part::Array(array.clone(), ndim)),
        _ => Ok(Part::Array(array.clone(), 1)),
    }
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
                crate::foreign::describe_object(&given)
            );
            Err(error(given.py(), ErrorKind::Binding, message))
        }
    }
}

/// What an index comes to: a view, and what is picked out of it.
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

/// One operator on the way to a view.
enum Step {
    Select(usize, i64),
    Slice(usize, Option<i64>, Option<i64>, i64),
    Unsqueeze(usize),
    Permute(Vec<usize>),
}

impl Step {
    fn view<'py>(&self, base: &Any<'py>) -> PyResult<Any<'py>> {
        let py = base.py();
        match *self {
            Step::Select(dim, place) => aten::SELECT.call(py, (base, dim, place)),
            Step::Slice(dim, start, stop, step) => {
                aten::SLICE.call(py, (base, dim, start, stop, step))
            }
            Step::Unsqueeze(dim) => aten::UNSQUEEZE.call(py, (base, dim)),
            Step::Permute(ref dims) => aten::PERMUTE.call(py, (base, dims.clone())),
        }
    }

    /// The base with other elements in the view.
    fn scatter<'py>(&self, base: &Any<'py>, part: &Any<'py>) -> PyResult<Any<'py>> {
        let py = base.py();
        match *self {
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
}

fn find<'py>(tensor: &Bound<'py, PyTensor>, key: &Any<'py>) -> PyResult<Found<'py>> {
    let py = tensor.py();
    let parts = match key.cast::<PyTuple>() {
        Ok(keys) => keys.iter().map(|key| parse(&key)).collect::<PyResult<Vec<_>>>()?,
        Err(_) => vec![parse(key)?],
    };
    let ndim = tensor.get().tensor.ndim();
    let taken: usize = parts.iter().map(Part::takes).sum();
    let refuse = |message: String| Err(error(py, ErrorKind::Index, message));
    let Some(rest) = ndim.checked_sub(taken) else {
        let shape = tensor.get().tensor.shape();
        return refuse(format!(
            "{taken} indices are too many for shape {shape:?}, which has {ndim} dimensions"
        ));
    };
    if parts.iter().filter(|part| matches!(part, Part::Ellipsis)).count() > 1 {
        return refuse("an index can have one ... only".to_owned());
    }
    let has_arrays = parts.iter().any(|part| matches!(part, Part::Array(..) | Part::EmptyMask(_)));
    let is_flag = |part: &Part<'_>| matches!(part, Part::Flag(_) | Part::Unread(_));
    if has_arrays && parts.iter().any(is_flag) {
        return refuse("True and False can't stand beside arrays in an index".to_owned());
    }
    let apart = has_arrays && stand_apart(&parts);
    let copies = parts.iter().any(|part| matches!(part, Part::ZeroDim(_)));
    let mut view = tensor.clone().into_any();
    let (mut steps, mut masks) = (Vec::new(), Vec::new());
    let mut take = |view: &mut Any<'py>, step: Step| -> PyResult<()> {
        let next = step.view(view)?;
        steps.push((std::mem::replace(view, next), step));
        Ok(())
    };
    let mut picks = PyList::empty(py);
    let mut dim = 0;
    // Positions that are numbers, lists or arrays of the host are put where the tensor is. Meta has no
    // place for them, and needs none.
    let device = match tensor.get().tensor.device() {
        Device::META => Device::CPU,
        device => device,
    };
    let here = |positions: Tensor| wrap(py, positions.to_device(device).py(py)?);
    for part in parts {
        match part {
            // Beside arrays a whole number counts as one, as in NumPy.
            Part::Place(place) | Part::ZeroDim(place) if has_arrays => {
                picks.append(here(Tensor::from_vec(vec![place], &[]).py(py)?)?)?;
                dim += 1;
            }
            Part::Place(place) | Part::ZeroDim(place) => {
                take(&mut view, Step::Select(dim, place))?;
            }
            Part::Slice(slice) => {
                let [start, stop, step] =
                    ["start", "stop", "step"].map(|name| slice.getattr(name).and_then(bound));
                let (start, stop, step) = (start?, stop?, step?.unwrap_or(1));
                if step == 0 {
                    return Err(error(py, ErrorKind::Value, "the step of a slice can't be zero"));
                }
                if start.is_some() || stop.is_some() || step != 1 {
                    take(&mut view, Step::Slice(dim, start, stop, step))?;
                }
                picks.append(py.None())?;
                dim += 1;
            }
            Part::NewAxis => {
                take(&mut view, Step::Unsqueeze(dim))?;
                picks.append(py.None())?;
                dim += 1;
            }
            Part::Flag(flag) => {
                take(&mut view, Step::Unsqueeze(dim))?;
                if !flag {
                    take(&mut view, Step::Slice(dim, Some(0), Some(0), 1))?;
                }
                dim += 1;
            }
            Part::Unread(mask) => {
                take(&mut view, Step::Unsqueeze(dim))?;
                masks.push(mask);
                dim += 1;
            }
            Part::Ellipsis => {
                for _ in 0..rest {
                    picks.append(py.None())?;
                }
                dim += rest;
            }
            Part::Array(array, takes) => {
                if device == Device::CPU || array.is_instance_of::<PyTensor>() {
                    picks.append(array)?;
                } else {
                    picks.append(here(arrays::view(&array).py(py)?)?)?;
                }
                dim += takes;
            }
            Part::EmptyMask(takes) => {
                for _ in 0..takes {
                    picks.append(here(Tensor::from_vec(Vec::<i64>::new(), &[0]).py(py)?)?)?;
                }
                dim += takes;
            }
        }
    }
    if apart {
        let (dims, in_front) = picked_first(&view, &picks)?;
        take(&mut view, Step::Permute(dims))?;
        picks = in_front;
    }
    Ok(Found { view, steps, picks: has_arrays.then_some(picks), copies, masks })
}

/// Whether something stands between the arrays of an index, be it a `...` for no dimension at all:
/// then NumPy puts the dimensions that they give first. Whole numbers count as arrays.
fn stand_apart(parts: &[Part<'_>]) -> bool {
    let picks = |part: &Part<'_>| {
        matches!(part, Part::Place(_) | Part::ZeroDim(_) | Part::Array(..) | Part::EmptyMask(_))
    };
    let first = parts.iter().position(picks).unwrap_or(0);
    let last = parts.iter().rposition(picks).unwrap_or(0);
    !parts[first..=last].iter().all(picks)
}

/// The dimensions of a view, those that are picked from first, and the picks for them.
fn picked_first<'py>(
    view: &Any<'py>,
    picks: &Bound<'py, PyList>,
) -> PyResult<(Vec<usize>, Bound<'py, PyList>)> {
    let py = view.py();
    let (mut in_front, mut behind, arrays) = (Vec::new(), Vec::new(), PyList::empty(py));
    let mut dim = 0;
    for pick in picks {
        if pick.is_none() {
            behind.push(dim);
            dim += 1;
            continue;
        }
        let array = arrays::view(&pick).py(py)?;
        let takes = if array.dtype() == DType::Bool { array.ndim() } else { 1 };
        in_front.extend(dim..dim + takes);
        dim += takes;
        arrays.append(pick)?;
    }
    // Dimensions behind the index stay behind.
    let ndim: usize = view.getattr("ndim")?.extract()?;
    in_front.extend(behind.into_iter().chain(dim..ndim));
    Ok((in_front, arrays))
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
        part = step.scatter(&base, &part)?;
    }
    aten::COPY.call(py, (tensor, part)).map(drop)
}

/// What is assigned, as something that counts as a tensor.
fn assigned<'py>(view: &Any<'py>, value: &Any<'py>) -> PyResult<Any<'py>> {
    let py = value.py();
    match operand(value) {
        Operand::Array => Ok(value.clone()),
        Operand::Other => numpy_array::as_array(value).py(py),
        Operand::Number => {
            let dtype = arrays::view(view).py(py)?.dtype();
            let number = convert::value_from(value, &Type::Scalar).py(py)?;
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
            readable::check(slf.py(), &arrays::view(mask).py(slf.py())?, "use as an index")?;
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
        let equal = match operand(value) {
            Operand::Array => aten::EQ.tensors.call(py, (slf, value))?,
            Operand::Number => aten::EQ.number.call(py, (slf, value))?,
            Operand::Other => return Ok(false),
        };
        aten::ANY.fresh.call(py, (equal,))?.is_truthy()
    }
}
