//! The legaliser's programs on the reference executor: each computes what the graph does.

use std::collections::HashMap;
use std::sync::Arc;

use keyfold::cudnn::{
    Attention, Convolution, DataType, Graph, GraphOptions, GraphSpec, Layout, Norm, NormMode,
    NormPhase, Number, Operation, Planner, PointwiseMode, Policy, Port, Precision, ReductionMode,
    Reference, Rewrite, TensorSpec, Uid, VariantPack,
};
use keyfold::{Device, Tensor, ValueRef, dispatcher};
use keyfold_core::{DType, Shape, Strides};
use keyfold_libcudnn::legal::{Program, programs};

fn graph() -> Graph {
    let f32 = Some(DataType::F32);
    Graph::new(GraphOptions { name: "test".into(), io: f32, intermediate: f32, compute: f32 })
}

fn extent(tensor: &TensorSpec) -> usize {
    let last: i64 =
        tensor.dims.iter().zip(&tensor.strides).map(|(size, stride)| (size - 1) * stride).sum();
    last as usize + 1
}

/// Memory by the number of its tensor.
type Memory = HashMap<Uid, Tensor>;

/// Memory that holds small numbers.
fn memory(elements: usize, dtype: DataType, seed: usize) -> Tensor {
    let numbers: Vec<f64> =
        (0..elements).map(|i| ((i * 5 + seed * 3 + 7) % 13) as f64 / 4.0 - 1.25).collect();
    let flat = Tensor::from_slice(&numbers, &[elements]).unwrap();
    let to = dtype.storage();
    dispatcher().call("aten::to", &[(&flat).into(), to.into()]).unwrap().into_tensor().unwrap()
}

fn held(spec: &GraphSpec) -> impl Iterator<Item = &TensorSpec> {
    spec.tensors.iter().filter(|tensor| !tensor.is_virtual && tensor.scalar.is_none())
}

fn given(spec: &GraphSpec) -> Memory {
    let made = held(spec).enumerate();
    made.map(|(seed, tensor)| (tensor.uid, memory(extent(tensor), tensor.dtype.unwrap(), seed)))
        .collect()
}

/// Runs a graph on views of memory.
fn run(spec: &GraphSpec, place: &dyn Fn(&TensorSpec) -> (Tensor, usize)) {
    let valid = Arc::new(spec.clone().validate().unwrap());
    let reference = Reference::new(Device::CPU, Precision::AsSpec);
    let plan = reference.plan(valid, &Policy::default(), &|_| Ok(())).unwrap();
    let mut tensors = Vec::new();
    for tensor in held(spec) {
        let (flat, offset) = place(tensor);
        let shape: Vec<usize> = tensor.dims.iter().map(|&size| size as usize).collect();
        let strides: Vec<isize> = tensor.strides.iter().map(|&stride| stride as isize).collect();
        let (shape, strides) = (Shape::new(&shape).unwrap(), Strides::new(&strides).unwrap());
        let view = Tensor::from_parts(flat.buffer().clone(), shape, strides, offset).unwrap();
        tensors.push((tensor.uid, view));
    }
    let pack: Vec<(Uid, &Tensor)> = tensors.iter().map(|(uid, tensor)| (*uid, tensor)).collect();
    plan.runner.run(&VariantPack { tensors: &pack, workspace: None }).unwrap();
}

fn run_program(program: &Program, given: &Memory) {
    let mut all: Memory = given.clone();
    for (uid, dtype, elements) in &program.passed {
        all.insert(*uid, memory(*elements as usize, *dtype, 99));
    }
    for part in &program.parts {
        run(part.graph.spec(), &|tensor| {
            let alias = part.aliases.iter().find(|alias| alias.uid == tensor.uid);
            let (uid, bytes) = alias.map_or((tensor.uid, 0), |alias| (alias.of, alias.offset));
            (all[&uid].clone(), bytes as usize / tensor.dtype.unwrap().size())
        });
    }
}

fn numbers(x: &Tensor) -> Vec<f64> {
    let args: [ValueRef<'_>; 2] = [x.into(), DType::F64.into()];
    let wide = dispatcher().call("aten::to", &args).unwrap().into_tensor().unwrap();
    wide.contiguous().unwrap().to_vec::<f64>().unwrap()
}

/// Proves that all ways to compute a graph give the outputs that it has, and returns them.
#[track_caller]
fn check(g: Graph, tolerance: f64) -> Vec<Program> {
    keyfold::init();
    let spec = g.into_spec();
    let valid = spec.clone().validate().unwrap();
    let want = given(&spec);
    run(&spec, &|tensor| (want[&tensor.uid].clone(), 0));
    let ways = programs(&valid, &Policy::default()).unwrap();
    for program in &ways {
        let got = given(&spec);
        run_program(program, &got);
        for (uid, expected) in &want {
            let (a, b) = (numbers(&got[uid]), numbers(expected));
            let near =
                |(a, b): (&f64, &f64)| (a - b).abs() <= tolerance * b.abs().max(1.0) || a == b;
            assert!(a.iter().zip(&b).all(near), "{:?}: tensor {uid}:\n{a:?}\n{b:?}", program.steps);
        }
    }
    ways
}

fn output(g: &mut Graph, uid: Uid) {
    g.set_output(uid, true).unwrap();
}

/// Returns the numbers of dimensions of the tensors of a program's parts.
fn ranks(program: &Program) -> Vec<usize> {
    let tensors = program.parts.iter().flat_map(|part| &part.graph.spec().tensors);
    let mut ranks: Vec<usize> = tensors.map(|tensor| tensor.dims.len()).collect();
    ranks.dedup();
    ranks
}

/// Returns whether an operation of a program's parts is one of those.
fn has(program: &Program, is: impl Fn(&Operation) -> bool) -> bool {
    program.parts.iter().any(|part| part.graph.spec().operations.iter().any(|op| is(&op.operation)))
}

#[test]
fn pointwise_operations_of_any_rank_are_rows() {
    for dims in [&[7][..], &[6, 5], &[2, 3, 4, 5], &[2, 3, 4, 5, 2], &[2, 1, 2, 3, 2, 2]] {
        let mut g = graph();
        let (x, b) = (g.input("x", dims).unwrap(), g.input("b", dims).unwrap());
        let y = g.binary(PointwiseMode::Mul, x, b).unwrap();
        let y = g.unary(PointwiseMode::Tanh, y).unwrap();
        output(&mut g, y);
        let ways = check(g, 0.0);
        assert_eq!(ranks(&ways[1]), [3], "{dims:?}");
        assert_eq!(ways[1].parts.len(), 1);
    }
}

#[test]
fn channels_of_packed_images_are_broadcast_in_rows() {
    let mut g = graph();
    let (x, b) = (g.input("x", &[2, 3, 4, 5]).unwrap(), g.input("b", &[1, 3, 1, 1]).unwrap());
    let y = g.bias(x, b).unwrap();
    output(&mut g, y);
    let ways = check(g, 0.0);
    let dims: Vec<&[i64]> =
        ways[1].parts[0].graph.spec().tensors.iter().map(|tensor| &tensor.dims[..]).collect();
    assert_eq!(dims, [&[2, 3, 20][..], &[1, 3, 1], &[2, 3, 20]]);
}

#[test]
fn indices_stay_those_of_their_axis() {
    let mut g = graph();
    let x = g.input("x", &[2, 3, 4, 5]).unwrap();
    let index = g.gen_index(x, 1).unwrap();
    let b = g.input("b", &[1, 3, 1, 1]).unwrap();
    let y = g.binary(PointwiseMode::Add, index, b).unwrap();
    output(&mut g, y);
    check(g, 0.0);
    // An axis that is part of a row has no index of its own there: the graph stays as it is.
    let mut g = graph();
    let x = g.input("x", &[2, 3, 4, 5]).unwrap();
    let y = g.gen_index(x, 1).unwrap();
    output(&mut g, y);
    assert_eq!(ranks(&check(g, 0.0)[1]), [4]);
}

#[test]
fn reductions_are_those_of_matrices() {
    use ReductionMode::{Add, Amax, Avg, Max, Min, Norm1, Norm2};
    let all = [[4, 1, 1], [1, 6, 5], [1, 1, 5], [1, 1, 1], [4, 6, 1], [4, 1, 5], [1, 6, 1]];
    for mode in [Add, Max, Min, Amax, Avg, Norm1, Norm2] {
        for to in all {
            let mut g = graph();
            let x = g.input("x", &[4, 6, 5]).unwrap();
            let x = g.unary(PointwiseMode::Neg, x).unwrap();
            let y = g.reduction(x, mode, &to).unwrap();
            output(&mut g, y);
            let is_image = |program: &Program| {
                program.parts.iter().all(|part| {
                    let spec = part.graph.spec();
                    let reduces = spec
                        .operations
                        .iter()
                        .any(|op| matches!(op.operation, Operation::Reduction(_)));
                    !reduces || spec.tensors.iter().all(|tensor| tensor.dims[2..] == [1, 1])
                })
            };
            assert!(check(g, 1e-5).iter().any(is_image), "{mode:?} to {to:?}");
        }
    }
}

#[test]
fn images_are_reduced_in_either_layout() {
    for layout in [Layout::Packed, Layout::ChannelsLast] {
        for to in [[1, 3, 1, 1], [2, 3, 1, 1], [2, 1, 4, 5], [1, 1, 1, 1]] {
            let mut g = graph();
            let x = TensorSpec::new(0, DataType::F32, &[2, 3, 4, 5], layout.clone()).unwrap();
            let x = g.tensor(x).unwrap();
            let y = g.reduction(x, ReductionMode::Add, &to).unwrap();
            output(&mut g, y);
            check(g, 1e-5);
        }
    }
}

#[test]
fn products_have_one_dimension_of_batches() {
    let mut g = graph();
    let (a, b) = (g.input("a", &[2, 3, 4, 5]).unwrap(), g.input("b", &[2, 3, 5, 6]).unwrap());
    let c = g.matmul(a, b).unwrap();
    let bias = g.input("bias", &[1, 1, 1, 6]).unwrap();
    let y = g.bias(c, bias).unwrap();
    output(&mut g, y);
    assert_eq!(ranks(&check(g, 1e-6)[1]), [3]);
    // Two products are two plans.
    let mut g = graph();
    let (x, w) = (g.input("x", &[3, 4, 4]).unwrap(), g.input("w", &[3, 4, 4]).unwrap());
    let y = g.matmul(x, w).unwrap();
    let y = g.relu(y).unwrap();
    let y = g.matmul(y, w).unwrap();
    let y = g.relu(y).unwrap();
    output(&mut g, y);
    let ways = check(g, 1e-6);
    assert!(ways.iter().any(|program| program.parts.len() == 2 && program.passed.len() == 1));
}

#[test]
fn convolutions_are_split_from_their_epilogue_and_have_two_dimensions() {
    let mut g = graph();
    let (x, w) = (g.input("x", &[2, 3, 5, 5]).unwrap(), g.input("w", &[4, 3, 3, 3]).unwrap());
    let b = g.input("b", &[1, 4, 1, 1]).unwrap();
    let y = g.conv_fprop(x, w, Convolution::new(2)).unwrap();
    let y = g.bias(y, b).unwrap();
    let y = g.relu(y).unwrap();
    output(&mut g, y);
    assert!(check(g, 1e-6).iter().any(|program| program.parts.len() == 2));
    for layout in [Layout::Packed, Layout::ChannelsLast] {
        let mut g = graph();
        let x = TensorSpec::new(0, DataType::F32, &[2, 3, 7], layout.clone()).unwrap();
        let w = TensorSpec::new(0, DataType::F32, &[4, 3, 3], layout).unwrap();
        let (x, w) = (g.tensor(x).unwrap(), g.tensor(w).unwrap());
        let conv =
            Convolution { pre_padding: vec![1], post_padding: vec![2], ..Convolution::new(1) };
        let y = g.conv_fprop(x, w, conv).unwrap();
        output(&mut g, y);
        assert_eq!(ranks(&check(g, 1e-6)[1]), [4]);
    }
}

#[test]
fn softmax_and_statistics_are_reductions() {
    let mut g = graph();
    let x = g.input("x", &[2, 3, 4, 5]).unwrap();
    let made = g.add(Operation::Softmax, &[(Port::X, x)], &[Port::Y, Port::Stats]).unwrap();
    made.iter().for_each(|(_, uid)| output(&mut g, *uid));
    assert!(check(g, 1e-6).iter().any(|program| program.parts.len() >= 3));
    for layout in [Layout::Packed, Layout::ChannelsLast] {
        let mut g = graph();
        let x = TensorSpec::new(0, DataType::F32, &[2, 3, 4, 5], layout).unwrap();
        let x = g.tensor(x).unwrap();
        let (sum, squares) = g.genstats(x).unwrap();
        output(&mut g, sum);
        output(&mut g, squares);
        assert!(
            check(g, 1e-5)
                .iter()
                .any(|program| !has(program, |op| matches!(op, Operation::GenStats)))
        );
    }
}

#[test]
fn norms_are_what_engines_have() {
    for phase in [NormPhase::Training, NormPhase::Inference] {
        let mut g = graph();
        let x = g.input("x", &[2, 4, 3, 5]).unwrap();
        let [scale, bias] = ["scale", "bias"].map(|name| g.input(name, &[1, 4, 1, 1]).unwrap());
        let epsilon = g.scalar(1e-3, Some(DataType::F32));
        let inputs =
            [(Port::X, x), (Port::Scale, scale), (Port::Bias, bias), (Port::Epsilon, epsilon)];
        let ports: &[Port] = match phase {
            NormPhase::Inference => &[Port::Y],
            _ => &[Port::Y, Port::Mean, Port::InvVariance],
        };
        let norm = Norm { mode: NormMode::GroupNorm, phase, groups: Some(2) };
        let made = g.add(Operation::Norm(norm), &inputs, ports).unwrap();
        made.iter().for_each(|(_, uid)| output(&mut g, *uid));
        let of_instances = |op: &Operation| matches!(op, Operation::Norm(norm) if norm.mode == NormMode::InstanceNorm);
        assert!(check(g, 1e-5).iter().any(|program| has(program, of_instances)), "{phase:?}");
    }
    let mut g = graph();
    let x = g.input("x", &[2, 4, 3, 5]).unwrap();
    let [mean, inv, scale, bias] =
        ["mean", "inv", "scale", "bias"].map(|name| g.input(name, &[1, 4, 1, 1]).unwrap());
    let y = g.batchnorm_inference(x, mean, inv, scale, bias).unwrap();
    output(&mut g, y);
    let ways = check(g, 1e-6);
    assert!(ways.iter().any(|program| program.parts.len() == 1 && ranks(program) == [3]));
}

#[test]
fn what_moves_elements_is_a_view() {
    for kind in 0..9 {
        let mut g = graph();
        let x = g.input("x", &[4, 6]).unwrap();
        let before = match kind {
            0 | 3 => g.reshape(x, &[3, 8]).unwrap(),
            1 | 5 => g.slice(x, &[1, 2], &[3, 6]).unwrap(),
            2 | 6 => g.transpose(x, &[1, 0]).unwrap(),
            7 => {
                let b = g.input("b", &[2, 6]).unwrap();
                g.concatenate(&[x, b, x], 0).unwrap()
            }
            _ => g.relu(x).unwrap(),
        };
        let y = match kind {
            3 | 5 | 6 => g.relu(before).unwrap(),
            4 => g.reshape(before, &[2, 12]).unwrap(),
            8 => g.concatenate(&[before, x], 1).unwrap(),
            _ => before,
        };
        output(&mut g, y);
        let moves = |op: &Operation| !matches!(op, Operation::Pointwise(_));
        assert!(check(g, 0.0).iter().any(|program| !has(program, moves)), "{kind}");
    }
}

#[test]
fn gradients_of_attention_are_a_graph() {
    for (heads, causal) in [(4, false), (4, true), (2, false), (2, true)] {
        let mut g = graph();
        let [q, o, d_o] = ["q", "o", "dO"].map(|name| g.input(name, &[2, 4, 3, 8]).unwrap());
        let [k, v] = ["k", "v"].map(|name| g.input(name, &[2, heads, 5, 8]).unwrap());
        let stats = g.input("stats", &[2, 4, 3, 1]).unwrap();
        let scale = g.scalar(Number::Float(0.25), Some(DataType::F32));
        let attention = Attention { right_bound: causal.then_some(0), ..Attention::default() };
        let inputs = [
            (Port::Q, q),
            (Port::K, k),
            (Port::V, v),
            (Port::O, o),
            (Port::Do, d_o),
            (Port::Stats, stats),
            (Port::AttnScale, scale),
        ];
        let operation = Operation::SdpaBackward(attention);
        let made = g.add(operation, &inputs, &[Port::Dq, Port::Dk, Port::Dv]).unwrap();
        made.iter().for_each(|(_, uid)| output(&mut g, *uid));
        let ways = check(g, 1e-4);
        assert!(!has(&ways[0], |op| matches!(op, Operation::SdpaBackward(_))));
    }
}

#[test]
fn a_policy_of_views_splits_nothing() {
    let mut g = graph();
    let x = g.input("x", &[3, 4, 4]).unwrap();
    let y = g.matmul(x, x).unwrap();
    let y = g.matmul(y, x).unwrap();
    output(&mut g, y);
    let valid = g.into_spec().validate().unwrap();
    let policy = Policy { rewrite: Rewrite::View, ..Policy::default() };
    assert!(programs(&valid, &policy).unwrap().iter().all(|program| program.parts.len() == 1));
    let split = programs(&valid, &Policy::default()).unwrap();
    let said =
        |program: &Program| program.steps.iter().any(|step| step.starts_with("split into 2"));
    assert!(split.iter().any(|program| program.parts.len() == 2 && said(program)));
}

fn strided(g: &mut Graph, dims: &[i64], strides: &[i64]) -> Uid {
    let tensor =
        TensorSpec::new(0, DataType::F32, dims, Layout::Strides(strides.to_vec())).unwrap();
    g.tensor(tensor).unwrap()
}

#[test]
fn memory_that_lies_apart_is_seen_as_it_lies() {
    // Columns, results and operands with a distance of 2.
    for (dims, steps, to) in [
        (&[6_i64, 4][..], &[8_i64, 2][..], &[6_i64, 1][..]),
        (&[6, 4], &[8, 2], &[1, 4]),
        (&[12], &[2], &[1]),
        (&[3, 4, 5], &[40, 10, 2], &[3, 1, 5]),
    ] {
        let mut g = graph();
        let x = strided(&mut g, dims, steps);
        let y = g.reduction(x, ReductionMode::Add, to).unwrap();
        output(&mut g, y);
        check(g, 1e-5);
    }
    let mut g = graph();
    let x = g.input("x", &[6, 4]).unwrap();
    let b = strided(&mut g, &[1, 4], &[8, 2]);
    let y = g.binary(PointwiseMode::Mul, x, b).unwrap();
    let y = g.reduction(y, ReductionMode::Add, &[6, 1]).unwrap();
    output(&mut g, y);
    check(g, 1e-5);
    let mut g = graph();
    let x = g.input("x", &[6, 4]).unwrap();
    let y = g.reduction(x, ReductionMode::Max, &[1, 4]).unwrap();
    g.set_strides(y, &[8, 2]).unwrap();
    output(&mut g, y);
    check(g, 0.0);
    // A batch of size 1 between batches that don't lie one in the other.
    let mut g = graph();
    let a = strided(&mut g, &[2, 1, 3, 4, 4], &[96, 96, 16, 4, 1]);
    let b = g.input("b", &[2, 1, 3, 4, 4]).unwrap();
    let c = g.matmul(a, b).unwrap();
    output(&mut g, c);
    check(g, 1e-5);
}

#[test]
fn indices_of_products_and_lines_stay_those_of_their_axis() {
    for axis in 0..4 {
        let mut g = graph();
        let (a, b) = (g.input("a", &[2, 3, 4, 5]).unwrap(), g.input("b", &[2, 3, 5, 6]).unwrap());
        let c = g.matmul(a, b).unwrap();
        let index = g.gen_index(c, axis).unwrap();
        let y = g.binary(PointwiseMode::Add, c, index).unwrap();
        output(&mut g, y);
        check(g, 1e-5);
    }
    for axis in 0..3 {
        let mut g = graph();
        let (x, w) = (g.input("x", &[2, 3, 7]).unwrap(), g.input("w", &[4, 3, 3]).unwrap());
        let y = g.conv_fprop(x, w, Convolution::new(1)).unwrap();
        let index = g.gen_index(y, axis).unwrap();
        let y = g.binary(PointwiseMode::Add, y, index).unwrap();
        output(&mut g, y);
        check(g, 1e-5);
    }
}

#[test]
fn no_plan_reads_what_it_writes_under_another_number() {
    let slice = |g: &mut Graph, x: Uid| g.slice(x, &[1, 0], &[2, 6]).unwrap();
    for kind in 0..3 {
        let mut g = graph();
        let x = g.input("x", &[4, 6]).unwrap();
        let r = g.relu(x).unwrap();
        let y = match kind {
            0 => {
                let s = slice(&mut g, r);
                g.binary(PointwiseMode::Sub, r, s).unwrap()
            }
            1 => {
                let s = slice(&mut g, r);
                g.binary(PointwiseMode::Add, x, s).unwrap()
            }
            _ => {
                let t = g.reshape(r, &[3, 8]).unwrap();
                g.unary(PointwiseMode::Exp, t).unwrap()
            }
        };
        output(&mut g, y);
        check(g, 1e-6);
    }
}

#[test]
fn a_reshape_reads_rows_whatever_the_layout() {
    let mut g = graph();
    let x = TensorSpec::new(0, DataType::F32, &[2, 3, 4, 5], Layout::ChannelsLast).unwrap();
    let x = g.tensor(x).unwrap();
    let y = g.relu(x).unwrap();
    let y = g.reshape(y, &[1, 6, 20]).unwrap();
    let b = g.input("b", &[1, 6, 20]).unwrap();
    let y = g.binary(PointwiseMode::Add, y, b).unwrap();
    output(&mut g, y);
    check(g, 0.0);
}

#[test]
fn what_engines_would_round_or_cannot_address_stays() {
    // Whole numbers of 32 bits aren't copied by way of float32.
    let mut g = graph();
    let x = TensorSpec::new(0, DataType::I32, &[4, 6], Layout::Packed).unwrap();
    let x = g.tensor(x).unwrap();
    let y = g.slice(x, &[1, 0], &[3, 6]).unwrap();
    g.set_dtype(y, DataType::I32).unwrap();
    output(&mut g, y);
    let identity = |op: &Operation| matches!(op, Operation::Pointwise(_));
    assert!(check(g, 0.0).iter().all(|program| !has(program, identity)));
    // An operation in float64 isn't replaced by operations in float32.
    let mut g = graph();
    let x = g.input("x", &[4, 6]).unwrap();
    let y = g.reduction(x, ReductionMode::Avg, &[4, 1]).unwrap();
    output(&mut g, y);
    let mut spec = g.into_spec();
    spec.operations[0].compute = Some(DataType::F64);
    let valid = spec.validate().unwrap();
    let ways = programs(&valid, &Policy::default()).unwrap();
    assert!(ways.iter().all(|program| !has(program, identity)));
}
