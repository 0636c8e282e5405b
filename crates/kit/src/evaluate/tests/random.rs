//! Random expressions, shapes and layouts.

use keyfold_core::{DType, DTypeKind, Shape, Strides};
use keyfold_expr::{Binary, Expr, Graph, Id, Literal, Lowered, Node, Unary};
use proptest::prelude::*;

use super::super::*;
use super::cases::{check, inputs, on_all_levels, on_level};
use super::samples;

/// The memory layout of an operand.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Sort keys: sorted, they give the order of the dimensions in memory.
    order: [u8; 6],
    /// The distance between neighbours along each dimension, in elements.
    gaps: [usize; 6],
    backwards: [bool; 6],
    /// The dimensions that have size 1 and are broadcast.
    once: [bool; 6],
    /// The number of leading dimensions that the operand lacks.
    missing: usize,
}

pub(super) fn layout() -> impl Strategy<Value = Layout> {
    let rarely = || prop::array::uniform6(prop::bool::weighted(0.2));
    let contiguous = Just(Layout {
        order: [0, 1, 2, 3, 4, 5],
        gaps: [1; 6],
        backwards: [false; 6],
        once: [false; 6],
        missing: 0,
    });
    let any = (any::<[u8; 6]>(), any::<[bool; 6]>(), rarely(), rarely(), 0_usize..3).prop_map(
        |(order, gaps, backwards, once, missing)| Layout {
            order,
            gaps: gaps.map(|gap| if gap { 1 } else { 2 }),
            backwards,
            once,
            missing,
        },
    );
    prop_oneof![contiguous, any]
}

/// A view with that layout, in memory of its own.
pub(super) fn view(
    layout: &Layout,
    shape: &[usize],
    dtype: DType,
    seed: u64,
    broadcast: bool,
) -> Tensor {
    let skip = if broadcast { layout.missing.min(shape.len()) } else { 0 };
    let mut sizes = shape[skip..].to_vec();
    for (size, once) in sizes.iter_mut().zip(layout.once) {
        if once && broadcast {
            *size = 1;
        }
    }
    let mut dims: Vec<usize> = (0..sizes.len()).collect();
    dims.sort_by_key(|&dim| std::cmp::Reverse(layout.order[dim]));
    let mut strides = vec![0_isize; sizes.len()];
    let (mut step, mut offset) = (1, 0);
    for dim in dims {
        let stride = (step * layout.gaps[dim]) as isize;
        strides[dim] = if layout.backwards[dim] { -stride } else { stride };
        if layout.backwards[dim] {
            offset += stride as usize * sizes[dim].saturating_sub(1);
        }
        step = stride as usize * sizes[dim].max(1);
    }
    let memory = samples::samples(&[step + offset + 1], dtype, seed);
    let (sizes, strides) = (Shape::new(&sizes).unwrap(), Strides::new(&strides).unwrap());
    Tensor::from_parts(memory.into_buffer(), sizes, strides, offset).unwrap()
}

/// A random node: its operation, and the earlier nodes that are its operands.
type Choice = (u8, u8, u8, u8);

fn grow(graph: &mut Graph, nodes: &mut Vec<Id>, choice: Choice, params: u32) {
    let pick = |n: u8| nodes[n as usize % nodes.len()];
    let (what, a, b, c) = choice;
    let (a_id, b_id, c_id) = (pick(a), pick(b), pick(c));
    const UNARY: [Unary; 8] = [
        Unary::Neg,
        Unary::Abs,
        Unary::Exp,
        Unary::Sqrt,
        Unary::Tanh,
        Unary::Floor,
        Unary::Sign,
        Unary::IsNan,
    ];
    let node = match what % 16 {
        0 => Node::Literal(Literal::Int(i64::from(a) % 5)),
        1 => Node::Literal(Literal::Float((f64::from(a) / 8.0).to_bits())),
        2 => Node::Index,
        3 => Node::Coordinate(u32::from(a) % 4),
        4 => Node::Param(u32::from(a) % params),
        5 => Node::Where(a_id, b_id, c_id),
        6 => Node::Cast(DType::ALL[a as usize % 15], b_id),
        7 | 8 => Node::Unary(UNARY[b as usize % 8], a_id),
        _ => Node::Binary(Binary::ALL[c as usize % Binary::ALL.len()], a_id, b_id),
    };
    nodes.push(graph.add(node));
}

/// Builds an expression from the choices whose dtypes are defined; the others are left out.
fn expression(choices: &[Choice], dtypes: &[DType], numbers: &[Scalar]) -> Lowered {
    let mut graph = Graph::default();
    let mut nodes: Vec<Id> = (0..dtypes.len()).map(|i| graph.add(Node::Input(i as u32))).collect();
    let names = || (0..numbers.len()).map(|i| format!("p{i}")).collect();
    let kinds: Vec<DTypeKind> = numbers.iter().map(|n| n.kind()).collect();
    let lower = |graph: &Graph, root: Id| {
        let expr = Expr::new(graph, root, inputs(dtypes.len()), names());
        Lowered::new(&expr, dtypes, &kinds, None)
    };
    let mut last = lower(&graph, nodes[0]).unwrap();
    for choice in choices {
        let before = nodes.len();
        grow(&mut graph, &mut nodes, *choice, numbers.len() as u32);
        match lower(&graph, nodes[before]) {
            Ok(lowered) => last = lowered,
            Err(_) => nodes.truncate(before),
        }
    }
    last
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn random_expressions_over_random_layouts_agree(
        choices in prop::collection::vec(any::<Choice>(), 1..12),
        dtypes in prop::collection::vec(prop::sample::select(&DType::ALL[..]), 1..4),
        layouts in prop::array::uniform3(layout()),
        out_layout in layout(),
        shape in prop_oneof![
            prop::collection::vec(0_usize..4, 0..=6),
            prop::collection::vec(1_usize..40, 1..=2),
        ],
        seed in 0_u64..1000,
    ) {
        let numbers = [Scalar::Int(3), Scalar::Float(0.75)];
        let lowered = expression(&choices, &dtypes, &numbers);
        let views: Vec<Tensor> = dtypes
            .iter()
            .zip(&layouts)
            .map(|(dtype, layout)| view(layout, &shape, *dtype, seed, true))
            .collect();
        let views: Vec<&Tensor> = views.iter().collect();
        on_all_levels(|| {
            let out = view(&out_layout, &shape, lowered.result(), 1, false);
            check(&lowered, &views, &numbers, &out);
        });
    }

    #[test]
    fn random_layouts_of_large_operands_agree(
        choices in prop::collection::vec(any::<Choice>(), 1..4),
        dtypes in prop::collection::vec(prop::sample::select(&DType::ALL[..]), 1..4),
        layouts in prop::array::uniform3(layout()),
        out_layout in layout(),
        shape in prop_oneof![
            (60_usize..300, 8_usize..70).prop_map(|(a, b)| vec![a, b]),
            (8_usize..70, 60_usize..300).prop_map(|(a, b)| vec![a, b]),
            (1_usize..4, 8_usize..40, 64_usize..100).prop_map(|(a, b, c)| vec![a, b, c]),
            (1100_usize..5000).prop_map(|a| vec![a]),
            (200_usize..900, 2_usize..4, 1_usize..4).prop_map(|(a, b, c)| vec![a, b, c]),
        ],
        // One level per case, since every element is compared with the interpreter's.
        level in 0_usize..3,
    ) {
        let numbers = [Scalar::Int(3), Scalar::Float(0.75)];
        let lowered = expression(&choices, &dtypes, &numbers);
        let views: Vec<Tensor> = dtypes
            .iter()
            .zip(&layouts)
            .map(|(dtype, layout)| view(layout, &shape, *dtype, 9, true))
            .collect();
        let views: Vec<&Tensor> = views.iter().collect();
        on_level(level, || {
            let out = view(&out_layout, &shape, lowered.result(), 1, false);
            check(&lowered, &views, &numbers, &out);
        });
    }
}
