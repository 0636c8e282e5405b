//! The types of Python's functions that call one operator, and of Tensor's methods that do: the stub that is
//! printed from the rows.

use keyfold::ops::{Form, Naming, Row, rows};
use keyfold_dispatch::schema::{Argument, Return};

const STUB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/keyfold/_ops/_operators.pyi");

const HEAD: &str = r#"# Printed from the operators' rows: `KEYFOLD_WRITE=1 cargo test -p keyfold-ops --test stub`.

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, overload

from numpy.typing import NDArray

from keyfold._core import Tensor, _DTypeLike
from keyfold._ops._axis import Axis

class _Array(Protocol):
    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...

# The result is of the arguments' library, keyfold or NumPy; of another one, and of several, Any.
_A = TypeVar("_A", Tensor, NDArray[Any])
"#;

const CLASS: &str =
    "# The base of Tensor in the stub of the extension module, which has no such class.
class _OperatorMethods:
";

/// The type of a parameter.
fn annotation(argument: &Argument) -> &'static str {
    if argument.name == "out" {
        let several = argument.ty.to_string() == "Tensor[]?";
        return if several { "tuple[_Array, ...] | None" } else { "_Array | None" };
    }
    match argument.ty.to_string().as_str() {
        "Tensor" => "_A",
        "Tensor?" => "_A | None",
        "Tensor[]" => "Sequence[_A]",
        "Scalar" => "complex",
        "Scalar?" => "complex | None",
        "ScalarType" => "_DTypeLike",
        "ScalarType?" => "_DTypeLike | None",
        "bool" => "bool",
        "bool?" => "bool | None",
        "float" => "float",
        "float?" => "float | None",
        "str" => "str",
        "int" => "int",
        "int?" => "int | None",
        "int[1]?" if argument.name == "axis" || argument.name == "dim" => "Axis",
        "int[]" => "Sequence[int]",
        "int[]?" => "Sequence[int] | None",
        // A single number stands for a list of this length.
        "int[1]" | "int[2]" | "int[3]" => "int | Sequence[int]",
        "int[1]?" | "int[2]?" | "int[3]?" => "int | Sequence[int] | None",
        other => panic!("no type of Python for {other}"),
    }
}

/// The type of a row's results, whose tensors are of one type.
fn result_type(row: &Row, tensor: &str) -> String {
    let returns = &row.schema().returns;
    let of = |one: &Return| match one.ty.to_string().as_str() {
        "Tensor" => tensor.to_owned(),
        "Tensor[]" => format!("list[{tensor}]"),
        "int" => "int".to_owned(),
        other => panic!("no type of Python for a result {other}"),
    };
    match &returns[..] {
        [] => "None".to_owned(),
        [one] => of(one),
        several => format!("tuple[{}]", several.iter().map(&of).collect::<Vec<_>>().join(", ")),
    }
}

/// A definition behind an indentation, as ruff formats it.
fn definition(indent: &str, name: &str, parameters: &[String], result: &str) -> String {
    let whole = format!("{indent}def {name}({}) -> {result}: ...\n", parameters.join(", "));
    let inner = format!("{indent}    {}\n", parameters.join(", "));
    match (whole.len() <= 101, inner.len() <= 101) {
        (true, _) => whole,
        (false, true) => format!("{indent}def {name}(\n{inner}{indent}) -> {result}: ...\n"),
        (false, false) => {
            let line = |one: &String| format!("{indent}    {one},\n");
            let lines: String = parameters.iter().map(line).collect();
            format!("{indent}def {name}(\n{lines}{indent}) -> {result}: ...\n")
        }
    }
}

/// The same parameters for arrays of any library.
fn of_any_library(parameters: &[String]) -> Vec<String> {
    let any = |one: &String| one.replace("_Array", "_A").replace("_A", "_Array");
    parameters.iter().map(any).collect()
}

/// The parameters of a function, with other types for its arrays where some are given.
fn parameters(row: &Row, arrays: &[&str]) -> Vec<String> {
    let signature = row.signature().unwrap().expect("a row that names a function");
    let (mut shown, mut is_keyword) = (Vec::new(), false);
    for (at, argument) in signature.schema.arguments.iter().enumerate() {
        if argument.kwarg_only && !is_keyword {
            is_keyword = true;
            shown.push("*".to_owned());
        }
        let ty = arrays.get(at).copied().unwrap_or_else(|| annotation(argument));
        shown.push(match &argument.default {
            Some(default) => format!("{}: {ty} = {default}", argument.name),
            None => format!("{}: {ty}", argument.name),
        });
        if at + 1 == signature.by_position {
            shown.push("/".to_owned());
        }
    }
    shown
}

/// The definitions of the function that a row names: for arrays of keyfold and NumPy, and for others, and
/// for each array or number that an argument may be.
fn definitions(row: &Row) -> Option<(&'static str, String)> {
    let Naming::Named(public) = row.naming() else { return None };
    const NUMBER: &str = "complex";
    let forms: &[&[&str]] = match public.form {
        Form::Plain(_) => &[&[]],
        Form::Pair(_) => &[&["_A", "_A | complex"], &[NUMBER, "_A"]],
        Form::Choice => {
            &[&["_Array", "_A", "_A | complex"], &["_Array", NUMBER, "_A"], &["_A", NUMBER, NUMBER]]
        }
    };
    let all: Vec<_> = forms.iter().map(|arrays| parameters(row, arrays)).collect();
    let typed = all.iter().map(|one| definition("", public.name, one, &result_type(row, "_A")));
    let any =
        if row.schema().returns.len() > 1 { result_type(row, "Any") } else { "Any".to_owned() };
    let others = all.iter().map(|one| definition("", public.name, &of_any_library(one), &any));
    let each = typed.chain(others).map(|definition| format!("@overload\n{definition}"));
    Some((public.name, each.collect()))
}

/// The definition of the method of Tensor that a row names: its function, with the tensor in front.
fn method(row: &Row) -> Option<(&'static str, String)> {
    let Naming::Named(public) = row.naming() else { return None };
    if !public.is_method {
        return None;
    }
    let mut parameters = parameters(row, &[]);
    assert_eq!(parameters[..2], ["x: _A", "/"], "the tensor of {}", public.name);
    parameters.splice(..2, ["self".to_owned()]);
    Some((public.name, definition("    ", public.name, &parameters, &result_type(row, "Tensor"))))
}

/// `KEYFOLD_WRITE=1` in the environment writes the stub instead.
#[test]
fn the_stub_has_the_functions_that_rows_name() {
    let mut all: Vec<_> = rows().iter().filter_map(definitions).collect();
    all.sort();
    let names = all.windows(2).find(|pair| pair[0].0 == pair[1].0);
    assert_eq!(names, None, "a function that two rows name");
    let listed: String = all.iter().map(|(name, _)| format!("    \"{name}\",\n")).collect();
    let defined: String = all.iter().map(|(_, text)| text.as_str()).collect();
    let mut methods: Vec<_> = rows().iter().filter_map(method).collect();
    methods.sort();
    let methods: String = methods.iter().map(|(_, text)| text.as_str()).collect();
    let stub = format!("{HEAD}\n__all__ = [\n{listed}]\n\n{defined}\n{CLASS}{methods}");
    if std::env::var_os("KEYFOLD_WRITE").is_some() {
        std::fs::write(STUB, stub).unwrap();
        return;
    }
    let found = std::fs::read_to_string(STUB).unwrap();
    let differs = found.lines().zip(stub.lines()).find(|(a, b)| a != b);
    assert_eq!(differs, None, "_operators.pyi isn't what KEYFOLD_WRITE=1 cargo test writes");
    assert_eq!(found.len(), stub.len());
}

#[test]
fn a_function_gives_each_argument_that_its_operator_needs() {
    for row in rows() {
        let (Naming::Named(public), Some(signature)) = (row.naming(), row.signature().unwrap())
        else {
            continue;
        };
        let places = signature.places_in(row.schema());
        for (at, argument) in row.schema().arguments.iter().enumerate() {
            let given = places.contains(&Some(at)) || argument.default.is_some();
            assert!(given, "keyfold.{} has no parameter for '{}'", public.name, argument.name);
        }
    }
}
