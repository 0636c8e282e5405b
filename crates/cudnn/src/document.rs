//! Specifications as JSON with a version.

use std::fmt;

use keyfold_core::{Error, ErrorKind, Result};
use serde::de::{DeserializeOwned, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// The version of the JSON that [`Document::to_json`] writes. Format 1, which is read too, had no
/// `defaults` of graphs.
pub const FORMAT: u32 = 2;

/// A specification that is kept as a JSON object, whose member `format` is the [version](FORMAT).
///
/// A version reads the documents of its own format and of earlier ones. An object with a member that isn't known,
/// or twice, is refused, so that nothing that was written is left out in silence.
///
/// ```
/// use keyfold_cudnn::{Document, HeurMode, HeurSpec};
///
/// let spec = HeurSpec { mode: HeurMode::Fallback, top_k: 3 };
/// let text = spec.to_json();
/// assert_eq!(HeurSpec::from_json(&text)?, spec);
/// let error = HeurSpec::from_json(&text.replace("top_k", "top")).unwrap_err();
/// assert!(error.message().contains("unknown field `top`"), "{error}");
/// # Ok::<(), keyfold_core::Error>(())
/// ```
pub trait Document: Serialize + DeserializeOwned {
    /// The name of such a specification in errors.
    const NAME: &str;

    /// Returns the specification as JSON, in lines for people to read.
    fn to_json(&self) -> String {
        let Ok(Value::Object(mut document)) = serde_json::to_value(self) else {
            unreachable!("a struct whose maps have text for keys");
        };
        // By way of a value, as in reading: the attributes' serializers are compiled for one writer.
        document.shift_insert(0, "format".to_owned(), FORMAT.into());
        format!("{:#}", Value::Object(document))
    }

    /// Reads a specification from JSON.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] with the line, or the place (`operations[3].inputs`), of the damage.
    fn from_json(text: &str) -> Result<Self> {
        let damaged = |message: String| {
            Error::new(ErrorKind::Value, format!("the {}'s text {message}", Self::NAME))
        };
        let syntax = |error: serde_json::Error| damaged(format!("isn't JSON: {error}"));
        let Unique(mut document) = serde_json::from_str(text).map_err(syntax)?;
        let object = document.as_object_mut();
        let object = object.ok_or_else(|| damaged("isn't a JSON object".to_string()))?;
        let format = object.shift_remove("format");
        match format.as_ref().and_then(Value::as_u64) {
            Some(format) if (1..=u64::from(FORMAT)).contains(&format) => {}
            Some(format) if format > u64::from(FORMAT) => {
                return Err(damaged(format!(
                    "has format {format}, which a later version wrote: this one reads 1 to {FORMAT}"
                )));
            }
            _ => {
                let given = format.map_or("none".to_string(), |format| format.to_string());
                return Err(damaged(format!(
                    "has no format that is known: 1 to {FORMAT}, got {given}"
                )));
            }
        }
        serde_path_to_error::deserialize(document).map_err(|error| {
            let place = error.path().to_string();
            damaged(format!("is wrong at {place}: {}", error.inner()))
        })
    }
}

/// Any JSON in which no object has a key twice.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unique, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_bool<E>(self, x: bool) -> Result<Value, E> {
                Ok(Value::from(x))
            }

            fn visit_i64<E>(self, x: i64) -> Result<Value, E> {
                Ok(Value::from(x))
            }

            fn visit_u64<E>(self, x: u64) -> Result<Value, E> {
                Ok(Value::from(x))
            }

            fn visit_f64<E>(self, x: f64) -> Result<Value, E> {
                Ok(Value::from(x))
            }

            fn visit_str<E>(self, x: &str) -> Result<Value, E> {
                Ok(Value::from(x))
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
                let mut values = Vec::new();
                while let Some(Unique(value)) = list.next_element()? {
                    values.push(value);
                }
                Ok(Value::Array(values))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut values = Map::new();
                while let Some(key) = map.next_key::<String>()? {
                    if values.contains_key(&key) {
                        return Err(serde::de::Error::custom(format_args!(
                            "{key:?} is there twice"
                        )));
                    }
                    let Unique(value) = map.next_value()?;
                    values.insert(key, value);
                }
                Ok(Value::Object(values))
            }
        }
        deserializer.deserialize_any(Reader).map(Unique)
    }
}
