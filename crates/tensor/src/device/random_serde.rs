//! Random state as plain data for serde: a struct of the device's name, the seed and the offset.

use std::fmt;

use serde_core::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde_core::ser::SerializeStruct as _;
use serde_core::{Deserialize, Deserializer, Serialize, Serializer};

use super::random::State;

const FIELDS: &[&str] = &["device", "seed", "offset"];

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("State", FIELDS.len())?;
        fields.serialize_field(FIELDS[0], &self.device.to_string())?;
        fields.serialize_field(FIELDS[1], &self.seed)?;
        fields.serialize_field(FIELDS[2], &self.offset)?;
        fields.end()
    }
}

impl<'de> Deserialize<'de> for State {
    /// # Errors
    /// Those of the format, and for a device whose type isn't registered here.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<State, D::Error> {
        deserializer.deserialize_struct("State", FIELDS, OfState)
    }
}

struct OfState;

impl<'de> Visitor<'de> for OfState {
    type Value = State;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a random state: a device's name, a seed and an offset")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<State, A::Error> {
        let missing = |at: usize| A::Error::invalid_length(at, &self);
        let device: String = items.next_element()?.ok_or_else(|| missing(0))?;
        let seed = items.next_element()?.ok_or_else(|| missing(1))?;
        let offset = items.next_element()?.ok_or_else(|| missing(2))?;
        Ok(State { device: device.parse().map_err(A::Error::custom)?, seed, offset })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<State, A::Error> {
        let mut device: Option<String> = None;
        let mut numbers: [Option<u64>; 2] = [None; 2];
        while let Some(name) = entries.next_key::<String>()? {
            let is_new = match FIELDS.iter().position(|field| *field == name) {
                Some(0) => device.replace(entries.next_value()?).is_none(),
                Some(at) => numbers[at - 1].replace(entries.next_value()?).is_none(),
                None => return Err(A::Error::unknown_field(&name, FIELDS)),
            };
            if !is_new {
                return Err(A::Error::custom(format!("field '{name}' is there twice")));
            }
        }
        let device = device.ok_or_else(|| A::Error::missing_field(FIELDS[0]))?;
        let [seed, offset] = numbers;
        Ok(State {
            device: device.parse().map_err(A::Error::custom)?,
            seed: seed.ok_or_else(|| A::Error::missing_field(FIELDS[1]))?,
            offset: offset.ok_or_else(|| A::Error::missing_field(FIELDS[2]))?,
        })
    }
}
