//! What is measured: keys of graphs and hits of the cache, beside the naive design.
//!
//! The naive design is a hash map under a mutex. Its key is the graph's JSON, or a digest by the
//! standard library's hasher; policy and device are part of both. It depends on the numbers of
//! tensors, and the digest returns the wrong plan where two collide.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keyfold_core::{DType, Device, Result};
use keyfold_cudnn::{
    DataType, GraphSpec, Layout, OpSpec, Operation, Plan, PlanCache, Planner, PointwiseMode,
    Policy, Port, Precision, Reference, Step, TensorSpec, VariantPack,
};
use keyfold_tensor::{Tensor, ValueRef, dispatcher};
use support::planner::Fake;
use support::{conv, pointwise};

/// A way to do something, and a function that does it many times.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) run: Box<dyn Fn(u64) -> Duration>,
}

fn case<T>(name: impl Into<String>, step: impl Fn() -> T + 'static) -> Case {
    let run = move |times| {
        let begun = Instant::now();
        for _ in 0..times {
            black_box(step());
        }
        begun.elapsed()
    };
    Case { name: name.into(), run: Box::new(run) }
}

fn silent(_: Step<'_>) -> Result<()> {
    Ok(())
}

/// Returns a graph of 1, 6, 12, 18... operations: a convolution, or blocks of convolution, bias,
/// relu, convolution, bias and the sum with the block's input.
pub(crate) fn graph(operations: usize) -> GraphSpec {
    if operations == 1 {
        return conv(8);
    }
    let mut graph = GraphSpec { name: "network".to_string(), ..GraphSpec::default() };
    let tensor = |graph: &mut GraphSpec, name: &str, dims: &[i64], is_virtual: bool| {
        let uid = graph.tensors.len() as i64 + 1;
        let spec = TensorSpec::new(uid, DataType::F16, dims, Layout::ChannelsLast).unwrap();
        let spec = spec.named(format!("{name}{uid}"));
        graph.tensors.push(if is_virtual { spec.virtualized() } else { spec });
        uid
    };
    let image = [8, 64, 56, 56];
    let mut x = tensor(&mut graph, "x", &image, false);
    let blocks = operations / 6;
    for block in 0..blocks {
        let begin = x;
        for half in 0..2 {
            let w = tensor(&mut graph, "w", &[64, 64, 3, 3], false);
            let b = tensor(&mut graph, "b", &[1, 64, 1, 1], false);
            let [conv_y, bias_y] = [(); 2].map(|()| tensor(&mut graph, "v", &image, true));
            let is_last = half == 1 && block + 1 == blocks;
            let y = tensor(&mut graph, "y", &image, !is_last);
            let mut conv_op: OpSpec = conv(8).operations.remove(0);
            conv_op.inputs = vec![(Port::X, x), (Port::W, w)];
            conv_op.outputs = vec![(Port::Y, conv_y)];
            graph.operations.push(conv_op);
            let add = |a, b, y| {
                pointwise(PointwiseMode::Add, &[(Port::X, a), (Port::B, b)], &[(Port::Y, y)])
            };
            graph.operations.push(add(conv_y, b, bias_y));
            graph.operations.push(match half {
                0 => pointwise(PointwiseMode::Relu, &[(Port::X, bias_y)], &[(Port::Y, y)]),
                _ => add(bias_y, begin, y),
            });
            x = y;
        }
    }
    assert_eq!(graph.operations.len(), operations);
    graph
}

/// A plan of the naive design.
type Found = Arc<Plan>;

fn digest(graph: &GraphSpec, policy: &Policy, profile: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for tensor in &graph.tensors {
        (tensor.uid, tensor.dtype, &tensor.dims, &tensor.strides).hash(&mut hasher);
        (tensor.alignment, tensor.is_virtual, tensor.by_value, tensor.scalar).hash(&mut hasher);
    }
    for op in &graph.operations {
        op.operation.name().hash(&mut hasher);
        match &op.operation {
            Operation::ConvFprop(conv) => conv.hash(&mut hasher),
            Operation::Pointwise(pointwise) => pointwise.hash(&mut hasher),
            other => panic!("the benchmark's graphs have no {}", other.name()),
        }
        (op.compute, &op.inputs, &op.outputs).hash(&mut hasher);
    }
    (policy, profile).hash(&mut hasher);
    hasher.finish()
}

fn json(graph: &GraphSpec, policy: &Policy, profile: &str) -> String {
    serde_json::to_string(&(graph, policy, profile)).expect("all of it is JSON")
}

/// Returns the cases of keys and hits for graphs of these sizes, the naive design's before
/// keyfold's.
pub(crate) fn hits(sizes: &[usize]) -> Vec<Case> {
    let policy = Policy::default();
    let planner = Arc::new(Fake::new("toy, 1.0"));
    let (mut by_json, mut by_digest) = (HashMap::new(), HashMap::new());
    let cache = Arc::new(PlanCache::new(256, 1 << 30).unwrap());
    for &size in sizes {
        let valid = Arc::new(graph(size).validate().unwrap());
        let plan = || Found::new(planner.plan(Arc::clone(&valid), &policy, &silent).unwrap());
        by_json.insert(json(&graph(size), &policy, planner.profile()), plan());
        by_digest.insert(digest(&graph(size), &policy, planner.profile()), plan());
        cache.get_or_build(&graph(size), &*planner, &policy, &silent).unwrap();
    }
    let (by_json, by_digest) = (Arc::new(Mutex::new(by_json)), Arc::new(Mutex::new(by_digest)));
    let mut cases = Vec::new();
    for &size in sizes {
        let spec = || Arc::new(graph(size));
        let name = |what: &str| format!("{what}, {size}");
        let (g, p, map) = (spec(), Arc::clone(&planner), Arc::clone(&by_json));
        cases.push(case(name("JSON in a map"), move || {
            let key = json(&g, &Policy::default(), p.profile());
            Arc::clone(&map.lock().unwrap()[&key])
        }));
        let (g, p, map) = (spec(), Arc::clone(&planner), Arc::clone(&by_digest));
        cases.push(case(name("standard hasher in a map"), move || {
            let key = digest(&g, &Policy::default(), p.profile());
            Arc::clone(&map.lock().unwrap()[&key])
        }));
        let g = spec();
        cases.push(case(name("canonical key"), move || g.canonical()));
        let (g, p, cache) = (spec(), Arc::clone(&planner), Arc::clone(&cache));
        cases.push(case(name("hit by spec"), move || {
            cache.get_or_build(&g, &*p, &Policy::default(), &silent).unwrap()
        }));
    }
    cases
}

/// Returns the cases of runs of a plan that does nothing: the plan alone, then a prepared graph,
/// then hits.
pub(crate) fn runs() -> Vec<Case> {
    let planner = Arc::new(Fake::new("toy, 1.0"));
    let cache = PlanCache::new(256, 1 << 30).unwrap();
    let spec = graph(1);
    let prepared = cache.get_or_build(&spec, &*planner, &Policy::default(), &silent).unwrap();
    let images = |dims: &[i64]| {
        let dims: Vec<usize> = [0, 2, 3, 1].iter().map(|&axis| dims[axis] as usize).collect();
        let memory = Tensor::zeros(&dims, DType::F32, Device::CPU).unwrap();
        memory.permute(&[0, 3, 1, 2]).unwrap()
    };
    let members = || prepared.members().map(|member| (member.uid, images(&member.spec.dims)));
    let (of_plan, of_run): (Vec<_>, Vec<_>) = (members().collect(), members().collect());
    let of_hit: Vec<_> = members().collect();
    let plan = prepared.clone();
    let alone = case("the plan alone", move || {
        let tensors: [_; 3] = std::array::from_fn(|i| (of_plan[i].0, &of_plan[i].1));
        plan.plan().runner.run(&VariantPack { tensors: &tensors, workspace: None }).unwrap();
    });
    let run = case("prepared run", move || {
        let tensors: [_; 3] = std::array::from_fn(|i| (of_run[i].0, &of_run[i].1));
        prepared.run(&tensors).unwrap();
    });
    let hit = case("hit by spec and run", move || {
        let tensors: [_; 3] = std::array::from_fn(|i| (of_hit[i].0, &of_hit[i].1));
        let found = cache.get_or_build(&spec, &*planner, &Policy::default(), &silent);
        found.unwrap().run(&tensors).unwrap();
    });
    vec![alone, run, hit]
}

/// Returns the cases of graphs of one operation by the reference executor, each behind the call of the
/// operator that computes the same, which is the least that a run can cost.
pub(crate) fn executed() -> Vec<Case> {
    keyfold::init();
    let relu = pointwise(PointwiseMode::Relu, &[(Port::X, 1)], &[(Port::Y, 2)]);
    let add = pointwise(PointwiseMode::Add, &[(Port::X, 1), (Port::B, 3)], &[(Port::Y, 2)]);
    let product = OpSpec::new(Operation::Matmul, &[(Port::A, 1), (Port::B, 3)], &[(Port::C, 2)]);
    let mut cases = Vec::new();
    for (name, op) in [("aten::relu", relu), ("aten::add", add), ("aten::matmul", product)] {
        let count = op.inputs.len() as i64 + 1;
        let tensor = |uid| TensorSpec::new(uid, DataType::F32, &[1, 2, 2], Layout::Packed).unwrap();
        let graph = GraphSpec {
            name: name.to_string(),
            tensors: (1..=count).map(tensor).collect(),
            operations: vec![OpSpec { compute: Some(DataType::F32), ..op }],
            ..GraphSpec::default()
        };
        let planner = Reference::new(Device::CPU, Precision::AsSpec);
        let cache = PlanCache::new(1, 1 << 30).unwrap();
        let prepared = cache.get_or_build(&graph, &planner, &Policy::default(), &silent).unwrap();
        let tensors =
            || (0..3).map(|_| Tensor::zeros(&[1, 2, 2], DType::F32, Device::CPU).unwrap());
        let tensors: [Tensor; 3] = tensors().collect::<Vec<_>>().try_into().unwrap();
        let (operator, given) = (dispatcher().operator(name).unwrap(), tensors.clone());
        let arguments = count as usize - 1;
        cases.push(case(name, move || {
            let args: [ValueRef<'_>; 2] = [(&given[0]).into(), (&given[2]).into()];
            operator.call(&args[..arguments]).unwrap()
        }));
        cases.push(case(format!("{name} as a graph"), move || {
            let given: [_; 3] = std::array::from_fn(|i| (i as i64 + 1, &tensors[i]));
            prepared.run(&given[..count as usize]).unwrap();
        }));
    }
    cases
}
