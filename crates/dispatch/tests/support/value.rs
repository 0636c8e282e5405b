//! The value type of the tests.

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Literal, Return, Type};
use keyfold_dispatch::{Arg, DispatchKeySet, Ret, Tag, Value};

/// A word with keys and a device, in place of a schema's `Tensor`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) keys: DispatchKeySet,
    pub(crate) device: Device,
    pub(crate) zero_dim: bool,
}

impl Word {
    /// On the first device of its backend's type.
    pub(crate) fn new(text: &str, keys: impl Into<DispatchKeySet>) -> Word {
        let keys = keys.into();
        let kind = keys.backend().and_then(|k| k.device_type());
        let device = kind.map_or(Device::CPU, |kind| Device::new(kind, 0));
        Word { text: text.to_owned(), keys, device, zero_dim: false }
    }

    pub(crate) fn on(mut self, device: Device) -> Word {
        self.device = device;
        self
    }

    pub(crate) fn zero_dim(mut self) -> Word {
        self.zero_dim = true;
        self
    }

    fn tag(&self) -> Tag {
        Tag::new(self.keys, self.device, self.zero_dim)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Val {
    Nil,
    Word(Word),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Val>),
    Tuple(Vec<Val>),
}

/// A borrowed [`Val`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ref<'a> {
    Nil,
    Word(&'a Word),
    Int(i64),
    Float(f64),
    Text(&'a str),
    List(&'a [Val]),
    Tuple(&'a [Val]),
}

impl Val {
    pub(crate) fn r(&self) -> Ref<'_> {
        match self {
            Val::Nil => Ref::Nil,
            Val::Word(word) => Ref::Word(word),
            Val::Int(i) => Ref::Int(*i),
            Val::Float(x) => Ref::Float(*x),
            Val::Text(text) => Ref::Text(text),
            Val::List(items) => Ref::List(items),
            Val::Tuple(items) => Ref::Tuple(items),
        }
    }
}

impl Value for Val {
    type Ref<'a> = Ref<'a>;

    fn shorten<'short, 'long: 'short>(value: Ref<'long>) -> Ref<'short> {
        value
    }

    fn as_ref(&self) -> Ref<'_> {
        self.r()
    }

    fn from_ref(value: Ref<'_>) -> Result<Val> {
        Ok(match value {
            Ref::Nil => Val::Nil,
            Ref::Word(word) => Val::Word(word.clone()),
            Ref::Int(i) => Val::Int(i),
            Ref::Float(x) => Val::Float(x),
            Ref::Text(text) => Val::Text(text.to_owned()),
            Ref::List(items) => Val::List(items.to_vec()),
            Ref::Tuple(items) => Val::Tuple(items.to_vec()),
        })
    }

    fn tag(value: Ref<'_>) -> Tag {
        match value {
            Ref::Word(word) => word.tag(),
            Ref::List(items) => {
                items.iter().fold(Tag::NONE, |tag, item| tag.merge(Val::tag(item.r())))
            }
            _ => Tag::NONE,
        }
    }

    fn visit_tags(value: Ref<'_>, visit: &mut dyn FnMut(&str, Tag)) {
        match value {
            Ref::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    visit(&format!("[{i}]"), Val::tag(item.r()));
                }
            }
            other => visit("", Val::tag(other)),
        }
    }

    fn conforms(value: Ref<'_>, ty: &Type) -> bool {
        match (ty, value) {
            (Type::Optional(_), Ref::Nil)
            | (Type::Tensor, Ref::Word(_))
            | (Type::Int, Ref::Int(_))
            | (Type::Float, Ref::Float(_) | Ref::Int(_))
            | (Type::Scalar, Ref::Float(_) | Ref::Int(_))
            | (Type::Str, Ref::Text(_)) => true,
            (Type::Optional(inner), value) => Val::conforms(value, inner),
            (Type::List(inner, _), Ref::List(items)) => {
                items.iter().all(|item| Val::conforms(item.r(), inner))
            }
            _ => false,
        }
    }

    fn is_none(value: Ref<'_>) -> bool {
        matches!(value, Ref::Nil)
    }

    fn describe(value: Ref<'_>) -> String {
        match value {
            Ref::Nil => "None".to_owned(),
            Ref::Word(word) => format!("the word {:?}", word.text),
            Ref::Int(i) => format!("int {i}"),
            Ref::Float(x) => format!("float {x}"),
            Ref::Text(text) => format!("str {text:?}"),
            Ref::List(items) => format!("a list of {}", items.len()),
            Ref::Tuple(items) => format!("a tuple of {}", items.len()),
        }
    }

    fn from_literal(literal: &Literal, _ty: &Type) -> Option<Val> {
        Some(match literal {
            Literal::None => Val::Nil,
            Literal::Int(i) => Val::Int(*i),
            Literal::Float(x) => Val::Float(*x),
            Literal::Str(text) => Val::Text(text.clone()),
            _ => return None,
        })
    }

    fn tuple(items: Vec<Val>) -> Val {
        Val::Tuple(items)
    }

    fn as_tuple(&self) -> Option<&[Val]> {
        match self {
            Val::Tuple(items) => Some(items),
            _ => None,
        }
    }
}

fn wrong<T>(wanted: &str, given: Ref<'_>) -> Result<T> {
    Err(Error::new(ErrorKind::Binding, format!("wanted {wanted}, not {}", Val::describe(given))))
}

impl Arg<Val> for &'static Word {
    type Arg<'a> = &'a Word;
    const NAME: &'static str = "&Word";

    fn accepts(ty: &Type) -> bool {
        *ty == Type::Tensor
    }

    fn tag(arg: &&Word) -> Tag {
        Word::tag(arg)
    }

    fn unbox<'a>(value: Ref<'a>) -> Result<&'a Word>
    where
        'a: 'a,
    {
        match value {
            Ref::Word(word) => Ok(word),
            other => wrong("a word", other),
        }
    }

    fn boxed<'a>(arg: &'a &Word) -> Ref<'a> {
        Ref::Word(arg)
    }
}

impl Arg<Val> for i64 {
    type Arg<'a> = i64;
    const NAME: &'static str = "i64";

    fn accepts(ty: &Type) -> bool {
        *ty == Type::Int
    }

    fn unbox<'a>(value: Ref<'a>) -> Result<i64>
    where
        'a: 'a,
    {
        match value {
            Ref::Int(i) => Ok(i),
            other => wrong("an int", other),
        }
    }

    fn boxed<'a>(arg: &'a i64) -> Ref<'a> {
        Ref::Int(*arg)
    }
}

impl Ret<Val> for Word {
    const NAME: &'static str = "Word";

    fn accepts(returns: &[Return]) -> bool {
        matches!(returns, [only] if only.ty == Type::Tensor)
    }

    fn into_value(self) -> Val {
        Val::Word(self)
    }

    fn from_value(value: Val) -> Result<Word> {
        match value {
            Val::Word(word) => Ok(word),
            other => wrong("a word", other.r()),
        }
    }
}

impl Ret<Val> for i64 {
    const NAME: &'static str = "i64";

    fn accepts(returns: &[Return]) -> bool {
        matches!(returns, [only] if only.ty == Type::Int)
    }

    fn into_value(self) -> Val {
        Val::Int(self)
    }

    fn from_value(value: Val) -> Result<i64> {
        match value {
            Val::Int(i) => Ok(i),
            other => wrong("an int", other.r()),
        }
    }
}
