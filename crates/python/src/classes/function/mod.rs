//! The functions `keyfold.NAME` and the methods of `keyfold.Tensor` that call operators, made from the
//! operators' rows: a method is its function with the tensor as the first argument.

mod bind;

use keyfold::ops::{Form, Naming, Public, Row};
#[cfg(not(feature = "abi3"))]
use keyfold_core::ErrorKind;
use keyfold_core::{Error, Result};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{CallContext, Dispatcher, Kernel, Tag};
use keyfold_tensor::Value;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

pub(crate) use bind::unexpected;

use crate::call::invoke::{self, Choose, Computed};
use crate::call::operator::{PyOperator, with_c_arguments};
#[cfg(not(feature = "abi3"))]
use crate::call::panics::guarded;
use crate::call::params::Param;
#[cfg(not(feature = "abi3"))]
use crate::call::vectorcall::{Vectorcall, vectorcall};
use crate::classes::aten::Aten;
use crate::classes::number_or_array::{Operand, operand};
use crate::classes::packet;
use crate::marshal::describe::describe_object;
#[cfg(not(feature = "abi3"))]
use crate::marshal::errors::error;
use crate::marshal::errors::{IntoPyResult, reworded};
use bind::{Objects, Parameters, is_none};

/// An overload of an operator, and the one that writes into a tensor of the caller's, if there is one.
struct Overload {
    fresh: Aten,
    out: Option<Aten>,
    /// For each parameter of the function the argument that it is, if it is one.
    places: Vec<Option<usize>>,
    /// Whether it takes its two tensors, or its tensor and its number, the other way round.
    swapped: bool,
}

impl Overload {
    /// The overload `of` an operator; `""` is the one without a name.
    fn new(operator: &str, of: &str, has_out: bool, places: &[Option<usize>]) -> Overload {
        let name = |overload: &str| match overload {
            "" => operator.to_owned(),
            overload => format!("{operator}.{overload}"),
        };
        let with_out = if of.is_empty() { "out".to_owned() } else { format!("{of}_out") };
        let out = has_out.then(|| Aten::named(name(&with_out)));
        Overload { fresh: Aten::named(name(of)), out, places: places.to_vec(), swapped: false }
    }
}

/// The overloads that a function calls.
enum Overloads {
    One(Overload),
    /// A reduction of all elements, and one along axes.
    Reduction([Overload; 2]),
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
    /// How many arguments a call has that gives each array by position, and nothing else: the operator
    /// has the same defaults.
    arrays_alone: usize,
    overloads: Overloads,
    public: &'static Public,
    parameters: Parameters,
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
            for (place, param) in overload.places.iter().zip(function.parameters.all()) {
                if let Some(at) = place {
                    names.set_item(&operator.params.all[*at].name, &param.name)?;
                }
            }
            let numbers = function.public.form.takes_numbers();
            messages
                .call_method1("of_function", (text, &*function.parameters.title, names, numbers))
        })
    }
}

impl PyFunction {
    /// The function that a row names, if it names one; or the method of that name, if there is one.
    pub(crate) fn of(py: Python<'_>, row: &'static Row, is_method: bool) -> PyResult<Option<Self>> {
        let (Naming::Named(public), Some(mut signature)) = (row.naming(), row.signature().py(py)?)
        else {
            return Ok(None);
        };
        if is_method && !public.is_method {
            return Ok(None);
        }
        let (name, own) = (row.schema().name.qualified(), &*row.schema().name.overload);
        let has_out = row.out_schema().is_some();
        let places = signature.places_in(row.schema());
        let overload = |of: &str| Overload::new(&name, of, has_out, &places);
        // With the operator's own defaults a call that gives the arrays alone need not be bound here.
        let alone = |schema: &Schema, places: &[Option<usize>]| {
            let each = places.iter().zip(&signature.schema.arguments).skip(signature.by_position);
            let mut each = each.filter_map(|(place, argument)| Some(((*place)?, argument)));
            match each.all(|(at, own)| {
                own.default.is_some() && schema.arguments[at].default == own.default
            }) {
                true => signature.by_position,
                false => usize::MAX,
            }
        };
        let mut arrays_alone = alone(row.schema(), &places);
        let overloads = match public.form {
            Form::Plain(_) if own == "dim" => {
                let all = keyfold::dispatcher().operator(&name).py(py)?;
                let places = signature.places_in(all.schema());
                let whole = Overload::new(&name, "", false, &places);
                arrays_alone = alone(all.schema(), &places);
                Overloads::Reduction([whole, overload(own)])
            }
            Form::Plain(_) => Overloads::One(overload(own)),
            Form::Pair(reversed) => {
                let reversed = Overload::new(reversed, "Scalar", has_out, &[Some(1), Some(0)]);
                let reversed = Overload { swapped: true, ..reversed };
                Overloads::Pair([overload(own), overload("Scalar"), reversed])
            }
            Form::Choice => {
                Overloads::Choice([own, "ScalarOther", "ScalarSelf", "Scalar"].map(overload))
            }
        };
        if is_method {
            signature.schema.arguments[0].name = "self".to_owned();
        }
        let title = format!("{}.{}", if is_method { "Tensor" } else { "keyfold" }, public.name);
        Ok(Some(PyFunction {
            #[cfg(not(feature = "abi3"))]
            vectorcall: vectorcall::<Self>,
            arrays_alone,
            overloads,
            public,
            parameters: Parameters::new(py, title, signature)?,
        }))
    }

    /// The overload for arrays and numbers.
    ///
    /// # Safety
    /// `arrays` are live objects, as many as the function takes arrays, or one for each parameter; the GIL is
    /// held.
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
            Overloads::Reduction([all, along]) => match self.reduces_all(all, arrays) {
                true => all,
                false => along,
            },
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

    /// Whether a reduction has nothing but defaults where `all`, the one of all elements, takes nothing.
    fn reduces_all(&self, all: &Overload, given: &[*mut ffi::PyObject]) -> bool {
        let mut each = given.iter().zip(self.parameters.all()).zip(&all.places).skip(1);
        let is_default = |param: &Param, given| {
            param.default.as_ref().is_some_and(|default| default.as_ptr() == given)
        };
        each.all(|((given, param), place)| place.is_some() || is_default(param, *given))
    }

    #[cold]
    fn numbers_alone(&self, py: Python<'_>, numbers: &[*mut ffi::PyObject]) -> PyErr {
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
        self.parameters.error(py, &message)
    }

    /// Calls the operator with a C array of arguments. Gives a new reference, or null with an exception set.
    ///
    /// # Safety
    /// As for [`invoke::call`].
    #[inline(always)]
    pub(crate) unsafe fn call_c(
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
        let given = unsafe { self.parameters.bind(py, args, nargs, keywords)? };
        // SAFETY: bound arguments are live objects, the arrays first.
        let overload = unsafe { self.overload(py, &given)? };
        let out = self.parameters.signature.out.map(|at| given[at]).filter(|out| !is_none(*out));
        let operator = match (out, &overload.out) {
            (Some(_), Some(with_out)) => with_out.object(py)?,
            _ => overload.fresh.object(py)?,
        };
        let defaults = operator.get().params.all.iter();
        let mut objects: Objects = defaults
            .map(|param| param.default.as_ref().map_or(std::ptr::null_mut(), Py::as_ptr))
            .collect();
        let given = given.iter().zip(self.parameters.all());
        for ((value, param), place) in given.zip(&overload.places) {
            let Some(at) = *place else { continue };
            // None stands for the default of an operator that doesn't take it.
            let is_default = is_none(*value)
                && param.ty.is_optional()
                && !operator.get().params.all[at].ty.is_optional();
            if !is_default {
                objects[at] = *value;
            }
        }
        if let Some(out) = out {
            self.place_out(py, out, operator.get(), &mut objects)?;
        }
        Ok(Planned { overload, operator, objects })
    }

    /// Puts `out` into the last of an operator's arguments: an array, or a tuple of one for each result.
    fn place_out(
        &self,
        py: Python<'_>,
        out: *mut ffi::PyObject,
        operator: &PyOperator,
        objects: &mut Objects,
    ) -> PyResult<()> {
        let count = operator.operator.schema().returns.len();
        let places = objects.len() - count..;
        if count == 1 {
            objects[places].fill(out);
            return Ok(());
        }
        // SAFETY: a live object of the caller's.
        let given = unsafe { Bound::from_borrowed_ptr(py, out) };
        let Ok(all) = given.cast::<PyTuple>() else {
            let message = format!(
                "argument 'out' must be a tuple of {count} arrays, one for each result, not {}",
                describe_object(&given)
            );
            return Err(self.parameters.error(py, &message));
        };
        if all.len() != count {
            let message =
                format!("argument 'out' has {} arrays, but there are {count} results", all.len());
            return Err(self.parameters.error(py, &message));
        }
        // The tuple, which the caller holds, keeps them alive.
        for (object, out) in objects[places].iter_mut().zip(all.iter()) {
            *object = out.as_ptr();
        }
        Ok(())
    }

    /// The text between the parentheses of its definition.
    fn parameters(&self) -> String {
        let mut shown = Vec::new();
        let mut is_keyword = false;
        for (at, argument) in self.parameters.signature.schema.arguments.iter().enumerate() {
            if argument.kwarg_only && !is_keyword {
                is_keyword = true;
                shown.push("*".to_owned());
            }
            shown.push(match &argument.default {
                Some(default) => format!("{}={default}", argument.name),
                None => argument.name.clone(),
            });
            if at + 1 == self.parameters.signature.by_position && argument.name != "self" {
                shown.push("/".to_owned());
            }
        }
        shown.join(", ")
    }

    /// Returns a method's docstring as CPython keeps it: its signature, and the text.
    pub(crate) fn method_doc(&self) -> String {
        format!("{}(${})\n--\n\n{}", self.public.name, self.parameters(), self.doc())
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
    pub(crate) fn name(&self) -> &'static str {
        self.public.name
    }

    #[getter(__qualname__)]
    fn qualified_name(&self) -> &'static str {
        self.public.name
    }

    #[getter(__doc__)]
    fn doc(&self) -> String {
        self.parameters.signature.docstring(self.public.doc)
    }

    #[getter(__text_signature__)]
    fn text_signature(&self) -> String {
        format!("({})", self.parameters())
    }

    #[getter(__signature__)]
    fn signature<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let signature = py.import("keyfold._inspect")?.getattr("signature_of")?;
        signature.call1((self.parameters(), self.annotations(py)?))
    }

    #[getter(__annotations__)]
    fn annotations<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let arguments = self.parameters.signature.schema.arguments.iter();
        let types = arguments.map(|argument| (&*argument.name, argument.ty.to_string()));
        let annotations = py.import("keyfold._inspect")?.getattr("annotations_of")?;
        annotations.call1((types.collect::<Vec<_>>(),))
    }

    /// The operators that it calls: with arrays, and with numbers in place of each.
    #[getter]
    fn operators<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let overloads = match &self.overloads {
            Overloads::One(only) => std::slice::from_ref(only),
            Overloads::Reduction(each) => each,
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
        if let Some(function) = PyFunction::of(py, row, false)? {
            all.set_item(function.public.name, Bound::new(py, function)?)?;
        }
    }
    Ok(all)
}

/// One of the functions.
#[cfg(not(feature = "abi3"))]
pub(crate) fn any(py: Python<'_>) -> PyResult<Bound<'_, PyFunction>> {
    for row in keyfold::ops::rows() {
        if let Some(function) = PyFunction::of(py, row, false)? {
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
