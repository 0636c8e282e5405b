//! A value type like a tensor library's.

use std::sync::atomic::{AtomicU64, Ordering};

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Literal, Return, Type};
use keyfold_dispatch::{Arg, DispatchKeySet, Ret, Tag, Value};

/// The parts of a tensor that a call reads.
#[derive(Debug)]
pub(crate) struct Tensor {
    keys: AtomicU64,
    device: Device,
    dims: usize,
}

impl Tensor {
    pub(crate) fn new(keys: DispatchKeySet) -> Tensor {
        Tensor { keys: AtomicU64::new(keys.bits()), device: Device::CPU, dims: 2 }
    }

    #[inline]
    pub(crate) fn keys(&self) -> DispatchKeySet {
        DispatchKeySet::from_bits(self.keys.load(Ordering::Relaxed))
    }

    #[inline]
    fn tag(&self) -> Tag {
        Tag::new(self.keys(), self.device, self.dims == 0)
    }
}

#[derive(Debug)]
pub(crate) enum Val {
    None,
    Int(i64),
    Tensor(Tensor),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ref<'a> {
    None,
    Int(i64),
    Tensor(&'a Tensor),
}

impl Value for Val {
    type Ref<'a> = Ref<'a>;

    fn shorten<'short, 'long: 'short>(value: Ref<'long>) -> Ref<'short> {
        value
    }

    #[inline]
    fn as_ref(&self) -> Ref<'_> {
        match self {
            Val::None => Ref::None,
            Val::Int(i) => Ref::Int(*i),
            Val::Tensor(tensor) => Ref::Tensor(tensor),
        }
    }

    fn from_ref(value: Ref<'_>) -> Result<Val> {
        Ok(match value {
            Ref::None => Val::None,
            Ref::Int(i) => Val::Int(i),
            Ref::Tensor(tensor) => Val::Tensor(Tensor::new(tensor.keys())),
        })
    }

    #[inline]
    fn tag(value: Ref<'_>) -> Tag {
        match value {
            Ref::Tensor(tensor) => tensor.tag(),
            Ref::None | Ref::Int(_) => Tag::NONE,
        }
    }

    #[inline]
    fn conforms(value: Ref<'_>, ty: &Type) -> bool {
        match (ty, value) {
            (Type::Tensor, Ref::Tensor(_)) | (Type::Int, Ref::Int(_)) => true,
            (Type::Optional(_), Ref::None) => true,
            (Type::Optional(inner), value) => Val::conforms(value, inner),
            _ => false,
        }
    }

    #[inline]
    fn is_none(value: Ref<'_>) -> bool {
        matches!(value, Ref::None)
    }

    fn describe(value: Ref<'_>) -> String {
        format!("{value:?}")
    }

    fn from_literal(literal: &Literal, _ty: &Type) -> Option<Val> {
        match literal {
            Literal::None => Some(Val::None),
            Literal::Int(i) => Some(Val::Int(*i)),
            _ => None,
        }
    }

    fn tuple(_items: Vec<Val>) -> Val {
        Val::None
    }

    fn as_tuple(&self) -> Option<&[Val]> {
        None
    }
}

#[cold]
fn wrong<T>(wanted: &str, given: Ref<'_>) -> Result<T> {
    Err(Error::new(ErrorKind::Binding, format!("wanted {wanted}, not {given:?}")))
}

impl Arg<Val> for &'static Tensor {
    type Arg<'a> = &'a Tensor;
    const NAME: &'static str = "&Tensor";

    fn accepts(ty: &Type) -> bool {
        *ty == Type::Tensor
    }

    #[inline]
    fn tag(arg: &&Tensor) -> Tag {
        Tensor::tag(arg)
    }

    #[inline]
    fn unbox<'a>(value: Ref<'a>) -> Result<&'a Tensor>
    where
        'a: 'a,
    {
        match value {
            Ref::Tensor(tensor) => Ok(tensor),
            other => wrong("a tensor", other),
        }
    }

    #[inline]
    fn boxed<'a>(arg: &'a &Tensor) -> Ref<'a> {
        Ref::Tensor(arg)
    }
}

impl Ret<Val> for i64 {
    const NAME: &'static str = "i64";

    fn accepts(returns: &[Return]) -> bool {
        matches!(returns, [only] if only.ty == Type::Int)
    }

    #[inline]
    fn into_value(self) -> Val {
        Val::Int(self)
    }

    #[inline]
    fn from_value(value: Val) -> Result<i64> {
        match value {
            Val::Int(i) => Ok(i),
            other => wrong("an int", other.as_ref()),
        }
    }
}
