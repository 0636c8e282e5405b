//! What the tests of keys and of the cache share: sample graphs, random graphs, other descriptions
//! of one.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod planner;

use std::collections::HashMap;

use keyfold_cudnn::{
    Alignment, Attention, Concatenate, Convolution, ConvolutionMode, DataType, Defaults,
    DiagonalBandMask, Float, Fraction, GraphSpec, Layout, Norm, NormMode, NormPhase, Number,
    OpSpec, Operation, PaddingMode, Pointwise, PointwiseMode, Port, Reduction, ReductionMode,
    Resample, ResampleMode, Slice, TensorSpec, Transpose, Uid,
};

/// Returns `relu(conv(x, w))` with a virtual tensor between.
pub(crate) fn conv_relu() -> GraphSpec {
    let tensor = |uid, dims: &[i64]| {
        TensorSpec::new(uid, DataType::F32, dims, Layout::ChannelsLast).unwrap()
    };
    let mut conv = Convolution::new(2);
    (conv.pre_padding, conv.post_padding) = (vec![1, 1], vec![1, 1]);
    GraphSpec {
        name: "block".to_string(),
        defaults: Defaults::default(),
        tensors: vec![
            tensor(1, &[8, 64, 56, 56]).named("x"),
            tensor(2, &[32, 64, 3, 3]).named("w"),
            tensor(3, &[8, 32, 56, 56]).virtualized(),
            tensor(4, &[8, 32, 56, 56]).named("y"),
        ],
        operations: vec![
            OpSpec::new(Operation::ConvFprop(conv), &[(Port::X, 1), (Port::W, 2)], &[(Port::Y, 3)]),
            pointwise(PointwiseMode::Relu, &[(Port::X, 3)], &[(Port::Y, 4)]),
        ],
    }
}

/// Returns `y = conv(x, w)`: one operation, with this many images.
pub(crate) fn conv(images: i64) -> GraphSpec {
    let mut graph = conv_relu();
    graph.operations.truncate(1);
    graph.operations[0].outputs = vec![(Port::Y, 4)];
    graph.tensors.remove(2);
    for index in [0, 2] {
        let tensor = &mut graph.tensors[index];
        tensor.dims[0] = images;
        tensor.strides = Layout::ChannelsLast.strides(&tensor.dims).unwrap();
    }
    graph
}

pub(crate) fn pointwise(
    mode: PointwiseMode,
    inputs: &[(Port, Uid)],
    outputs: &[(Port, Uid)],
) -> OpSpec {
    OpSpec::new(Operation::Pointwise(Pointwise::new(mode)), inputs, outputs)
}

/// Returns each operation with a value in every field, none of which is a default.
///
/// The structs have all of their fields here, so that a new field doesn't compile until it has a
/// value.
pub(crate) fn every_operation() -> Vec<Operation> {
    let conv = || Convolution {
        pre_padding: vec![1, 2],
        post_padding: vec![3, 4],
        stride: vec![2, 3],
        dilation: vec![4, 5],
        mode: ConvolutionMode::Convolution,
        alpha: Float(0.5),
        beta: Float(0.25),
    };
    let fraction = |numerator| Fraction { numerator, denominator: 7 };
    let resample = || Resample {
        mode: ResampleMode::Maxpool,
        padding_mode: PaddingMode::NegInf,
        window: vec![2, 3],
        stride: vec![fraction(1), fraction(2)],
        pre_padding: vec![fraction(3), fraction(4)],
        post_padding: vec![fraction(5), fraction(6)],
    };
    let norm = || Norm {
        mode: NormMode::GroupNorm,
        phase: NormPhase::PersistentTraining,
        groups: Some(4),
    };
    let attention = || Attention {
        right_bound: Some(1),
        left_bound: Some(2),
        alignment: Alignment::BottomRight,
        dropout: Some(Float(0.1)),
    };
    let all = vec![
        Operation::ConvFprop(conv()),
        Operation::ConvDgrad(conv()),
        Operation::ConvWgrad(conv()),
        Operation::Pointwise(Pointwise {
            mode: PointwiseMode::Relu,
            alpha1: Float(0.5),
            alpha2: Float(0.25),
            relu_lower_clip: Float(-1.0),
            relu_upper_clip: Float(6.0),
            relu_lower_clip_slope: Float(0.01),
            elu_alpha: Float(0.3),
            softplus_beta: Float(2.0),
            swish_beta: Float(3.0),
            axis: Some(1),
        }),
        Operation::Resample(resample()),
        Operation::ResampleBackward(resample()),
        Operation::Norm(norm()),
        Operation::NormBackward(norm()),
        Operation::Matmul,
        Operation::Reduction(Reduction { mode: ReductionMode::Avg }),
        Operation::Reshape,
        Operation::Transpose(Transpose { permutation: vec![2, 0, 1] }),
        Operation::Slice(Slice { start: vec![1, 2], limit: vec![5, 6], stride: vec![2, 3] }),
        Operation::Concatenate(Concatenate { axis: 1, in_place_index: Some(2) }),
        Operation::Softmax,
        Operation::DiagonalBandMask(DiagonalBandMask { comparison: PointwiseMode::CmpGe }),
        Operation::Sdpa(attention()),
        Operation::SdpaBackward(attention()),
        Operation::GenStats,
        Operation::GroupedMatmul,
    ];
    // A new operation doesn't compile until it has a number here, and fails until it is in the
    // list.
    for (index, operation) in all.iter().enumerate() {
        let place = match operation {
            Operation::ConvFprop(_) => 0,
            Operation::ConvDgrad(_) => 1,
            Operation::ConvWgrad(_) => 2,
            Operation::Pointwise(_) => 3,
            Operation::Resample(_) => 4,
            Operation::ResampleBackward(_) => 5,
            Operation::Norm(_) => 6,
            Operation::NormBackward(_) => 7,
            Operation::Matmul => 8,
            Operation::Reduction(_) => 9,
            Operation::Reshape => 10,
            Operation::Transpose(_) => 11,
            Operation::Slice(_) => 12,
            Operation::Concatenate(_) => 13,
            Operation::Softmax => 14,
            Operation::DiagonalBandMask(_) => 15,
            Operation::Sdpa(_) => 16,
            Operation::SdpaBackward(_) => 17,
            Operation::GenStats => 18,
            Operation::GroupedMatmul => 19,
        };
        assert_eq!(place, index);
    }
    assert_eq!(all.len(), 20);
    all
}

/// Returns a graph of one operation with a value in every field of every struct.
pub(crate) fn full_graph(operation: Operation) -> GraphSpec {
    let tensor = |uid: Uid, scalar| TensorSpec {
        uid,
        name: format!("t{uid}"),
        dtype: Some(DataType::F16),
        dims: vec![2 + uid, 3, 5],
        strides: vec![15, 5, 2],
        alignment: 4,
        is_virtual: true,
        by_value: true,
        scalar: Some(scalar),
    };
    let of = Some(DataType::BF16);
    GraphSpec {
        name: "graph".to_string(),
        defaults: Defaults { io: of, intermediate: of, compute: of },
        tensors: vec![
            tensor(11, Number::Float(0.5)),
            tensor(12, Number::Int(3)),
            tensor(13, Number::Float(1.5)),
        ],
        operations: vec![OpSpec {
            name: "op".to_string(),
            operation,
            compute: Some(DataType::F32),
            inputs: vec![(Port::X, 11), (Port::B, 12)],
            outputs: vec![(Port::Y, 13)],
        }],
    }
}

/// A source of random numbers: SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }
}

/// Returns a random graph of up to `most` operations. Its tensors are much alike, so that many are
/// told apart by the structure alone. With `damaged`, it has cycles, duplicate and dangling
/// numbers.
pub(crate) fn random_graph(random: &mut Random, most: usize, damaged: bool) -> GraphSpec {
    let mut graph = GraphSpec::default();
    let mut next = 0;
    let mut tensor = |random: &mut Random, graph: &mut GraphSpec| {
        next += 1;
        let dims: &[i64] = if random.below(8) == 0 { &[4, 1, 2] } else { &[4, 3, 2] };
        let spec = TensorSpec::new(next, DataType::F32, dims, Layout::Packed).unwrap();
        graph.tensors.push(spec);
        next
    };
    for _ in 0..1 + random.below(3) {
        tensor(random, &mut graph);
    }
    for _ in 0..random.below(most + 1) {
        let any = |random: &mut Random, graph: &GraphSpec| {
            graph.tensors[random.below(graph.tensors.len())].uid
        };
        let (a, b) = (any(random, &graph), any(random, &graph));
        let y = match random.below(4) {
            0 if damaged => any(random, &graph),
            _ => tensor(random, &mut graph),
        };
        graph.operations.push(match random.below(5) {
            0 | 1 => pointwise(PointwiseMode::Relu, &[(Port::X, a)], &[(Port::Y, y)]),
            2 => pointwise(PointwiseMode::Add, &[(Port::B, b), (Port::X, a)], &[(Port::Y, y)]),
            3 => OpSpec::new(Operation::Matmul, &[(Port::A, a), (Port::B, b)], &[(Port::C, y)]),
            _ => OpSpec::new(
                Operation::Concatenate(Concatenate { axis: 0, in_place_index: None }),
                &[(Port::X, a), (Port::X, b), (Port::X, a)],
                &[(Port::Y, y)],
            ),
        });
    }
    if damaged {
        for _ in 0..random.below(3) {
            let place = random.below(graph.tensors.len());
            match random.below(3) {
                0 => drop(graph.tensors.remove(place)),
                1 => graph.tensors.push(graph.tensors[place].clone()),
                _ => graph.tensors[place].strides = vec![999, 1, 1, 1],
            }
            if graph.tensors.is_empty() {
                break;
            }
        }
    }
    graph
}

/// Returns another description of a graph, and what its tensors are called in it.
pub(crate) fn described_anew(
    random: &mut Random,
    graph: &GraphSpec,
) -> (GraphSpec, HashMap<Uid, Uid>) {
    let mut uids: Vec<Uid> = graph.tensors.iter().map(|tensor| tensor.uid).collect();
    let ports = |op: &OpSpec| op.inputs.iter().chain(&op.outputs).map(|port| port.1).collect();
    uids.extend(graph.operations.iter().flat_map(|op| -> Vec<Uid> { ports(op) }));
    uids.sort_unstable();
    uids.dedup();
    let mut new: Vec<Uid> = (0..uids.len() as Uid).map(|i| 3 * i + 100).collect();
    random.shuffle(&mut new);
    let names: HashMap<Uid, Uid> = uids.into_iter().zip(new).collect();
    let mut other = graph.clone();
    other.name = "another".to_string();
    for tensor in &mut other.tensors {
        tensor.uid = names[&tensor.uid];
        tensor.name = format!("n{}", tensor.uid);
    }
    for op in &mut other.operations {
        op.name = "other".to_string();
        for port in op.inputs.iter_mut().chain(&mut op.outputs) {
            port.1 = names[&port.1];
        }
        // Of one port, the order counts.
        if op.inputs.windows(2).all(|pair| pair[0].0 != pair[1].0) {
            op.inputs.reverse();
        }
    }
    random.shuffle(&mut other.operations);
    // Of one number, the order counts.
    let duplicates = names.len() != other.tensors.len();
    if !duplicates {
        random.shuffle(&mut other.tensors);
    }
    (other, names)
}
