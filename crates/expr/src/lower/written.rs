//! Errors in the words of who wrote the expression: `silu` of a complex number is refused for the
//! `max` that it is composed of, which nobody wrote.

use crate::compose;
use crate::graph::{Binary, Expr, Graph, Id, Node, Unary};

/// A function with its name.
type Named = (&'static str, fn(&mut Graph, Id) -> Id);

/// The name of the function, if the node is an operation inside one that is composed of several.
pub(super) fn written(expr: &Expr, node: Id) -> Option<&'static str> {
    let mut g = expr.to_graph();
    // Composed once more, all of it is there already: the nodes of a graph are there once.
    let known = |id: Id| id.index() < expr.nodes().len();
    let mut of_one = |x: Id, functions: &[Named]| {
        functions.iter().find(|(_, compose)| known(compose(&mut g, x))).map(|(name, _)| *name)
    };
    match *node_at(expr, node) {
        Node::Binary(Binary::Le, x, _) => of_one(x, &[("relu", compose::relu)]),
        Node::Unary(Unary::Expm1, x) => of_one(x, &[("sinh", compose::sinh)]),
        Node::Binary(Binary::Gt, x, _) => of_one(x, &[("softplus", compose::softplus)])
            .or_else(|| logaddexp(expr, x).then_some("logaddexp")),
        Node::Binary(Binary::Max, x, _) => {
            let gates: [Named; 3] = [
                ("silu", compose::silu),
                ("gelu", compose::gelu),
                ("gelu_tanh", compose::gelu_tanh),
            ];
            of_one(x, &gates).or_else(|| is_clamped(expr, node).then_some(CLAMP))
        }
        Node::Binary(Binary::Min, x, _) => {
            matches!(node_at(expr, x), Node::Binary(Binary::Max, ..)).then_some(CLAMP)
        }
        _ => None,
    }
}

/// Who wrote the two of them finds them, too.
const CLAMP: &str = "clamp (minimum of maximum)";

fn node_at(expr: &Expr, id: Id) -> &Node {
    &expr.nodes()[id.index()]
}

/// Whether the difference is the one of `logaddexp` of two scaled operands.
fn logaddexp(expr: &Expr, difference: Id) -> bool {
    let operand = |id: Id| match *node_at(expr, id) {
        Node::Binary(Binary::Mul, _, x) => Some(x),
        _ => None,
    };
    let Node::Binary(Binary::Sub, a, b) = *node_at(expr, difference) else { return false };
    let (Some(a), Some(b)) = (operand(a), operand(b)) else { return false };
    compose::logaddexp(&mut expr.to_graph(), a, b).index() < expr.nodes().len()
}

fn is_clamped(expr: &Expr, above: Id) -> bool {
    expr.nodes().iter().any(|node| matches!(node, Node::Binary(Binary::Min, x, _) if *x == above))
}
