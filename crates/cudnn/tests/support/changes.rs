//! Valid graphs with changes that bytes say, for tests and for fuzzing.

use std::sync::OnceLock;

use keyfold_cudnn::{GraphSpec, PointwiseMode};
use serde_json::{Value, json};

use super::samples;

/// Returns the text of a valid graph, the first byte's, with changes of three bytes each.
pub(crate) fn changed(data: &[u8]) -> String {
    static GRAPHS: OnceLock<Vec<Value>> = OnceLock::new();
    let graphs = GRAPHS.get_or_init(|| {
        let parse = |graph: &GraphSpec| serde_json::from_str(&graph.to_json()).expect("JSON");
        samples::samples().iter().map(parse).collect()
    });
    let (&first, changes) = data.split_first().unwrap_or((&0, &[]));
    let mut graph = graphs[usize::from(first) % graphs.len()].clone();
    for change in changes.chunks_exact(3).take(8) {
        let mut places = Vec::new();
        collect(&graph, String::new(), &mut places);
        if places.is_empty() {
            break;
        }
        let place = usize::from(change[0]) | usize::from(change[1]) << 8;
        let place = places[place % places.len()].clone();
        alter(&mut graph, &place, change[2]);
    }
    graph.to_string()
}

/// Collects the places of all values but the whole, as JSON pointers.
fn collect(value: &Value, place: String, places: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                places.push(format!("{place}/{key}"));
                collect(inner, format!("{place}/{key}"), places);
            }
        }
        Value::Array(list) => {
            for (index, inner) in list.iter().enumerate() {
                places.push(format!("{place}/{index}"));
                collect(inner, format!("{place}/{index}"), places);
            }
        }
        _ => {}
    }
}

/// Changes a value: to its neighbour, to another one of its kind, to any one; doubles it; leaves it out.
fn alter(graph: &mut Value, place: &str, how: u8) {
    let number = how >> 3;
    let (parent, key) = place.rsplit_once('/').expect("a pointer has a slash");
    match how & 7 {
        kind @ (0 | 1) => {
            let parent = graph.pointer_mut(parent).expect("the parent is there");
            match parent {
                Value::Array(list) => {
                    let index: usize = key.parse().expect("an index");
                    if kind == 0 {
                        list.remove(index);
                    } else {
                        list.insert(index, list[index].clone());
                    }
                }
                Value::Object(map) => {
                    let value = map.remove(key).expect("the key is there");
                    // As another port, or under another name.
                    if kind == 1 {
                        let names = ["x", "y", "b", "t", "dy", "dx", "w", "index", "scale", "bias"];
                        map.insert(names[usize::from(number) % names.len()].to_string(), value);
                    }
                }
                _ => unreachable!("parents hold values"),
            }
        }
        2 => *graph.pointer_mut(place).expect("it is there") = any_value(number),
        _ => {
            let value = graph.pointer_mut(place).expect("it is there");
            match value {
                Value::Number(n) => {
                    let n = n.as_i64().unwrap_or(1);
                    *value = [
                        json!(n.wrapping_add(1)),
                        json!(n.wrapping_sub(1)),
                        json!(n.wrapping_mul(2)),
                        json!(n / 2),
                        json!(1),
                        json!(i64::from(number)),
                    ][usize::from(number) % 6]
                        .clone();
                }
                Value::String(_) => {
                    let dtypes = keyfold_cudnn::DataType::ALL.map(|dtype| dtype.numpy_name());
                    let modes = PointwiseMode::all().map(PointwiseMode::name);
                    let names: Vec<&str> = dtypes.into_iter().chain(modes).collect();
                    *value = json!(names[usize::from(how) % names.len()]);
                }
                Value::Bool(flag) => *value = json!(!*flag),
                _ => {}
            }
        }
    }
}

fn any_value(number: u8) -> Value {
    let values = [
        json!(null),
        json!(0),
        json!(-1),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1_i64 << 31),
        json!(1_i64 << 62),
        json!(0.5),
        json!(1e300),
        json!("inf"),
        json!("nan"),
        json!(""),
        json!([]),
        json!([1]),
        json!([1, 1, 1, 1]),
        json!([2, 3, 4]),
        json!([1, 2]),
        json!({}),
        json!(true),
        json!("reshape"),
        json!("matmul"),
        json!("softmax"),
        json!({"pointwise": {"mode": "add"}}),
    ];
    values[usize::from(number) % values.len()].clone()
}
