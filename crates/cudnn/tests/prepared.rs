//! Runs of prepared plans: what is checked before the plan runs.

mod support;

use keyfold_core::{DType, Device, ErrorKind, Result};
use keyfold_cudnn::{
    Float, GraphSpec, Operation, PlanCache, Policy, Precision, Prepared, Reference, Step,
    TensorSpec, Uid,
};
use keyfold_tensor::Tensor;
use support::planner::Fake;
use support::{Random, conv, conv_relu, described_anew};

fn prepared(graph: &GraphSpec) -> Prepared {
    let mut planner = Fake::new("toy");
    planner.workspace_bytes = 4096;
    let cache = PlanCache::new(4, 1 << 20).unwrap();
    let silent = |_: Step<'_>| -> Result<()> { Ok(()) };
    // Another description comes first: errors are about the caller's all the same.
    let (other, _) = described_anew(&mut Random(1), graph);
    let policy = Policy::default();
    cache.get_or_build(&other, &planner, &policy, &silent).unwrap();
    cache.get_or_build(graph, &planner, &policy, &silent).unwrap()
}

/// Returns a tensor of images with the channels last.
fn images(dims: [usize; 4]) -> Tensor {
    let [n, c, h, w] = dims;
    let memory = Tensor::zeros(&[n, h, w, c], DType::F32, Device::CPU).unwrap();
    memory.permute(&[0, 3, 1, 2]).unwrap()
}

fn pack() -> [(Uid, Tensor); 3] {
    [(1, images([8, 64, 56, 56])), (2, images([32, 64, 3, 3])), (4, images([8, 32, 56, 56]))]
}

fn error_of(change: impl FnOnce(&mut Vec<(Uid, Tensor)>)) -> (ErrorKind, String) {
    let mut tensors = pack().to_vec();
    change(&mut tensors);
    let tensors: Vec<(Uid, &Tensor)> = tensors.iter().map(|(uid, tensor)| (*uid, tensor)).collect();
    let error = prepared(&conv_relu()).run(&tensors).unwrap_err();
    (error.kind(), error.message().to_string())
}

#[test]
fn runs_take_their_tensors_in_any_order() {
    let prepared = prepared(&conv_relu());
    let [x, w, y] = &pack();
    for order in [[x, w, y], [w, x, y], [y, w, x]] {
        prepared.run(&order.map(|(uid, tensor)| (*uid, tensor))).unwrap();
    }
    let members: Vec<_> = prepared.members().map(|member| (member.uid, member.is_output)).collect();
    assert!([(1, false), (2, false), (4, true)].iter().all(|member| members.contains(member)));
}

#[test]
fn strides_of_singleton_dimensions_may_be_any() {
    let mut graph = conv_relu();
    graph.operations.remove(0);
    graph.tensors.drain(..2);
    for tensor in &mut graph.tensors {
        tensor.is_virtual = false;
        (tensor.dims, tensor.strides) = (vec![8, 32, 1, 1], vec![32, 1, 32, 32]);
    }
    let tensor = || Tensor::zeros(&[8, 32, 1, 1], DType::F32, Device::CPU).unwrap();
    prepared(&graph).run(&[(3, &tensor()), (4, &tensor())]).unwrap();
}

#[test]
fn wrong_packs_are_refused_by_name() {
    let cases: Vec<((ErrorKind, String), ErrorKind, &[&str])> = vec![
        (
            error_of(|pack| drop(pack.remove(1))),
            ErrorKind::Value,
            &["input \"w\" (#2) is missing", "[1, 4]"],
        ),
        (error_of(|pack| pack[1].0 = 77), ErrorKind::Value, &["input \"w\" (#2) is missing"]),
        (
            error_of(|pack| pack.push((77, pack[0].1.clone()))),
            ErrorKind::Value,
            &["#77 isn't in the graph"],
        ),
        (
            error_of(|pack| pack.push((3, pack[0].1.clone()))),
            ErrorKind::Value,
            &["#3 has no memory"],
        ),
        (error_of(|pack| pack.push(pack[0].clone())), ErrorKind::Value, &["#1 is given twice"]),
        (
            error_of(|pack| pack[0].1 = images([8, 64, 56, 28])),
            ErrorKind::Shape,
            &["input \"x\" (#1)", "[8, 64, 56, 28]", "[8, 64, 56, 56]"],
        ),
        (
            error_of(|pack| {
                pack[0].1 = Tensor::zeros(&[8, 64, 56, 56], DType::F32, Device::CPU).unwrap();
            }),
            ErrorKind::Shape,
            &["input \"x\" (#1)", "strides", "[200704, 1, 3584, 64]"],
        ),
        (
            error_of(|pack| pack[1].1 = Tensor::zeros(&[3], DType::F64, Device::CPU).unwrap()),
            ErrorKind::DType,
            &["input \"w\" (#2) is float64", "float32"],
        ),
        (
            error_of(|pack| pack[1].1 = Tensor::meta(&[32, 64, 3, 3], DType::F32).unwrap()),
            ErrorKind::Device,
            &["input \"w\" (#2) is on meta", "cpu"],
        ),
        (
            error_of(|pack| pack[2].1 = pack[2].1.clone().into_read_only()),
            ErrorKind::ReadOnly,
            &["output \"y\" (#4)"],
        ),
        (
            error_of(|pack| {
                // 8 images of 32 channels in the memory of those of 64.
                let x = Tensor::zeros(&[8, 56, 56, 64], DType::F32, Device::CPU).unwrap();
                let y = x.slice(0, Some(0), Some(4), 1).unwrap();
                let y = y.reshape(&[8, 56, 56, 32]).unwrap();
                let last = |t: Tensor| t.permute(&[0, 3, 1, 2]).unwrap();
                (pack[0].1, pack[2].1) = (last(x), last(y));
            }),
            ErrorKind::Value,
            &["output \"y\" (#4) overlaps input \"x\" (#1)"],
        ),
    ];
    for ((kind, message), wanted, words) in cases {
        assert_eq!(kind, wanted, "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

#[test]
fn addresses_are_aligned_as_far_as_a_plan_relies_on_it() {
    let mut graph = conv_relu();
    graph.operations.remove(0);
    graph.tensors.drain(..2);
    for tensor in &mut graph.tensors {
        (tensor.dims, tensor.strides, tensor.is_virtual) = (vec![4], vec![1], false);
    }
    let memory = Tensor::zeros(&[16], DType::F32, Device::CPU).unwrap();
    assert_eq!(memory.address() % 16, 0);
    let part = |start: i64| memory.slice(0, Some(start), Some(start + 4), 1).unwrap();
    let run = |graph: &GraphSpec, x: i64| prepared(graph).run(&[(3, &part(x)), (4, &part(8))]);
    run(&graph, 4).unwrap();
    let error = run(&graph, 1).unwrap_err();
    let message = error.message();
    assert!(
        message.contains("input #3") && message.contains("4 bytes behind a multiple of 16"),
        "{message}"
    );
    // The graph may say less.
    graph.tensors[0].alignment = 4;
    run(&graph, 1).unwrap();
    // The reference executor takes any address.
    keyfold::init();
    graph.tensors[0].alignment = 16;
    let planner = Reference::new(Device::CPU, Precision::AsSpec);
    let cache = PlanCache::new(1, 1 << 20).unwrap();
    let plan = cache.get_or_build(&graph, &planner, &Policy::default(), &|_| Ok(())).unwrap();
    plan.run(&[(3, &part(1)), (4, &part(8))]).unwrap();
}

#[test]
fn outputs_that_beta_reads_are_marked() {
    let mut graph = conv(2);
    if let Operation::ConvFprop(conv) = &mut graph.operations[0].operation {
        conv.beta = Float(0.5);
    }
    let updated = |graph: &GraphSpec| {
        let prepared = prepared(graph);
        let members: Vec<_> = prepared.members().map(|m| (m.uid, m.is_updated)).collect();
        members
    };
    assert!(updated(&graph).contains(&(4, true)));
    assert!(updated(&conv(2)).iter().all(|member| !member.1));
}

#[test]
fn a_hit_says_whose_names_its_plan_has() {
    let cache = PlanCache::new(4, 1 << 20).unwrap();
    let (planner, policy) = (Fake::new("toy"), Policy::default());
    let get =
        |graph: &GraphSpec| cache.get_or_build(graph, &planner, &policy, &|_| Ok(())).unwrap();
    assert_eq!(get(&conv_relu()).planned_as(), None);
    assert_eq!(get(&conv_relu()).planned_as(), None);
    let mut other = conv_relu();
    other.name = "other".to_string();
    assert_eq!(get(&other).planned_as(), Some("block"));
    let (renumbered, _) = described_anew(&mut Random(3), &conv_relu());
    assert_eq!(get(&renumbered).planned_as(), Some("block"));
}

/// Returns a tensor of a specification, whose elements count up in the order of memory.
fn counting(spec: &TensorSpec) -> Tensor {
    let [n, c, h, w] = std::array::from_fn(|axis| spec.dims[axis] as usize);
    let numbers: Vec<f32> = (0..n * c * h * w).map(|i| (i % 7) as f32 - 3.0).collect();
    Tensor::from_vec(numbers, &[n, h, w, c]).unwrap().permute(&[0, 3, 1, 2]).unwrap()
}

#[test]
fn a_plan_computes_the_same_for_every_description_and_on_all_threads() {
    keyfold::init();
    let cache = PlanCache::new(4, 1 << 20).unwrap();
    let planner = Reference::new(Device::CPU, Precision::AsSpec);
    let policy = Policy::default();
    let silent = |_: Step<'_>| -> Result<()> { Ok(()) };
    let graph = conv_relu().with_dims(&[(1, vec![2, 3, 5, 5]), (2, vec![4, 3, 3, 3])]).unwrap();
    let outcome = |graph: &GraphSpec, [x, w, y]: [Uid; 3]| {
        let prepared = cache.get_or_build(graph, &planner, &policy, &silent).unwrap();
        let tensor = |uid| counting(graph.tensor(uid).unwrap());
        let result = tensor(y);
        prepared.run(&[(x, &tensor(x)), (w, &tensor(w)), (y, &result)]).unwrap();
        result.to_vec::<f32>().unwrap()
    };
    let first = outcome(&graph, [1, 2, 4]);
    // relu(conv(x, w)) at the corner, where a row and a column of the window are padding.
    let at = |spec: &TensorSpec, index: [usize; 4]| counting(spec).get::<f32>(&index).unwrap();
    let window = (0..3).flat_map(|c| (0..2).flat_map(move |h| (0..2).map(move |w| (c, h, w))));
    let sum: f32 = window
        .map(|(c, h, w)| {
            at(&graph.tensors[0], [0, c, h, w]) * at(&graph.tensors[1], [0, c, h + 1, w + 1])
        })
        .sum();
    assert_eq!(first[0], sum.max(0.0));
    assert!(first.iter().any(|&x| x > 0.0) && first.contains(&0.0));
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let (outcome, graph, first) = (&outcome, &graph, &first);
            scope.spawn(move || {
                let (other, names) = described_anew(&mut Random(seed), graph);
                assert_eq!(&outcome(&other, [1, 2, 4].map(|uid| names[&uid])), first);
            });
        }
    });
    assert_eq!(cache.stats().total.misses, 1);
}
