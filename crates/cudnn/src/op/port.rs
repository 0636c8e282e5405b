//! Ports: the names by which operations read and write tensors, and which ones each operation has.

use std::fmt;
use std::str::FromStr;

use keyfold_core::{Error, ErrorKind, Result};
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Serialize};

use super::pointwise::Arity;
use super::{NormMode, NormPhase, Operation, ResampleMode};

/// The part that a tensor plays in an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "Operation::ports and the builder's methods document them")]
pub enum Port {
    X,
    W,
    Y,
    Dx,
    Dw,
    Dy,
    A,
    B,
    C,
    T,
    Index,
    Scale,
    Bias,
    Epsilon,
    Momentum,
    Mean,
    InvVariance,
    RunningMean,
    RunningVariance,
    NextRunningMean,
    NextRunningVariance,
    Dscale,
    Dbias,
    MOverride,
    NOverride,
    KOverride,
    Q,
    K,
    V,
    O,
    Do,
    Dq,
    Dk,
    Dv,
    Stats,
    AttnScale,
    SeqLenQ,
    SeqLenKv,
    Seed,
    Offset,
    DescaleQ,
    DescaleK,
    DescaleV,
    DescaleS,
    ScaleS,
    ScaleO,
    AmaxS,
    AmaxO,
    Sum,
    SqSum,
    Token,
    Weight,
    FirstTokenOffset,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name in JSON: one word of the derived serializer.
        self.serialize(f)
    }
}

impl FromStr for Port {
    type Err = Error;

    /// Reads the name of a port in JSON.
    fn from_str(name: &str) -> Result<Port> {
        let name: StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
        Port::deserialize(name).map_err(|error| Error::new(ErrorKind::Value, error.to_string()))
    }
}

/// How many tensors a port takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// One.
    One,
    /// One or none.
    Optional,
    /// One or more, in order.
    Several,
}

/// A port that an operation has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRule {
    /// The port.
    pub port: Port,
    /// Whether the operation writes the tensor there.
    pub is_output: bool,
    /// How many tensors are there.
    pub count: Count,
}

const fn reads(port: Port) -> PortRule {
    PortRule { port, is_output: false, count: Count::One }
}

const fn may_read(port: Port) -> PortRule {
    PortRule { port, is_output: false, count: Count::Optional }
}

const fn writes(port: Port) -> PortRule {
    PortRule { port, is_output: true, count: Count::One }
}

const fn may_write(port: Port) -> PortRule {
    PortRule { port, is_output: true, count: Count::Optional }
}

impl Operation {
    /// Returns the ports that it has with its attributes, in the order that canonical graphs list them in.
    pub fn ports(&self) -> Vec<PortRule> {
        use Port::*;
        match self {
            Operation::ConvFprop(_) => vec![reads(X), reads(W), writes(Y)],
            Operation::ConvDgrad(_) => vec![reads(Dy), reads(W), writes(Dx)],
            Operation::ConvWgrad(_) => vec![reads(X), reads(Dy), writes(Dw)],
            Operation::Pointwise(pointwise) => match pointwise.mode.arity() {
                Arity::One => vec![reads(X), writes(Y)],
                Arity::Two => vec![reads(X), reads(B), writes(Y)],
                Arity::Three => vec![reads(X), reads(B), reads(T), writes(Y)],
                Arity::Backward => vec![reads(Dy), reads(X), writes(Dx)],
            },
            Operation::Resample(resample) => match resample.mode {
                ResampleMode::Maxpool => vec![reads(X), writes(Y), may_write(Index)],
                _ => vec![reads(X), writes(Y)],
            },
            Operation::ResampleBackward(resample) => match resample.mode {
                // The index of the forward; or its input and output, from which the index is
                // computed.
                ResampleMode::Maxpool => {
                    vec![reads(Dy), may_read(Index), may_read(X), may_read(Y), writes(Dx)]
                }
                // The forward's input says the sizes of its gradient.
                _ => vec![reads(Dy), may_read(X), may_read(Y), writes(Dx)],
            },
            Operation::Norm(norm) => norm_ports(norm.mode, norm.phase),
            Operation::NormBackward(norm) => {
                let rms = norm.mode == NormMode::RmsNorm;
                let mut ports = vec![reads(X), reads(Dy), reads(Scale)];
                ports.extend((!rms).then_some(reads(Mean)));
                ports.extend([reads(InvVariance), may_read(Epsilon), writes(Dx), writes(Dscale)]);
                ports.push(if rms { may_write(Dbias) } else { writes(Dbias) });
                ports
            }
            Operation::Matmul => vec![
                reads(A),
                reads(B),
                may_read(MOverride),
                may_read(NOverride),
                may_read(KOverride),
                writes(C),
            ],
            Operation::Reduction(_)
            | Operation::Reshape
            | Operation::Transpose(_)
            | Operation::Slice(_) => vec![reads(X), writes(Y)],
            Operation::Concatenate(_) => {
                vec![PortRule { port: X, is_output: false, count: Count::Several }, writes(Y)]
            }
            Operation::Softmax => vec![reads(X), writes(Y), may_write(Stats)],
            Operation::DiagonalBandMask(_) => vec![reads(X), reads(B), writes(Y)],
            Operation::Sdpa(_) => [reads(Q), reads(K), reads(V)]
                .into_iter()
                .chain([AttnScale, Bias, SeqLenQ, SeqLenKv, Seed, Offset].map(may_read))
                .chain([DescaleQ, DescaleK, DescaleV, DescaleS, ScaleS, ScaleO].map(may_read))
                .chain([writes(O)])
                .chain([Stats, AmaxS, AmaxO].map(may_write))
                .collect(),
            Operation::SdpaBackward(_) => [Q, K, V, O, Do, Stats]
                .map(reads)
                .into_iter()
                .chain([AttnScale, Bias, SeqLenQ, SeqLenKv, Seed, Offset].map(may_read))
                .chain([Dq, Dk, Dv].map(writes))
                .chain([may_write(Dbias)])
                .collect(),
            Operation::GenStats => vec![reads(X), writes(Sum), writes(SqSum)],
            Operation::GroupedMatmul => {
                vec![reads(Token), reads(Weight), reads(FirstTokenOffset), writes(Y)]
            }
        }
    }
}

fn norm_ports(mode: NormMode, phase: NormPhase) -> Vec<PortRule> {
    use Port::*;
    if mode == NormMode::BatchNorm && phase == NormPhase::Inference {
        return [X, Mean, InvVariance, Scale, Bias]
            .map(reads)
            .into_iter()
            .chain([writes(Y)])
            .collect();
    }
    let rms = mode == NormMode::RmsNorm;
    let mut ports = vec![reads(X), reads(Scale), if rms { may_read(Bias) } else { reads(Bias) }];
    ports.push(reads(Epsilon));
    if mode == NormMode::BatchNorm {
        ports.extend([Momentum, RunningMean, RunningVariance].map(may_read));
    }
    ports.push(writes(Y));
    if phase != NormPhase::Inference {
        ports.extend((!rms).then_some(writes(Mean)));
        ports.push(writes(InvVariance));
    }
    if mode == NormMode::BatchNorm {
        ports.extend([NextRunningMean, NextRunningVariance].map(may_write));
    }
    ports
}

/// JSON of an operation's tensors: an object from ports to numbers, lists where a port has several.
pub(super) mod json {
    use std::fmt;

    use serde::de::{MapAccess, Visitor};
    use serde::ser::SerializeMap;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Port;
    use crate::Uid;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged, expecting = "a port has the uid of a tensor, or a list of uids")]
    enum Uids {
        One(Uid),
        Several(Vec<Uid>),
    }

    pub(in crate::op) fn serialize<S: Serializer>(
        list: &[(Port, Uid)],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut ports: Vec<Port> = Vec::new();
        for (port, _) in list {
            if !ports.contains(port) {
                ports.push(*port);
            }
        }
        let mut map = serializer.serialize_map(Some(ports.len()))?;
        for port in ports {
            let of_port = list.iter().filter(|entry| entry.0 == port).map(|entry| entry.1);
            let uids: Vec<Uid> = of_port.collect();
            let uids = if let [one] = uids[..] { Uids::One(one) } else { Uids::Several(uids) };
            map.serialize_entry(&port, &uids)?;
        }
        map.end()
    }

    pub(in crate::op) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(Port, Uid)>, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Vec<(Port, Uid)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from ports to numbers of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some((port, uids)) = map.next_entry::<Port, Uids>()? {
                    match uids {
                        Uids::One(uid) => list.push((port, uid)),
                        Uids::Several(uids) => list.extend(uids.into_iter().map(|uid| (port, uid))),
                    }
                }
                Ok(list)
            }
        }
        deserializer.deserialize_map(Reader)
    }
}
