//! The return types of typed kernels.

use keyfold_core::{Complex, DType, Result, Scalar};
use keyfold_dispatch::schema::{Return, Type};
use keyfold_dispatch::{Arg, Ret, Value as Engine};

use super::{SameAs, Value, expected};
use crate::tensor::Tensor;

/// Returns the type of an operator's only result.
fn only(returns: &[Return]) -> Option<&Type> {
    match returns {
        [one] => Some(&one.ty),
        _ => None,
    }
}

impl Ret<Value> for Tensor {
    const NAME: &'static str = "Tensor";

    fn accepts(returns: &[Return]) -> bool {
        only(returns) == Some(&Type::Tensor)
    }

    #[inline]
    fn into_value(self) -> Value {
        Value::Tensor(self)
    }

    #[inline]
    fn from_value(value: Value) -> Result<Self> {
        value.into_tensor()
    }
}

impl Ret<Value> for Option<Tensor> {
    const NAME: &'static str = "Option<Tensor>";

    fn accepts(returns: &[Return]) -> bool {
        matches!(only(returns), Some(Type::Optional(inner)) if **inner == Type::Tensor)
    }

    fn into_value(self) -> Value {
        self.map_or(Value::None, Value::Tensor)
    }

    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::None => Ok(None),
            value => value.into_tensor().map(Some),
        }
    }
}

impl Ret<Value> for Vec<Tensor> {
    const NAME: &'static str = "Vec<Tensor>";

    fn accepts(returns: &[Return]) -> bool {
        matches!(only(returns), Some(Type::List(inner, _)) if **inner == Type::Tensor)
    }

    fn into_value(self) -> Value {
        Value::List(self.into_iter().map(Value::Tensor).collect())
    }

    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::List(items) => items.into_iter().map(Value::into_tensor).collect(),
            other => Err(expected("a list of Tensor", other.as_ref())),
        }
    }
}

impl Ret<Value> for () {
    const NAME: &'static str = "()";

    fn accepts(returns: &[Return]) -> bool {
        returns.is_empty()
    }

    #[inline]
    fn into_value(self) -> Value {
        Value::None
    }

    #[inline]
    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::None => Ok(()),
            other => Err(expected("None", other.as_ref())),
        }
    }
}

/// One result, of the argument's type.
impl Ret<Value> for SameAs {
    const NAME: &'static str = "SameAs";

    fn accepts(returns: &[Return]) -> bool {
        returns.len() == 1
    }

    #[inline]
    fn into_value(self) -> Value {
        Value::Argument(self.0)
    }

    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::Argument(number) => Ok(SameAs(number)),
            other => Err(expected("an argument's number", other.as_ref())),
        }
    }
}

/// Any result, boxed.
impl Ret<Value> for Value {
    const NAME: &'static str = "Value";

    fn accepts(_: &[Return]) -> bool {
        true
    }

    #[inline]
    fn into_value(self) -> Value {
        self
    }

    #[inline]
    fn from_value(value: Value) -> Result<Self> {
        Ok(value)
    }
}

macro_rules! plain {
    // Types that are arguments, too: the same schema types and the same unboxing.
    ($($type:ty, $name:literal;)*) => {$(
        impl Ret<Value> for $type {
            const NAME: &'static str = $name;

            fn accepts(returns: &[Return]) -> bool {
                only(returns).is_some_and(<$type as Arg<Value>>::accepts)
            }

            #[inline]
            fn into_value(self) -> Value {
                self.into()
            }

            #[inline]
            fn from_value(value: Value) -> Result<Self> {
                <$type as Arg<Value>>::unbox(value.as_ref())
            }
        }
    )*};
}

plain! {
    bool, "bool";
    i64, "i64";
    f64, "f64";
    Complex<f64>, "Complex<f64>";
    Scalar, "Scalar";
    DType, "DType";
}

/// Returns the items of a tuple of that length.
fn parts<const N: usize>(value: Value) -> Result<[Value; N]> {
    match value {
        Value::Tuple(items) if items.len() == N => <[Value; N]>::try_from(items).map_err(|items| {
            let list = Value::List(items);
            expected(&format!("{N} values"), list.as_ref())
        }),
        other => Err(expected(&format!("{N} values"), other.as_ref())),
    }
}

impl<A: Ret<Value>, B: Ret<Value>> Ret<Value> for (A, B) {
    const NAME: &'static str = "a tuple of 2";

    fn accepts(returns: &[Return]) -> bool {
        returns.len() == 2 && A::accepts(&returns[..1]) && B::accepts(&returns[1..])
    }

    fn into_value(self) -> Value {
        Value::Tuple(vec![self.0.into_value(), self.1.into_value()])
    }

    fn from_value(value: Value) -> Result<Self> {
        let [a, b] = parts(value)?;
        Ok((A::from_value(a)?, B::from_value(b)?))
    }
}

impl<A: Ret<Value>, B: Ret<Value>, C: Ret<Value>> Ret<Value> for (A, B, C) {
    const NAME: &'static str = "a tuple of 3";

    fn accepts(returns: &[Return]) -> bool {
        returns.len() == 3
            && A::accepts(&returns[..1])
            && B::accepts(&returns[1..2])
            && C::accepts(&returns[2..])
    }

    fn into_value(self) -> Value {
        Value::Tuple(vec![self.0.into_value(), self.1.into_value(), self.2.into_value()])
    }

    fn from_value(value: Value) -> Result<Self> {
        let [a, b, c] = parts(value)?;
        Ok((A::from_value(a)?, B::from_value(b)?, C::from_value(c)?))
    }
}
