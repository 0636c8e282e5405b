//! The engine's interface to [`Value`].

use std::fmt::Write;
use std::sync::Arc;

use keyfold_core::{Complex, Result, Scalar};
use keyfold_dispatch::schema::{Literal, Type};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Tag, Value as Engine};

use super::{Value, ValueRef};

/// The number of list items, and of characters of a text, in an error message.
const SHOWN: usize = 8;
const SHOWN_TEXT: usize = 60;

impl Engine for Value {
    type Ref<'a> = ValueRef<'a>;

    #[inline]
    fn shorten<'short, 'long: 'short>(value: ValueRef<'long>) -> ValueRef<'short> {
        value
    }

    #[inline]
    fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::None => ValueRef::None,
            Value::Tensor(tensor) => ValueRef::Tensor(tensor),
            Value::Bool(b) => ValueRef::Bool(*b),
            Value::Int(i) => ValueRef::Int(*i),
            Value::UInt(u) => ValueRef::UInt(*u),
            Value::Float(x) => ValueRef::Float(*x),
            Value::Complex(c) => ValueRef::Complex(*c),
            Value::Str(text) => ValueRef::Str(text),
            Value::DType(dtype) => ValueRef::DType(*dtype),
            Value::Device(device) => ValueRef::Device(*device),
            Value::List(items) | Value::Tuple(items) => ValueRef::List(items),
            Value::Foreign(object) => ValueRef::Foreign(&**object),
            // Unreachable: the engine replaces it before.
            Value::Argument(_) => ValueRef::None,
        }
    }

    fn from_ref(value: ValueRef<'_>) -> Result<Self> {
        Ok(match value {
            ValueRef::None => Value::None,
            ValueRef::Tensor(tensor) => Value::Tensor(tensor.clone()),
            ValueRef::Str(text) => Value::Str(Arc::from(text)),
            ValueRef::DType(dtype) => Value::DType(dtype),
            ValueRef::Device(device) => Value::Device(device),
            ValueRef::Foreign(object) => object.to_owned_value()?,
            other => match other.scalar() {
                Some(scalar) => scalar.into(),
                // The remaining variants are lists.
                None => Value::List(other.items().map(Value::from_ref).collect::<Result<_>>()?),
            },
        })
    }

    #[inline]
    fn tag(value: ValueRef<'_>) -> Tag {
        match value {
            ValueRef::Tensor(tensor) => tensor.tag(),
            ValueRef::Foreign(object) => object.tag(),
            ValueRef::Device(device) => {
                let key = DispatchKey::from_device_type(device.kind());
                Tag::keys_only(DispatchKeySet::EMPTY.insert(key))
            }
            ValueRef::List(_) | ValueRef::Refs(_) | ValueRef::Tensors(_) => {
                value.items().fold(Tag::NONE, |tag, item| tag.merge(Value::tag(item)))
            }
            _ => Tag::NONE,
        }
    }

    fn visit_tags(value: ValueRef<'_>, visit: &mut dyn FnMut(&str, Tag)) {
        if value.list_len().is_none() {
            visit("", Value::tag(value));
            return;
        }
        for (i, item) in value.items().enumerate() {
            Value::visit_tags(item, &mut |place, tag| visit(&format!("[{i}]{place}"), tag));
        }
    }

    fn conforms(value: ValueRef<'_>, ty: &Type) -> bool {
        match ty {
            Type::Tensor => match value {
                ValueRef::Tensor(_) => true,
                ValueRef::Foreign(object) => object.is_tensor(),
                _ => false,
            },
            Type::Optional(inner) => {
                matches!(value, ValueRef::None) || Value::conforms(value, inner)
            }
            Type::List(inner, size) => match value.list_len() {
                Some(len) => {
                    Type::takes_length(*size, len)
                        && value.items().all(|item| Value::conforms(item, inner))
                }
                // One value is accepted for all elements if the schema declares their number.
                None => size.is_some() && Value::conforms(value, inner),
            },
            Type::Scalar => value.scalar().is_some(),
            Type::Int => matches!(value, ValueRef::Int(_)),
            Type::Float => {
                matches!(value, ValueRef::Float(_) | ValueRef::Int(_) | ValueRef::UInt(_))
            }
            Type::Complex => value.scalar().is_some_and(|s| !matches!(s, Scalar::Bool(_))),
            Type::Bool => matches!(value, ValueRef::Bool(_)),
            Type::Str | Type::Layout | Type::MemoryFormat => matches!(value, ValueRef::Str(_)),
            Type::Device => matches!(value, ValueRef::Device(_)),
            Type::ScalarType => matches!(value, ValueRef::DType(_)),
            Type::Generator => {
                matches!(value, ValueRef::Foreign(object) if !object.is_tensor())
            }
            Type::Any => match value {
                ValueRef::Tensor(_) => false,
                ValueRef::Foreign(object) => !object.is_tensor(),
                _ => value.items().all(|item| Value::conforms(item, ty)),
            },
        }
    }

    #[inline(always)]
    fn as_argument(&self) -> Option<usize> {
        match self {
            Value::Argument(number) => Some(*number),
            _ => None,
        }
    }

    fn is_none(value: ValueRef<'_>) -> bool {
        matches!(value, ValueRef::None)
    }

    fn describe(value: ValueRef<'_>) -> String {
        match value {
            ValueRef::None => "None".to_owned(),
            ValueRef::Tensor(t) => {
                format!("Tensor {}{:?} on {}", t.dtype(), t.shape(), t.device())
            }
            ValueRef::Bool(b) => format!("bool {}", Scalar::Bool(b)),
            ValueRef::Int(i) => format!("int {i}"),
            ValueRef::UInt(u) => format!("int {u}"),
            ValueRef::Float(x) => format!("float {}", Scalar::Float(x)),
            ValueRef::Complex(c) => format!("complex {}", Scalar::Complex(c)),
            ValueRef::Str(text) => match text.char_indices().nth(SHOWN_TEXT) {
                None => format!("str '{text}'"),
                Some((end, _)) => format!("str '{}...'", &text[..end]),
            },
            ValueRef::DType(dtype) => format!("dtype {dtype}"),
            ValueRef::Device(device) => format!("device {device}"),
            ValueRef::Foreign(object) => object.describe(),
            list => {
                let len = list.list_len().unwrap_or(0);
                let mut text = format!("list of {len}");
                for (i, item) in list.items().take(SHOWN).enumerate() {
                    let before = if i == 0 { " (" } else { ", " };
                    // Writing to a String doesn't fail.
                    let _ = write!(text, "{before}{}", Value::describe(item));
                }
                text.push_str(match len {
                    0 => "",
                    1..=SHOWN => ")",
                    _ => ", ...)",
                });
                text
            }
        }
    }

    fn from_literal(literal: &Literal, ty: &Type) -> Option<Self> {
        Some(match (literal, ty) {
            (Literal::None, Type::Optional(_)) => Value::None,
            (_, Type::Optional(inner)) => return Value::from_literal(literal, inner),
            (Literal::List(items), Type::List(inner, _)) => {
                let items = items.iter().map(|item| Value::from_literal(item, inner));
                Value::List(items.collect::<Option<_>>()?)
            }
            (each, Type::List(inner, Some(size))) => {
                Value::List(vec![Value::from_literal(each, inner)?; *size])
            }
            (Literal::None, Type::Any) => Value::None,
            (Literal::Bool(b), Type::Bool | Type::Scalar | Type::Any) => Value::Bool(*b),
            (Literal::Int(i), Type::Int | Type::Scalar | Type::Any) => Value::Int(*i),
            (Literal::Ident(_), Type::Int) => Value::Int(literal.as_int()?),
            (Literal::Int(i), Type::Float) => Value::Float(*i as f64),
            (Literal::Float(x), Type::Float | Type::Scalar | Type::Any) => Value::Float(*x),
            (Literal::Int(i), Type::Complex) => Value::Complex(Complex::new(*i as f64, 0.0)),
            (Literal::Float(x), Type::Complex) => Value::Complex(Complex::new(*x, 0.0)),
            (Literal::Str(text), Type::Str | Type::Any) => Value::from(text.as_str()),
            (Literal::Str(text) | Literal::Ident(text), Type::Layout | Type::MemoryFormat) => {
                Value::from(text.as_str())
            }
            (Literal::Str(text) | Literal::Ident(text), Type::Device) => {
                Value::Device(text.parse().ok()?)
            }
            (Literal::Ident(text), Type::ScalarType) => Value::DType(text.parse().ok()?),
            _ => return None,
        })
    }

    fn tuple(items: Vec<Self>) -> Self {
        Value::Tuple(items)
    }

    #[inline]
    fn as_tuple(&self) -> Option<&[Self]> {
        match self {
            Value::Tuple(items) => Some(items),
            _ => None,
        }
    }
}
