//! The parts of a schema.

use std::hash::{Hash, Hasher};

use keyfold_core::{Error, ErrorKind, Result};

/// An operator's full declaration: `ns::name.overload(arguments) -> returns`.
///
/// [`Schema::parse`] returns the canonical form: `SymInt` is `int`, the overload `default` is none,
/// an integer default of a `float` or `complex` is a float, and a dtype has its present name
/// (`int64` for `long`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schema {
    /// The operator's name, with its overload.
    pub name: OperatorName,
    /// The arguments in declaration order: positional ones first, then keyword-only ones.
    pub arguments: Vec<Argument>,
    /// The returns; empty for `-> ()`.
    pub returns: Vec<Return>,
}

/// An operator's name: `ns::name.overload`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OperatorName {
    /// The namespace; empty for a plain name, which only isolated dispatchers allow.
    pub namespace: String,
    /// The name without namespace and overload.
    pub name: String,
    /// The overload; empty for the default one.
    pub overload: String,
}

impl OperatorName {
    /// Returns the name without its overload: `ns::name`, or `name` without a namespace.
    pub fn qualified(&self) -> String {
        if self.namespace.is_empty() {
            self.name.clone()
        } else {
            format!("{}::{}", self.namespace, self.name)
        }
    }

    /// [`ErrorKind::Schema`] if the name has no namespace.
    pub fn require_namespace(&self) -> Result<()> {
        if !self.namespace.is_empty() {
            return Ok(());
        }
        let mut message = format!(
            "operator name `{self}` has no namespace: expected `ns::name`, such as `my_lib::{self}`"
        );
        if !self.overload.is_empty() {
            message += &format!(
                " (what follows `.` is the overload; `{}` in namespace `{}` is `{}::{}`)",
                self.overload, self.name, self.name, self.overload
            );
        }
        Err(Error::new(ErrorKind::Schema, message))
    }
}

/// One declared argument.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Argument {
    /// Its name as a keyword. A Python keyword (`from`) is allowed, since existing schemas use
    /// some; Python code passes such an argument by position or with `**`.
    pub name: String,
    /// Its type.
    pub ty: Type,
    /// The default value; an argument without one is required.
    pub default: Option<Literal>,
    /// Whether it is declared after the `*`, so that it must be passed by keyword.
    pub kwarg_only: bool,
    /// The memory that it shares, and whether the operator writes to it. Tensors only.
    pub alias: Option<Alias>,
}

impl Argument {
    /// Returns the default as a kernel gets it: one value for a list of fixed size (`int[2]
    /// stride=1`) is expanded to the list.
    pub fn default_value(&self) -> Option<Literal> {
        let default = self.default.as_ref()?;
        let Type::List(_, Some(size)) = self.ty.without_optional() else {
            return Some(default.clone());
        };
        match default {
            Literal::List(_) | Literal::None => Some(default.clone()),
            each => Some(Literal::List(vec![each.clone(); *size])),
        }
    }
}

/// One declared return value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Return {
    /// Its name, as in `-> (Tensor values, Tensor indices)`.
    pub name: Option<String>,
    /// Its type.
    pub ty: Type,
    /// The arguments whose memory it shares. Tensors only.
    pub alias: Option<Alias>,
}

/// An alias annotation: `(a)`, `(a!)`, `(a|b)`, `(a -> *)`, `(a! -> b)`.
///
/// Arguments and returns that share a set may share memory; `*` is every set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alias {
    /// Its sets before the call: names, or `*` alone.
    pub sets: Vec<String>,
    /// Whether the operator writes to it (`!`).
    pub write: bool,
    /// Its sets after the call, if the annotation has a `->`; else empty.
    pub after: Vec<String>,
}

/// The type of an argument or a return.
///
/// The deepest type is an optional list of optionals (`Tensor?[]?`): parsing yields neither a list
/// of lists nor an optional directly in an optional.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// `Tensor`: an array of any library.
    Tensor,
    /// `Scalar`: a number of any kind, or a bool.
    Scalar,
    /// `int`, written `SymInt` too.
    Int,
    /// `float`.
    Float,
    /// `bool`.
    Bool,
    /// `complex`.
    Complex,
    /// `str`.
    Str,
    /// `Device`.
    Device,
    /// `ScalarType`: a dtype.
    #[allow(clippy::enum_variant_names, reason = "what the schemas call it")]
    ScalarType,
    /// `Layout`.
    Layout,
    /// `MemoryFormat`.
    MemoryFormat,
    /// `Generator`: a source of random numbers.
    Generator,
    /// `T?`: the type, or None.
    Optional(Box<Type>),
    /// `Any`: a value other than an array, passed on unchanged. It has no keys, and no layer
    /// inspects it.
    Any,
    /// `T[]`, or `T[n]`, which also accepts one value for all `n`. Lists then have exactly `n`
    /// elements, or none (`int[2] stride=[]`: the kernel chooses). `T[1]` only means that a single
    /// value is accepted, as in PyTorch's schemas (`int[1] dim=[-2, -1]`).
    List(Box<Type>, Option<usize>),
}

impl Type {
    /// The types without parts, with their names in schemas.
    pub const BASES: [(&'static str, Type); 13] = [
        ("Tensor", Type::Tensor),
        ("Scalar", Type::Scalar),
        ("int", Type::Int),
        ("float", Type::Float),
        ("bool", Type::Bool),
        ("complex", Type::Complex),
        ("str", Type::Str),
        ("Device", Type::Device),
        ("ScalarType", Type::ScalarType),
        ("Layout", Type::Layout),
        ("MemoryFormat", Type::MemoryFormat),
        ("Generator", Type::Generator),
        ("Any", Type::Any),
    ];

    /// Returns whether a list declared with this length may have `len` elements, see
    /// [`Type::List`].
    pub fn takes_length(declared: Option<usize>, len: usize) -> bool {
        declared.is_none_or(|declared| declared == 1 || len == declared || len == 0)
    }

    /// Returns the innermost type: `Tensor` for `Tensor?[]`.
    pub fn base(&self) -> &Type {
        match self {
            Type::Optional(inner) | Type::List(inner, _) => inner.base(),
            base => base,
        }
    }

    /// Returns the type without an outermost `?`.
    pub fn without_optional(&self) -> &Type {
        match self {
            Type::Optional(inner) => inner,
            other => other,
        }
    }

    /// Returns whether None is a value of it.
    pub fn is_optional(&self) -> bool {
        matches!(self, Type::Optional(_))
    }

    /// Returns whether it is a Tensor, an optional one, or a list of these.
    pub fn carries_tensors(&self) -> bool {
        *self.base() == Type::Tensor
    }
}

/// A default as written in the schema.
///
/// Floats compare and hash by their bits, so that schemas are equal if and only if their texts are.
#[derive(Clone, Debug)]
pub enum Literal {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A number with a point or an exponent, `inf`, `-inf` or `nan`.
    Float(f64),
    /// A quoted string.
    Str(String),
    /// `[1, 2]`.
    List(Vec<Literal>),
    /// An enumerator: `float32`, `strided`, `contiguous_format`, `Mean`.
    Ident(String),
}

impl Literal {
    /// Returns the integer of an enumerator of type `int`: `Mean` is 1, `Sum` is 2 (PyTorch's codes
    /// for a loss's reduction); an integer is itself.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Literal::Int(value) => Some(*value),
            Literal::Ident(name) if name == "Mean" => Some(1),
            Literal::Ident(name) if name == "Sum" => Some(2),
            _ => None,
        }
    }
}

impl PartialEq for Literal {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Literal::None, Literal::None) => true,
            (Literal::Bool(a), Literal::Bool(b)) => a == b,
            (Literal::Int(a), Literal::Int(b)) => a == b,
            (Literal::Float(a), Literal::Float(b)) => a.to_bits() == b.to_bits(),
            (Literal::Str(a), Literal::Str(b)) | (Literal::Ident(a), Literal::Ident(b)) => a == b,
            (Literal::List(a), Literal::List(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Literal {}

impl Hash for Literal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Literal::None => {}
            Literal::Bool(value) => value.hash(state),
            Literal::Int(value) => value.hash(state),
            Literal::Float(value) => value.to_bits().hash(state),
            Literal::Str(text) | Literal::Ident(text) => text.hash(state),
            Literal::List(items) => items.hash(state),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> OperatorName {
        OperatorName::parse(text).unwrap()
    }

    #[test]
    fn a_plain_name_lacks_its_namespace() {
        name("demo::add").require_namespace().unwrap();
        let error = name("add").require_namespace().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Schema);
        assert_eq!(
            error.message(),
            "operator name `add` has no namespace: expected `ns::name`, such as `my_lib::add`"
        );
        let error = name("demo.add").require_namespace().unwrap_err();
        assert!(error.message().ends_with("`add` in namespace `demo` is `demo::add`)"), "{error}");
    }

    #[test]
    fn a_qualified_name_has_no_overload() {
        assert_eq!(name("demo::add.out").qualified(), "demo::add");
        assert_eq!(name("add.out").qualified(), "add");
    }

    #[test]
    fn one_value_stands_for_each_element_of_a_sized_list() {
        let schema = Schema::parse(
            "a::b(int[2] s=1, int[2]? t=3, int[2]? n=None, int[2] u=[4, 5], int i=7, \
                 int r=Mean, int[] e=[], \
                 int[2] k=[], int[1] d=-1, int[1] m=[-2, -1], *, Tensor x) -> ()",
        )
        .unwrap();
        let ints =
            |values: &[i64]| Literal::List(values.iter().copied().map(Literal::Int).collect());
        let filled: Vec<_> = schema.arguments.iter().map(Argument::default_value).collect();
        assert_eq!(
            filled,
            [
                Some(ints(&[1, 1])),
                Some(ints(&[3, 3])),
                Some(Literal::None),
                Some(ints(&[4, 5])),
                Some(Literal::Int(7)),
                Some(Literal::Ident("Mean".into())),
                Some(ints(&[])),
                Some(ints(&[])),
                Some(ints(&[-1])),
                Some(ints(&[-2, -1])),
                None,
            ]
        );
    }

    #[test]
    fn int_enumerators_stand_for_numbers() {
        assert_eq!(Literal::Int(5).as_int(), Some(5));
        assert_eq!(Literal::Ident("Mean".into()).as_int(), Some(1));
        assert_eq!(Literal::Ident("Sum".into()).as_int(), Some(2));
        assert_eq!(Literal::Ident("strided".into()).as_int(), None);
        assert_eq!(Literal::Float(1.0).as_int(), None);
    }

    #[test]
    fn floats_compare_by_bits() {
        assert_eq!(Literal::Float(f64::NAN), Literal::Float(f64::NAN));
        assert_ne!(Literal::Float(0.0), Literal::Float(-0.0));
        assert_ne!(Literal::Float(1.0), Literal::Int(1));
        assert_ne!(Literal::Str("a".into()), Literal::Ident("a".into()));
        let distinct: std::collections::HashSet<Literal> = [
            Literal::Float(0.0),
            Literal::Float(-0.0),
            Literal::Float(-0.0),
            Literal::Int(0),
            Literal::Bool(false),
            Literal::None,
            Literal::Str("None".into()),
            Literal::Ident("None".into()),
            Literal::List(vec![Literal::None]),
        ]
        .into();
        assert_eq!(distinct.len(), 8);
    }

    #[test]
    fn a_type_knows_its_parts() {
        let list = Type::List(Box::new(Type::Optional(Box::new(Type::Tensor))), None);
        let ty = Type::Optional(Box::new(list.clone()));
        assert!(ty.is_optional() && !list.is_optional());
        assert!(ty.carries_tensors() && !Type::Int.carries_tensors());
        assert_eq!(ty.base(), &Type::Tensor);
        assert_eq!(ty.without_optional(), &list);
        assert_eq!(list.without_optional(), &list);
    }
}
