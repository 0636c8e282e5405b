//! The messages between the process and its helper.

use std::io::{self, Read, Write};

use keyfold_core::{Error, ErrorKind};
use keyfold_cudnn::{GraphSpec, Policy};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::planning::{PlanDocument, RankedEngine};

/// The most that one frame holds, in bytes: a plan has some hundred thousand.
const LONGEST: u32 = 64 << 20;

/// A question to the helper.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// A plan of a graph.
    Plan { graph: GraphSpec, properties: String, policy: Policy },
    /// Whether libcudnn takes its own texts of plans.
    Reload { texts: Vec<String>, properties: String },
    /// All engines of a graph, at most so many, compiled or only ranked.
    Rank { graph: GraphSpec, properties: String, policy: Policy, limit: usize, compile: bool },
}

/// A message of the helper's.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Response {
    /// It has loaded this version of cuDNN.
    Ready { version: String },
    /// Its next step.
    Step { done: usize, total: usize, what: String },
    /// The plan.
    Plan(Box<PlanDocument>),
    /// It takes them.
    Reloaded,
    /// The engines.
    Ranked(Vec<RankedEngine>),
    /// Why there is none.
    Failed(Failure),
}

/// An error, as it goes from process to process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    kind: String,
    message: String,
}

/// The kinds of errors that a helper sends; others arrive as [`ErrorKind::Library`].
const KINDS: [ErrorKind; 7] = [
    ErrorKind::NotSupported,
    ErrorKind::Value,
    ErrorKind::Shape,
    ErrorKind::DType,
    ErrorKind::Device,
    ErrorKind::Memory,
    ErrorKind::Library,
];

impl Failure {
    pub(crate) fn of(error: &Error) -> Failure {
        Failure { kind: format!("{:?}", error.kind()), message: error.message().to_string() }
    }

    pub(crate) fn into_error(self) -> Error {
        let kind = KINDS.into_iter().find(|kind| format!("{kind:?}") == self.kind);
        Error::new(kind.unwrap_or(ErrorKind::Library), self.message)
    }
}

/// Returns the frame of a message.
pub(crate) fn frame(what: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, what)?;
    let length = u32::try_from(frame.len() - 4).ok().filter(|&length| length <= LONGEST);
    let length = length.ok_or_else(|| io::Error::other("a message of more than 64 MiB"))?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Writes a frame.
pub(crate) fn write(to: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    to.write_all(&frame(what)?)?;
    to.flush()
}

/// Reads a frame; `None` where the input ends before one.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::Error::other(format!("a message of {length} bytes, above {LONGEST}")));
    }
    let mut text = vec![0; length as usize];
    from.read_exact(&mut text)?;
    // As text, as plans are read from files: JSON's readers are compiled once for each kind of input.
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    Ok(Some(serde_json::from_str(&text)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_and_damaged_ones_are_errors() {
        let mut bytes = Vec::new();
        write(&mut bytes, &Response::Ready { version: "9.27.0".into() }).unwrap();
        let read_back: Option<Response> = read(&mut &bytes[..]).unwrap();
        assert!(matches!(read_back, Some(Response::Ready { version }) if version == "9.27.0"));
        assert!(read::<Response>(&mut &bytes[..0]).unwrap().is_none());
        assert!(read::<Response>(&mut &bytes[..9]).is_err());
        assert!(read::<Response>(&mut &b"\xff\xff\xff\xffgarbage"[..]).is_err());
        assert!(read::<Response>(&mut &b"\x04\x00\x00\x00oops"[..]).is_err());
    }
}
