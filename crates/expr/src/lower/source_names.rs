//! The names that a source text uses for derived functions, for errors: `silu` of a complex number
//! fails at its `max`, and the error has to name `silu`.

use crate::derived_functions as derived;
use crate::graph::{Binary, Expr, Graph, Id, Node, Unary};

/// A derived function of one operand, with its name.
type NamedFunction = (&'static str, fn(&mut Graph, Id) -> Id);

/// Returns the name of the derived function that the node is a part of; `None` for other nodes.
pub(super) fn source_name(expr: &Expr, node: Id) -> Option<&'static str> {
    let mut g = expr.to_graph();
    // Equal nodes of a graph are stored once: building the function again adds no node if it
    // exists.
    let known = |id: Id| id.index() < expr.nodes().len();
    let mut of_one = |x: Id, functions: &[NamedFunction]| {
        functions.iter().find(|(_, build)| known(build(&mut g, x))).map(|(name, _)| *name)
    };
    match *node_at(expr, node) {
        Node::Binary(Binary::Le, x, _) => of_one(x, &[("relu", derived::relu)]),
        Node::Unary(Unary::Expm1, x) => of_one(x, &[("sinh", derived::sinh)]),
        Node::Binary(Binary::Gt, x, _) => of_one(x, &[("softplus", derived::softplus)])
            .or_else(|| logaddexp(expr, x).then_some("logaddexp")),
        Node::Binary(Binary::Max, x, _) => {
            let products: [NamedFunction; 3] = [
                ("silu", derived::silu),
                ("gelu", derived::gelu),
                ("gelu_tanh", derived::gelu_tanh),
            ];
            of_one(x, &products).or_else(|| is_clamped(expr, node).then_some(CLAMP))
        }
        Node::Binary(Binary::Min, x, _) => {
            matches!(node_at(expr, x), Node::Binary(Binary::Max, ..)).then_some(CLAMP)
        }
        _ => None,
    }
}

/// `clamp`, and also `min(max(x, a), b)` in the source text.
const CLAMP: &str = "clamp (minimum of maximum)";

fn node_at(expr: &Expr, id: Id) -> &Node {
    &expr.nodes()[id.index()]
}

/// Returns whether the node is the difference inside `logaddexp`.
fn logaddexp(expr: &Expr, difference: Id) -> bool {
    let operand = |id: Id| match *node_at(expr, id) {
        Node::Binary(Binary::Mul, _, x) => Some(x),
        _ => None,
    };
    let Node::Binary(Binary::Sub, a, b) = *node_at(expr, difference) else { return false };
    let (Some(a), Some(b)) = (operand(a), operand(b)) else { return false };
    derived::logaddexp(&mut expr.to_graph(), a, b).index() < expr.nodes().len()
}

fn is_clamped(expr: &Expr, above: Id) -> bool {
    expr.nodes().iter().any(|node| matches!(node, Node::Binary(Binary::Min, x, _) if *x == above))
}
