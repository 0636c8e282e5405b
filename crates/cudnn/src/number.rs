//! Numbers in graphs, which compare by their bits and survive JSON.

use std::hash::{Hash, Hasher};

use serde::de::{Error as _, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that belongs to a graph: of a scalar tensor, or an attribute of an operation.
///
/// Two are equal where they are of one kind and their bits are: 0.0 isn't -0.0, and NaN is itself.
/// In JSON, infinities and NaN are the strings `"inf"`, `"-inf"` and `"nan"`, and floats have a point.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A float.
    Float(f64),
    /// An integer.
    Int(i64),
}

impl Number {
    /// Returns it as a float; integers beyond 2^53 are rounded.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Float(x) => x,
            Number::Int(i) => i as f64,
        }
    }

    /// Returns the kind and the bits, which say all of it. All NaN are one.
    pub fn bits(self) -> (bool, u64) {
        match self {
            Number::Float(x) if x.is_nan() => (true, f64::NAN.to_bits()),
            Number::Float(x) => (true, x.to_bits()),
            Number::Int(i) => (false, i as u64),
        }
    }
}

impl From<f64> for Number {
    fn from(x: f64) -> Number {
        Number::Float(x)
    }
}

impl From<i64> for Number {
    fn from(i: i64) -> Number {
        Number::Int(i)
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.bits() == other.bits()
    }
}

impl Eq for Number {}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Number::Int(i) => serializer.serialize_i64(i),
            Number::Float(x) if x.is_finite() => serializer.serialize_f64(x),
            Number::Float(x) if x.is_nan() => serializer.serialize_str("nan"),
            Number::Float(x) => serializer.serialize_str(if x > 0.0 { "inf" } else { "-inf" }),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Number;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number, \"inf\", \"-inf\" or \"nan\"")
            }

            fn visit_i64<E: serde::de::Error>(self, i: i64) -> Result<Number, E> {
                Ok(Number::Int(i))
            }

            fn visit_u64<E: serde::de::Error>(self, u: u64) -> Result<Number, E> {
                let int = i64::try_from(u);
                int.map(Number::Int).map_err(|_| E::invalid_value(Unexpected::Unsigned(u), &self))
            }

            fn visit_f64<E: serde::de::Error>(self, x: f64) -> Result<Number, E> {
                Ok(Number::Float(x))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Number, E> {
                match text {
                    "inf" => Ok(Number::Float(f64::INFINITY)),
                    "-inf" => Ok(Number::Float(f64::NEG_INFINITY)),
                    "nan" => Ok(Number::Float(f64::NAN)),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A float that is an attribute: [`Number`]'s equality and JSON.
#[derive(Clone, Copy, Debug)]
pub struct Float(pub f64);

impl Float {
    /// Returns the bits, which say all of it. All NaN are one.
    pub fn bits(self) -> u64 {
        Number::Float(self.0).bits().1
    }
}

impl From<f64> for Float {
    fn from(x: f64) -> Float {
        Float(x)
    }
}

impl PartialEq for Float {
    fn eq(&self, other: &Float) -> bool {
        self.bits() == other.bits()
    }
}

impl Eq for Float {}

impl Hash for Float {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

impl Serialize for Float {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Number::Float(self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Float, D::Error> {
        match Number::deserialize(deserializer)? {
            Number::Int(i) if i.unsigned_abs() > 1 << 53 => {
                Err(D::Error::custom(format!("{i} isn't exact as a float: write it with a point")))
            }
            number => Ok(Float(number.as_f64())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_json() {
        for x in [0.0, -0.0, 0.1, 1e300, f64::MIN_POSITIVE / 3.0, f64::INFINITY, f64::NAN, 3.0] {
            for number in [Number::Float(x), Number::Float(-x)] {
                let text = serde_json::to_string(&number).unwrap();
                assert_eq!(serde_json::from_str::<Number>(&text).unwrap(), number, "{text}");
            }
        }
        assert_eq!(serde_json::from_str::<Number>("3").unwrap(), Number::Int(3));
        assert_ne!(Number::Int(3), Number::Float(3.0));
        assert_ne!(Number::Float(0.0), Number::Float(-0.0));
        assert!(serde_json::from_str::<Number>("18446744073709551615").is_err());
        assert!(serde_json::from_str::<Number>("\"infinity\"").is_err());
    }
}
