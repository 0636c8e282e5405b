//! The names of operators in Python: the function `keyfold.NAME` that calls an operator, and its parameters.

use keyfold_core::Result;
use keyfold_dispatch::schema::{Argument, Literal, Schema, Type};

use crate::row::Row;

// Parameter lists of functions `keyfold.NAME`, written as in a schema, in the words of the array API.

/// The parameters of a function of one array.
pub(crate) const UNARY_PARAMETERS: &str = "Tensor x";
/// The parameters of a function of two arrays.
pub(crate) const BINARY_PARAMETERS: &str = "Tensor x1, Tensor x2";
/// The parameters of a reduction over axes.
pub(crate) const REDUCTION_PARAMETERS: &str =
    "Tensor x, int[1]? axis=None, *, bool? keepdims=False";
/// The parameters of a sum or product over axes: those of a reduction, and the dtype to accumulate in.
pub(crate) const SUM_PARAMETERS: &str =
    "Tensor x, int[1]? axis=None, *, ScalarType? dtype=None, bool? keepdims=False";
/// The parameters of a function that returns positions along an axis, as `argmax` does.
pub(crate) const POSITION_PARAMETERS: &str = "Tensor x, int? axis=None, *, bool? keepdims=False";
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
    /// Its parameters as a schema in namespace `keyfold`: those of its form, then `out`, then PyTorch's
    /// names of some. Its result is the operator's.
    pub schema: Schema,
    /// How many parameters are given by position only: the arrays in front.
    pub by_position: usize,
    /// The place of the parameter `out`, if there is one.
    pub out: Option<usize>,
    /// The parameters that have PyTorch's name, too: their places, and those of the other names.
    pub aliases: Vec<(usize, usize)>,
    takes_numbers: bool,
}

impl Signature {
    /// For each parameter the argument of the same meaning of an overload, if it has one.
    ///
    /// `out` and the other names of parameters have none.
    pub fn places_in(&self, overload: &Schema) -> Vec<Option<usize>> {
        let place = |(at, parameter): (usize, &Argument)| {
            if self.aliases.iter().any(|(_, alias)| *alias == at) {
                return None;
            }
            let meant = match &*parameter.name {
                "out" => return None,
                "axis" => "dim",
                "axes" => "dims",
                "keepdims" => "keepdim",
                name => name,
            };
            let named = overload.arguments.iter().position(|argument| argument.name == meant);
            named.or((at < self.by_position).then_some(at))
        };
        self.schema.arguments.iter().enumerate().map(place).collect()
    }

    /// Returns the docstring of a row with a list of the arguments.
    pub fn docstring(&self, doc: &str) -> String {
        let (text, raises) = match doc.find("\n\nRaises:") {
            Some(at) => doc.split_at(at),
            None => (doc, ""),
        };
        let arguments = self.schema.arguments.iter().filter(|argument| argument.name != "self");
        let listed = arguments.map(|argument| {
            let default = argument.default.as_ref();
            let default = default.map(|default| format!(" Default: {default}."));
            let meaning = self.meaning(argument);
            format!("\n    {}: {meaning}.{}", argument.name, default.unwrap_or_default())
        });
        format!("{text}\n\nArgs:{}{raises}", listed.collect::<String>())
    }

    /// Returns the meaning of an argument, by its name.
    fn meaning(&self, argument: &Argument) -> &'static str {
        let [is_pool, is_dropout] =
            ["kernel_size", "train"].map(|name| self.schema.argument_index(name).is_some());
        match &*argument.name {
            "x" => "an array",
            "x1" | "x2" if self.takes_numbers => "an array or a number",
            "x1" | "x2" => "an array",
            "condition" => "an array: `x1` where it is true or nonzero, else `x2`",
            "arrays" => "arrays of one shape, in a list or tuple",
            "axis" => match &argument.ty {
                Type::Int => "the axis",
                Type::Optional(inner) if **inner == Type::Int => "the axis; None to flatten first",
                _ => "the axis, or several in a tuple; None for all",
            },
            "axes" => "for each dimension of the result the one of the array, in a tuple",
            "dtype" if &*self.schema.name.name == "matmul_mixed" => {
                "the dtype of the factors, `float16` or `bfloat16`"
            }
            "dtype" => "the dtype to add up in and of the result; None to go by the array's",
            "keepdims" => "whether the axes stay, with size 1",
            "weight" => "an array of factors, learned",
            "bias" => "an array to add, learned; None to add nothing",
            "activation" => "the name of a function of the sum; see above",
            "stride" if is_pool => "the distance between windows; None for the kernel's size",
            "stride" => "the step from one place of the kernel to the next",
            "padding" if is_pool => "the elements that are added on both sides",
            "padding" => "the zeros added on both sides; or a pair for each dimension",
            "dilation" => "the distance between neighbouring elements of a window or a kernel",
            "groups" => "the number of groups of channels",
            "input" => "the arrays of a batch, one a row",
            "hx" => "the state before: one array, or as many as the cell has in a tuple",
            "w_ih" | "w_hh" => "the weights of the input, or of the state, a gate behind the other",
            "b_ih" | "b_hh" => "their biases; None for none",
            "p" => "the probability of each element to be replaced, from 0 to 1",
            "mask" => "an array of bools",
            "query" | "key" => "an array",
            "value" if argument.ty == Type::Tensor => "an array",
            "value" => "the number",
            "min_val" => "the least result",
            "max_val" => "the greatest result",
            "negative_slope" => "the factor of negative elements",
            "alpha" => "the factor of the exponential",
            "normalized_shape" => "the sizes of the last axes, in a tuple",
            "num_groups" => "the number of groups of channels",
            "running_mean" => "an array of means, or None",
            "running_var" => "an array of variances, or None",
            "training" if is_dropout => "PyTorch's name of `train`",
            "training" => "whether to normalize by the array's own statistics",
            "use_input_stats" => "whether to normalize by the array's own statistics",
            "momentum" => "the share of the new statistics in the running ones",
            "eps" => "a number that is added to the variance",
            "train" => "False to return the array as it is",
            "kernel_size" => "the elements of a window, for all dimensions or for each",
            "ceil_mode" => "whether a window that is only partly inside counts",
            "count_include_pad" => "whether padding counts among a window's elements",
            "divisor_override" => "what sums are divided by; None for the number of elements",
            "output_size" => "the sizes of the result's pooled dimensions",
            "attn_mask" => "an array of bools, which scores count, or of numbers to add to them",
            "dropout_p" => "0; the probability that a weight is dropped",
            "is_causal" => "whether a score counts only for keys up to the query's position",
            "scale" if argument.ty == Type::Float => "the factor of the elements that are kept",
            "scale" => "the factor of the scores; None for `1 / sqrt(E)`",
            "enable_gqa" => "whether each head of keys serves a group of query heads",
            "threshold" => "the least random word that keeps an element, from 0 to 2**32",
            "seed" => "which stream of random words it is",
            "offset" => "how many blocks of four words of the stream are left out",
            "out" if argument.ty.to_string() == "Tensor[]?" => {
                "an array for each result to write it to, in a tuple, which are returned"
            }
            "out" => "an array to write the result to, which is returned",
            "dim" => "PyTorch's name of `axis`",
            "keepdim" => "PyTorch's name of `keepdims`",
            _ => "",
        }
    }
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
            text += if self.schema().returns.len() > 1 {
                ", Tensor[]? out=None"
            } else {
                ", Tensor? out=None"
            };
        }
        let mut schema = Schema::parse(&format!("keyfold::{}({text}) -> Tensor", public.name))?;
        let is_array = |ty: &Type| {
            *ty == Type::Tensor || matches!(ty, Type::List(item, _) if **item == Type::Tensor)
        };
        let by_position = schema.arguments.iter().take_while(|each| is_array(&each.ty)).count();
        let out = schema.argument_index("out");
        let mut aliases = Vec::new();
        for (name, alias) in [("axis", "dim"), ("keepdims", "keepdim"), ("train", "training")] {
            if let Some(at) = schema.argument_index(name) {
                aliases.push((at, schema.arguments.len()));
                let same = schema.arguments[at].clone();
                let ty = Type::Optional(Box::new(same.ty.without_optional().clone()));
                let (name, default) = (alias.into(), Some(Literal::None));
                let alias = Argument { name, ty, default, kwarg_only: true, ..same };
                schema.arguments.push(alias);
            }
        }
        let takes_numbers = public.form.takes_numbers();
        Ok(Some(Signature { schema, by_position, out, aliases, takes_numbers }))
    }
}
