//! Writes a graph as JSON.
//!
//! One document: `format`, `version`, the values in order with dtype, shape and device, the inputs
//! and constants by their values' numbers (a constant's elements as base64 of their bytes in
//! row-major order, little-endian), the calls, the outputs, and the binding's data. An argument is
//! `null`, a bool, an integer, text, a list, or an object with its type: `{"value": 3}`, `{"float":
//! "0.5"}`, `{"complex": ["1.0", "nan"]}`, `{"dtype": "float32"}`, `{"device": "cpu"}`. Floats are
//! text, so that they are restored exactly, including infinities and NaN.

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::Value as _;
use keyfold_tensor::{HostBuffer, Tensor, Value};
use serde_json::{Value as Json, json};

use super::base64;
use super::ir::{Arg, Constant, Graph, Info, Node};
use super::print::ValueNames;

/// The document's `format`.
pub(super) const FORMAT: &str = "keyfold-graph";

/// The version that is written, and the newest that can be read.
pub(super) const VERSION: u64 = 1;

impl Graph {
    /// Returns the graph as a JSON document, with the constants' present values.
    ///
    /// # Errors
    /// [`ErrorKind::Trace`] for a constant or an argument that is an object of another language,
    /// and for memory that the host can't access.
    pub fn to_json(&self) -> Result<String> {
        if cfg!(target_endian = "big") {
            return Err(Error::new(
                ErrorKind::NotSupported,
                "graphs are written on machines whose bytes are in little-endian order",
            ));
        }
        let names = ValueNames::of(self);
        let constants = self.constants.iter().map(|constant| {
            written(self, constant).map_err(|error| {
                let name = names.get(constant.id);
                Error::new(ErrorKind::Trace, format!("to_json(): constant {name}: {error}"))
            })
        });
        let nodes = self.nodes.iter().map(|node| {
            node_json(node).map_err(|error| {
                let title = format!("{} = {}", names.results(&node.results), node.operator);
                Error::new(ErrorKind::Trace, format!("to_json(): {title}: {error}"))
            })
        });
        let inputs = self.inputs.iter().map(|i| json!({"value": i.id.0, "name": i.name}));
        let document = json!({
            "format": FORMAT,
            "version": VERSION,
            "values": self.values.iter().map(info_json).collect::<Vec<_>>(),
            "inputs": inputs.collect::<Vec<_>>(),
            "constants": constants.collect::<Result<Vec<_>>>()?,
            "nodes": nodes.collect::<Result<Vec<_>>>()?,
            "outputs": self.outputs.iter().map(arg_json).collect::<Result<Vec<_>>>()?,
            "extra": self.extra,
        });
        Ok(document.to_string())
    }
}

fn info_json(info: &Info) -> Json {
    let shape: Vec<_> = info.shape.iter().collect();
    let dtype = info.dtype.map(|dtype| dtype.name());
    json!({"dtype": dtype, "shape": shape, "device": info.device.to_string()})
}

fn written(graph: &Graph, constant: &Constant) -> Result<Json> {
    let tensor = constant.tensor()?;
    // An in-place write may have changed shape and dtype since the recording.
    if Info::of(tensor) != *graph.info(constant.id) {
        return Err(Error::new(ErrorKind::Trace, "it isn't the tensor any more that it was"));
    }
    if let Device::META = tensor.device() {
        return Ok(json!({"value": constant.id.0, "data": null}));
    }
    Ok(json!({"value": constant.id.0, "data": base64::encode(&bytes_of(tensor)?)}))
}

/// Returns the elements' bytes in row-major order.
fn bytes_of(tensor: &Tensor) -> Result<Vec<u8>> {
    let copy = tensor.detach().copy()?;
    let buffer = copy.buffer().downcast_ref::<HostBuffer>().ok_or_else(|| {
        let device = copy.device();
        Error::new(ErrorKind::Trace, format!("its memory on {device} isn't the host's"))
    })?;
    Ok(buffer.as_bytes()[..copy.nbytes()].to_vec())
}

fn node_json(node: &Node) -> Result<Json> {
    let args = node.args.iter().map(|argument| {
        Ok(json!({
            "name": argument.name,
            "arg": arg_json(&argument.arg)?,
            "default": argument.is_default,
            "written": argument.written,
        }))
    });
    Ok(json!({
        "operator": node.operator,
        "args": args.collect::<Result<Vec<_>>>()?,
        "results": node.results.iter().map(arg_json).collect::<Result<Vec<_>>>()?,
        "effects": node.effects,
    }))
}

fn arg_json(arg: &Arg) -> Result<Json> {
    let value = match arg {
        Arg::Value(id) => return Ok(json!({"value": id.0})),
        Arg::List(items) => return items.iter().map(arg_json).collect(),
        Arg::Literal(value) => value,
    };
    Ok(match &**value {
        Value::None => Json::Null,
        Value::Bool(flag) => json!(flag),
        Value::Int(number) => json!(number),
        Value::UInt(number) => json!(number),
        Value::Float(number) => json!({"float": float_text(*number)}),
        Value::Complex(c) => json!({"complex": [float_text(c.re), float_text(c.im)]}),
        Value::Str(text) => json!(&**text),
        Value::DType(dtype) => json!({"dtype": dtype.name()}),
        Value::Device(device) => json!({"device": device.to_string()}),
        Value::List(items) | Value::Tuple(items) => {
            let items = items.iter().map(|item| arg_json(&Arg::literal(item.clone())));
            items.collect::<Result<_>>()?
        }
        Value::Tensor(_) | Value::Foreign(_) | Value::Argument(_) => {
            let what = Value::describe((**value).as_ref());
            return Err(Error::new(
                ErrorKind::Trace,
                format!("{what} is an object of the language that made it and has no JSON"),
            ));
        }
    })
}

/// Returns the shortest text that parses to the same float.
fn float_text(number: f64) -> String {
    format!("{number:?}")
}
