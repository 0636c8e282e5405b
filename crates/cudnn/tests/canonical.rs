//! Canonical keys: equal for every description of a graph, different for different graphs.

mod support;

use std::collections::{BTreeSet, HashMap};
use std::process::Command;

use keyfold_cudnn::{
    Convolution, DataType, Graph, GraphOptions, GraphSpec, Layout, Number, OpSpec, PointwiseMode,
    Port, TensorSpec, Uid,
};
use serde_json::Value;
use support::{
    Random, conv_relu, described_anew, every_operation, full_graph, pointwise, random_graph,
};

#[test]
fn graphs_that_are_renumbered_and_reordered_have_one_key() {
    let mut random = Random(1);
    for round in 0..20_000 {
        let most = if round % 100 == 0 { 40 } else { 8 };
        let graph = random_graph(&mut random, most, round % 4 == 0);
        let (other, _) = described_anew(&mut random, &graph);
        let (a, b) = (graph.canonical(), other.canonical());
        assert_eq!(a.key, b.key, "{graph:?}\n{other:?}");
        assert_same_under(&graph, &a.uids, &other, &b.uids);
    }
}

/// Returns circles of inputs, each added to the next one of its circle.
fn circles(lengths: &[usize]) -> GraphSpec {
    let mut graph = GraphSpec::default();
    let mut first = 1;
    for &length in lengths {
        let uid = |place: usize| (first + place % length) as Uid;
        for place in 0..length {
            for uid in [uid(place), uid(place) + 1000] {
                let spec = TensorSpec::new(uid, DataType::F32, &[4], Layout::Packed).unwrap();
                graph.tensors.push(spec);
            }
            let inputs = [(Port::X, uid(place)), (Port::B, uid(place + 1))];
            let outputs = [(Port::Y, uid(place) + 1000)];
            graph.operations.push(pointwise(PointwiseMode::Add, &inputs, &outputs));
        }
        first += length;
    }
    graph
}

#[test]
fn an_ambiguous_order_may_miss_and_never_hits_another_graph() {
    let mut random = Random(4);
    let mut keys = |lengths: &[usize]| {
        let graph = circles(lengths);
        let uids = graph.canonical().uids;
        let mut keys = BTreeSet::new();
        for _ in 0..100 {
            let (other, _) = described_anew(&mut random, &graph);
            let canonical = other.canonical();
            if canonical.key == graph.canonical().key {
                assert_same_under(&graph, &uids, &other, &canonical.uids);
            }
            keys.insert(canonical.key);
        }
        keys
    };
    // All inputs look alike, and within circles of one length they are exchanged freely.
    let (six, three) = (keys(&[6]), keys(&[3, 3]));
    assert_eq!((six.len(), three.len()), (1, 1));
    assert!(six.is_disjoint(&three));
    // An input of the longer circle can't be exchanged for one of a shorter: which of them is first
    // is ambiguous.
    let both = keys(&[6, 3, 3]);
    assert!((2..=3).contains(&both.len()), "{}", both.len());
    assert!(both.is_disjoint(&keys(&[6, 6])) && both.is_disjoint(&keys(&[3, 3, 3, 3])));
}

/// Asserts that a graph is another one when each tensor is called as the one at its place.
fn assert_same_under(graph: &GraphSpec, uids: &[Uid], other: &GraphSpec, other_uids: &[Uid]) {
    assert_eq!(uids.len(), other_uids.len());
    let names: HashMap<Uid, Uid> = uids.iter().copied().zip(other_uids.iter().copied()).collect();
    assert_eq!(names.len(), uids.len(), "each number is once in the list");
    let plain = |tensor: &TensorSpec, uid| {
        let tensor = TensorSpec { uid, name: String::new(), ..tensor.clone() };
        format!("{tensor:?}")
    };
    let mut left: Vec<String> =
        graph.tensors.iter().map(|tensor| plain(tensor, names[&tensor.uid])).collect();
    let mut right: Vec<String> =
        other.tensors.iter().map(|tensor| plain(tensor, tensor.uid)).collect();
    left.sort();
    right.sort();
    assert_eq!(left, right);
    let rename = |list: &[(Port, Uid)], names: &dyn Fn(Uid) -> Uid| {
        let mut list: Vec<_> = list.iter().map(|port| (port.0, names(port.1))).collect();
        list.sort_by_key(|port| port.0);
        list
    };
    let renamed = |op: &OpSpec, names: &dyn Fn(Uid) -> Uid| {
        let (inputs, outputs) = (rename(&op.inputs, names), rename(&op.outputs, names));
        format!("{:?} {:?} {inputs:?} {outputs:?}", op.operation, op.compute)
    };
    let mut left: Vec<String> =
        graph.operations.iter().map(|op| renamed(op, &|uid| names[&uid])).collect();
    let mut right: Vec<String> =
        other.operations.iter().map(|op| renamed(op, &|uid| uid)).collect();
    left.sort();
    right.sort();
    assert_eq!(left, right);
}

#[test]
fn different_random_graphs_have_different_keys() {
    // A key says its graph: two graphs with one key are the same, which the mapping proves.
    let mut random = Random(2);
    let mut seen: HashMap<Vec<u8>, (GraphSpec, Vec<Uid>)> = HashMap::new();
    let mut hits = 0;
    for round in 0..20_000 {
        let graph = random_graph(&mut random, 3, round % 4 == 0);
        let canonical = graph.canonical();
        let key = canonical.key.into_bytes();
        if let Some((other, uids)) = seen.get(&key) {
            assert_same_under(&graph, &canonical.uids, other, uids);
            hits += 1;
        }
        seen.insert(key, (graph, canonical.uids));
    }
    assert!(hits > 1000, "small graphs meet often: {hits}");
}

/// Finds the places of all values of a JSON text but objects.
fn places(value: &Value, place: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                places(value, &format!("{place}/{name}"), found);
            }
        }
        Value::Array(list) => {
            found.push(place.to_string());
            for (index, value) in list.iter().enumerate() {
                places(value, &format!("{place}/{index}"), found);
            }
        }
        _ => found.push(place.to_string()),
    }
}

/// The words that enumerations in graphs have in JSON.
const WORDS: [&str; 26] = [
    "float32",
    "float64",
    "cross_correlation",
    "convolution",
    "maxpool",
    "nearest",
    "zero",
    "edge_value",
    "batch_norm",
    "rms_norm",
    "inference",
    "training",
    "add",
    "min",
    "tanh",
    "cmp_gt",
    "top_left",
    "bottom_right",
    "another name",
    "softmax",
    "reshape",
    "x",
    "y",
    "b",
    "inf",
    "nan",
];

/// Returns what a value may be changed to. Not all of them are graphs.
fn changes(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(flag) => vec![Value::Bool(!flag)],
        Value::Number(number) if number.is_f64() => {
            let x = number.as_f64().unwrap();
            vec![Value::from(f64::from_bits(x.to_bits() + 1)), Value::from(-x), Value::from("nan")]
        }
        Value::Number(number) => vec![Value::from(number.as_i64().unwrap() + 1)],
        Value::String(text) => {
            WORDS.iter().filter(|word| *word != text).map(|&word| Value::from(word)).collect()
        }
        Value::Array(list) => vec![
            Value::Array(list[..list.len() - 1].to_vec()),
            Value::Array([&list[..], &list[..1]].concat()),
            Value::Array(list.iter().rev().cloned().collect()),
        ],
        Value::Null | Value::Object(_) => {
            panic!("the samples have a value in every field: {value}")
        }
    }
}

/// Changes each value of a sample of each operation, one at a time, and returns the names of the
/// fields.
fn change_each_field() -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    for operation in every_operation() {
        let graph = full_graph(operation);
        let key = graph.canonical().key;
        let text = graph.to_json();
        let value: Value = serde_json::from_str(&text).unwrap();
        let mut found = Vec::new();
        places(&value, "", &mut found);
        for place in found {
            let field = place.rsplit('/').next().unwrap();
            // Names, and dtypes of what is added later, change no plan.
            let is_outside = field == "name" || place.starts_with("/defaults");
            let is_label = is_outside || field == "uid";
            if field == "format" || place == "/tensors" || place == "/operations" {
                continue;
            }
            let mut tried = 0;
            for new in changes(value.pointer(&place).unwrap()) {
                let mut other = value.clone();
                *other.pointer_mut(&place).unwrap() = new.clone();
                let Ok(other) = GraphSpec::from_json(&other.to_string()) else { continue };
                if other == graph {
                    continue;
                }
                tried += 1;
                let same = other.canonical().key == key;
                // The number of a tensor is changed here alone: its operation names none.
                assert_eq!(same, is_outside, "{place} became {new}: {text}");
            }
            assert!(tried > 0, "no other value of {place} was tried: {text}");
            // Fields that may be absent, too.
            if let Some((parent, field)) = place.rsplit_once('/') {
                let mut other = value.clone();
                if let Some(map) = other.pointer_mut(parent).and_then(Value::as_object_mut) {
                    map.shift_remove(field);
                    let other = GraphSpec::from_json(&other.to_string());
                    if let Ok(other) = other.as_ref().map(GraphSpec::canonical) {
                        assert_eq!(other.key == key, is_label, "{place} became absent: {text}");
                    }
                }
            }
            let is_index = |part: &&str| part.parse::<usize>().is_ok();
            let names: Vec<&str> = place.split('/').filter(|part| !is_index(part)).collect();
            fields.insert(names.join("/"));
        }
    }
    fields
}

#[test]
fn each_field_that_is_changed_changes_the_key() {
    // Another number, after a field was added to a spec or left out of its JSON, is a decision.
    let fields = change_each_field();
    assert_eq!(fields.len(), 84, "{fields:#?}");
}

#[test]
fn what_changes_no_plan_changes_no_key() {
    let graph = conv_relu();
    let key = graph.canonical().key;
    let mut aligned = graph;
    aligned.tensors[0].alignment = 256;
    assert_eq!(aligned.canonical().key, key);
    aligned.tensors[0].alignment = 8;
    assert_ne!(aligned.canonical().key, key);

    let graph_of = |dims: &[i64], strides: &[i64]| {
        let layout = || Layout::Strides(strides.to_vec());
        let x = TensorSpec::new(1, DataType::F32, dims, layout()).unwrap();
        let y = TensorSpec::new(2, DataType::F32, dims, layout()).unwrap();
        let relu = PointwiseMode::Relu;
        GraphSpec {
            tensors: vec![x, y],
            operations: vec![pointwise(relu, &[(Port::X, 1)], &[(Port::Y, 2)])],
            ..GraphSpec::default()
        }
    };
    let key = |dims: &[i64], strides: &[i64]| graph_of(dims, strides).canonical().key;
    // The strides of singleton dimensions are normalized.
    assert_eq!(key(&[8, 64, 1, 1], &[64, 1, 1, 1]), key(&[8, 64, 1, 1], &[64, 1, 64, 64]));
    assert_ne!(key(&[8, 64, 1, 2], &[128, 2, 1, 1]), key(&[8, 64, 1, 2], &[128, 1, 1, 64]));
    assert_ne!(key(&[8, 1], &[1, 1]), key(&[8, 2], &[1, 1]));
    assert_ne!(key(&[8, 1], &[1, 0]), key(&[8, 1], &[1, 1]), "not a stride that may be refused");
}

#[test]
fn graphs_that_the_validator_refuses_have_keys() {
    let strange = |change: &dyn Fn(&mut GraphSpec)| {
        let mut graph = conv_relu();
        change(&mut graph);
        let canonical = graph.canonical();
        assert!(graph.clone().validate().is_err(), "{graph:?}");
        canonical
    };
    let cases = [
        strange(&|graph| graph.tensors[0].strides = vec![999, 1, 1, 1]),
        strange(&|graph| graph.tensors[0].strides = vec![1]),
        strange(&|graph| graph.tensors[0].dims = vec![i64::MIN, 0, -1, i64::MAX]),
        strange(&|graph| graph.tensors[0].dtype = None),
        strange(&|graph| graph.tensors[0].uid = 0),
        strange(&|graph| graph.tensors[1].uid = 1),
        strange(&|graph| graph.operations[1].outputs[0].1 = 3),
        strange(&|graph| graph.operations[0].inputs[0].1 = 4),
        strange(&|graph| graph.operations[0].inputs[0].1 = 77),
        strange(&|graph| graph.operations[0].inputs.clear()),
        strange(&|graph| graph.operations.clear()),
        strange(&|graph| graph.tensors.clear()),
        strange(&|graph| *graph = GraphSpec::default()),
    ];
    for (index, case) in cases.iter().enumerate() {
        assert!(cases[..index].iter().all(|other| other.key != case.key), "case {index}");
        assert_ne!(case.key, conv_relu().canonical().key, "case {index}");
    }
    // A number that is none differs from one that is, also where that alone differs.
    let mut none = conv_relu();
    none.tensors[0].uid = 0;
    none.operations[0].inputs[0].1 = 0;
    assert_ne!(none.canonical().key, conv_relu().canonical().key);
}

#[test]
fn floats_count_by_their_bits() {
    let key = |number| {
        let mut graph = conv_relu();
        graph.tensors[0].scalar = Some(number);
        graph.canonical().key
    };
    assert_ne!(key(Number::Float(0.0)), key(Number::Float(-0.0)));
    assert_ne!(key(Number::Float(1.0)), key(Number::Int(1)));
    assert_eq!(key(Number::Float(f64::NAN)), key(Number::Float(-f64::NAN)));
}

#[test]
fn hundreds_of_tensors_that_are_alike_have_keys_in_bounded_time() {
    let mut graph = GraphSpec::default();
    for uid in 1..=4000 {
        let tensor = TensorSpec::new(uid, DataType::F32, &[4], Layout::Packed).unwrap();
        graph.tensors.push(tensor);
    }
    assert_eq!(graph.canonical().uids.len(), 4000);
    for uid in (1..=4000).step_by(2) {
        let relu = PointwiseMode::Relu;
        graph.operations.push(pointwise(relu, &[(Port::X, uid)], &[(Port::Y, uid + 1)]));
    }
    assert_eq!(graph.canonical().uids.len(), 4000);
}

/// Returns the signatures of known graphs, a line each.
fn known_signatures() -> String {
    let mut graphs = vec![("empty".to_string(), GraphSpec::default())];
    graphs.push(("conv, relu".to_string(), conv_relu()));
    for operation in every_operation() {
        graphs.push((operation.name().to_string(), full_graph(operation)));
    }
    let mut random = Random(3);
    for index in 0..10 {
        graphs.push((format!("random {index}"), random_graph(&mut random, 30, index % 2 == 0)));
    }
    graphs.iter().map(|(name, graph)| format!("{}  {name}\n", graph.signature())).collect()
}

const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/signatures.txt");

#[test]
fn op_graph_signature_is_deterministic() {
    let signatures = known_signatures();
    if let Some(path) = std::env::var_os("KEYFOLD_TEST_SIGNATURES") {
        return std::fs::write(path, signatures).unwrap();
    }
    assert_eq!(signatures, known_signatures());
    if std::env::var_os("KEYFOLD_WRITE").is_some() {
        std::fs::write(LIST, &signatures).unwrap();
    }
    // Names of files are made of signatures: another one is a new version of keys (`KEY_FORMAT`).
    assert_eq!(signatures, std::fs::read_to_string(LIST).unwrap(), "{LIST}");
    // In another process.
    let path = std::env::temp_dir().join(format!("keyfold-signatures-{}", std::process::id()));
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "op_graph_signature_is_deterministic"])
        .env("KEYFOLD_TEST_SIGNATURES", &path)
        .status();
    assert!(status.unwrap().success());
    let of_child = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(signatures, of_child);
}

#[test]
fn backend_descriptor_builder_round_trip() {
    let options = GraphOptions { io: Some(DataType::F32), ..GraphOptions::default() };
    let build = |layout: Layout| {
        let mut g = Graph::new(options.clone());
        let x = g.tensor(TensorSpec::untyped(&[8, 64, 56, 56], layout).unwrap()).unwrap();
        let w = TensorSpec::untyped(&[32, 64, 3, 3], Layout::ChannelsLast).unwrap();
        let w = g.tensor(w).unwrap();
        let mut conv = Convolution::new(2);
        (conv.pre_padding, conv.post_padding) = (vec![1, 1], vec![1, 1]);
        let conv = g.conv_fprop(x, w, conv).unwrap();
        let y = g.relu(conv).unwrap();
        g.set_output(y, true).unwrap();
        g.into_spec()
    };
    let graph = build(Layout::ChannelsLast);
    assert_eq!(graph.tensors.iter().filter(|tensor| tensor.is_virtual).count(), 1);
    let again = GraphSpec::from_json(&graph.to_json()).unwrap();
    assert_eq!(again, graph);
    // The one that was made by hand has other numbers and names, and is the same.
    assert_eq!(again.signature(), conv_relu().signature());
    assert_ne!(build(Layout::Packed).signature(), graph.signature());
    let mut other = again;
    other.tensors[0].strides[0] += 1;
    assert_ne!(other.signature(), graph.signature());
}
