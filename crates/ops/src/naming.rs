//! The names of operators in Python: the function `keyfold.NAME` that calls an operator, and its parameters.

use keyfold_core::Result;
use keyfold_dispatch::schema::{Schema, Type};

use crate::row::Row;

// Parameter lists of functions `keyfold.NAME`, written as in a schema, in the words of the array API.

/// The parameters of a function of one array.
pub(crate) const UNARY_PARAMETERS: &str = "Tensor x";
/// The parameters of a function of two arrays.
pub(crate) const BINARY_PARAMETERS: &str = "Tensor x1, Tensor x2";
/// The parameters of a reduction over axes.
pub(crate) const REDUCTION_PARAMETERS: &str = "Tensor x, int[1]? axis=None, *, bool? keepdims=None";
/// The parameters of a sum or product over axes: those of a reduction, and the dtype to accumulate in.
pub(crate) const SUM_PARAMETERS: &str =
    "Tensor x, int[1]? axis=None, *, ScalarType? dtype=None, bool? keepdims=None";
/// The parameters of a function that returns positions along an axis, as `argmax` does.
pub(crate) const POSITION_PARAMETERS: &str = "Tensor x, int? axis=None, *, bool? keepdims=None";
/// The parameters of a function that maps each lane along an axis, as `softmax` does.
pub(crate) const LANE_PARAMETERS: &str = "Tensor x, int axis=-1";

/// How an operator is reached in Python beside `keyfold.ops`.
///
/// There is no default: a row without it doesn't compile.
#[derive(Clone, Copy, Debug)]
pub enum Naming {
    /// The function of this name calls it, and its overload `out`.
    Named(Public),
    /// The function of this name calls it for some arguments: an overload, or a part of what is written in
    /// Python.
    PartOf(&'static str),
    /// No function calls it, for this reason.
    Unnamed(&'static str),
}

/// A function of the package that calls an operator.
#[derive(Clone, Copy, Debug)]
pub struct Public {
    /// Its name: the array API's, where that has one.
    pub name: &'static str,
    /// Its parameters.
    pub form: Form,
    /// Its docstring, whose first line is imperative.
    pub doc: &'static str,
    /// Whether Python's `Tensor` has a method of this name, too.
    pub is_method: bool,
}

/// The parameters of a function, and the overloads that it calls.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// These parameters, written as in a schema: those of the operator, in the words of the array API.
    Plain(&'static str),
    /// Two arrays, or an array and a number on either side, for the overloads `Scalar` of the operator and
    /// of this other one, which takes the number on the left.
    Pair(&'static str),
    /// A condition, and two values, each an array or a number: the overloads `ScalarOther`, `ScalarSelf` and
    /// `Scalar`.
    Choice,
}

impl Naming {
    /// The name of the function that calls the operator, if one does.
    pub fn name(&self) -> Option<&'static str> {
        match self {
            Naming::Named(public) => Some(public.name),
            Naming::PartOf(name) => Some(name),
            Naming::Unnamed(_) => None,
        }
    }
}

/// The name of a function that takes these parameters, written as in a schema.
pub(crate) const fn named(
    name: &'static str,
    parameters: &'static str,
    doc: &'static str,
) -> Naming {
    Naming::Named(Public { name, form: Form::Plain(parameters), doc, is_method: false })
}

/// As [`named`], of a function that is a method of `Tensor`, too.
pub(crate) const fn named_method(
    name: &'static str,
    parameters: &'static str,
    doc: &'static str,
) -> Naming {
    Naming::Named(Public { name, form: Form::Plain(parameters), doc, is_method: true })
}

impl Form {
    /// Whether numbers stand for its arrays.
    pub fn takes_numbers(&self) -> bool {
        !matches!(self, Form::Plain(_))
    }

    fn parameters(&self) -> &'static str {
        match self {
            Form::Plain(parameters) => parameters,
            Form::Pair(_) => BINARY_PARAMETERS,
            Form::Choice => "Tensor condition, Tensor x1, Tensor x2",
        }
    }
}

/// The signature of the function that a row names.
#[derive(Clone, Debug)]
pub struct Signature {
    /// Its parameters as a schema in namespace `keyfold`. Its result is the operator's.
    pub schema: Schema,
    /// How many parameters are given by position only: the arrays in front.
    pub by_position: usize,
    /// For each parameter but `out` the operator's argument of the same meaning.
    pub places: Vec<usize>,
}

impl Row {
    /// The signature of the function that this row names; `None` where it names none.
    ///
    /// # Errors
    /// Those of [`Schema::parse`].
    pub fn signature(&self) -> Result<Option<Signature>> {
        let Naming::Named(public) = self.naming() else { return Ok(None) };
        let mut text = public.form.parameters().to_owned();
        if self.out_schema().is_some() {
            text += if text.contains('*') { "" } else { ", *" };
            text += ", Tensor? out=None";
        }
        let schema = Schema::parse(&format!("keyfold::{}({text}) -> Tensor", public.name))?;
        let is_array = |ty: &Type| {
            *ty == Type::Tensor || matches!(ty, Type::List(item, _) if **item == Type::Tensor)
        };
        let by_position = schema.arguments.iter().take_while(|each| is_array(&each.ty)).count();
        let own = &self.schema().arguments;
        let place = |(at, name): (usize, &str)| {
            let meant = match name {
                "axis" => "dim",
                "keepdims" => "keepdim",
                name => name,
            };
            own.iter().position(|argument| argument.name == meant).unwrap_or(at)
        };
        let names = schema.arguments.iter().map(|argument| &*argument.name);
        let places = names.filter(|name| *name != "out").enumerate().map(place).collect();
        Ok(Some(Signature { schema, by_position, places }))
    }
}
