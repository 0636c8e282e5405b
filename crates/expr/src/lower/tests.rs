//! Promotion, refused dtypes, and rounding of halves.

use keyfold_core::{Scalar, f16};

use super::*;
use crate::graph::{Binary, Graph, Input, Literal, Node, Unary};

fn inputs(names: &[&str]) -> Vec<Input> {
    names.iter().map(|name| Input { name: (*name).into(), rank: None }).collect()
}

fn apply(op: Binary, literal: Option<Literal>) -> Expr {
    let mut graph = Graph::default();
    let x = graph.add(Node::Input(0));
    let (other, names) = match literal {
        Some(literal) => (graph.add(Node::Literal(literal)), &["x"][..]),
        None => (graph.add(Node::Input(1)), &["x", "y"][..]),
    };
    let root = graph.add(Node::Binary(op, x, other));
    Expr::new(&graph, root, inputs(names), vec![])
}

fn result(expr: &Expr, dtypes: &[DType]) -> Result<DType> {
    Lowered::new(expr, dtypes, &[], None).map(|l| l.result())
}

#[test]
fn dtypes_promote_as_operators_do() {
    let add = apply(Binary::Add, None);
    for a in DType::ALL {
        for b in DType::ALL {
            assert_eq!(result(&add, &[a, b]).unwrap(), a.promote(b));
        }
    }
    let half = Literal::Float(0.5_f64.to_bits());
    let scaled = apply(Binary::Mul, Some(half));
    assert_eq!(result(&scaled, &[DType::F16]).unwrap(), DType::F16);
    assert_eq!(result(&scaled, &[DType::I32]).unwrap(), DType::F64);
    assert_eq!(result(&apply(Binary::Div, None), &[DType::I8; 2]).unwrap(), DType::F64);
    assert_eq!(result(&apply(Binary::Lt, None), &[DType::F16; 2]).unwrap(), DType::Bool);
}

#[test]
fn numbers_that_a_dtype_cannot_hold_are_refused() {
    let add = apply(Binary::Add, Some(Literal::Int(300)));
    assert_eq!(result(&add, &[DType::U8]).unwrap_err().kind(), ErrorKind::Value);
    assert_eq!(result(&add, &[DType::U16]).unwrap(), DType::U16);
    let power = apply(Binary::Pow, Some(Literal::Int(-1)));
    assert_eq!(result(&power, &[DType::I64]).unwrap_err().kind(), ErrorKind::Value);
    assert_eq!(result(&power, &[DType::F32]).unwrap(), DType::F32);
    for (op, dtype) in [
        (Binary::Sub, DType::Bool),
        (Binary::Lt, DType::C64),
        (Binary::And, DType::F32),
        (Binary::Shl, DType::Bool),
    ] {
        let error = result(&apply(op, None), &[dtype; 2]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DType);
        assert!(error.message().contains(dtype.name()), "{error}");
    }
    let wrong = Lowered::new(&add, &[], &[], None).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Binding);
}

#[test]
fn halves_are_rounded_once() {
    let mul = apply(Binary::Mul, None);
    let lowered = Lowered::new(&mul, &[DType::F16; 2], &[], None).unwrap();
    assert_eq!(lowered.result(), DType::F16);
    assert!(lowered.steps().iter().all(|step| step.dtype == DType::F32));
    let wide = Lowered::new(&mul, &[DType::F64; 2], &[], Some(DType::BF16)).unwrap();
    let last = wide.steps().last().unwrap();
    assert!(matches!(last.op, StepOp::Round(DType::BF16, _)), "{last:?}");
}

#[test]
fn a_constant_is_as_exact_as_the_computation_and_compared_as_an_element() {
    let tenth = Some(Literal::Float(0.1_f64.to_bits()));
    let has = |lowered: &Lowered, value: f64| {
        lowered.steps().iter().any(|s| s.op == StepOp::Constant(Scalar::Float(value)))
    };
    let equal = Lowered::new(&apply(Binary::Eq, tenth), &[DType::F16], &[], None).unwrap();
    assert!(has(&equal, f64::from(f16::from_f64(0.1))));
    let lowered = Lowered::new(&apply(Binary::Mul, tenth), &[DType::F16], &[], None).unwrap();
    assert!(has(&lowered, f64::from(0.1_f32)));
    assert_eq!(lowered.steps().len(), 3);
    assert_eq!(lowered.steps().iter().filter(|s| s.uniform).count(), 1);
}

#[test]
fn squares_are_products() {
    let square = apply(Binary::Pow, Some(Literal::Int(2)));
    let lowered = Lowered::new(&square, &[DType::F32], &[], None).unwrap();
    let last = &lowered.steps().last().unwrap().op;
    assert_eq!(*last, StepOp::Binary(Binary::Mul, StepId(0), StepId(0)));
}

#[test]
fn signed_and_unsigned_64_bit_integers_compare_exactly() {
    let mixes = [DType::I8, DType::I16, DType::I32, DType::I64];
    for op in [Binary::Eq, Binary::Ne, Binary::Lt, Binary::Le, Binary::Gt, Binary::Ge] {
        let expr = apply(op, None);
        for signed in mixes {
            for dtypes in [[signed, DType::U64], [DType::U64, signed]] {
                let lowered = Lowered::new(&expr, &dtypes, &[], None).unwrap();
                assert_eq!(lowered.result(), DType::Bool);
                let whole = |step: &Step| step.dtype == DType::Bool || step.dtype.is_integral();
                assert!(lowered.steps().iter().all(whole), "{op:?} of {dtypes:?}");
            }
        }
        // Other pairs have a common dtype.
        let lowered = Lowered::new(&expr, &[DType::U32, DType::I64], &[], None).unwrap();
        assert_eq!(lowered.steps().last().unwrap().dtype, DType::Bool);
        assert!(lowered.steps().len() <= 4, "{op:?}: {:?}", lowered.steps());
    }
}

#[test]
fn errors_have_the_name_in_the_source_text() {
    let table = [
        ("silu(x)", "silu"),
        ("gelu(x) + sigmoid(x)", "gelu"),
        ("gelu_tanh(x)", "gelu_tanh"),
        ("relu(2 * x)", "relu"),
        ("softplus(x) * y", "softplus"),
        ("logaddexp(x, y)", "logaddexp"),
        ("sinh(x)", "sinh"),
        ("clamp(x, y, 2)", "clamp (minimum of maximum)"),
        ("clamp(1, 2.5 * y, y)", "clamp (minimum of maximum)"),
        // A node that isn't part of a derived function.
        ("max(x, -1000.0) * y", "maximum"),
        ("x <= 0", "<="),
        ("where(x > 40, x, y)", ">"),
        ("min(x, y)", "minimum"),
        ("x - y > 0", ">"),
        ("expm1(x)", "expm1"),
        ("max(x, y, 1)", "maximum"),
    ];
    for (text, name) in table {
        let expr = Expr::parse_with(text, &crate::Names::new().input("x").input("y")).unwrap();
        for dtype in [DType::C64, DType::C128] {
            let error = result(&expr, &[dtype; 2]).unwrap_err();
            let said = format!("{name} isn't defined for {dtype}: ");
            assert!(error.message().starts_with(&said), "{text}: {error}");
        }
    }
}

#[test]
fn a_function_has_a_kernel_where_it_is_defined_and_nowhere_else() {
    use crate::source::{Options, emit};
    let step = |op, dtype| Step { op, dtype, uniform: false };
    let mut refused = 0;
    let mut hold = |op: StepOp, expr: &Expr, name: &str, dtype: DType, operands: usize| {
        if let Ok(lowered) = Lowered::new(expr, &vec![dtype; operands], &[], None) {
            assert!(emit(&lowered, &Options::new(expr)).is_ok(), "{name} of {dtype}");
            return;
        }
        refused += 1;
        // Steps that only a mistake in lowering could make.
        let mut steps: Vec<Step> =
            (0..operands).map(|input| step(StepOp::Input(input as u32), dtype)).collect();
        steps.push(step(op, dtype));
        let lowered = Lowered {
            steps,
            signature: Signature {
                inputs: vec![dtype; operands],
                ranks: vec![None; operands],
                names: vec!["x".into(); operands],
                params: Vec::new(),
                result: dtype,
            },
        };
        let error = emit(&lowered, &Options::new(expr)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DType);
        assert_eq!(
            error.message(),
            format!("{name} isn't defined for {dtype}: no kernel computes it")
        );
    };
    for dtype in DType::ALL.into_iter().filter(|dtype| computed(*dtype) == *dtype) {
        for op in Unary::ALL {
            let mut graph = Graph::default();
            let x = graph.add(Node::Input(0));
            let root = graph.add(Node::Unary(op, x));
            let expr = Expr::new(&graph, root, inputs(&["x"]), vec![]);
            hold(StepOp::Unary(op, StepId(0)), &expr, op.name(), dtype, 1);
        }
        for op in Binary::ALL {
            let op_of_both = StepOp::Binary(op, StepId(0), StepId(1));
            hold(op_of_both, &apply(op, None), op.name(), dtype, 2);
        }
    }
    assert!(refused > 30, "{refused}");
}
