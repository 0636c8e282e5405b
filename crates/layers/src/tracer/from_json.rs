//! Reads a graph from JSON. Errors name the place in the document.

use std::sync::Arc;

use keyfold_core::{Complex, DType, Device, Error, ErrorKind, Result, Shape, layout};
use keyfold_tensor::{BufferHandle, HostBuffer, Tensor, Value};
use serde_json::{Map, Value as Json};

use super::base64;
use super::ir::{Arg, Argument, Constant, Graph, Info, Input, Node, ValueId};
use super::to_json::{FORMAT, VERSION};

/// A part of the document and its path.
struct JsonPart<'j> {
    json: &'j Json,
    path: String,
}

impl<'j> JsonPart<'j> {
    #[cold]
    fn error(&self, problem: impl std::fmt::Display) -> Error {
        let place = if self.path.is_empty() { "the document" } else { &self.path };
        Error::new(ErrorKind::Trace, format!("no keyfold graph: {place}: {problem}"))
    }

    #[cold]
    fn expected(&self, what: &str) -> Error {
        let given = match self.json {
            Json::Null => "null".to_owned(),
            Json::Array(items) => format!("a list of {}", items.len()),
            Json::Object(fields) => {
                let names: Vec<_> = fields.keys().take(4).map(|k| format!("{k:?}")).collect();
                format!("an object with {}", names.join(", "))
            }
            Json::String(text) if text.chars().count() > 40 => "a long text".to_owned(),
            other => other.to_string(),
        };
        self.error(format!("expected {what}, not {given}"))
    }

    fn object(&self) -> Result<&'j Map<String, Json>> {
        self.json.as_object().ok_or_else(|| self.expected("an object"))
    }

    fn get(&self, name: &str) -> Result<JsonPart<'j>> {
        let Some(json) = self.object()?.get(name) else {
            return Err(self.error(format!("{name:?} is missing")));
        };
        let dot = if self.path.is_empty() { "" } else { "." };
        Ok(JsonPart { json, path: format!("{}{dot}{name}", self.path) })
    }

    fn items(&self) -> Result<Vec<JsonPart<'j>>> {
        let Some(items) = self.json.as_array() else { return Err(self.expected("a list")) };
        let items = items.iter().enumerate();
        Ok(items.map(|(i, json)| JsonPart { json, path: format!("{}[{i}]", self.path) }).collect())
    }

    fn text(&self) -> Result<&'j str> {
        self.json.as_str().ok_or_else(|| self.expected("text"))
    }

    fn number(&self) -> Result<usize> {
        let number = self.json.as_u64().and_then(|n| usize::try_from(n).ok());
        number.ok_or_else(|| self.expected("an integer, 0 or more"))
    }

    fn flag(&self) -> Result<bool> {
        self.json.as_bool().ok_or_else(|| self.expected("true or false"))
    }

    fn float(&self) -> Result<f64> {
        // Rust's parser returns the nearest float, so that printed floats are restored exactly.
        let number = match self.json {
            Json::String(text) => text.parse().ok(),
            other => other.as_f64(),
        };
        number.ok_or_else(|| self.expected("a number or its text, \"inf\" and \"NaN\" included"))
    }

    fn dtype(&self) -> Result<DType> {
        self.text()?.parse().map_err(|error: Error| self.error(error))
    }

    fn device(&self) -> Result<Device> {
        self.text()?.parse().map_err(|error: Error| self.error(error))
    }
}

/// The values that the document has defined so far.
struct Definitions {
    values: Vec<Info>,
    made: Vec<bool>,
}

impl Definitions {
    fn id(&self, at: &JsonPart<'_>) -> Result<ValueId> {
        let number = at.number()?;
        if number >= self.values.len() {
            let count = self.values.len();
            return Err(at.error(format!("there is no value {number}, only {count} of them")));
        }
        Ok(ValueId(number as u32))
    }

    /// Defines a value.
    fn define(&mut self, at: &JsonPart<'_>) -> Result<ValueId> {
        let id = self.id(at)?;
        if std::mem::replace(&mut self.made[id.index()], true) {
            return Err(at.error(format!("value {} is made twice", id.0)));
        }
        Ok(id)
    }

    /// Returns a value that must be defined.
    fn resolve(&self, at: &JsonPart<'_>) -> Result<ValueId> {
        let id = self.id(at)?;
        if self.made[id.index()] {
            return Ok(id);
        }
        Err(at.error(format!("value {} is used before it is made", id.0)))
    }

    fn arg(&mut self, at: &JsonPart<'_>, makes: bool) -> Result<Arg> {
        Ok(Arg::literal(match at.json {
            Json::Null => Value::None,
            Json::Bool(flag) => Value::Bool(*flag),
            Json::String(text) => Value::from(text.as_str()),
            Json::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Value::Int(number),
                (None, Some(number)) => Value::UInt(number),
                _ => return Err(at.expected("an integer of 64 bits, or {\"float\": ...}")),
            },
            Json::Array(_) => {
                let items = at.items()?;
                let items = items.iter().map(|item| self.arg(item, makes));
                return Ok(Arg::List(items.collect::<Result<_>>()?));
            }
            Json::Object(fields) => {
                let kind = match (fields.len(), fields.keys().next()) {
                    (1, Some(kind)) => kind.as_str(),
                    _ => "",
                };
                match kind {
                    "value" => {
                        let at = at.get("value")?;
                        let id = if makes { self.define(&at) } else { self.resolve(&at) };
                        return Ok(Arg::Value(id?));
                    }
                    "float" => Value::Float(at.get("float")?.float()?),
                    "dtype" => Value::DType(at.get("dtype")?.dtype()?),
                    "device" => Value::Device(at.get("device")?.device()?),
                    "complex" => {
                        let pair = at.get("complex")?;
                        match &pair.items()?[..] {
                            [re, im] => Value::Complex(Complex::new(re.float()?, im.float()?)),
                            _ => return Err(pair.expected("two numbers")),
                        }
                    }
                    _ => {
                        let kinds = "\"value\", \"float\", \"complex\", \"dtype\" or \"device\"";
                        return Err(at.expected(&format!("an object with one of {kinds} alone")));
                    }
                }
            }
        }))
    }

    fn args(&mut self, at: &JsonPart<'_>, makes: bool) -> Result<Vec<Arg>> {
        at.items()?.iter().map(|item| self.arg(item, makes)).collect()
    }
}

impl Graph {
    /// Reads a graph from a JSON document of [`Graph::to_json`], in this version or an earlier one.
    ///
    /// # Errors
    /// [`ErrorKind::Trace`], with the place in the document, for invalid JSON, another kind of
    /// document, or inconsistent parts.
    pub fn from_json(text: &str) -> Result<Graph> {
        let json: Json = serde_json::from_str(text).map_err(|error| {
            Error::new(ErrorKind::Trace, format!("no keyfold graph: not JSON: {error}"))
        })?;
        let document = JsonPart { json: &json, path: String::new() };
        let format = document.get("format")?;
        if format.text()? != FORMAT {
            return Err(format.expected(&format!("{FORMAT:?}")));
        }
        let version = document.get("version")?;
        if !(1..=VERSION).contains(&(version.number()? as u64)) {
            return Err(version.error(format!(
                "version {} is unknown here, where the newest is {VERSION}: read it with a newer \
                 keyfold",
                version.json
            )));
        }
        let values = document.get("values")?.items()?;
        let values = values.iter().map(info).collect::<Result<Vec<_>>>()?;
        let mut made = Definitions { made: vec![false; values.len()], values };
        let mut inputs = Vec::new();
        for at in document.get("inputs")?.items()? {
            let (id, name) = (made.define(&at.get("value")?)?, at.get("name")?.text()?.to_owned());
            inputs.push(Input { id, name });
        }
        let mut constants = Vec::new();
        for at in document.get("constants")?.items()? {
            let id = made.define(&at.get("value")?)?;
            let tensor = constant(&at.get("data")?, &made.values[id.index()])?;
            constants.push(Constant { id, value: Value::Tensor(tensor) });
        }
        let mut nodes = Vec::new();
        for at in document.get("nodes")?.items()? {
            nodes.push(node(&at, &mut made)?);
        }
        let outputs = made.args(&document.get("outputs")?, false)?;
        if let Some(id) = made.made.iter().position(|made| !made) {
            return Err(document.get("values")?.error(format!("value {id} is never made")));
        }
        let extra = document.get("extra")?.json.clone();
        Ok(Graph { values: made.values, inputs, constants, nodes, outputs, extra })
    }
}

fn info(at: &JsonPart<'_>) -> Result<Info> {
    let dtype = at.get("dtype")?;
    let dtype = if dtype.json.is_null() { None } else { Some(dtype.dtype()?) };
    let shape = at.get("shape")?;
    let sizes = shape.items()?.iter().map(JsonPart::number).collect::<Result<Vec<_>>>()?;
    let sizes = Shape::try_from(sizes).map_err(|error| shape.error(error))?;
    layout::numel(&sizes, dtype.map_or(1, DType::size)).map_err(|error| shape.error(error))?;
    Ok(Info { dtype, shape: sizes, device: at.get("device")?.device()? })
}

fn node(at: &JsonPart<'_>, made: &mut Definitions) -> Result<Node> {
    let operator = at.get("operator")?.text()?.to_owned();
    let mut args = Vec::new();
    for at in at.get("args")?.items()? {
        args.push(Argument {
            name: at.get("name")?.text()?.to_owned(),
            arg: made.arg(&at.get("arg")?, false)?,
            is_default: at.get("default")?.flag()?,
            written: at.get("written")?.flag()?,
        });
    }
    let effects = at.get("effects")?.flag()?;
    let results = made.args(&at.get("results")?, true)?;
    Ok(Node { operator, args, results, effects })
}

fn constant(at: &JsonPart<'_>, info: &Info) -> Result<Tensor> {
    let Some(dtype) = info.dtype else { return Err(at.error("a constant needs a dtype")) };
    let tensor = match (info.device, at.json) {
        (Device::META, Json::Null) => Tensor::meta(&info.shape, dtype),
        (Device::CPU, Json::String(text)) => {
            let Some(bytes) = base64::decode(text) else { return Err(at.error("no base64 text")) };
            let numel: usize = info.shape.iter().product();
            if bytes.len() != numel * dtype.size() {
                return Err(at.error(format!(
                    "{} bytes are no {info}, which has {}",
                    bytes.len(),
                    numel * dtype.size()
                )));
            }
            if dtype == DType::Bool && bytes.iter().any(|byte| *byte > 1) {
                return Err(at.error("a bool is a byte 0 or 1"));
            }
            whole(&bytes, info, dtype)
        }
        (device, _) => {
            return Err(
                at.expected(&format!("base64 text for a constant on {device}, cpu or meta"))
            );
        }
    };
    tensor.map_err(|error| at.error(error))
}

fn whole(bytes: &[u8], info: &Info, dtype: DType) -> Result<Tensor> {
    let buffer = BufferHandle::new(Arc::new(HostBuffer::copy_of(bytes)?), dtype)?;
    let strides = layout::contiguous_strides(&info.shape);
    Tensor::from_parts(buffer, info.shape.clone(), strides, 0)
}
