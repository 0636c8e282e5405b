//! The functions that text can call, by name.

use std::sync::LazyLock;

use rustc_hash::FxHashMap;

use crate::derived_functions as c;
use crate::graph::{Binary, Graph, Id, Unary};

/// What a function does with its arguments.
#[derive(Clone, Copy)]
pub(crate) enum Make {
    Unary(Unary),
    Binary(Binary),
    /// A binary operation on two or more, from the left.
    Fold(Binary),
    /// A binary operation on the truth of two.
    Logical(Binary),
    One(fn(&mut Graph, Id) -> Id),
    Two(fn(&mut Graph, Id, Id) -> Id),
    Three(fn(&mut Graph, Id, Id, Id) -> Id),
}

/// A function: its name, and how its call is written.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// The names of its arguments, as shown in errors.
    arguments: &'static str,
    make: Make,
}

impl Function {
    /// The call as it is right: `clamp(x, lo, hi)`.
    pub(crate) fn call(&self) -> String {
        format!("{}({})", self.name, self.arguments)
    }

    /// How many arguments it takes, in words.
    pub(crate) fn takes(&self) -> &'static str {
        match self.make {
            Make::Unary(_) | Make::One(_) => "1 argument",
            Make::Binary(_) | Make::Logical(_) | Make::Two(_) => "2 arguments",
            Make::Three(_) => "3 arguments",
            Make::Fold(_) => "2 or more arguments",
        }
    }

    /// The call's node, or nothing if the number of arguments is wrong.
    pub(crate) fn apply(&self, g: &mut Graph, arguments: &[Id]) -> Option<Id> {
        Some(match (self.make, arguments) {
            (Make::Unary(op), [x]) => c::unary(g, op, *x),
            (Make::Binary(op), [a, b]) => c::binary(g, op, *a, *b),
            (Make::Logical(op), [a, b]) => c::logical(g, op, *a, *b),
            (Make::One(make), [x]) => make(g, *x),
            (Make::Two(make), [a, b]) => make(g, *a, *b),
            (Make::Three(make), [x, y, z]) => make(g, *x, *y, *z),
            (Make::Fold(op), [first, second, rest @ ..]) => {
                let start = c::binary(g, op, *first, *second);
                rest.iter().fold(start, |all, next| c::binary(g, op, all, *next))
            }
            _ => return None,
        })
    }
}

use Make::{Fold, Logical, One, Three, Two};

/// Each with its other names.
const TABLE: &[(&str, &str, Make)] = &[
    ("neg negative", "x", Make::Unary(Unary::Neg)),
    ("invert bitwise_not", "x", Make::Unary(Unary::Not)),
    ("abs absolute fabs", "x", Make::Unary(Unary::Abs)),
    ("sign", "x", Make::Unary(Unary::Sign)),
    ("conj conjugate", "x", Make::Unary(Unary::Conj)),
    ("real", "x", Make::Unary(Unary::Real)),
    ("imag", "x", Make::Unary(Unary::Imag)),
    ("exp", "x", Make::Unary(Unary::Exp)),
    ("expm1", "x", Make::Unary(Unary::Expm1)),
    ("log", "x", Make::Unary(Unary::Log)),
    ("log2", "x", Make::Unary(Unary::Log2)),
    ("log10", "x", Make::Unary(Unary::Log10)),
    ("log1p", "x", Make::Unary(Unary::Log1p)),
    ("sqrt", "x", Make::Unary(Unary::Sqrt)),
    ("rsqrt", "x", Make::Unary(Unary::Rsqrt)),
    ("sin", "x", Make::Unary(Unary::Sin)),
    ("cos", "x", Make::Unary(Unary::Cos)),
    ("tanh", "x", Make::Unary(Unary::Tanh)),
    ("sigmoid expit", "x", Make::Unary(Unary::Sigmoid)),
    ("erf", "x", Make::Unary(Unary::Erf)),
    ("erfc", "x", Make::Unary(Unary::Erfc)),
    ("floor", "x", Make::Unary(Unary::Floor)),
    ("ceil", "x", Make::Unary(Unary::Ceil)),
    ("round rint", "x", Make::Unary(Unary::Round)),
    ("trunc fix", "x", Make::Unary(Unary::Trunc)),
    ("isnan", "x", Make::Unary(Unary::IsNan)),
    ("isfinite", "x", Make::Unary(Unary::IsFinite)),
    ("add", "a, b", Make::Binary(Binary::Add)),
    ("sub subtract", "a, b", Make::Binary(Binary::Sub)),
    ("mul multiply", "a, b", Make::Binary(Binary::Mul)),
    ("div divide true_divide", "a, b", Make::Binary(Binary::Div)),
    ("floor_divide", "a, b", Make::Binary(Binary::FloorDiv)),
    ("remainder mod", "a, b", Make::Binary(Binary::Mod)),
    ("pow power", "a, b", Make::Binary(Binary::Pow)),
    ("min minimum", "a, b, ...", Fold(Binary::Min)),
    ("max maximum", "a, b, ...", Fold(Binary::Max)),
    ("eq equal", "a, b", Make::Binary(Binary::Eq)),
    ("ne not_equal", "a, b", Make::Binary(Binary::Ne)),
    ("lt less", "a, b", Make::Binary(Binary::Lt)),
    ("le less_equal", "a, b", Make::Binary(Binary::Le)),
    ("gt greater", "a, b", Make::Binary(Binary::Gt)),
    ("ge greater_equal", "a, b", Make::Binary(Binary::Ge)),
    ("bitwise_and", "a, b", Make::Binary(Binary::And)),
    ("bitwise_or", "a, b", Make::Binary(Binary::Or)),
    ("bitwise_xor", "a, b", Make::Binary(Binary::Xor)),
    ("left_shift bitwise_left_shift", "a, b", Make::Binary(Binary::Shl)),
    ("right_shift bitwise_right_shift", "a, b", Make::Binary(Binary::Shr)),
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
    let named = |(names, arguments, make): &(&'static str, &'static str, Make)| {
        let (arguments, make) = (*arguments, *make);
        names.split(' ').map(move |name| Function { name, arguments, make }).collect::<Vec<_>>()
    };
    TABLE.iter().flat_map(named).collect()
});

static BY_NAME: LazyLock<FxHashMap<&'static str, &'static Function>> =
    LazyLock::new(|| FUNCTIONS.iter().map(|function| (function.name, function)).collect());

/// The function of a name.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    BY_NAME.get(name).copied()
}

/// The functions that text can call, by all their names, each with the least number of its arguments.
pub fn functions() -> impl Iterator<Item = (&'static str, usize)> {
    FUNCTIONS.iter().map(|function| {
        let arguments = function.arguments.split(", ").filter(|argument| *argument != "...");
        (function.name, arguments.count())
    })
}

/// The names of all functions.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    FUNCTIONS.iter().map(|function| function.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Node;

    #[test]
    fn every_name_is_there_once_and_takes_what_it_says() {
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
