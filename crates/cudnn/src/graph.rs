//! A graph as data.

use keyfold_core::Result;
use serde::{Deserialize, Serialize};

use crate::{DataType, Document, OpSpec, TensorSpec, Uid};

/// A graph: tensors, and operations on them, in any order.
///
/// It is plain data that may say anything; [`GraphSpec::validate`](crate::GraphSpec::validate) finds mistakes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSpec {
    /// Its name in errors and drawings; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The dtypes that a [`Graph`](crate::Graph) gives what is added. They change nothing that is
    /// there, and are no part of keys and signatures.
    #[serde(default)]
    pub defaults: Defaults,
    /// Its tensors.
    pub tensors: Vec<TensorSpec>,
    /// Its operations.
    pub operations: Vec<OpSpec>,
}

/// The dtypes of tensors and operations that are added to a graph without one of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// The dtype of tensors with memory.
    pub io: Option<DataType>,
    /// The dtype of virtual tensors.
    pub intermediate: Option<DataType>,
    /// The dtype that operations compute in.
    pub compute: Option<DataType>,
}

impl Default for Defaults {
    /// Virtual tensors and computations are float32; tensors with memory have no dtype.
    fn default() -> Defaults {
        let f32 = Some(DataType::F32);
        Defaults { io: None, intermediate: f32, compute: f32 }
    }
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

    /// Returns the graph as JSON, in lines for people to read; see [`Document::to_json`].
    pub fn to_json(&self) -> String {
        Document::to_json(self)
    }

    /// Reads a graph from JSON.
    ///
    /// # Errors
    /// Those of [`Document::from_json`].
    pub fn from_json(text: &str) -> Result<GraphSpec> {
        Document::from_json(text)
    }
}

impl Document for GraphSpec {
    const NAME: &str = "graph";
}
