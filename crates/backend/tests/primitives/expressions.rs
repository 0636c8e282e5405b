//! Expressions of several functions.

use keyfold_core::{DType, DTypeKind, Scalar};
use keyfold_expr::{Binary, Expr, Graph, Id, Input, Literal, Lowered, Node, StepId, StepOp, Unary};

use crate::compare::{elements, worst};
use crate::samples::{self, Random};
use crate::{by_evaluator, by_primitives};

#[test]
fn the_derivatives_of_gelu_are_those_of_the_evaluator() {
    for (text, bound) in [("gelu(x)", 6.0), ("gelu_tanh(x)", 16.0), ("softplus(x)", 6.0)] {
        let derivative = Expr::parse(text).unwrap().derivative(0).unwrap();
        for dtype in [DType::F16, DType::F32, DType::F64] {
            let lowered = Lowered::new(&derivative, &[dtype], &[], None).unwrap();
            let x = samples::inputs(&[dtype], 20_000, 3).remove(0);
            let got = by_primitives(&lowered, &[&x], &[]).unwrap();
            let wanted = by_evaluator(&lowered, &[&x], &[]).unwrap();
            // Near a zero of the sum, two terms have only their absolute accuracy.
            let apart = elements(&got).into_iter().zip(elements(&wanted));
            for ((got, wanted), x) in apart.zip(elements(&x)) {
                let (got, wanted) = (got.as_f64(), wanted.as_f64());
                let epsilon = match dtype {
                    DType::F16 => 1e-3,
                    DType::F32 => f64::from(f32::EPSILON),
                    _ => f64::EPSILON,
                };
                let near = (got - wanted).abs() <= bound * epsilon * wanted.abs().max(0.25);
                let same = got == wanted || got.is_nan() && wanted.is_nan();
                assert!(near || same, "{text} of {dtype} at {x}: {got}, not {wanted}");
            }
        }
    }
}

#[test]
fn powers_and_logarithms_of_powers_are_exact() {
    let check = |text: &str, dtype: DType, x: &[f64], wanted: &[f64]| {
        let x: Vec<Scalar> = x.iter().copied().map(Scalar::Float).collect();
        let lowered = crate::lowered(text, &[dtype]).unwrap();
        let got = by_primitives(&lowered, &[&samples::tensor(dtype, &x)], &[]).unwrap();
        for ((got, wanted), x) in elements(&got).into_iter().zip(wanted).zip(x) {
            assert_eq!(got, Scalar::Float(*wanted), "{text} of {dtype} at {x}");
        }
    };
    for (dtype, exponents) in [(DType::F32, -149..128), (DType::F64, -1074..1024)] {
        let wholes: Vec<f64> = exponents.map(f64::from).collect();
        let powers: Vec<f64> = wholes.iter().map(|whole| whole.exp2()).collect();
        check("exp2(x)", dtype, &wholes, &powers);
        check("log2(x)", dtype, &powers, &wholes);
    }
    let wholes: Vec<f64> = (0..23).map(f64::from).collect();
    let powers: Vec<f64> = (0..23).map(|whole| 10f64.powi(whole)).collect();
    check("log10(x)", DType::F64, &powers, &wholes);
    check("log10(x)", DType::F32, &powers[..11], &wholes);
}

/// Returns whether every step is exact or correctly rounded. Moduli, roots and quotients of complex
/// numbers aren't.
fn is_exact(lowered: &Lowered) -> bool {
    let is_complex = |id: StepId| lowered.steps()[id.index()].dtype.is_complex();
    lowered.steps().iter().all(|step| match step.op {
        StepOp::Unary(Unary::Abs | Unary::Sqrt | Unary::Sign, a) => !is_complex(a),
        StepOp::Binary(Binary::Div, a, _) => !is_complex(a),
        _ => true,
    })
}

/// Returns a random node over earlier ones, of functions that are exact for real numbers.
fn grow(nodes: &[Id], random: &mut Random, params: u32) -> Node {
    const UNARY: [Unary; 8] = [
        Unary::Neg,
        Unary::Abs,
        Unary::Sqrt,
        Unary::Floor,
        Unary::Round,
        Unary::Sign,
        Unary::IsNan,
        Unary::Not,
    ];
    let pick = |random: &mut Random| nodes[random.below(nodes.len())];
    let (a, b, c) = (pick(random), pick(random), pick(random));
    match random.below(16) {
        0 => Node::Literal(Literal::Int(random.below(5) as i64)),
        1 => Node::Literal(Literal::Float((random.below(64) as f64 / 8.0).to_bits())),
        2 => Node::Index,
        3 => Node::Coordinate(random.below(4) as u32),
        4 => Node::Param(random.below(params as usize) as u32),
        5 => Node::Where(a, b, c),
        6 => Node::Cast(DType::ALL[random.below(DType::ALL.len())], a),
        7..9 => Node::Unary(UNARY[random.below(UNARY.len())], a),
        _ => match Binary::ALL[random.below(Binary::ALL.len())] {
            Binary::Pow => Node::Binary(Binary::Mul, a, b),
            op => Node::Binary(op, a, b),
        },
    }
}

/// Returns a random expression of at most `nodes` nodes, and its inputs' dtypes.
fn expression(random: &mut Random, numbers: &[Scalar]) -> Lowered {
    let count = 1 + random.below(3);
    let dtypes: Vec<DType> =
        (0..count).map(|_| DType::ALL[random.below(DType::ALL.len())]).collect();
    let kinds: Vec<DTypeKind> = numbers.iter().map(|number| number.kind()).collect();
    let mut graph = Graph::default();
    let mut nodes: Vec<Id> = (0..count).map(|at| graph.add(Node::Input(at as u32))).collect();
    let lower = |graph: &Graph, root: Id| {
        let input = |at| Input { name: format!("x{at}"), rank: None };
        let params = (0..numbers.len()).map(|at| format!("p{at}")).collect();
        let expr = Expr::new(graph, root, (0..count).map(input).collect(), params);
        Lowered::new(&expr, &dtypes, &kinds, None)
    };
    let mut last = lower(&graph, nodes[0]).unwrap();
    for _ in 0..random.below(14) {
        let node = grow(&nodes, random, numbers.len() as u32);
        let id = graph.add(node);
        match lower(&graph, id) {
            Ok(lowered) if is_exact(&lowered) => {
                last = lowered;
                nodes.push(id);
            }
            _ => {}
        }
    }
    last
}

#[test]
fn random_expressions_over_random_shapes_are_those_of_the_evaluator() {
    let mut random = Random(11);
    let numbers = [Scalar::Int(3), Scalar::Float(0.75)];
    for seed in 0..1500 {
        let lowered = expression(&mut random, &numbers);
        let shape: Vec<usize> = (0..random.below(4)).map(|_| random.below(5)).collect();
        let inputs: Vec<_> = lowered
            .inputs()
            .iter()
            .map(|dtype| samples::view(*dtype, &shape, &mut random, seed))
            .collect();
        let inputs: Vec<_> = inputs.iter().collect();
        let wanted = by_evaluator(&lowered, &inputs, &numbers).unwrap();
        let got = by_primitives(&lowered, &inputs, &numbers).unwrap();
        let (error, at) = worst(&got, &wanted);
        assert!(
            error == 0.0,
            "seed {seed}, element {at}: {:?}, not {:?}; {:?}",
            elements(&got)[at],
            elements(&wanted)[at],
            lowered.steps()
        );
    }
}
