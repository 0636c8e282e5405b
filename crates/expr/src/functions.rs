//! The functions of the language, by name.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use crate::derived_functions as c;
use crate::graph::{Binary, Graph, Id, Unary};

/// The nodes that a function makes of its arguments.
#[derive(Clone, Copy)]
pub(crate) enum Expansion {
    Unary(Unary),
    Binary(Binary),
    /// A binary operation on two or more arguments, left-associative.
    Fold(Binary),
    /// A binary operation on the truth values of two.
    Logical(Binary),
    One(fn(&mut Graph, Id) -> Id),
    Two(fn(&mut Graph, Id, Id) -> Id),
    Three(fn(&mut Graph, Id, Id, Id) -> Id),
}

/// A function: its name and signature.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// The names of its arguments, for errors.
    arguments: &'static str,
    make: Expansion,
}

impl Function {
    /// Returns the signature: `clamp(x, lo, hi)`.
    pub(crate) fn call(&self) -> String {
        format!("{}({})", self.name, self.arguments)
    }

    /// Returns the number of its arguments in words.
    pub(crate) fn takes(&self) -> &'static str {
        match self.make {
            Expansion::Unary(_) | Expansion::One(_) => "1 argument",
            Expansion::Binary(_) | Expansion::Logical(_) | Expansion::Two(_) => "2 arguments",
            Expansion::Three(_) => "3 arguments",
            Expansion::Fold(_) => "2 or more arguments",
        }
    }

    /// Returns the call's node, or `None` for a wrong number of arguments.
    pub(crate) fn apply(&self, g: &mut Graph, arguments: &[Id]) -> Option<Id> {
        Some(match (self.make, arguments) {
            (Expansion::Unary(op), [x]) => c::unary(g, op, *x),
            (Expansion::Binary(op), [a, b]) => c::binary(g, op, *a, *b),
            (Expansion::Logical(op), [a, b]) => c::logical(g, op, *a, *b),
            (Expansion::One(make), [x]) => make(g, *x),
            (Expansion::Two(make), [a, b]) => make(g, *a, *b),
            (Expansion::Three(make), [x, y, z]) => make(g, *x, *y, *z),
            (Expansion::Fold(op), [first, second, rest @ ..]) => {
                let start = c::binary(g, op, *first, *second);
                rest.iter().fold(start, |all, next| c::binary(g, op, all, *next))
            }
            _ => return None,
        })
    }
}

use Expansion::{Fold, Logical, One, Three, Two};

/// Each with its other names.
const TABLE: &[(&str, &str, Expansion)] = &[
    ("neg negative", "x", Expansion::Unary(Unary::Neg)),
    ("invert bitwise_not", "x", Expansion::Unary(Unary::Not)),
    ("abs absolute fabs", "x", Expansion::Unary(Unary::Abs)),
    ("sign", "x", Expansion::Unary(Unary::Sign)),
    ("conj conjugate", "x", Expansion::Unary(Unary::Conj)),
    ("real", "x", Expansion::Unary(Unary::Real)),
    ("imag", "x", Expansion::Unary(Unary::Imag)),
    ("exp", "x", Expansion::Unary(Unary::Exp)),
    ("expm1", "x", Expansion::Unary(Unary::Expm1)),
    ("log", "x", Expansion::Unary(Unary::Log)),
    ("log2", "x", Expansion::Unary(Unary::Log2)),
    ("log10", "x", Expansion::Unary(Unary::Log10)),
    ("log1p", "x", Expansion::Unary(Unary::Log1p)),
    ("sqrt", "x", Expansion::Unary(Unary::Sqrt)),
    ("rsqrt", "x", Expansion::Unary(Unary::Rsqrt)),
    ("sin", "x", Expansion::Unary(Unary::Sin)),
    ("cos", "x", Expansion::Unary(Unary::Cos)),
    ("tanh", "x", Expansion::Unary(Unary::Tanh)),
    ("sigmoid expit", "x", Expansion::Unary(Unary::Sigmoid)),
    ("erf", "x", Expansion::Unary(Unary::Erf)),
    ("erfc", "x", Expansion::Unary(Unary::Erfc)),
    ("floor", "x", Expansion::Unary(Unary::Floor)),
    ("ceil", "x", Expansion::Unary(Unary::Ceil)),
    ("round rint", "x", Expansion::Unary(Unary::Round)),
    ("trunc fix", "x", Expansion::Unary(Unary::Trunc)),
    ("isnan", "x", Expansion::Unary(Unary::IsNan)),
    ("isfinite", "x", Expansion::Unary(Unary::IsFinite)),
    ("add", "a, b", Expansion::Binary(Binary::Add)),
    ("sub subtract", "a, b", Expansion::Binary(Binary::Sub)),
    ("mul multiply", "a, b", Expansion::Binary(Binary::Mul)),
    ("div divide true_divide", "a, b", Expansion::Binary(Binary::Div)),
    ("floor_divide", "a, b", Expansion::Binary(Binary::FloorDiv)),
    ("remainder mod", "a, b", Expansion::Binary(Binary::Mod)),
    ("pow power", "a, b", Expansion::Binary(Binary::Pow)),
    ("min minimum", "a, b, ...", Fold(Binary::Min)),
    ("max maximum", "a, b, ...", Fold(Binary::Max)),
    ("eq equal", "a, b", Expansion::Binary(Binary::Eq)),
    ("ne not_equal", "a, b", Expansion::Binary(Binary::Ne)),
    ("lt less", "a, b", Expansion::Binary(Binary::Lt)),
    ("le less_equal", "a, b", Expansion::Binary(Binary::Le)),
    ("gt greater", "a, b", Expansion::Binary(Binary::Gt)),
    ("ge greater_equal", "a, b", Expansion::Binary(Binary::Ge)),
    ("bitwise_and", "a, b", Expansion::Binary(Binary::And)),
    ("bitwise_or", "a, b", Expansion::Binary(Binary::Or)),
    ("bitwise_xor", "a, b", Expansion::Binary(Binary::Xor)),
    ("left_shift bitwise_left_shift", "a, b", Expansion::Binary(Binary::Shl)),
    ("right_shift bitwise_right_shift", "a, b", Expansion::Binary(Binary::Shr)),
    ("logical_and", "a, b", Logical(Binary::And)),
    ("logical_or", "a, b", Logical(Binary::Or)),
    ("logical_xor", "a, b", Logical(Binary::Xor)),
    ("logical_not", "x", One(c::logical_not)),
    ("where", "condition, a, b", Three(c::choose)),
    ("relu", "x", One(c::relu)),
    ("gelu", "x", One(c::gelu)),
    ("gelu_tanh", "x", One(c::gelu_tanh)),
    ("silu", "x", One(c::silu)),
    ("softplus", "x", One(c::softplus)),
    ("square", "x", One(c::square)),
    ("reciprocal", "x", One(c::reciprocal)),
    ("clamp clip", "x, lo, hi", Three(c::clamp)),
    ("exp2", "x", One(c::exp2)),
    ("sinh", "x", One(c::sinh)),
    ("cosh", "x", One(c::cosh)),
    ("tan", "x", One(c::tan)),
    ("logaddexp", "a, b", Two(c::logaddexp)),
    ("hypot", "a, b", Two(c::hypot)),
    ("isinf", "x", One(c::is_inf)),
];

static FUNCTIONS: LazyLock<Vec<Function>> = LazyLock::new(|| {
    let named = |(names, arguments, make): &(&'static str, &'static str, Expansion)| {
        let (arguments, make) = (*arguments, *make);
        names.split(' ').map(move |name| Function { name, arguments, make }).collect::<Vec<_>>()
    };
    TABLE.iter().flat_map(named).collect()
});

static BY_NAME: LazyLock<FxHashMap<&'static str, &'static Function>> =
    LazyLock::new(|| FUNCTIONS.iter().map(|function| (function.name, function)).collect());

/// Returns the function of a name.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    BY_NAME.get(name).copied()
}

/// Returns the functions of the language by all their names, each with its least number of
/// arguments.
pub fn functions() -> impl Iterator<Item = (&'static str, usize)> {
    FUNCTIONS.iter().map(|function| {
        let arguments = function.arguments.split(", ").filter(|argument| *argument != "...");
        (function.name, arguments.count())
    })
}

/// Returns the names of all functions.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|function| function.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Node;

    #[test]
    fn every_name_is_unique_and_takes_its_number_of_arguments() {
        assert_eq!(BY_NAME.len(), FUNCTIONS.len());
        for function in FUNCTIONS.iter() {
            let mut g = Graph::default();
            let x = g.add(Node::Input(0));
            let shown = function.call().matches(", ").count() + 1;
            let least = functions().find(|(name, _)| *name == function.name).unwrap().1;
            assert!(function.takes().starts_with(&least.to_string()), "{}", function.name);
            for count in 0..6 {
                let right = match function.make {
                    Fold(_) => count >= 2,
                    _ => count == shown,
                };
                let made = function.apply(&mut g, &vec![x; count]);
                assert_eq!(made.is_some(), right, "{} with {count}", function.name);
                assert!(
                    !right
                        || function.takes().starts_with(&count.min(shown).to_string())
                        || count > 2
                );
            }
        }
    }
}
