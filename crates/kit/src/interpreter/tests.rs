//! The steps that have a kernel.

use keyfold_core::{DType, ErrorKind};
use keyfold_expr::{
    Binary, Expr, Graph, Input, Lowered, Node, Step, StepId, StepOp, Unary, computed,
};

use super::Program;
use super::compile::kernel;

/// Lowers a function of one or two operands.
fn lowered(node: impl Fn(&mut Graph) -> Node, dtypes: &[DType]) -> keyfold_core::Result<Lowered> {
    let mut graph = Graph::default();
    let node = node(&mut graph);
    let root = graph.add(node);
    let input = |name: &&str| Input { name: (*name).into(), rank: None };
    let inputs = ["x", "y"][..dtypes.len()].iter().map(input).collect();
    Lowered::new(&Expr::new(&graph, root, inputs, vec![]), dtypes, &[], None)
}

fn of_two(op: Binary) -> impl Fn(&mut Graph) -> Node {
    move |graph| Node::Binary(op, graph.add(Node::Input(0)), graph.add(Node::Input(1)))
}

#[test]
fn a_function_has_a_kernel_where_it_is_defined_and_nowhere_else() {
    let mut refused = 0;
    let mut hold =
        |op: StepOp, lowered: keyfold_core::Result<Lowered>, name: &str, dtype: DType| {
            if let Ok(lowered) = lowered {
                assert!(Program::new(&lowered).is_ok(), "{name} of {dtype}");
                return;
            }
            refused += 1;
            // A step as a defective lowering might make it.
            let step = |op| Step { op, dtype, uniform: false };
            let steps = [step(StepOp::Input(0)), step(StepOp::Input(1)), step(op)];
            let Err(error) = kernel(&steps[2], &steps) else {
                panic!("a kernel computes {name} of {dtype}")
            };
            assert_eq!(error.kind(), ErrorKind::DType);
            let message = format!("{name} isn't defined for {dtype}: no kernel computes it");
            assert_eq!(error.message(), message);
        };
    for dtype in DType::ALL.into_iter().filter(|dtype| computed(*dtype) == *dtype) {
        for op in Unary::ALL {
            let expr = lowered(|graph| Node::Unary(op, graph.add(Node::Input(0))), &[dtype]);
            hold(StepOp::Unary(op, StepId(0)), expr, op.name(), dtype);
        }
        for op in Binary::ALL {
            let expr = lowered(of_two(op), &[dtype; 2]);
            hold(StepOp::Binary(op, StepId(0), StepId(1)), expr, op.name(), dtype);
        }
    }
    assert!(refused > 30, "{refused}");
}

#[test]
fn signed_and_unsigned_numbers_of_64_bits_are_compared_without_parameters() {
    for op in [Binary::Eq, Binary::Ne, Binary::Lt, Binary::Le, Binary::Gt, Binary::Ge] {
        for signed in [DType::I8, DType::I16, DType::I32, DType::I64] {
            for dtypes in [[signed, DType::U64], [DType::U64, signed]] {
                let program = Program::new(&lowered(of_two(op), &dtypes).unwrap()).unwrap();
                assert_eq!(program.result(), DType::Bool);
                assert!(program.constants().is_some(), "{op:?} of {dtypes:?}");
            }
        }
    }
}
