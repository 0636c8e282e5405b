//! Every step with every dtype, and layouts picked by hand.

use std::sync::Mutex;

use keyfold_core::{DType, Device};
use keyfold_expr::{Binary, Expr, Graph, Input, Lowered, Node, Unary};

use super::super::*;
use super::{naive, samples};
use crate::isa::{self, Level};

pub(super) fn inputs(count: usize) -> Vec<Input> {
    (0..count).map(|i| Input { name: format!("x{i}"), rank: None }).collect()
}

/// Evaluates, and compares every element with the naive interpreter's.
pub(super) fn check(lowered: &Lowered, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) {
    let program = Program::new(lowered).unwrap();
    let shape = out.shape().to_vec();
    let expected: Vec<_> = samples::indices(&shape)
        .iter()
        .map(|index| naive::evaluate(lowered, inputs, params, &shape, index))
        .collect();
    // SAFETY: the test alone uses the output's memory.
    let result = unsafe { evaluate(&program, inputs, params, out) };
    if expected.iter().any(Option::is_none) {
        result.expect_err("an element is at fault");
        return;
    }
    result.unwrap();
    for (index, expected) in samples::indices(&shape).iter().zip(expected) {
        let (got, expected) = (samples::get(out, index), expected.unwrap());
        assert!(
            got.same(expected),
            "{:?} at {index:?}: {got:?} and not {expected:?}; {:?}",
            isa::level(),
            lowered.steps()
        );
    }
}

/// Held by tests that compare bits, since the instruction level is set for the whole process.
static LEVEL: Mutex<()> = Mutex::new(());

pub(super) fn on_all_levels(f: impl Fn()) {
    (0..Level::ALL.len()).for_each(|level| on_level(level, &f));
}

pub(super) fn on_level(level: usize, f: impl Fn()) {
    let _held = LEVEL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    isa::set_level(Level::ALL[level]);
    f();
}

fn result_of(lowered: &Lowered, shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, lowered.result(), Device::CPU).unwrap()
}

#[test]
fn every_unary_function_agrees_for_every_dtype() {
    on_all_levels(|| {
        let mut done = 0;
        for op in Unary::ALL {
            let mut graph = Graph::default();
            let x = graph.add(Node::Input(0));
            let root = graph.add(Node::Unary(op, x));
            let expr = Expr::new(&graph, root, inputs(1), vec![]);
            for dtype in DType::ALL {
                let Ok(lowered) = Lowered::new(&expr, &[dtype], &[], None) else { continue };
                let x = samples::samples(&[333], dtype, 5);
                check(&lowered, &[&x], &[], &result_of(&lowered, &[333]));
                done += 1;
            }
        }
        assert!(done > 200, "{done}");
    });
}

#[test]
fn every_binary_function_agrees_for_every_dtype() {
    on_all_levels(|| {
        let mut done = 0;
        for op in Binary::ALL {
            let mut graph = Graph::default();
            let (x, y) = (graph.add(Node::Input(0)), graph.add(Node::Input(1)));
            let root = graph.add(Node::Binary(op, x, y));
            let expr = Expr::new(&graph, root, inputs(2), vec![]);
            for dtype in DType::ALL {
                let Ok(lowered) = Lowered::new(&expr, &[dtype; 2], &[], None) else { continue };
                let x = samples::samples(&[333], dtype, 5);
                let mut y = samples::samples(&[333], dtype, 1234);
                if op == Binary::Pow && dtype.is_integral() {
                    // The exponents aren't negative.
                    let small: Vec<i64> = (0..333).map(|i| i % 7).collect();
                    y = Tensor::from_vec(small, &[333]).unwrap();
                    let lowered = Lowered::new(&expr, &[dtype, DType::I64], &[], Some(dtype));
                    let lowered = lowered.unwrap();
                    check(&lowered, &[&x, &y], &[], &result_of(&lowered, &[333]));
                } else {
                    check(&lowered, &[&x, &y], &[], &result_of(&lowered, &[333]));
                }
                done += 1;
            }
        }
        assert!(done > 180, "{done}");
    });
}

#[test]
fn every_conversion_agrees() {
    let mut graph = Graph::default();
    let x = graph.add(Node::Input(0));
    let same = Expr::new(&graph, x, inputs(1), vec![]);
    on_all_levels(|| {
        for from in DType::ALL {
            for to in DType::ALL {
                let cast = graph.clone().add(Node::Cast(to, x));
                let mut graph = graph.clone();
                graph.add(Node::Cast(to, x));
                let expr = Expr::new(&graph, cast, inputs(1), vec![]);
                let x = samples::samples(&[333], from, 3);
                for expr in [&expr, &same] {
                    let lowered = match Lowered::new(expr, &[from], &[], Some(to)) {
                        Ok(lowered) => lowered,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::DType);
                            continue;
                        }
                    };
                    check(&lowered, &[&x], &[], &result_of(&lowered, &[333]));
                }
            }
        }
    });
}
