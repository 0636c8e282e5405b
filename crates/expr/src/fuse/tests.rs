//! Steps, limits and errors of groups. `keyfold-kit` compares their results.

use std::sync::Arc;

use keyfold_core::{DType, DTypeKind, ErrorKind};

use super::*;
use crate::{Names, StepOp};

fn expr(text: &str) -> Arc<Expr> {
    Arc::new(Expr::parse(text).unwrap())
}

fn member(text: &str, sources: &[Source]) -> Member {
    Member::new(expr(text), sources)
}

fn group(dtype: DType, inputs: usize, members: Vec<Member>, results: &[u32]) -> Group {
    let input = GroupInput { dtype, rank: None };
    Group { inputs: vec![input; inputs], params: vec![], members, results: results.into() }
}

fn program(group: &Group) -> Fused {
    match group.fuse(&Limits::default()).unwrap() {
        Fusion::Program(fused) => fused,
        cut => panic!("{cut:?}"),
    }
}

const X: Source = Source::Input(0);

#[test]
fn a_chain_of_floats_has_the_steps_of_its_expression() {
    let members = vec![
        member("x * 2.0", &[X]),
        member("exp(x)", &[Source::Member(0)]),
        member("x + y", &[Source::Member(1), X]),
    ];
    let fused = program(&group(DType::F32, 1, members, &[2]));
    let whole = crate::Lowered::new(&expr("exp(x * 2.0) + x"), &[DType::F32], &[], None).unwrap();
    assert_eq!(fused.steps(), whole.steps());
    assert_eq!(fused.program(0), whole);
}

#[test]
fn equal_steps_of_members_are_one() {
    let members = vec![
        member("exp(x) + 1.0", &[X]),
        member("exp(y) - 1.0", &[X]),
        member("a * b", &[Source::Member(0), Source::Member(1)]),
    ];
    let fused = program(&group(DType::F64, 1, members, &[2]));
    let exps = fused.steps().iter().filter(|step| matches!(step.op, StepOp::Unary(..)));
    assert_eq!(exps.count(), 1);
}

fn roundings(fused: &Fused) -> usize {
    fused.steps().iter().filter(|step| matches!(step.op, StepOp::Round(..))).count()
}

#[test]
fn a_half_is_rounded_between_members_and_not_before_it_is_stored() {
    let members = vec![member("exp(x)", &[X]), member("sin(x)", &[Source::Member(0)])];
    let of = |members: &[Member], results: &[u32]| {
        roundings(&program(&group(DType::BF16, 1, members.to_vec(), results)))
    };
    assert_eq!(of(&members, &[1]), 1);
    // Storing the exponential rounds; the other member needs it rounded, too.
    assert_eq!(of(&members, &[0, 1]), 1);
    assert_eq!(of(&members[..1], &[0]), 0);
}

#[test]
fn what_is_a_half_already_is_not_rounded_again() {
    let members = vec![
        member("where(x > 0.0, x, -y)", &[X, Source::Input(1)]),
        member("max(abs(x), 0.5)", &[Source::Member(0)]),
        member("x * y", &[Source::Member(1), X]),
    ];
    assert_eq!(roundings(&program(&group(DType::F16, 2, members, &[2]))), 0);
    // 0.1 is no half.
    let members = vec![member("max(x, 0.1)", &[X]), member("x * y", &[Source::Member(0), X])];
    assert_eq!(roundings(&program(&group(DType::F16, 1, members, &[1]))), 1);
    // A float16 is no bfloat16.
    let mut cast = member("x", &[X]);
    cast.out = Some(DType::BF16);
    let members = vec![cast, member("x * x", &[Source::Member(0)])];
    assert_eq!(roundings(&program(&group(DType::F16, 1, members, &[1]))), 1);
}

#[test]
fn parameters_are_the_groups() {
    let names = Names::new().input("x").param("p").param("q");
    let expr = Arc::new(Expr::parse_with("p * x + q", &names).unwrap());
    let first = Member { params: [1, 0].into_iter().collect(), ..Member::new(expr.clone(), &[X]) };
    let second =
        Member { params: [2, 1].into_iter().collect(), ..Member::new(expr, &[Source::Member(0)]) };
    let mut group = group(DType::F32, 1, vec![first, second], &[1]);
    group.params = vec![DTypeKind::Float, DTypeKind::Int, DTypeKind::Float];
    let fused = program(&group);
    let mut used: Vec<u32> = fused
        .steps()
        .iter()
        .filter_map(|step| match step.op {
            StepOp::Param { index, .. } => Some(index),
            _ => None,
        })
        .collect();
    used.sort_unstable();
    assert_eq!(used, [0, 1, 2]);
}

#[test]
fn a_group_that_is_too_large_says_where_to_cut() {
    let chain: Vec<Member> = (0..10)
        .map(|at| {
            let before = if at == 0 { X } else { Source::Member(at - 1) };
            member("x * y", &[before, Source::Input(at + 1)])
        })
        .collect();
    let group = group(DType::F32, 11, chain, &[9]);
    let cut = |limits: Limits| match group.fuse(&limits).unwrap() {
        Fusion::Cut { members, exceeded } => Some((members, exceeded)),
        Fusion::Program(_) => None,
    };
    let all = Limits::default();
    assert_eq!(cut(all), None);
    assert_eq!(cut(Limits { inputs: 4, ..all }), Some((3, Exceeded::Inputs)));
    // Two steps for each member, and one for the first input.
    assert_eq!(cut(Limits { steps: 9, ..all }), Some((4, Exceeded::Steps)));
    assert_eq!(cut(Limits { steps: 2, ..all }), Some((0, Exceeded::Steps)));
    assert_eq!(cut(Limits { live: 2, ..all }), None);
    // Products of all pairs are alive until the last member.
    let mut members: Vec<Member> =
        (0..6).map(|at| member("x * y", &[X, Source::Input(at)])).collect();
    for at in 0..5 {
        let before = if at == 0 { 0 } else { 5 + at };
        members.push(member("x + y", &[Source::Member(before), Source::Member(at + 1)]));
    }
    let wide = super::tests::group(DType::F32, 6, members, &[10]);
    let fusion = wide.fuse(&Limits { live: 4, ..all }).unwrap();
    assert_eq!(fusion, Fusion::Cut { members: 4, exceeded: Exceeded::Live });
    assert!(matches!(wide.fuse(&Limits { live: 7, ..all }).unwrap(), Fusion::Program(_)));
}

#[test]
fn whether_an_element_can_be_at_fault() {
    let can_fail = |text: &str| {
        let own = member(text, &[X]);
        program(&group(DType::I32, 1, vec![own], &[0])).can_fail()
    };
    assert!(can_fail("x ** x"));
    assert!(!can_fail("x ** 5"));
    assert!(!can_fail("x * x"));
}

#[test]
fn wrong_groups_are_refused() {
    let error = |group: &Group| {
        let error = group.fuse(&Limits::default()).unwrap_err();
        (error.kind(), error.message().to_owned())
    };
    let binding = |message: &str| (ErrorKind::Binding, message.to_owned());
    let of = |members, results: &[u32]| group(DType::F32, 1, members, results);
    let exp = || member("exp(x)", &[X]);
    assert_eq!(error(&of(vec![exp()], &[])), binding("a group of operations has no result"));
    assert_eq!(error(&of(vec![exp()], &[1])), binding("the result of member 1 of 1 is stored"));
    assert_eq!(
        error(&of(vec![member("exp(x)", &[Source::Member(0)])], &[0])),
        binding("member 0 of a group reads the result of member 0, which isn't earlier")
    );
    assert_eq!(
        error(&of(vec![member("exp(x)", &[Source::Input(1)])], &[0])),
        binding("member 0 of a group reads input 1 of 1")
    );
    assert_eq!(
        error(&of(vec![member("x + y", &[X])], &[0])),
        binding("member 0 of a group has 2 inputs, not 1")
    );
    assert_eq!(
        error(&of(vec![exp(), member("t[1]", &[Source::Member(0)])], &[1])),
        binding(
            "member 1 of a group reads 't' as an input of rank Some(1), but its source Member(0) has \
             None"
        )
    );
    let param = Expr::parse_with("x * p", &Names::new().input("x").param("p")).unwrap();
    let mut param = Member::new(Arc::new(param), &[X]);
    assert_eq!(
        error(&of(vec![param.clone()], &[0])),
        binding("member 0 of a group has 1 parameters, not 0")
    );
    param.params.push(0);
    assert_eq!(error(&of(vec![param], &[0])), binding("member 0 of a group has parameter 0 of 0"));
    let (kind, _) = error(&of(vec![member("x & y", &[X, X])], &[0]));
    assert_eq!(kind, ErrorKind::DType);
}
