//! `keyfold.exp`, `keyfold.add`: the functions that call operators, made from the operators' rows.

use keyfold::ops::{Form, Naming, Public, Row, Signature};
use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{CallContext, Dispatcher, Kernel, Tag};
use keyfold_tensor::Value;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyTuple};
use smallvec::SmallVec;

use crate::call::invoke::{self, Choose, Computed};
use crate::call::operator::{PyOperator, with_c_arguments};
#[cfg(not(feature = "abi3"))]
use crate::call::panics::guarded;
use crate::call::params::Params;
#[cfg(not(feature = "abi3"))]
use crate::call::vectorcall::{Vectorcall, vectorcall};
use crate::classes::aten::Aten;
use crate::classes::number_or_array::{Operand, operand};
use crate::classes::packet;
use crate::marshal::errors::{IntoPyResult, error, reworded};

type Objects = SmallVec<[*mut ffi::PyObject; 8]>;

/// An overload of an operator, and the one that writes into a tensor of the caller's, if there is one.
struct Overload {
    fresh: Aten,
    out: Option<Aten>,
    /// Whether it takes its two tensors, or its tensor and its number, the other way round.
    swapped: bool,
}

impl Overload {
    /// The overload `of` an operator; `""` is the one without a name.
    fn new(operator: &str, of: &str, has_out: bool) -> Overload {
        let name = |overload: &str| match overload {
            "" => operator.to_owned(),
            overload => format!("{operator}.{overload}"),
        };
        let with_out = if of.is_empty() { "out".to_owned() } else { format!("{of}_out") };
        let out = has_out.then(|| Aten::named(name(&with_out)));
        Overload { fresh: Aten::named(name(of)), out, swapped: false }
    }
}

/// The overloads that a function calls.
enum Overloads {
    One(Overload),
    /// Two arrays; an array and a number; a number and an array.
    Pair([Overload; 3]),
    /// Two arrays; an array and a number; a number and an array; two numbers.
    Choice([Overload; 4]),
}

// A function of the package that calls an operator: the array API's, or one in its manner. A docstring of
// the class would stand in the way of each object's own.
#[pyclass(name = "OperatorFunction", module = "keyfold", frozen, weakref)]
pub(crate) struct PyFunction {
    /// Where CPython looks for the function that calls the object (`tp_vectorcall_offset`).
    #[cfg(not(feature = "abi3"))]
    pub(crate) vectorcall: ffi::vectorcallfunc,
    /// How many arguments a call has that gives each array by position, and nothing else.
    arrays_alone: usize,
    overloads: Overloads,
    public: &'static Public,
    schema: Schema,
    params: Params,
    by_position: usize,
    places: Vec<usize>,
}

/// A call of a function, as the operator takes it.
struct Planned<'f, 'py> {
    overload: &'f Overload,
    operator: &'f Bound<'py, PyOperator>,
    /// One object for each of the operator's arguments.
    objects: Objects,
}

/// A call that a function makes: an ordinary one, whose errors name the function and its arguments.
#[derive(Clone, Copy)]
struct Called<'f>(&'f PyFunction, &'f Overload);

impl Choose for Called<'_> {
    const CHECKS_DEVICES: bool = true;

    #[inline(always)]
    fn choose<R>(
        &self,
        operator: &PyOperator,
        tag: Tag,
        call: impl FnOnce(&CallContext<'_, Value>, &Kernel<Value>) -> Result<R>,
    ) -> Result<R> {
        Computed.choose(operator, tag, call)
    }

    fn exception(&self, py: Python<'_>, error: Error) -> PyErr {
        let Called(function, overload) = *self;
        reworded(py, error, |messages, text| {
            let names = PyDict::new(py);
            let operator = overload.fresh.object(py)?.get();
            for (at, param) in function.params.all.iter().take(function.places.len()).enumerate() {
                let argument = &operator.params.all[function.place(overload, at)];
                names.set_item(&argument.name, &param.name)?;
            }
            let numbers = function.public.form.takes_numbers();
            messages.call_method1("of_function", (text, function.public.name, names, numbers))
        })
    }
}

impl PyFunction {
    /// The function that a row names, if it names one.
    fn of(py: Python<'_>, row: &'static Row) -> PyResult<Option<Self>> {
        let (Naming::Named(public), Some(signature)) = (row.naming(), row.signature().py(py)?)
        else {
            return Ok(None);
        };
        let Signature { schema, by_position, places } = signature;
        let (name, own) = (row.schema().name.qualified(), &*row.schema().name.overload);
        let has_out = row.out_schema().is_some();
        let overload = |of: &str| Overload::new(&name, of, has_out);
        let overloads = match public.form {
            Form::Plain(_) => Overloads::One(overload(own)),
            Form::Pair(reversed) => {
                let reversed = Overload::new(reversed, "Scalar", has_out);
                let reversed = Overload { swapped: true, ..reversed };
                Overloads::Pair([overload(own), overload("Scalar"), reversed])
            }
            Form::Choice => {
                Overloads::Choice([own, "ScalarOther", "ScalarSelf", "Scalar"].map(overload))
            }
        };
        let arrays_alone = match places.len() == by_position {
            true => by_position,
            false => usize::MAX,
        };
        Ok(Some(PyFunction {
            #[cfg(not(feature = "abi3"))]
            vectorcall: vectorcall::<Self>,
            arrays_alone,
            overloads,
            public,
            params: Params::new(py, &schema)?,
            schema,
            by_position,
            places,
        }))
    }

    /// The place of a parameter among the arguments of an overload.
    fn place(&self, overload: &Overload, at: usize) -> usize {
        if overload.swapped { 1 - at } else { self.places[at] }
    }

    /// An error of a call, which begins with the function's name.
    fn error(&self, py: Python<'_>, message: &str) -> PyErr {
        let text = format!("keyfold.{}() {message}", self.public.name);
        error(py, ErrorKind::Binding, text)
    }

    /// The overload for arrays and numbers.
    ///
    /// # Safety
    /// `arrays` are live objects, as many as the function takes arrays; the GIL is held.
    #[inline(always)]
    unsafe fn overload(
        &self,
        py: Python<'_>,
        arrays: &[*mut ffi::PyObject],
    ) -> PyResult<&Overload> {
        // SAFETY: as for the caller.
        let operands =
            |at: usize| unsafe { [operand(py, arrays[at]), operand(py, arrays[at + 1])] };
        use Operand::{Array, Number};
        Ok(match &self.overloads {
            Overloads::One(only) => only,
            Overloads::Pair(each) => match operands(0) {
                [Array, Array] => &each[0],
                [Array, Number] => &each[1],
                [Number, Array] => &each[2],
                [Number, Number] => return Err(self.numbers_alone(py, arrays)),
            },
            Overloads::Choice(each) => match operands(1) {
                [Array, Array] => &each[0],
                [Array, Number] => &each[1],
                [Number, Array] => &each[2],
                [Number, Number] => &each[3],
            },
        })
    }

    #[cold]
    fn numbers_alone(&self, py: Python<'_>, numbers: &[*mut ffi::PyObject]) -> PyErr {
        let Overloads::Pair(_) = &self.overloads else {
            return self.error(py, "takes an array");
        };
        let shown = |at: usize| {
            // SAFETY: live objects, by the contract of `overload`.
            let number = unsafe { Bound::from_borrowed_ptr(py, numbers[at]) };
            number.repr().map(|text| text.to_string()).unwrap_or_default()
        };
        let message = format!(
            "argument 'x1' or 'x2' must be an array; both are numbers: {}, {}",
            shown(0),
            shown(1)
        );
        self.error(py, &message)
    }

    /// Calls the operator with a C array of arguments. Gives a new reference, or null with an exception set.
    ///
    /// # Safety
    /// As for [`invoke::call`].
    #[inline(always)]
    unsafe fn call_c(
        &self,
        py: Python<'_>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<*mut ffi::PyObject> {
        if keywords.is_null() && nargs == self.arrays_alone {
            // SAFETY: as many live objects as that, by the contract.
            unsafe {
                let overload = self.overload(py, std::slice::from_raw_parts(args, nargs))?;
                let operator = overload.fresh.object(py)?.get();
                let swapped: [_; 2];
                let args = if overload.swapped {
                    swapped = [*args.add(1), *args];
                    swapped.as_ptr()
                } else {
                    args
                };
                let called = Called(self, overload);
                return Ok(invoke::call(operator, args, nargs, keywords, &called));
            }
        }
        // SAFETY: as for the caller.
        unsafe { self.plan_and_call(py, args, nargs, keywords) }
    }

    #[inline(never)]
    unsafe fn plan_and_call(
        &self,
        py: Python<'_>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<*mut ffi::PyObject> {
        // SAFETY: as for the caller.
        unsafe {
            let Planned { overload, operator, mut objects } =
                self.plan(py, args, nargs, keywords)?;
            let called = Called(self, overload);
            Ok(invoke::call_in_order(operator.get(), &mut objects, &called))
        }
    }

    /// The operator's arguments for a call of the function.
    ///
    /// # Safety
    /// As for [`invoke::call`]. The objects are the caller's, constants, or the function's defaults.
    unsafe fn plan<'py>(
        &self,
        py: Python<'py>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<Planned<'_, 'py>> {
        // SAFETY: as for the caller.
        let given = unsafe { self.bind(py, args, nargs, keywords)? };
        // SAFETY: bound arguments are live objects, the arrays first.
        let overload = unsafe { self.overload(py, &given)? };
        let out = given.get(self.places.len()).filter(|out| !is_none(**out));
        let operator = match (out, &overload.out) {
            (Some(_), Some(with_out)) => with_out.object(py)?,
            _ => overload.fresh.object(py)?,
        };
        let defaults = operator.get().params.all.iter();
        let mut objects: Objects = defaults
            .map(|param| param.default.as_ref().map_or(std::ptr::null_mut(), Py::as_ptr))
            .collect();
        for at in 0..self.places.len() {
            objects[self.place(overload, at)] = given[at];
        }
        if let (Some(out), Some(last)) = (out, objects.last_mut()) {
            *last = *out;
        }
        Ok(Planned { overload, operator, objects })
    }

    /// The arguments in the order of the function's parameters, defaults filled in.
    ///
    /// # Safety
    /// As for [`invoke::call`].
    unsafe fn bind(
        &self,
        py: Python<'_>,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> PyResult<Objects> {
        let all = &self.params.all;
        let mut slots: Objects = SmallVec::from_elem(std::ptr::null_mut(), all.len());
        // SAFETY: null or a tuple of strings, by the contract.
        let names = unsafe { Bound::from_borrowed_ptr_or_opt(py, keywords) };
        let names = names.map(|names| names.cast_into::<PyTuple>()).transpose()?;
        for at in 0..nargs.min(self.params.positional) {
            // SAFETY: as many live objects as that.
            slots[at] = unsafe { *args.add(at) };
        }
        for (at, name) in names.iter().flatten().enumerate() {
            // SAFETY: a value for each name stands behind those by position.
            let value = unsafe { *args.add(nargs + at) };
            self.set(py, &mut slots, nargs, (&name.extract::<String>()?, value))?;
        }
        let lacks = |at: usize| slots[at].is_null() && all[at].default.is_none();
        if nargs > self.params.positional || (0..all.len()).any(lacks) {
            let named = (nargs..all.len()).filter(|at| !slots[*at].is_null());
            let named: Vec<&str> = named.map(|at| &*self.schema.arguments[at].name).collect();
            return Err(self.unbindable(py, nargs, &named));
        }
        for (slot, param) in slots.iter_mut().zip(all) {
            if let (true, Some(default)) = (slot.is_null(), &param.default) {
                *slot = default.as_ptr();
            }
        }
        if let Some(at) = all.iter().position(|param| param.name.bind(py) == "keepdims") {
            slots[at] = kept(py, slots[at]);
        }
        Ok(slots)
    }

    /// Sets an argument that was given by keyword: by the name of the parameter, or by PyTorch's.
    fn set(
        &self,
        py: Python<'_>,
        slots: &mut [*mut ffi::PyObject],
        nargs: usize,
        (keyword, value): (&str, *mut ffi::PyObject),
    ) -> PyResult<()> {
        let find = |name: &str| self.params.all.iter().position(|p| p.name.bind(py) == name);
        let ours = match keyword {
            "dim" => "axis",
            "keepdim" => "keepdims",
            other => other,
        };
        let Some(at) = find(keyword).or_else(|| find(ours)) else {
            let unexpected = py.import("keyfold._messages")?.getattr("unexpected_in")?;
            let names = self.schema.arguments.iter().skip(self.by_position);
            let names: Vec<&str> = names.map(|argument| &*argument.name).collect();
            return Err(PyErr::from_value(unexpected.call1((self.public.name, names, keyword))?));
        };
        if at < self.by_position {
            let message = format!("takes argument '{keyword}' by position only");
            return Err(self.error(py, &message));
        }
        let message = if at < nargs && ours == keyword {
            format!("got multiple values for argument '{keyword}'")
        } else if !slots[at].is_null() && is_none(value) {
            return Ok(());
        } else if !slots[at].is_null() && !is_none(slots[at]) {
            let theirs = if ours == "axis" { "dim" } else { "keepdim" };
            format!("got both '{ours}' and '{theirs}', which mean the same")
        } else {
            slots[at] = value;
            return Ok(());
        };
        Err(self.error(py, &message))
    }

    /// The error for too many arguments by position, or too few, in Python's own words.
    #[cold]
    fn unbindable(&self, py: Python<'_>, given: usize, named: &[&str]) -> PyErr {
        match self.schema.bind(given, named) {
            Err(refused) => {
                let own = self.schema.name.qualified();
                let text =
                    refused.message().replacen(&own, &format!("keyfold.{}", self.public.name), 1);
                error(py, ErrorKind::Binding, text)
            }
            Ok(_) => self.error(py, "can't be called with these arguments"),
        }
    }

    /// The text between the parentheses of its definition.
    fn parameters(&self) -> String {
        let mut shown = Vec::new();
        let (arguments, mut is_keyword) = (&self.schema.arguments, false);
        for (at, argument) in arguments.iter().enumerate() {
            if argument.kwarg_only && !is_keyword {
                is_keyword = true;
                shown.push("*".to_owned());
            }
            shown.push(match &argument.default {
                Some(default) => format!("{}={default}", argument.name),
                None => argument.name.to_string(),
            });
            if at + 1 == self.by_position {
                shown.push("/".to_owned());
            }
        }
        if arguments.iter().any(|argument| argument.name == "axis") {
            shown.push("**other".to_owned());
        }
        shown.join(", ")
    }
}

fn is_none(object: *mut ffi::PyObject) -> bool {
    // SAFETY: the address of a constant.
    object == unsafe { ffi::Py_None() }
}

/// Whether reduced dimensions stay: False for None, and 0 and 1 are taken for False and True.
fn kept(py: Python<'_>, given: *mut ffi::PyObject) -> *mut ffi::PyObject {
    let constant = |flag| PyBool::new(py, flag).as_ptr();
    if is_none(given) {
        return constant(false);
    }
    // SAFETY: a live object.
    let object = unsafe { Bound::from_borrowed_ptr(py, given) };
    match object.is_instance_of::<PyInt>().then(|| object.extract::<i64>()) {
        Some(Ok(number @ (0 | 1))) => constant(number == 1),
        _ => given,
    }
}

#[pymethods]
impl PyFunction {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = args.py();
        with_c_arguments(args, kwargs, |all, nargs, names| {
            // SAFETY: live objects held by the tuple and dict; attached. A new reference, or null with an
            // exception set.
            unsafe {
                let result = self.call_c(py, all.as_ptr(), nargs, names)?;
                Bound::from_owned_ptr_or_err(py, result)
            }
        })
    }

    /// Itself: as an attribute of a class it is no method.
    fn __get__<'py>(
        slf: Bound<'py, Self>,
        _instance: &Bound<'py, PyAny>,
        _owner: Option<&Bound<'py, PyAny>>,
    ) -> Bound<'py, Self> {
        slf
    }

    #[getter(__name__)]
    fn name(&self) -> &'static str {
        self.public.name
    }

    #[getter(__qualname__)]
    fn qualified_name(&self) -> &'static str {
        self.public.name
    }

    #[getter(__doc__)]
    fn doc(&self) -> &'static str {
        self.public.doc
    }

    #[getter(__text_signature__)]
    fn text_signature(&self) -> String {
        format!("({})", self.parameters())
    }

    #[getter(__signature__)]
    fn signature<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let signature = py.import("keyfold._inspect")?.getattr("signature_of")?;
        signature.call1((self.parameters(),))
    }

    /// The operators that it calls: with arrays, and with numbers in place of each.
    #[getter]
    fn operators<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let overloads = match &self.overloads {
            Overloads::One(only) => std::slice::from_ref(only),
            Overloads::Pair(each) => each,
            Overloads::Choice(each) => each,
        };
        let operators = overloads.iter().map(|overload| overload.fresh.object(py));
        PyTuple::new(py, operators.collect::<PyResult<Vec<_>>>()?)
    }

    fn __reduce__(&self) -> &'static str {
        self.public.name
    }

    fn __repr__(&self) -> String {
        format!("<function keyfold.{}({})>", self.public.name, self.parameters())
    }
}

/// An operator, and the arguments of a call of it.
pub(crate) type OperatorCall<'py> =
    (Bound<'py, PyOperator>, Bound<'py, PyTuple>, Option<Bound<'py, PyDict>>);

/// The operator that a call means, and the arguments as it takes them: those of a function of the package
/// are put into its order.
pub(crate) fn resolved<'py>(
    dispatcher: &Dispatcher<Value>,
    given: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<OperatorCall<'py>> {
    let py = given.py();
    let Ok(function) = given.cast::<PyFunction>() else {
        let operator = packet::overload_for(dispatcher, given, args, kwargs)?;
        return Ok((operator, args.clone(), kwargs.cloned()));
    };
    let function = function.get();
    with_c_arguments(args, kwargs, |all, nargs, names| {
        // SAFETY: live objects held by the tuple and dict; attached.
        let planned = unsafe { function.plan(py, all.as_ptr(), nargs, names)? };
        let Planned { operator, objects, .. } = planned;
        let params = &operator.get().params;
        // SAFETY: the same objects, the operator's defaults, and constants.
        let object = |at: &*mut ffi::PyObject| unsafe { Bound::from_borrowed_ptr(py, *at) };
        let (first, rest) = objects.split_at(params.positional);
        let by_name = PyDict::new(py);
        for (param, value) in params.all[first.len()..].iter().zip(rest) {
            by_name.set_item(&param.name, object(value))?;
        }
        Ok((operator.clone(), PyTuple::new(py, first.iter().map(object))?, Some(by_name)))
    })
}

/// The functions that the operators' rows name, by their names.
#[pyfunction]
pub(crate) fn _functions(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for row in keyfold::ops::rows() {
        if let Some(function) = PyFunction::of(py, row)? {
            all.set_item(function.public.name, Bound::new(py, function)?)?;
        }
    }
    Ok(all)
}

/// One of the functions.
#[cfg(not(feature = "abi3"))]
pub(crate) fn any(py: Python<'_>) -> PyResult<Bound<'_, PyFunction>> {
    for row in keyfold::ops::rows() {
        if let Some(function) = PyFunction::of(py, row)? {
            return Bound::new(py, function);
        }
    }
    Err(error(py, ErrorKind::Registration, "no row names a function"))
}

#[cfg(not(feature = "abi3"))]
impl Vectorcall for PyFunction {
    #[inline(always)]
    unsafe fn call_c_array(
        &self,
        args: *const *mut ffi::PyObject,
        nargs: usize,
        keywords: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        // SAFETY: as for the caller.
        guarded(self.public.name, |py| unsafe { self.call_c(py, args, nargs, keywords) })
    }
}
