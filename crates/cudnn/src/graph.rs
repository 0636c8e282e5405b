//! A graph as data, and its JSON.

use keyfold_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::{OpSpec, TensorSpec, Uid};

/// The version of the JSON that [`GraphSpec::to_json`] writes.
pub const FORMAT: u32 = 1;

/// A graph: tensors, and operations on them, in any order.
///
/// It is plain data that may say anything; [`GraphSpec::validate`](crate::GraphSpec::validate) finds mistakes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// Its name in errors and drawings; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its tensors.
    pub tensors: Vec<TensorSpec>,
    /// Its operations.
    pub operations: Vec<OpSpec>,
}

/// The graph in its file: the version comes first, and is looked at before anything else.
#[derive(Serialize)]
struct Document<'a> {
    format: u32,
    #[serde(flatten)]
    graph: &'a GraphSpec,
}

impl GraphSpec {
    /// Returns the first tensor of a number.
    pub fn tensor(&self, uid: Uid) -> Option<&TensorSpec> {
        self.tensors.iter().find(|tensor| tensor.uid == uid)
    }

    /// Returns how errors call a tensor: its name, or its number.
    pub fn label(&self, uid: Uid) -> String {
        self.tensor(uid).map_or_else(|| format!("#{uid}"), TensorSpec::label)
    }

    /// Returns the graph as JSON, in lines for people to read.
    pub fn to_json(&self) -> String {
        let document = Document { format: FORMAT, graph: self };
        serde_json::to_string_pretty(&document).expect("specs have no maps but of ports")
    }

    /// Reads a graph from JSON.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] with the line, or the place (`operations[3].inputs`), of what is wrong.
    pub fn from_json(text: &str) -> Result<GraphSpec> {
        let syntax = |error: serde_json::Error| damaged(format!("isn't JSON: {error}"));
        let mut document: serde_json::Value = serde_json::from_str(text).map_err(syntax)?;
        let object = document.as_object_mut();
        let object = object.ok_or_else(|| damaged("isn't a JSON object".to_string()))?;
        let format = object.shift_remove("format");
        match format.as_ref().and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) if format > u64::from(FORMAT) => {
                return Err(damaged(format!(
                    "has format {format}, which a later version wrote: this one reads {FORMAT}"
                )));
            }
            _ => {
                let given = format.map_or("none".to_string(), |format| format.to_string());
                return Err(damaged(format!("has no format that is known: {FORMAT}, got {given}")));
            }
        }
        serde_path_to_error::deserialize(document).map_err(|error| {
            let place = error.path().to_string();
            damaged(format!("is wrong at {place}: {}", error.inner()))
        })
    }
}

fn damaged(message: String) -> Error {
    Error::new(ErrorKind::Value, format!("the graph's text {message}"))
}
