//! Fused groups against their members one by one, bit for bit.

use std::sync::Arc;

use keyfold_core::{DType, DTypeKind, Device};
use keyfold_expr::fuse::{Fused, Fusion, Group, GroupInput, Limits, Member, Source};
use keyfold_expr::{Binary, Expr, Graph, Id, Literal, Lowered, Node, Unary};
use proptest::prelude::*;

use super::super::*;
use super::cases::{inputs as names, on_level};
use super::random::{Layout, layout, view};
use super::samples;

/// A random member: its operation and numbers that select its operands.
type Choice = (u8, u8, [u8; 3], u8);

/// The numbers that all groups are called with. They are rounded to each dtype.
const NUMBERS: [Scalar; 3] = [Scalar::Int(3), Scalar::Float(0.1), Scalar::Bool(true)];

/// Returns an expression of up to three inputs, one parameter, and their numbers.
fn expression(choice: Choice) -> (Expr, usize, usize) {
    let (what, op, [_, _, c], number) = choice;
    let mut graph = Graph::default();
    let ids: Vec<Id> = (0..3).map(|input| graph.add(Node::Input(input))).collect();
    let (x, y) = (ids[0], ids[1]);
    let literal = match number % 4 {
        0 => Literal::Int(i64::from(number) % 7),
        1 => Literal::Bool(true),
        _ => Literal::Float((f64::from(number) / 10.0 - 9.0).to_bits()),
    };
    let binary = Binary::ALL[op as usize % Binary::ALL.len()];
    let mut params = 0;
    let (root, inputs) = match what % 12 {
        0 => (graph.add(Node::Cast(DType::ALL[op as usize % DType::ALL.len()], x)), 1),
        1..=3 => (graph.add(Node::Unary(Unary::ALL[op as usize % Unary::ALL.len()], x)), 1),
        4 => {
            let literal = graph.add(Node::Literal(literal));
            (graph.add(Node::Binary(binary, x, literal)), 1)
        }
        5 => {
            let param = graph.add(Node::Param(0));
            params = 1;
            (graph.add(Node::Binary(binary, x, param)), 1)
        }
        6 => {
            let condition = graph.add(Node::Cast(DType::Bool, x));
            (graph.add(Node::Where(condition, y, ids[2])), 3)
        }
        7 => {
            let index = match c % 2 {
                0 => graph.add(Node::Index),
                _ => graph.add(Node::Coordinate(u32::from(c) % 3)),
            };
            (graph.add(Node::Binary(Binary::Add, x, index)), 1)
        }
        // Several operations, whose inner values aren't rounded.
        8 => {
            let product = graph.add(Node::Binary(Binary::Mul, x, y));
            let literal = graph.add(Node::Literal(literal));
            let sum = graph.add(Node::Binary(Binary::Add, product, literal));
            (graph.add(Node::Unary(Unary::Tanh, sum)), 2)
        }
        9 => (x, 1),
        _ => (graph.add(Node::Binary(binary, x, y)), 2),
    };
    let params_names = (0..params).map(|at| format!("p{at}")).collect();
    (Expr::new(&graph, root, names(inputs), params_names), inputs, params)
}

fn kinds(numbers: &[Scalar]) -> Vec<DTypeKind> {
    numbers.iter().map(|number| number.kind()).collect()
}

/// A group, and the results of its members, computed one by one.
struct Eager {
    group: Group,
    results: Vec<Tensor>,
}

/// Adds the choices as members, as long as they are defined and have no element at fault.
fn eager(choices: &[Choice], inputs: &[Tensor], shape: &[usize]) -> Eager {
    let group_inputs = inputs.iter().map(|x| GroupInput { dtype: x.dtype(), rank: None });
    let mut group =
        Group { inputs: group_inputs.collect(), params: kinds(&NUMBERS), ..Group::default() };
    let mut results: Vec<Tensor> = Vec::new();
    for choice in choices {
        let (expr, count, params) = expression(*choice);
        let (_, _, picks, number) = *choice;
        let sources: Vec<Source> = picks[..count]
            .iter()
            .map(|pick| {
                // The later half of the numbers reads recent members, so that there are long chains.
                let all = inputs.len() + results.len();
                let at = match (*pick as usize, results.len()) {
                    (pick @ 128.., members @ 1..) => all - 1 - (pick - 128) % members.min(3),
                    (pick, _) => pick % all,
                };
                match at.checked_sub(inputs.len()) {
                    Some(member) => Source::Member(member as u32),
                    None => Source::Input(at as u32),
                }
            })
            .collect();
        let operands: Vec<&Tensor> = sources
            .iter()
            .map(|source| match source {
                Source::Input(at) => &inputs[*at as usize],
                Source::Member(at) => &results[*at as usize],
            })
            .collect();
        let dtypes: Vec<DType> = operands.iter().map(|operand| operand.dtype()).collect();
        let own: Vec<u32> = (0..params as u32).map(|at| (at + u32::from(number)) % 3).collect();
        let numbers: Vec<Scalar> = own.iter().map(|at| NUMBERS[*at as usize]).collect();
        let out = (number % 5 == 0).then(|| DType::ALL[number as usize % DType::ALL.len()]);
        let Ok(lowered) = Lowered::new(&expr, &dtypes, &kinds(&numbers), out) else { continue };
        let result = Tensor::zeros(shape, lowered.result(), Device::CPU).unwrap();
        let program = Program::new(&lowered).unwrap();
        // SAFETY: the test alone uses the memory.
        if unsafe { evaluate(&program, &operands, &numbers, &result) }.is_err() {
            continue;
        }
        let (expr, sources, params) = (Arc::new(expr), sources.into(), own.into());
        group.members.push(Member { expr, sources, params, out });
        results.push(result);
    }
    if results.is_empty() {
        let result = Tensor::zeros(shape, inputs[0].dtype(), Device::CPU).unwrap();
        let same = Program::new(
            &Lowered::new(&Expr::parse("x").unwrap(), &[inputs[0].dtype()], &[], None).unwrap(),
        );
        // SAFETY: the test alone uses the memory.
        unsafe { evaluate(&same.unwrap(), &[&inputs[0]], &[], &result).unwrap() };
        group.members.push(Member::new(Arc::new(Expr::parse("x").unwrap()), &[Source::Input(0)]));
        results.push(result);
    }
    Eager { group, results }
}

fn program(group: &Group) -> Fused {
    let limits = Limits { steps: 10_000, live: 10_000, ..Limits::default() };
    match group.fuse(&limits).unwrap() {
        Fusion::Program(fused) => fused,
        cut => panic!("{cut:?}"),
    }
}

fn assert_same(got: &Tensor, expected: &Tensor, what: &dyn std::fmt::Debug) {
    assert_eq!((got.dtype(), got.shape()), (expected.dtype(), expected.shape()), "{what:?}");
    for index in samples::indices(got.shape()) {
        let (got, expected) = (samples::get(got, &index), samples::get(expected, &index));
        assert!(got.same(expected), "{got:?} and not {expected:?} at {index:?}: {what:?}");
    }
}

/// The layouts of a case.
#[derive(Clone, Debug)]
struct Layouts {
    inputs: [Layout; 3],
    outs: [Layout; 3],
    in_place: bool,
}

fn layouts() -> impl Strategy<Value = Layouts> {
    let three = || prop::array::uniform3(layout());
    (three(), three(), any::<bool>()).prop_map(|(inputs, outs, in_place)| Layouts {
        inputs,
        outs,
        in_place,
    })
}

/// Compares a group with its members one by one.
fn check(choices: &[Choice], dtypes: &[DType], layouts: &Layouts, shape: &[usize], wanted: &[u8]) {
    let views = || -> Vec<Tensor> {
        let each = dtypes.iter().zip(&layouts.inputs);
        each.map(|(dtype, layout)| view(layout, shape, *dtype, 7, true)).collect()
    };
    let inputs = views();
    let Eager { mut group, results } = eager(choices, &inputs, shape);
    for wanted in wanted {
        let member = u32::from(*wanted) % results.len() as u32;
        if !group.results.contains(&member) {
            group.results.push(member);
        }
    }
    let fused = program(&group);
    // An output may be an input.
    let inputs = views();
    let mut outs: Vec<Tensor> = Vec::new();
    let mut used = vec![false; inputs.len()];
    for (at, member) in group.results.iter().enumerate() {
        let result = &results[*member as usize];
        let place = inputs.iter().zip(&used).position(|(input, used)| {
            layouts.in_place
                && !used
                && input.dtype() == result.dtype()
                && input.shape() == result.shape()
        });
        match place {
            Some(place) => {
                used[place] = true;
                outs.push(inputs[place].clone());
            }
            None => {
                let layout = &layouts.outs[at % layouts.outs.len()];
                outs.push(view(layout, shape, result.dtype(), 1, false));
            }
        }
    }
    // The programs of single results, first, since the outputs may be the inputs.
    let operands: Vec<&Tensor> = inputs.iter().collect();
    for (at, member) in group.results.iter().enumerate() {
        let expected = &results[*member as usize];
        let own = Tensor::zeros(shape, expected.dtype(), Device::CPU).unwrap();
        let single = Program::new(&fused.program(at)).unwrap();
        // SAFETY: the test alone uses the memory.
        unsafe { evaluate(&single, &operands, &NUMBERS, &own).unwrap() };
        assert_same(&own, expected, &group);
    }
    let outs: Vec<&Tensor> = outs.iter().collect();
    // SAFETY: the test alone uses the memory.
    unsafe { evaluate_all(&Program::fused(&fused).unwrap(), &operands, &NUMBERS, &outs).unwrap() };
    for (member, out) in group.results.iter().zip(outs) {
        assert_same(out, &results[*member as usize], &group);
    }
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        prop::collection::vec(0_usize..4, 0..=6),
        prop::collection::vec(1_usize..40, 1..=2),
        (60_usize..200, 8_usize..40).prop_map(|(a, b)| vec![a, b]),
        (8_usize..40, 60_usize..200).prop_map(|(a, b)| vec![a, b]),
        (1100_usize..5000).prop_map(|a| vec![a]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn groups_equal_their_members_one_by_one(
        choices in prop::collection::vec(any::<Choice>(), 1..=32),
        dtypes in prop::collection::vec(prop::sample::select(&DType::ALL[..]), 1..4),
        layouts in layouts(),
        shape in shapes(),
        wanted in prop::collection::vec(any::<u8>(), 1..5),
        level in 0_usize..3,
    ) {
        on_level(level, || check(&choices, &dtypes, &layouts, &shape, &wanted));
    }

    #[test]
    fn groups_of_halves_equal_their_members_one_by_one(
        choices in prop::collection::vec(any::<Choice>(), 1..=32),
        dtypes in prop::collection::vec(
            prop::sample::select(&[DType::F16, DType::BF16, DType::F32][..]), 1..4),
        layouts in layouts(),
        shape in shapes(),
        wanted in prop::collection::vec(any::<u8>(), 1..5),
        level in 0_usize..3,
    ) {
        // No conversions to other dtypes, which would soon be all that is left.
        let choices: Vec<Choice> = choices
            .into_iter()
            .map(|(what, op, picks, number)| (what % 11 + 1, op, picks, number | 1))
            .collect();
        on_level(level, || check(&choices, &dtypes, &layouts, &shape, &wanted));
    }
}

/// A member of an expression's text, whose inputs are called by their order.
fn member(text: &str, sources: &[Source]) -> Member {
    Member::new(Arc::new(Expr::parse(text).unwrap()), sources)
}

fn group(dtypes: &[DType], members: Vec<Member>, results: &[u32]) -> Group {
    let inputs = dtypes.iter().map(|dtype| GroupInput { dtype: *dtype, rank: None }).collect();
    Group { inputs, params: vec![], members, results: results.into() }
}

#[test]
fn an_input_that_is_a_result_survives_a_result_that_replaces_it() {
    // a, b = b, a: both results are inputs, and each replaces the other.
    let (a, b) = (Source::Input(0), Source::Input(1));
    let members = vec![member("x", &[b]), member("x", &[a])];
    let compiled = Program::fused(&program(&group(&[DType::F32; 2], members, &[0, 1]))).unwrap();
    let a = Tensor::from_slice(&[1.0_f32; 3000], &[3000]).unwrap();
    let b = Tensor::from_slice(&[2.0_f32; 3000], &[3000]).unwrap();
    // SAFETY: the test alone uses the memory.
    unsafe { evaluate_all(&compiled, &[&a, &b], &[], &[&a, &b]).unwrap() };
    assert_eq!(
        (a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap()),
        (vec![2.0; 3000], vec![1.0; 3000])
    );
}

#[test]
fn a_number_that_is_a_result_is_kept_until_it_is_stored() {
    // More numbers than have registers of their own; the tenth is a result, and read before the end.
    let mut members = vec![member("x + 0.125", &[Source::Input(0)])];
    for at in 1..9_u32 {
        members.push(member(&format!("x * {at}.25"), &[Source::Member(at - 1)]));
    }
    members.push(member("7.5", &[]));
    members.push(member("x * y", &[Source::Member(8), Source::Member(9)]));
    for at in 10..14 {
        members.push(member("exp(x)", &[Source::Member(at)]));
    }
    let compiled = Program::fused(&program(&group(&[DType::F64], members, &[9, 14]))).unwrap();
    let of = || Tensor::zeros(&[100], DType::F64, Device::CPU).unwrap();
    let (number, last) = (of(), of());
    // SAFETY: the test alone uses the memory.
    unsafe { evaluate_all(&compiled, &[&of()], &[], &[&number, &last]).unwrap() };
    assert_eq!(number.to_vec::<f64>().unwrap(), [7.5; 100]);
}

/// Each operation of a chain, of the value so far, `x`, and another operand, `y`; both orders where they
/// matter.
const CHAIN: [&str; 21] = [
    "x * y",
    "x + y",
    "0.5 - x",
    "minimum(x, y)",
    "maximum(y, x)",
    "x * x",
    "y - x",
    "maximum(x, -0.0)",
    "-x",
    "minimum(0.0, x)",
    "x / 3.0",
    "abs(x)",
    "sqrt(x)",
    "y / x",
    "x - y",
    "minimum(y, x)",
    "maximum(x, 0.5)",
    "minimum(0.25, x)",
    "minimum(x, -0.5)",
    "maximum(0.0, x)",
    "minimum(x, nan)",
];

#[test]
fn chains_of_every_length_equal_their_operations_one_by_one() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for length in (0..70).chain([127, 128, 129, 255, 257, 600, 1023, 1025]) {
            let of = || Tensor::zeros(&[length], dtype, Device::CPU).unwrap();
            let (x, y) =
                (samples::samples(&[length], dtype, 3), samples::samples(&[length], dtype, 4));
            for first in 0..CHAIN.len() {
                let mut members = vec![];
                let mut value = x.clone();
                for at in 0..3 {
                    let text = CHAIN[(first + at) % CHAIN.len()];
                    let before =
                        if at == 0 { Source::Input(0) } else { Source::Member(at as u32 - 1) };
                    let expr = Expr::parse(text).unwrap();
                    // The inputs of an expression are in the order of the text.
                    let sources: Vec<Source> = expr
                        .inputs()
                        .iter()
                        .map(|input| match &*input.name {
                            "x" => before,
                            _ => Source::Input(1),
                        })
                        .collect();
                    let operands: Vec<&Tensor> = expr
                        .inputs()
                        .iter()
                        .map(|input| match &*input.name {
                            "x" => &value,
                            _ => &y,
                        })
                        .collect();
                    let lowered =
                        Lowered::new(&expr, &vec![dtype; operands.len()], &[], None).unwrap();
                    let next = of();
                    // SAFETY: the test alone uses the memory.
                    unsafe {
                        evaluate(&Program::new(&lowered).unwrap(), &operands, &[], &next).unwrap();
                    };
                    members.push(member(text, &sources));
                    value = next;
                }
                let compiled =
                    Program::fused(&program(&group(&[dtype; 2], members, &[2]))).unwrap();
                (0..3).for_each(|level| {
                    on_level(level, || {
                        let out = of();
                        // SAFETY: the test alone uses the memory.
                        unsafe { evaluate_all(&compiled, &[&x, &y], &[], &[&out]).unwrap() };
                        assert_same(&out, &value, &(CHAIN[first], length, level));
                    });
                });
            }
        }
    }
}

#[test]
fn a_scaled_function_takes_a_product_out_of_a_chain() {
    // The factor is a quotient, which isn't a part of the function's loop.
    let members = vec![
        member("exp(x * 0.5)", &[Source::Input(0)]),
        member("x / y", &[Source::Input(0), Source::Input(1)]),
        member("x * 0.25", &[Source::Member(1)]),
        member("x * y", &[Source::Member(0), Source::Member(2)]),
    ];
    let compiled = Program::fused(&program(&group(&[DType::F64; 2], members, &[3]))).unwrap();
    let x = Tensor::from_slice(&[2.0, -4.0], &[2]).unwrap();
    let y = Tensor::from_slice(&[4.0, 0.5], &[2]).unwrap();
    let out = Tensor::zeros(&[2], DType::F64, Device::CPU).unwrap();
    // SAFETY: the test alone uses the memory.
    unsafe { evaluate_all(&compiled, &[&x, &y], &[], &[&out]).unwrap() };
    let expected = [1.0_f64.exp() * 0.125, (-2.0_f64).exp() * -2.0];
    for (got, expected) in out.to_vec::<f64>().unwrap().into_iter().zip(expected) {
        assert!((got - expected).abs() < 1e-15, "{got} and not {expected}");
    }
}

#[test]
fn a_sum_of_many_functions_keeps_few_of_their_values() {
    let terms: Vec<String> = (0..100).map(|at| format!("exp(x * {at}.5)")).collect();
    let expr = Expr::parse(&terms.join(" + ")).unwrap();
    let program = Program::new(&Lowered::new(&expr, &[DType::F32], &[], None).unwrap()).unwrap();
    assert!(program.slots() < 25, "{program:?}");
}

#[test]
fn a_long_program_of_operations_that_no_chain_has_compiles_on_a_small_stack() {
    let lines: Vec<String> = (1..5_000).map(|at| format!("v{at} = v{} % y\n", at - 1)).collect();
    let text = format!("v0 = x\n{}v4999 % y", lines.concat());
    let compile = move || {
        let expr = Expr::parse(&text).unwrap();
        Program::new(&Lowered::new(&expr, &[DType::F32; 2], &[], None).unwrap()).map(drop)
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(compile).unwrap();
    thread.join().unwrap().unwrap();
}

#[test]
fn wrong_outputs_are_refused() {
    let x = [Source::Input(0)];
    let members = vec![member("x + 1.0", &x), member("x > 0.0", &x)];
    let compiled = Program::fused(&program(&group(&[DType::F32], members, &[0, 1]))).unwrap();
    let of = |dtype, size: usize| Tensor::zeros(&[size], dtype, Device::CPU).unwrap();
    let input = of(DType::F32, 8);
    let (sum, greater) = (of(DType::F32, 8), of(DType::Bool, 8));
    let errors: Vec<String> = [
        &[][..],
        &[&sum],
        &[&greater, &sum],
        &[&sum, &sum],
        &[&sum, &of(DType::Bool, 7)],
        &[&sum, &greater.broadcast_to(&[8]).unwrap(), &sum],
    ]
    .iter()
    .map(|outs| {
        // SAFETY: the test alone uses the memory.
        let result = unsafe { evaluate_all(&compiled, &[&input], &[], outs) };
        result.expect_err("wrong outputs").message().to_owned()
    })
    .collect();
    assert_eq!(
        errors,
        [
            "the program has 2 results, but 0 outputs were given",
            "the program has 2 results, but 1 outputs were given",
            "the output has dtype bool; the program gives float32",
            "the output has dtype float32; the program gives bool",
            "output 1 has shape [7], and an output before it [8]; they have to be equal",
            "the program has 2 results, but 3 outputs were given",
        ]
    );
    let members = vec![member("x + 1.0", &x), member("x - 1.0", &x)];
    let two = Program::fused(&program(&group(&[DType::F32], members, &[0, 1]))).unwrap();
    // SAFETY: the test alone uses the memory.
    let error = unsafe { evaluate_all(&two, &[&input], &[], &[&sum, &sum]) }.unwrap_err();
    assert_eq!(error.message(), "output 1 shares memory with an output before it; write to a copy");
    // SAFETY: the test alone uses the memory.
    let error = unsafe { evaluate(&two, &[&input], &[], &sum) }.unwrap_err();
    assert_eq!(error.message(), "the program has 2 results, but 1 outputs were given");
}
