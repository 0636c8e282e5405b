//! A value type that has nothing to do with tensors: words that carry keys.

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_dispatch::schema::{Literal, Return, Type};
use keyfold_dispatch::{Arg, DispatchKeySet, Ret, Tag, Value};

/// A word with keys and a device: what stands where a schema says `Tensor`.
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    pub text: String,
    pub keys: DispatchKeySet,
    pub device: Device,
    pub zero_dim: bool,
}

impl Word {
    pub fn new(text: &str, keys: impl Into<DispatchKeySet>) -> Word {
        let keys = keys.into();
        let kind = keys.backend().and_then(|k| k.device_type());
        let device = kind.map_or(Device::CPU, |kind| Device::new(kind, 0));
        Word { text: text.to_owned(), keys, device, zero_dim: false }
    }

    pub fn on(mut self, device: Device) -> Word {
        self.device = device;
        self
    }

    pub fn zero_dim(mut self) -> Word {
        self.zero_dim = true;
        self
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Val {
    Nil,
    Word(Word),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Val>),
    Tuple(Vec<Val>),
}

impl Value for Val {
    type Ref<'a> = &'a Val;

    fn shorten<'short, 'long: 'short>(value: &'long Val) -> &'short Val {
        value
    }

    fn as_ref(&self) -> &Val {
        self
    }

    fn from_ref(value: &Val) -> Result<Val> {
        Ok(value.clone())
    }

    fn tag(value: &Val) -> Tag {
        match value {
            Val::Word(word) => Tag::new(word.keys, word.device, word.zero_dim),
            Val::List(items) => items.iter().fold(Tag::NONE, |tag, item| tag.merge(Val::tag(item))),
            _ => Tag::NONE,
        }
    }

    fn visit_tags(value: &Val, visit: &mut dyn FnMut(&str, Tag)) {
        match value {
            Val::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    visit(&format!("[{i}]"), Val::tag(item));
                }
            }
            other => visit("", Val::tag(other)),
        }
    }

    fn conforms(value: &Val, ty: &Type) -> bool {
        match (ty, value) {
            (Type::Optional(_), Val::Nil)
            | (Type::Tensor, Val::Word(_))
            | (Type::Int, Val::Int(_))
            | (Type::Float, Val::Float(_) | Val::Int(_))
            | (Type::Scalar, Val::Float(_) | Val::Int(_))
            | (Type::Str, Val::Text(_)) => true,
            (Type::Optional(inner), value) => Val::conforms(value, inner),
            (Type::List(inner, _), Val::List(items)) => {
                items.iter().all(|item| Val::conforms(item, inner))
            }
            _ => false,
        }
    }

    fn is_none(value: &Val) -> bool {
        *value == Val::Nil
    }

    fn describe(value: &Val) -> String {
        match value {
            Val::Nil => "None".to_owned(),
            Val::Word(word) => format!("the word {:?}", word.text),
            Val::Int(i) => format!("int {i}"),
            Val::Float(x) => format!("float {x}"),
            Val::Text(text) => format!("str {text:?}"),
            Val::List(items) => format!("a list of {}", items.len()),
            Val::Tuple(items) => format!("a tuple of {}", items.len()),
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

fn wrong<T>(wanted: &str, given: &Val) -> Result<T> {
    Err(Error::new(ErrorKind::Binding, format!("wanted {wanted}, not {}", Val::describe(given))))
}

impl Arg<Val> for &'static Word {
    type Arg<'a> = &'a Word;
    const NAME: &'static str = "&Word";

    fn accepts(ty: &Type) -> bool {
        *ty == Type::Tensor
    }

    fn tag(arg: &&Word) -> Tag {
        Tag::new(arg.keys, arg.device, arg.zero_dim)
    }

    fn unbox<'a>(value: &'a Val) -> Result<&'a Word>
    where
        'a: 'a,
    {
        match value {
            Val::Word(word) => Ok(word),
            other => wrong("a word", other),
        }
    }

    fn boxed<'a>(arg: &'a &Word) -> &'a Val {
        // A borrowed `Word` isn't a borrowed `Val`: tests may leak a few.
        Box::leak(Box::new(Val::Word((*arg).clone())))
    }
}

impl Arg<Val> for i64 {
    type Arg<'a> = i64;
    const NAME: &'static str = "i64";

    fn accepts(ty: &Type) -> bool {
        *ty == Type::Int
    }

    fn unbox<'a>(value: &'a Val) -> Result<i64>
    where
        'a: 'a,
    {
        match value {
            Val::Int(i) => Ok(*i),
            other => wrong("an int", other),
        }
    }

    fn boxed<'a>(arg: &'a i64) -> &'a Val {
        Box::leak(Box::new(Val::Int(*arg)))
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
            other => wrong("a word", &other),
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
            other => wrong("an int", &other),
        }
    }
}
