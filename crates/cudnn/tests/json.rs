//! JSON of specifications: round trips, every kind of damage, versions, and the page that documents
//! it.

#[path = "support/samples.rs"]
mod samples;

use std::collections::HashSet;

use keyfold_core::ErrorKind;
use keyfold_cudnn::{
    Choice, DataType, Defaults, Document, EngineConfigSpec, FORMAT, Graph, GraphOptions, GraphSpec,
    HeurMode, HeurSpec, Operation, PlanSpec, PointwiseMode, Policy, Rewrite, VariantPackSpec,
};
use samples::{sample, samples};
use serde_json::{Value, json};

#[test]
fn specifications_survive_json() {
    fn survives<T: Document + PartialEq + std::fmt::Debug>(spec: &T) {
        let text = spec.to_json();
        assert_eq!(T::from_json(&text).unwrap(), *spec, "{text}");
        let later = text.replace(&format!("\"format\": {FORMAT}"), "\"format\": 99");
        let error = T::from_json(&later).unwrap_err();
        assert!(
            error.message().contains(&format!("the {}'s text has format 99", T::NAME)),
            "{error}"
        );
        assert!(error.message().contains("later version"), "{error}");
        let extra = text.replacen('{', "{\"extra\": 1, ", 1);
        assert!(T::from_json(&extra).unwrap_err().message().contains("extra"));
    }
    samples().iter().for_each(survives);
    let config = EngineConfigSpec { engine: "7".to_string(), knobs: vec![(3, 1), (0, -2)] };
    survives(&HeurSpec { mode: HeurMode::B, top_k: 4 });
    survives(&config);
    let policy = Policy {
        choice: Choice::Autotune,
        workspace_limit: Some(1 << 40),
        tf32: true,
        rewrite: Rewrite::View,
    };
    survives(&PlanSpec {
        device: "h100, 9.27".to_string(),
        policy,
        config,
        workspace_bytes: 4096,
        steps: vec!["flatten".to_string()],
    });
    survives(&VariantPackSpec { buffers: vec![(1, 0), (-7, 1)] });
}

#[test]
fn defaults_of_a_graph_are_those_that_it_was_made_with() {
    let options = GraphOptions {
        name: "halves".to_string(),
        io: Some(DataType::F16),
        intermediate: None,
        compute: Some(DataType::F64),
    };
    let mut g = Graph::new(options);
    let x = g.input("x", &[2, 3]).unwrap();
    let read = GraphSpec::from_json(&g.spec().to_json()).unwrap();
    assert_eq!(read, *g.spec());
    let mut again = Graph::from_spec(read);
    for graph in [&mut g, &mut again] {
        let y = graph.relu(x).unwrap();
        assert_eq!(graph.spec().tensor(y).unwrap().dtype, None);
        graph.set_output(y, true).unwrap();
        graph.input("z", &[1]).unwrap();
    }
    assert_eq!(again.spec(), g.spec());
    let last = &g.spec().operations[0];
    assert_eq!(last.compute, Some(DataType::F64));
    // They change no key.
    let other = GraphSpec { defaults: Defaults::default(), ..g.spec().clone() };
    assert_eq!(other.canonical().key, g.spec().canonical().key);
}

#[test]
fn a_text_of_format_1_has_the_builders_defaults() {
    let graph = sample("matmul");
    let mut old: Value = serde_json::from_str(&graph.to_json()).unwrap();
    old["format"] = json!(1);
    old.as_object_mut().unwrap().remove("defaults");
    let read = GraphSpec::from_json(&old.to_string()).unwrap();
    assert_eq!(read.defaults, Defaults::default());
    assert_eq!(read.canonical().key, graph.canonical().key);
}

/// Collects the places of all values, as JSON pointers.
fn places(value: &Value, place: &str, found: &mut Vec<String>) {
    found.push(place.to_string());
    match value {
        Value::Object(map) => {
            map.iter().for_each(|(key, value)| places(value, &format!("{place}/{key}"), found));
        }
        Value::Array(list) => {
            let items = list.iter().enumerate();
            items.for_each(|(index, value)| places(value, &format!("{place}/{index}"), found));
        }
        _ => {}
    }
}

/// Reads a text, which is a graph's or is refused as damaged; returns the error.
fn refusal(text: &str) -> Option<String> {
    match GraphSpec::from_json(text) {
        Ok(graph) => {
            assert_eq!(GraphSpec::from_json(&graph.to_json()).unwrap(), graph);
            let _ = graph.validate();
            None
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Value, "{error}");
            assert!(error.message().starts_with("the graph's text "), "{error}");
            Some(error.message().to_string())
        }
    }
}

#[test]
fn values_of_another_kind_are_refused_with_their_place() {
    let mut tried = HashSet::new();
    for graph in samples() {
        let value: Value = serde_json::from_str(&graph.to_json()).unwrap();
        let mut found = Vec::new();
        places(&value, "", &mut found);
        for place in &found {
            // Items of a list are alike.
            if !tried.insert(place.replace(|c: char| c.is_ascii_digit(), "0")) {
                continue;
            }
            for other in [
                json!({}),
                json!([[[]]]),
                json!("no such word"),
                json!(1.5e300),
                json!(u64::MAX),
                json!(null),
                json!(true),
            ] {
                let mut damaged = value.clone();
                *damaged.pointer_mut(place).unwrap() = other.clone();
                let is_refused = refusal(&damaged.to_string()).is_some();
                // Objects whose members all have defaults, and lists that may be empty.
                let ends =
                    ["puts", "/defaults", "/tensors", "/operations", "/sdpa", "/sdpa_backward"];
                let may_be_empty = ends.iter().any(|end| place.ends_with(end));
                if other == json!({}) || other == json!([[[]]]) {
                    assert!(is_refused || may_be_empty, "{place} as {other}");
                }
            }
        }
    }
}

#[test]
fn members_that_are_missing_or_twice_are_refused() {
    let text = sample("conv_relu").to_json();
    let value: Value = serde_json::from_str(&text).unwrap();
    for (place, key) in [
        ("", "format"),
        ("", "tensors"),
        ("", "operations"),
        ("/tensors/0", "uid"),
        ("/tensors/0", "dims"),
        ("/tensors/0", "strides"),
        ("/operations/0", "operation"),
        ("/operations/0", "inputs"),
        ("/operations/0", "outputs"),
        ("/operations/0/operation/conv_fprop", "stride"),
        ("/operations/1/operation/pointwise", "mode"),
    ] {
        let mut damaged = value.clone();
        let map = damaged.pointer_mut(place).unwrap().as_object_mut().unwrap();
        assert!(map.remove(key).is_some(), "{place}/{key}");
        let message = refusal(&damaged.to_string()).unwrap_or_else(|| panic!("{place}/{key}"));
        assert!(message.contains(key), "{message}");
    }
    for (from, to) in [
        ("\"name\": \"conv_relu\"", "\"name\": \"a\", \"name\": \"b\""),
        ("\"uid\": 1", "\"uid\": 1, \"uid\": 9"),
        ("\"inputs\": {", "\"inputs\": {\"x\": 9, "),
    ] {
        let damaged = text.replacen(from, to, 1);
        assert_ne!(damaged, text);
        let message = refusal(&damaged).expect("a member is there twice");
        assert!(message.contains("is there twice at line"), "{message}");
    }
}

#[test]
fn texts_that_are_cut_or_are_not_json_are_refused() {
    let text = sample("sdpa").to_json();
    for end in 0..text.len() {
        assert!(refusal(&text[..end]).is_some(), "the first {end} bytes");
    }
    for damaged in ["", " ", "nul", "[]", "7", "{", "{\"format\": 2,}", "\u{feff}{}"] {
        assert!(refusal(damaged).is_some(), "{damaged:?}");
    }
    assert!(refusal(&text.replace("0.1", "NaN")).is_some_and(|message| message.contains("line")));
    assert!(refusal(&"[".repeat(100_000)).is_some(), "deep nesting");
    for (format, says) in [
        ("3", "has format 3, which a later version wrote: this one reads 1 to 2"),
        ("0", "known: 1 to 2, got 0"),
        ("-1", "known: 1 to 2, got -1"),
        ("2.0", "known: 1 to 2, got 2.0"),
        ("\"2\"", "known: 1 to 2, got \"2\""),
    ] {
        let damaged = text.replacen("\"format\": 2", &format!("\"format\": {format}"), 1);
        let message = refusal(&damaged).unwrap();
        assert!(message.contains(says), "{message}");
    }
    for (from, to, says) in [
        ("\"q\": 1", "\"q\": {}", "a port has the uid of a tensor, or a list of uids"),
        ("\"q\": 1", "\"query\": 1", "query"),
        ("float32", "float33", "float32"),
    ] {
        let damaged = text.replacen(from, to, 1);
        assert_ne!(damaged, text, "{from}");
        let message = refusal(&damaged).unwrap();
        assert!(message.contains(says), "{message}");
    }
}

/// The page that documents the format.
const PAGE: &str = include_str!("../../../docs/cudnn-json.md");

#[test]
fn the_page_of_the_format_has_all_operations_ports_attributes_and_words() {
    let mut missing = Vec::new();
    let mut want = |word: &str| {
        if !PAGE.contains(&format!("`{word}`")) {
            missing.push(word.to_string());
        }
    };
    for graph in samples() {
        let value: Value = serde_json::from_str(&graph.to_json()).unwrap();
        let mut found = Vec::new();
        places(&value, "", &mut found);
        for place in found {
            let key = place.rsplit('/').next().unwrap();
            if !key.is_empty() && key.parse::<usize>().is_err() {
                want(key);
            }
        }
        for op in &graph.operations {
            op.operation.ports().iter().for_each(|rule| want(&rule.port.to_string()));
        }
    }
    PointwiseMode::all().for_each(|mode| want(mode.name()));
    DataType::ALL.iter().for_each(|dtype| want(dtype.numpy_name()));
    assert!(missing.is_empty(), "{missing:?}");
    // The example of the page is a graph.
    let example = PAGE.split("```json").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let graph = GraphSpec::from_json(example).unwrap();
    assert_eq!(GraphSpec::from_json(&graph.to_json()).unwrap(), graph);
    let valid = graph.validate().unwrap();
    assert!(valid.operations().any(|op| matches!(op.operation, Operation::Matmul)));
}
