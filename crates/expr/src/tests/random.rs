//! Random expressions.

use proptest::prelude::*;

use keyfold_core::DType;

use crate::derived_functions::float;
use crate::graph::{Binary, Expr, Graph, Id, Input, Literal, Node, Unary};

/// A recipe of a node: its kind, and numbers that select its operands among earlier nodes.
pub(crate) type Step = (u8, u8, u16, u16, u16);

/// Generates recipes of less than `most` nodes.
pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(any::<Step>(), 1..most)
}

fn literal(kind: u8, a: u16) -> Literal {
    let value = f64::from(a) / 64.0 - 500.0;
    match kind % 8 {
        0 => Literal::Bool(a.is_multiple_of(2)),
        1 => Literal::Int(i64::from(a) - 30_000),
        2 => Literal::Int(if a.is_multiple_of(2) { i64::MAX } else { i64::MIN }),
        3 => Literal::Float(f64::INFINITY.copysign(value).to_bits()),
        4 => Literal::Float(f64::NAN.to_bits()),
        5 => Literal::Float(0f64.copysign(value).to_bits()),
        6 => Literal::Float(value.to_bits()),
        _ => Literal::Float((value * 10f64.powi(i32::from(a % 600) - 300)).to_bits()),
    }
}

/// Returns an expression of any nodes by these recipes. Divisors and operands of bitwise operations
/// contain an input, since the parser refuses a zero literal as divisor and a float literal's bits.
pub(crate) fn any_expr(steps: &[Step]) -> Expr {
    let mut g = Graph::default();
    let mut ids: Vec<Id> = (0..2).map(|input| g.add(Node::Input(input))).collect();
    for (what, op, a, b, c) in steps {
        let pick = |number: &u16| ids[*number as usize % ids.len()];
        let (x, y, z) = (pick(a), pick(b), pick(c));
        let input = ids[*c as usize % 2];
        let whole = Node::Cast(DType::I64, y);
        let node = match what % 12 {
            0 | 1 => Node::Literal(literal(*op, *a)),
            2 => Node::Param(u32::from(*op % 2)),
            3 => match op % 4 {
                0 => Node::Index,
                1 => Node::Coordinate(u32::from(*a) % 64),
                2 => Node::At { input: 2, indices: [x].into_iter().collect() },
                _ => Node::At { input: 3, indices: [x, y].into_iter().collect() },
            },
            4 => Node::Cast(DType::ALL[*op as usize % DType::ALL.len()], x),
            5 | 6 => match Unary::ALL[*op as usize % Unary::ALL.len()] {
                Unary::Not => Node::Unary(Unary::Not, g.add(Node::Cast(DType::I32, x))),
                op => Node::Unary(op, x),
            },
            7 => Node::Where(x, y, z),
            _ => match Binary::ALL[*op as usize % Binary::ALL.len()] {
                op @ (Binary::Div | Binary::FloorDiv | Binary::Mod) => {
                    let not_literal = g.add(Node::Binary(Binary::Mul, y, input));
                    Node::Binary(op, x, not_literal)
                }
                op @ (Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr) => {
                    let first = g.add(Node::Cast(DType::I64, x));
                    Node::Binary(op, first, g.add(whole))
                }
                op => Node::Binary(op, x, y),
            },
        };
        ids.push(g.add(node));
    }
    let root = ids[ids.len() - 1];
    finish(&g, root)
}

/// Returns a smooth expression of two inputs, whose values stay moderate for inputs within 2.
pub(crate) fn smooth_expr(steps: &[Step]) -> Expr {
    let mut g = Graph::default();
    let mut ids: Vec<Id> = (0..2).map(|input| g.add(Node::Input(input))).collect();
    for (what, op, a, b, _) in steps {
        let pick = |number: &u16| ids[*number as usize % ids.len()];
        let (x, y) = (pick(a), pick(b));
        let mut unary = |op, x| g.add(Node::Unary(op, x));
        // Keeps the argument of the next function within its domain.
        let small = unary(Unary::Tanh, x);
        let id = match what % 8 {
            0 => float(&mut g, f64::from(*op) / 100.0 - 1.0),
            1 => {
                let functions = [
                    Unary::Neg,
                    Unary::Exp,
                    Unary::Expm1,
                    Unary::Sin,
                    Unary::Cos,
                    Unary::Tanh,
                    Unary::Sigmoid,
                    Unary::Erf,
                    Unary::Erfc,
                ];
                unary(functions[*op as usize % functions.len()], small)
            }
            2 => {
                let functions = [
                    Unary::Log,
                    Unary::Log2,
                    Unary::Log10,
                    Unary::Log1p,
                    Unary::Sqrt,
                    Unary::Rsqrt,
                ];
                let one_and_a_half = float(&mut g, 1.5);
                let positive = g.add(Node::Binary(Binary::Add, small, one_and_a_half));
                g.add(Node::Unary(functions[*op as usize % functions.len()], positive))
            }
            3 => {
                let two = float(&mut g, 2.0);
                let positive = g.add(Node::Binary(Binary::Add, small, two));
                let op = if op % 2 == 0 { Binary::Div } else { Binary::Pow };
                match op {
                    Binary::Div => g.add(Node::Binary(op, y, positive)),
                    _ => {
                        let exponent = g.add(Node::Unary(Unary::Sin, y));
                        g.add(Node::Binary(op, positive, exponent))
                    }
                }
            }
            4 => g.add(Node::Binary(Binary::Add, x, y)),
            5 => g.add(Node::Binary(Binary::Sub, x, y)),
            _ => g.add(Node::Binary(Binary::Mul, small, y)),
        };
        ids.push(id);
    }
    let root = ids[ids.len() - 1];
    finish(&g, root)
}

fn finish(g: &Graph, root: Id) -> Expr {
    let input = |name: &str, rank| Input { name: name.into(), rank };
    let inputs =
        vec![input("x", None), input("t1", None), input("table", Some(1)), input("grid", Some(2))];
    Expr::new(g, root, inputs, vec!["beta".into(), "größe".into()])
}
