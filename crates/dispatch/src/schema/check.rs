//! Checks that a default fits the type of its argument.

use super::types::{Literal, Type};
use keyfold_core::did_you_mean;

/// The dtypes' names: those of the array API standard and the two half types.
const SCALAR_TYPES: [&str; 15] = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
];

/// Older names of dtypes in existing schemas, with the names they are read as.
const OLDER_SCALAR_TYPES: [(&str, &str); 10] = [
    ("byte", "uint8"),
    ("char", "int8"),
    ("short", "int16"),
    ("int", "int32"),
    ("long", "int64"),
    ("half", "float16"),
    ("float", "float32"),
    ("double", "float64"),
    ("cfloat", "complex64"),
    ("cdouble", "complex128"),
];

const LAYOUTS: [&str; 7] =
    ["strided", "sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"];

const MEMORY_FORMATS: [&str; 4] =
    ["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"];

/// The names of a loss's reductions, which schemas declare as `int`. The third, None, can't be told
/// from a missing value and is written 0.
const REDUCTIONS: [&str; 2] = ["Mean", "Sum"];

/// Returns the default of argument `name` in its canonical form, or an error.
pub(super) fn check_default(
    name: &str,
    ty: &Type,
    default: Literal,
) -> std::result::Result<Literal, String> {
    match (ty.without_optional(), default) {
        (_, Literal::None) if ty.is_optional() => Ok(Literal::None),
        (Type::List(element, _), Literal::List(items)) if sized(ty, items.len()) => {
            let checked: std::result::Result<Vec<_>, _> = items
                .into_iter()
                .map(|item| {
                    if fits(element, &item) {
                        return Ok(canonical(element, item));
                    }
                    let subject = format!("each item of the default of `{ty} {name}`");
                    Err(refusal(&subject, element, &item))
                })
                .collect();
            checked.map(Literal::List)
        }
        // One value for all elements, expanded when the default is used.
        (Type::List(element, Some(_)), each) if each != Literal::None && fits(element, &each) => {
            Ok(canonical(element, each))
        }
        (inner, default) if fits(inner, &default) => Ok(canonical(inner, default)),
        (_, default) => Err(refusal(&format!("the default of `{ty} {name}`"), ty, &default)),
    }
}

/// Returns whether a default of `ty` may be a list of `length` items.
fn sized(ty: &Type, length: usize) -> bool {
    match ty.without_optional() {
        Type::List(_, declared) => Type::takes_length(*declared, length),
        _ => true,
    }
}

/// Returns the canonical literal: an integer for a float type becomes a float, and an older dtype
/// name the present one.
fn canonical(ty: &Type, literal: Literal) -> Literal {
    match (ty.without_optional(), literal) {
        (Type::Float | Type::Complex, Literal::Int(value)) => Literal::Float(value as f64),
        (Type::ScalarType, Literal::Ident(name)) => Literal::Ident(present_name(&name).to_owned()),
        (_, other) => other,
    }
}

fn present_name(dtype: &str) -> &str {
    let older = OLDER_SCALAR_TYPES.iter().find(|(older, _)| *older == dtype);
    older.map_or(dtype, |(_, present)| present)
}

/// Returns whether `literal` is a value of `ty`. Lists never are: their items are checked one by
/// one.
fn fits(ty: &Type, literal: &Literal) -> bool {
    match (ty, literal) {
        (Type::Optional(_), Literal::None) => true,
        (Type::Optional(inner), _) => fits(inner, literal),
        (Type::List(..), _) => false,
        (Type::Any, Literal::None | Literal::Str(_))
        | (Type::Any | Type::Scalar, Literal::Bool(_) | Literal::Int(_) | Literal::Float(_))
        | (Type::Int, Literal::Int(_))
        | (Type::Float | Type::Complex, Literal::Int(_) | Literal::Float(_))
        | (Type::Bool, Literal::Bool(_))
        | (Type::Str | Type::Device, Literal::Str(_)) => true,
        (Type::ScalarType, Literal::Ident(ident)) => SCALAR_TYPES.contains(&present_name(ident)),
        (_, Literal::Ident(ident)) => enumerators(ty).contains(&ident.as_str()),
        _ => false,
    }
}

/// Returns the reason why `literal` isn't a value of `ty`.
fn refusal(subject: &str, ty: &Type, literal: &Literal) -> String {
    let found = describe(literal);
    let hint = match (ty.without_optional(), literal) {
        (_, Literal::None) => format!("; only an optional type, `{ty}?`, takes None"),
        (Type::List(element, None), _) if fits(element, literal) => {
            format!("; write `[{}]`, or give the list a length", describe_value(literal))
        }
        (Type::Bool, Literal::Ident(ident)) => did_you_mean(ident, ["True", "False"]),
        (inner, Literal::Ident(ident)) => did_you_mean(ident, enumerators(inner).iter().copied()),
        _ => String::new(),
    };
    match ty {
        Type::Tensor | Type::Generator => {
            format!("{subject} can't be written: a {ty} has no literal, found {found}{hint}")
        }
        _ => format!("{subject} must be {}, found {found}{hint}", wanted(ty)),
    }
}

/// Returns the identifiers that are values of `ty`.
fn enumerators(ty: &Type) -> &'static [&'static str] {
    match ty {
        Type::ScalarType => &SCALAR_TYPES,
        Type::Layout => &LAYOUTS,
        Type::MemoryFormat => &MEMORY_FORMATS,
        Type::Int => &REDUCTIONS,
        Type::Optional(inner) | Type::List(inner, _) => enumerators(inner),
        _ => &[],
    }
}

/// Describes the defaults that a type accepts.
fn wanted(ty: &Type) -> String {
    match ty {
        Type::Scalar => "a number or a bool".into(),
        Type::Int => "a whole number such as 1".into(),
        Type::Float | Type::Complex => "a number such as 1.0".into(),
        Type::Bool => "True or False".into(),
        Type::Str => "a quoted string such as \"sum\"".into(),
        Type::Device => "a quoted device such as \"cpu\"".into(),
        Type::ScalarType => "a dtype such as float32".into(),
        Type::Layout => "a layout such as strided".into(),
        Type::MemoryFormat => "a memory format such as contiguous_format".into(),
        Type::Tensor | Type::Generator => "None".into(),
        Type::Optional(inner) if matches!(**inner, Type::Tensor | Type::Generator) => wanted(inner),
        Type::Optional(inner) => format!("None or {}", wanted(inner)),
        Type::Any => "None, a number, a bool or a quoted string".into(),
        Type::List(_, None) => "a list such as []".into(),
        Type::List(_, Some(1)) => "a list, or one value".into(),
        Type::List(_, Some(size)) => format!("a list of {size}, or one value for all"),
    }
}

/// Describes the type of a literal.
fn describe(literal: &Literal) -> String {
    let value = describe_value(literal);
    match literal {
        Literal::None => "None".into(),
        Literal::Bool(_) => format!("the bool {value}"),
        Literal::Int(_) => format!("the whole number {value}"),
        Literal::Float(_) => format!("the float {value}"),
        Literal::Str(_) => format!("the string {value}"),
        Literal::Ident(_) => format!("the name `{value}`"),
        Literal::List(items) => format!("a list of {}", items.len()),
    }
}

/// Returns a literal's text, shortened if it is long.
fn describe_value(literal: &Literal) -> String {
    let text = literal.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use crate::schema::Schema;

    /// Returns the first line of the error for the argument `declared`, without its position.
    fn refusal(declared: &str) -> String {
        let error = Schema::parse(&format!("a::b({declared}) -> ()")).unwrap_err();
        let line = error.message().lines().next().unwrap();
        line.split_once(": ").unwrap().1.to_owned()
    }

    #[test]
    fn a_default_fits_the_type_of_its_argument() {
        let fitting = [
            "Tensor? x=None",
            "Tensor[] x=[]",
            "Tensor?[] x=[None, None]",
            "Tensor[]? x=None",
            "Scalar x=1",
            "Scalar x=1.5",
            "Scalar x=True",
            "Scalar? x=None",
            "Scalar[] x=[1, 2.5]",
            "int x=1",
            "int x=Mean",
            "int x=Sum",
            "int? x=1",
            "int? x=None",
            "int[] x=[1, 2]",
            "int[2] x=1",
            "int[2] x=[1, 2]",
            "int[2]? x=None",
            "int[2]? x=1",
            "int?[2] x=3",
            "int[1] x=0",
            "int[1] x=[-2, -1]",
            "int[1]? x=[]",
            "Any x=None",
            "Any x=1.5",
            "Any x=\"a\"",
            "Any[] x=[None, True, 2]",
            "int?[] x=[None, 1]",
            "float x=1",
            "float x=1.5",
            "float x=inf",
            "float[2] x=1",
            "bool x=True",
            "bool[3] x=False",
            "complex x=1",
            "complex x=1.5",
            "str x=\"a\"",
            "str[] x=['a']",
            "Device x=\"cpu\"",
            "Device? x=None",
            "ScalarType x=bfloat16",
            "ScalarType? x=float64",
            "Layout x=strided",
            "MemoryFormat x=preserve_format",
            "Generator? x=None",
        ];
        for declared in fitting {
            let schema = Schema::parse(&format!("a::b({declared}) -> ()"));
            schema.unwrap_or_else(|error| panic!("{declared}: {error}"));
        }
    }

    #[test]
    fn a_default_of_another_type_is_refused_in_plain_words() {
        let table = [
            (
                "int x=1.5",
                "the default of `int x` must be a whole number such as 1, found the float 1.5",
            ),
            (
                "int x=True",
                "the default of `int x` must be a whole number such as 1, found the bool True",
            ),
            (
                "int x=Meen",
                "the default of `int x` must be a whole number such as 1, found the name \
              `Meen`; did you mean 'Mean'?",
            ),
            (
                "int x=None",
                "the default of `int x` must be a whole number such as 1, found None; only an \
              optional type, `int?`, takes None",
            ),
            (
                "int x=[1]",
                "the default of `int x` must be a whole number such as 1, found a list of 1",
            ),
            (
                "Tensor x=1",
                "the default of `Tensor x` can't be written: a Tensor has no literal, \
              found the whole number 1",
            ),
            (
                "Tensor? x=1",
                "the default of `Tensor? x` must be None, \
              found the whole number 1",
            ),
            (
                "int? x=1.5",
                "the default of `int? x` must be None or a whole number such as 1, found the \
              float 1.5",
            ),
            (
                "Tensor[] x=[1]",
                "each item of the default of `Tensor[] x` can't be written: a Tensor has \
              no literal, found the whole number 1",
            ),
            (
                "Scalar x='1'",
                "the default of `Scalar x` must be a number or a bool, found the string \"1\"",
            ),
            (
                "float x=True",
                "the default of `float x` must be a number such as 1.0, found the bool True",
            ),
            (
                "float x=infinite",
                "the default of `float x` must be a number such as 1.0, found the name \
              `infinite`",
            ),
            (
                "bool x=true",
                "the default of `bool x` must be True or False, found the name `true`; did you \
              mean 'True'?",
            ),
            ("bool x=1", "the default of `bool x` must be True or False, found the whole number 1"),
            (
                "str x=sum",
                "the default of `str x` must be a quoted string such as \"sum\", found the name \
              `sum`",
            ),
            (
                "Device x=cpu",
                "the default of `Device x` must be a quoted device such as \"cpu\", found the \
              name `cpu`",
            ),
            (
                "ScalarType x=flaot32",
                "the default of `ScalarType x` must be a dtype such as float32, found \
              the name `flaot32`; did you mean 'float32'?",
            ),
            (
                "ScalarType x=\"float32\"",
                "the default of `ScalarType x` must be a dtype such as float32, \
              found the string \"float32\"",
            ),
            (
                "Layout x=dense",
                "the default of `Layout x` must be a layout such as strided, found the name \
              `dense`",
            ),
            (
                "MemoryFormat x=channel_last",
                "the default of `MemoryFormat x` must be a memory format such \
              as contiguous_format, found the name `channel_last`; did you mean 'channels_last' or 'channels_last_3d'?",
            ),
            (
                "Generator x=1",
                "the default of `Generator x` can't be written: a Generator has no \
              literal, found the whole number 1",
            ),
            (
                "int[1] x=1.5",
                "the default of `int[1] x` must be a list, or one value, found the float 1.5",
            ),
            (
                "Any x=sum",
                "the default of `Any x` must be None, a number, a bool or a quoted string, found \
              the name `sum`",
            ),
            (
                "int[2] x=[1, 2, 3]",
                "the default of `int[2] x` must be a list of 2, or one value for all, \
              found a list of 3",
            ),
            (
                "int[2] x=1.5",
                "the default of `int[2] x` must be a list of 2, or one value for all, found \
              the float 1.5",
            ),
            (
                "int[] x=Mean",
                "the default of `int[] x` must be a list such as [], found the name `Mean`; write \
              `[Mean]`, or give the list a length",
            ),
            (
                "int[] x=1",
                "the default of `int[] x` must be a list such as [], found the whole number 1; \
              write `[1]`, or give the list a length",
            ),
            (
                "int[] x=[1, 2.5]",
                "each item of the default of `int[] x` must be a whole number such as 1, \
              found the float 2.5",
            ),
            (
                "int[] x=[None]",
                "each item of the default of `int[] x` must be a whole number such as 1, \
              found None; only an optional type, `int?`, takes None",
            ),
        ];
        for (declared, expected) in table {
            assert_eq!(refusal(declared), expected, "{declared}");
        }
        let long = refusal(&format!("int x='{}'", "z".repeat(1000)));
        assert!(long.ends_with("zz…") && long.len() < 160, "{long}");
    }
}
