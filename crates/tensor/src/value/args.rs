//! The argument types of typed kernels.

use keyfold_core::{Complex, DType, Device, Result, Scalar};
use keyfold_dispatch::schema::Type;
use keyfold_dispatch::{Arg, Tag, Value as Engine};

use super::{IntList, TensorList, Value, ValueRef, expected};
use crate::tensor::Tensor;

impl Arg<Value> for &'static Tensor {
    type Arg<'a> = &'a Tensor;
    const NAME: &'static str = "&Tensor";

    fn accepts(ty: &Type) -> bool {
        *ty == Type::Tensor
    }

    #[inline]
    fn tag(arg: &&Tensor) -> Tag {
        arg.tag()
    }

    #[inline]
    fn unbox<'a>(value: ValueRef<'a>) -> Result<&'a Tensor>
    where
        'a: 'a,
    {
        value.tensor()
    }

    #[inline]
    fn boxed<'a>(arg: &'a &Tensor) -> ValueRef<'a> {
        ValueRef::Tensor(arg)
    }
}

impl Arg<Value> for &'static str {
    type Arg<'a> = &'a str;
    const NAME: &'static str = "&str";

    fn accepts(ty: &Type) -> bool {
        matches!(ty, Type::Str | Type::Layout | Type::MemoryFormat)
    }

    #[inline]
    fn unbox<'a>(value: ValueRef<'a>) -> Result<&'a str>
    where
        'a: 'a,
    {
        match value {
            ValueRef::Str(text) => Ok(text),
            other => Err(expected("a str", other)),
        }
    }

    #[inline]
    fn boxed<'a>(arg: &'a &str) -> ValueRef<'a> {
        ValueRef::Str(arg)
    }
}

macro_rules! plain {
    // Types passed unconverted: the name, the schema types, how to unbox, how to box.
    ($($type:ty, $name:literal, $accepts:pat, $what:literal,
       $value:ident => $unbox:expr, $arg:ident => $boxed:expr;)*) => {$(
        impl Arg<Value> for $type {
            type Arg<'a> = $type;
            const NAME: &'static str = $name;

            fn accepts(ty: &Type) -> bool {
                matches!(ty, $accepts)
            }

            #[inline]
            fn unbox<'a>($value: ValueRef<'a>) -> Result<$type>
            where
                'a: 'a,
            {
                $unbox.ok_or_else(|| expected($what, $value))
            }

            #[inline]
            fn boxed<'a>($arg: &'a $type) -> ValueRef<'a> {
                $boxed
            }
        }
    )*};
}

plain! {
    bool, "bool", Type::Bool, "a bool", v => match v {
        ValueRef::Bool(b) => Some(b),
        _ => None,
    }, x => ValueRef::Bool(*x);
    i64, "i64", Type::Int, "an int", v => match v {
        ValueRef::Int(i) => Some(i),
        _ => None,
    }, x => ValueRef::Int(*x);
    f64, "f64", Type::Float, "a float", v => match v {
        ValueRef::Float(x) => Some(x),
        ValueRef::Int(i) => Some(i as f64),
        ValueRef::UInt(u) => Some(u as f64),
        _ => None,
    }, x => ValueRef::Float(*x);
    Complex<f64>, "Complex<f64>", Type::Complex, "a complex", v => match v {
        ValueRef::Bool(_) => None,
        other => other.scalar().map(Scalar::as_complex),
    }, x => ValueRef::Complex(*x);
    Scalar, "Scalar", Type::Scalar, "a number", v => v.scalar(), x => ValueRef::from(*x);
    DType, "DType", Type::ScalarType, "a dtype", v => match v {
        ValueRef::DType(dtype) => Some(dtype),
        _ => None,
    }, x => ValueRef::DType(*x);
}

impl Arg<Value> for Device {
    type Arg<'a> = Device;
    const NAME: &'static str = "Device";

    fn accepts(ty: &Type) -> bool {
        *ty == Type::Device
    }

    #[inline]
    fn tag(arg: &Device) -> Tag {
        Value::tag(ValueRef::Device(*arg))
    }

    #[inline]
    fn unbox<'a>(value: ValueRef<'a>) -> Result<Device>
    where
        'a: 'a,
    {
        match value {
            ValueRef::Device(device) => Ok(device),
            other => Err(expected("a device", other)),
        }
    }

    #[inline]
    fn boxed<'a>(arg: &'a Device) -> ValueRef<'a> {
        ValueRef::Device(*arg)
    }
}

impl Arg<Value> for IntList {
    type Arg<'a> = IntList;
    const NAME: &'static str = "IntList";

    fn accepts(ty: &Type) -> bool {
        matches!(ty, Type::List(inner, _) if **inner == Type::Int)
    }

    #[inline]
    fn unbox<'a>(value: ValueRef<'a>) -> Result<IntList>
    where
        'a: 'a,
    {
        IntList::read(value)
    }

    #[inline]
    fn boxed(arg: &IntList) -> ValueRef<'_> {
        ValueRef::Ints(arg)
    }
}

impl Arg<Value> for TensorList<'static> {
    type Arg<'a> = TensorList<'a>;
    const NAME: &'static str = "TensorList";

    fn accepts(ty: &Type) -> bool {
        matches!(ty, Type::List(inner, _) if *inner.without_optional() == Type::Tensor)
    }

    #[inline]
    fn tag(arg: &TensorList<'_>) -> Tag {
        Value::tag(arg.as_value())
    }

    #[inline]
    fn unbox<'a>(value: ValueRef<'a>) -> Result<TensorList<'a>>
    where
        'a: 'a,
    {
        TensorList::read(value)
    }

    #[inline]
    fn boxed<'a>(arg: &'a TensorList<'_>) -> ValueRef<'a> {
        arg.as_value()
    }
}

/// Any argument, without conversion.
impl Arg<Value> for ValueRef<'static> {
    type Arg<'a> = ValueRef<'a>;
    const NAME: &'static str = "ValueRef";

    fn accepts(_: &Type) -> bool {
        true
    }

    #[inline]
    fn tag(arg: &ValueRef<'_>) -> Tag {
        Value::tag(*arg)
    }

    #[inline]
    fn unbox<'a>(value: ValueRef<'a>) -> Result<ValueRef<'a>>
    where
        'a: 'a,
    {
        Ok(value)
    }

    #[inline]
    fn boxed<'a>(arg: &'a ValueRef<'_>) -> ValueRef<'a> {
        *arg
    }
}

macro_rules! optional {
    // One impl per type, since the name in messages is a constant.
    ($($type:ty, $name:literal;)*) => {$(
        impl Arg<Value> for Option<$type> {
            type Arg<'a> = Option<<$type as Arg<Value>>::Arg<'a>>;
            const NAME: &'static str = $name;

            fn accepts(ty: &Type) -> bool {
                matches!(ty, Type::Optional(inner) if <$type as Arg<Value>>::accepts(inner))
            }

            #[inline]
            fn tag(arg: &Self::Arg<'_>) -> Tag {
                arg.as_ref().map_or(Tag::NONE, <$type as Arg<Value>>::tag)
            }

            #[inline]
            fn unbox<'a>(value: ValueRef<'a>) -> Result<Self::Arg<'a>>
            where
                'a: 'a,
            {
                match value {
                    ValueRef::None => Ok(None),
                    value => <$type as Arg<Value>>::unbox(value).map(Some),
                }
            }

            #[inline]
            fn boxed<'a>(arg: &'a Self::Arg<'_>) -> ValueRef<'a> {
                arg.as_ref().map_or(ValueRef::None, <$type as Arg<Value>>::boxed)
            }
        }
    )*};
}

optional! {
    &'static Tensor, "Option<&Tensor>";
    &'static str, "Option<&str>";
    bool, "Option<bool>";
    i64, "Option<i64>";
    f64, "Option<f64>";
    Complex<f64>, "Option<Complex<f64>>";
    Scalar, "Option<Scalar>";
    DType, "Option<DType>";
    Device, "Option<Device>";
    IntList, "Option<IntList>";
    TensorList<'static>, "Option<TensorList>";
}
