//! The naive model of every operator: loops over numbers, independent of all kernels.
//!
//! Each expected element has the greatest error that a device may make: 0 where an operation is
//! exact (integers, bools, copies, comparisons), else a bound that follows from the dtype in which
//! the operation accumulates and from its length.
//!
//! - An expression: the running error of its steps, each with the error that OpenCL's full profile
//!   allows the function.
//! - A sum of n numbers: `min(n, 4 sqrt n) u sum |x|` in any order of summation, where u is half a
//!   unit in the last place of the dtype that accumulates: float32 for the halves. The first is
//!   Higham's bound; the second holds for all but one of thousands of sums, since rounding errors
//!   have both signs (N. Higham, T. Mary, "A new approach to probabilistic rounding error analysis",
//!   2019).
//! - Each result may be rounded once to its own dtype, to either neighbour.
//!
//! Each family of operators has a file here, with a function that returns the expected results of
//! those operators that it knows by name, and `None` for others; it is listed in [`MODELS`], or in
//! [`SEVERAL`] if its operators have several results. The results of a call are the tensors that it
//! returns, those of lists and tuples in their order, and then the tensors that it writes to without
//! returning them, in the order of the arguments. Where a result is not unique, as that of a
//! decomposition is, [`Expected::any`] leaves its elements to a function of [`PROPERTIES`].

mod attention;
mod convolution;
mod decomposition;
mod factories;
mod functions;
mod index;
mod linalg;
mod norm;
mod optim;
mod pointwise;
mod pool;
mod random;
mod recurrent;
mod reduce;
mod scan;
mod shape;

pub(crate) use attention::Attention;
use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_dispatch::Value as _;
use keyfold_expr::{Lowered, Names};
use keyfold_ops::Row;
use keyfold_ops::pointwise::ELEMENTWISE;
use keyfold_tensor::Value;
use keyfold_tensor::device::random::State;
pub(crate) use pool::{Windows, dims_of, windows_of};

use crate::array::{Arg, Array, Operand, for_each_index};
use crate::number::{Number, max_of, tiny, unit};

/// The expected result of a call.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The elements, more precise than their dtype.
    pub array: Array,
    /// The greatest error of each, before it is rounded to the dtype.
    pub errors: Vec<f64>,
    /// Whether the sign of an exact zero is defined, as that of a copy or of a product.
    pub signed_zeros: bool,
    /// Whether the elements are copied, so that no subnormal number may become 0.
    pub copied: bool,
    /// Whether the elements may be anything: `empty`, and what a property is about.
    pub any: bool,
    /// Whether there is no tensor: the call returns None in its place.
    pub absent: bool,
}

/// Checks what elements of results have in common with arguments where they aren't unique. The
/// error is a sentence about the first mistake.
pub(crate) type Property = fn(&Given<'_>, &[Array]) -> std::result::Result<(), String>;

/// Returns the expected result of an operator, or of several of them.
type Model<T> = fn(&str, &Given<'_>) -> Option<T>;

/// The models of operators with one result.
const MODELS: &[Model<Expected>] = &[
    linalg::expected,
    reduce::expected,
    scan::expected,
    shape::expected,
    index::expected,
    norm::expected,
    factories::expected,
    attention::one,
    convolution::expected,
    pool::one,
];

/// The models of operators with any number of results.
const SEVERAL: &[Model<Vec<Expected>>] = &[
    attention::several,
    convolution::backward,
    decomposition::expected,
    norm::several,
    optim::expected,
    pool::several,
    random::expected,
    recurrent::expected,
    shape::several,
];

/// The properties of results that aren't unique, by the operators' names.
const PROPERTIES: &[fn(&str) -> Option<Property>] = &[decomposition::property];

impl Expected {
    fn empty(dtype: DType, shape: &[usize]) -> Expected {
        let array = Array { dtype, shape: shape.to_vec(), items: Vec::new() };
        let errors = Vec::new();
        Expected { array, errors, signed_zeros: false, copied: false, any: false, absent: false }
    }

    /// A result of a function of the index, which returns an element and its error.
    pub fn from_fn(
        dtype: DType,
        shape: &[usize],
        mut item: impl FnMut(&[usize]) -> (Number, f64),
    ) -> Expected {
        let mut expected = Expected::empty(dtype, shape);
        for_each_index(shape, |index| {
            let (item, error) = item(index);
            expected.push(item, error);
        });
        expected
    }

    /// A result that isn't wanted: None in the place of a tensor.
    pub fn absent() -> Expected {
        Expected { absent: true, ..Expected::empty(DType::F32, &[]) }
    }

    /// A result whose elements may be anything, or that a property is about.
    pub fn any(dtype: DType, shape: &[usize]) -> Expected {
        let zero = Array::from_fn(dtype, shape, |_| Number::Whole(0).cast(dtype));
        Expected { any: true, ..Expected::copied(zero) }
    }

    /// Adds an element; an infinity has no error.
    fn push(&mut self, item: Number, error: f64) {
        self.array.items.push(item);
        self.errors.push(if item.magnitude().is_finite() && error.is_finite() {
            error
        } else {
            0.0
        });
    }

    /// An exact result, of copied elements.
    fn copied(array: Array) -> Expected {
        let errors = vec![0.0; array.items.len()];
        Expected { array, errors, signed_zeros: true, copied: true, any: false, absent: false }
    }

    /// Returns the greatest error of an element, after rounding: a result below the smallest normal
    /// number may be 0.
    pub fn tolerance(&self, place: usize) -> f64 {
        let (size, error) = (self.array.items[place].magnitude(), self.errors[place]);
        let smallest = tiny(self.array.dtype);
        let flushed = if size - error < smallest { smallest } else { 0.0 };
        match error > 0.0 {
            true => error + 2.0 * unit(self.array.dtype) * size + flushed,
            false => 0.0,
        }
    }

    /// Returns whether an element is right.
    pub fn accepts(&self, place: usize, got: Number) -> bool {
        self.accepts_within(place, got, 1.0)
    }

    /// As [`Expected::accepts`], with the error bound multiplied by a factor.
    pub fn accepts_within(&self, place: usize, got: Number, factor: f64) -> bool {
        let dtype = self.array.dtype;
        let exact = self.array.items[place];
        let allowed = self.tolerance(place) * factor;
        if self.any {
            return true;
        }
        if allowed == 0.0 {
            let is_flushed = || !self.copied && exact.magnitude() < tiny(dtype) && !got.truth();
            return same(exact.cast(dtype), got, self.signed_zeros)
                || exact.truth() && is_flushed();
        }
        if exact.is_nan() || got.is_nan() {
            return exact.is_nan() && got.is_nan();
        }
        if same(exact.cast(dtype), got, false) {
            return true;
        }
        match (exact, got) {
            (Number::Complex(a), Number::Complex(b)) => (a - b).norm() <= allowed,
            _ => {
                let (a, b) = (exact.float(), got.float());
                if a.is_infinite() {
                    // An infinity with an error: the exact number may be in the range.
                    return a.signum() == b.signum();
                }
                let overflows = a.abs() + allowed >= max_of(dtype);
                (a - b).abs() <= allowed || overflows && b == f64::INFINITY.copysign(a)
            }
        }
    }
}

/// Returns whether two numbers are equal, where NaN equals NaN; `signs` tells zeros apart.
fn same(a: Number, b: Number, signs: bool) -> bool {
    let part = |a: f64, b: f64| {
        a.is_nan() && b.is_nan()
            || a == b && !(signs && a.is_sign_negative() != b.is_sign_negative())
    };
    match (a, b) {
        (Number::Float(a), Number::Float(b)) => part(a, b),
        (Number::Complex(a), Number::Complex(b)) => part(a.re, b.re) && part(a.im, b.im),
        _ => a == b,
    }
}

/// The arguments of a call, for models.
pub(crate) struct Given<'a> {
    args: &'a [Arg],
    /// The device's random numbers before the call.
    pub(crate) state: State,
}

impl<'a> Given<'a> {
    pub(crate) fn new(args: &'a [Arg], state: State) -> Given<'a> {
        Given { args, state }
    }

    fn array(&self, at: usize) -> &'a Array {
        self.optional(at).unwrap_or_else(|| unreachable!("argument {at} of the sample is None"))
    }

    /// Returns a tensor that may be None.
    fn optional(&self, at: usize) -> Option<&'a Array> {
        match &self.args[at] {
            Arg::Tensor(operand) => Some(&operand.array),
            Arg::Plain(Value::None) => None,
            other => unreachable!("argument {at} of the sample is a tensor, not {other:?}"),
        }
    }

    fn tensors(&self, at: usize) -> Vec<Option<&'a Array>> {
        match &self.args[at] {
            Arg::Tensors(all) => {
                all.iter().map(|one| one.as_ref().map(|one: &Operand| &one.array)).collect()
            }
            other => unreachable!("argument {at} of the sample is a list, not {other:?}"),
        }
    }

    fn value(&self, at: usize) -> &'a Value {
        match &self.args[at] {
            Arg::Plain(value) => value,
            other => unreachable!("argument {at} of the sample is no tensor: {other:?}"),
        }
    }

    fn scalar(&self, at: usize) -> Scalar {
        self.value(at).as_ref().scalar().unwrap_or(Scalar::Int(0))
    }

    fn int(&self, at: usize) -> Option<i64> {
        self.value(at).as_ref().scalar().and_then(Scalar::as_i64)
    }

    fn float(&self, at: usize) -> f64 {
        self.scalar(at).as_f64()
    }

    fn text(&self, at: usize) -> &'a str {
        match self.value(at) {
            Value::Str(text) => text,
            _ => "",
        }
    }

    fn flag(&self, at: usize) -> bool {
        matches!(self.value(at), Value::Bool(true))
    }

    fn dtype(&self, at: usize) -> Option<DType> {
        match self.value(at) {
            Value::DType(dtype) => Some(*dtype),
            _ => None,
        }
    }

    fn ints(&self, at: usize) -> Option<Vec<i64>> {
        let Value::List(items) = self.value(at) else { return None };
        Some(items.iter().filter_map(|item| item.as_ref().scalar()?.as_i64()).collect())
    }

    fn sizes(&self, at: usize) -> Vec<usize> {
        self.ints(at).unwrap_or_default().into_iter().map(|size| size as usize).collect()
    }

    /// Returns a dimension of a rank, counted from the front.
    fn dim(&self, at: usize, rank: usize) -> usize {
        axis(self.int(at).unwrap_or(0), rank)
    }
}

/// Returns a dimension counted from the front.
fn axis(dim: i64, rank: usize) -> usize {
    (if dim < 0 { dim + rank as i64 } else { dim }) as usize
}

/// Returns the property of an operator's results, if they aren't unique.
pub(crate) fn property(row: &Row) -> Option<Property> {
    let name = row.schema().name.to_string();
    PROPERTIES.iter().find_map(|of| of(&name))
}

/// Returns the expected results of a call of a row.
///
/// # Errors
/// [`ErrorKind::NotSupported`] for an operator without a model, and errors of samples that no
/// operator takes.
pub(crate) fn expected(row: &Row, given: &Given<'_>) -> Result<Vec<Expected>> {
    if let Some(expression) = row.expression() {
        let expr = expression.expr();
        let at = |name: &str| row.schema().arguments.iter().position(|a| a.name == name);
        let inputs = expr.inputs().iter().filter_map(|input| at(&input.name));
        let inputs: Vec<&Array> = inputs.map(|at| given.array(at)).collect();
        let params = expr.params().iter().filter_map(|name| at(name));
        let params: Vec<Scalar> = params.map(|at| given.scalar(at)).collect();
        return Ok(vec![of_expression(expr, &inputs, &params)?]);
    }
    let name = row.schema().name.to_string();
    if name == ELEMENTWISE {
        let Value::Str(text) = given.value(2) else { unreachable!("the expression is a text") };
        let (names, text) = names_of(text);
        let expr = keyfold_expr::Expr::parse_with(text, &names)?;
        let inputs: Vec<&Array> = given.tensors(0).into_iter().flatten().collect();
        let Value::List(params) = given.value(1) else { unreachable!("the numbers are a list") };
        let params: Vec<Scalar> = params.iter().filter_map(|one| one.as_ref().scalar()).collect();
        return Ok(vec![of_expression(&expr, &inputs, &params)?]);
    }
    let one = MODELS.iter().find_map(|model| model(&name, given)).map(|one| vec![one]);
    one.or_else(|| SEVERAL.iter().find_map(|model| model(&name, given))).ok_or_else(|| {
        let message = format!("{name}: the conformance kit has no model of it");
        Error::new(ErrorKind::NotSupported, message)
    })
}

/// Returns the names before the colon of an expression's text, and the rest.
fn names_of(text: &str) -> (Names, &str) {
    let (names, rest) = text.split_once(':').unwrap_or(("", text));
    let (inputs, params) = names.split_once(';').unwrap_or((names, ""));
    let listed = |list: &str| -> Vec<String> {
        list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    };
    let all = listed(inputs).into_iter().fold(Names::new(), |all, name| all.tensor(&name));
    (listed(params).into_iter().fold(all, |all, name| all.param(&name)), rest)
}

fn of_expression(
    expr: &keyfold_expr::Expr,
    inputs: &[&Array],
    params: &[Scalar],
) -> Result<Expected> {
    let dtypes: Vec<DType> = inputs.iter().map(|input| input.dtype).collect();
    let kinds: Vec<_> = params.iter().map(|param| param.kind()).collect();
    let lowered = Lowered::new(expr, &dtypes, &kinds, None)?;
    let mut shape: Vec<usize> = Vec::new();
    for input in inputs {
        shape = keyfold_core::layout::broadcast_shapes(&shape, &input.shape)?.to_vec();
    }
    pointwise::evaluate(&lowered, inputs, params, &shape)
}

/// Returns the greatest relative error of a sum of `count` numbers that a dtype accumulates.
fn sum_error(count: usize, dtype: DType) -> f64 {
    let count = count as f64;
    count.min(4.0 * count.sqrt()) * unit(accumulator(dtype))
}

/// The dtype that sums of a dtype accumulate in: float32 for the halves.
fn accumulator(dtype: DType) -> DType {
    keyfold_expr::computed(dtype)
}
