//! Profiles of cards: what libcudnn plans by, as JSON.

use keyfold_core::{Error, ErrorKind, Result, did_you_mean};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The properties of a card under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    format: u32,
    /// The name that users give: `h100`.
    pub name: String,
    /// Where the numbers come from, in words.
    pub source: String,
    /// cuDNN's document of a card's properties.
    pub properties: Map<String, Value>,
}

const FORMAT: u32 = 1;

/// The profiles that come with keyfold, written from public specifications.
const SHIPPED: [(&str, &str); 4] = [
    ("a100", include_str!("profiles/a100.json")),
    ("l40s", include_str!("profiles/l40s.json")),
    ("h100", include_str!("profiles/h100.json")),
    ("b200", include_str!("profiles/b200.json")),
];

/// The keys that libcudnn's documents have, all of which it reads.
const KEYS: [&str; 25] = [
    "maxGridSize",
    "maxBlockSize",
    "regsPerBlock",
    "multiProcessorCount",
    "smCountOrigin",
    "warpSize",
    "maxSharedMemoryPerBlock",
    "maxSharedMemoryPerBlockOptin",
    "reservedSharedMemoryPerBlock",
    "oversizedSharedMemoryPerBlock",
    "maxRegistersPerSM",
    "maxCtasPerSM",
    "maxThreadsPerBlock",
    "maxThreadsPerSM",
    "pciDeviceId",
    "isTccDriver",
    "supportCoopLaunch",
    "totalGlobalMem",
    "smClockRateKHz",
    "memClockRateKHz",
    "memoryBusWidth",
    "l2CacheSize",
    "cudaDeviceId",
    "deviceVer",
    "driverVer",
];

impl Profile {
    /// Returns the names of the profiles that come with keyfold.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|shipped| shipped.0)
    }

    /// Returns a profile that comes with keyfold.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for another name.
    pub fn named(name: &str) -> Result<Profile> {
        match SHIPPED.iter().find(|shipped| shipped.0.eq_ignore_ascii_case(name)) {
            Some((_, text)) => Profile::from_json(text),
            None => {
                let known: Vec<&str> = Profile::names().collect();
                let hint = did_you_mean(name, known.iter().copied());
                let message = format!(
                    "no card profile is called {name:?}{hint}; there are {}",
                    known.join(", ")
                );
                Err(Error::new(ErrorKind::Value, message))
            }
        }
    }

    /// Makes a profile of cuDNN's document of a card's properties.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] where it isn't a JSON object or lacks a key.
    pub fn captured(name: &str, source: &str, properties: &str) -> Result<Profile> {
        let properties = serde_json::from_str(properties).map_err(|error| {
            wrong(name, format!("its properties aren't a JSON object: {error}"))
        })?;
        let profile = Profile {
            format: FORMAT,
            name: name.to_string(),
            source: source.to_string(),
            properties,
        };
        profile.check()?;
        Ok(profile)
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] where it isn't JSON, is of another format, or lacks a key.
    pub fn from_json(text: &str) -> Result<Profile> {
        let profile: Profile =
            serde_json::from_str(text).map_err(|error| wrong("", error.to_string()))?;
        if profile.format != FORMAT {
            let found = profile.format;
            return Err(wrong(
                &profile.name,
                format!("has format {found}, and this version reads {FORMAT}"),
            ));
        }
        profile.check()?;
        Ok(profile)
    }

    fn check(&self) -> Result<()> {
        let missing: Vec<&str> =
            KEYS.into_iter().filter(|key| !self.properties.contains_key(*key)).collect();
        match missing[..] {
            [] => Ok(()),
            _ => Err(wrong(&self.name, format!("its properties lack {}", missing.join(", ")))),
        }
    }

    /// Returns the profile as JSON, which [`Profile::from_json`] reads.
    pub fn to_json(&self) -> String {
        format!("{:#}\n", serde_json::to_value(self).unwrap_or_default())
    }

    /// Returns cuDNN's document.
    pub fn properties_json(&self) -> String {
        Value::Object(self.properties.clone()).to_string()
    }

    /// Returns what a plan depends on of the card: all but its number, its place on the bus and its driver.
    pub fn fingerprint(&self) -> String {
        let mut properties = self.properties.clone();
        for key in ["cudaDeviceId", "pciDeviceId", "driverVer"] {
            properties.remove(key);
        }
        let mut pairs: Vec<String> =
            properties.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.sort_unstable();
        let digest = xxhash_rust::xxh3::xxh3_128(pairs.join("\n").as_bytes());
        format!("{digest:032x}")
    }
}

fn wrong(name: &str, what: String) -> Error {
    let name = if name.is_empty() { String::new() } else { format!(" {name:?}") };
    Error::new(ErrorKind::Value, format!("the card profile{name}: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_profiles_are_read_and_say_where_they_come_from() {
        for name in Profile::names() {
            let profile = Profile::named(name).unwrap();
            assert_eq!(profile.name, name);
            assert!(profile.source.contains("specifications"), "{}", profile.source);
            assert_eq!(Profile::from_json(&profile.to_json()).unwrap(), profile);
        }
    }

    #[test]
    fn a_profile_that_lacks_keys_names_them() {
        let mut profile = Profile::named("H100").unwrap();
        profile.properties.remove("warpSize");
        let error = Profile::from_json(&profile.to_json()).unwrap_err();
        assert!(error.message().contains("lack warpSize"), "{error}");
        let error = Profile::named("h10").unwrap_err();
        assert!(error.message().contains("h100"), "{error}");
    }

    #[test]
    fn fingerprints_tell_cards_apart_but_not_their_places() {
        let prints: Vec<String> =
            Profile::names().map(|name| Profile::named(name).unwrap().fingerprint()).collect();
        assert!((0..4).all(|i| !prints[..i].contains(&prints[i])));
        let mut moved = Profile::named("h100").unwrap();
        moved.properties.insert("pciDeviceId".into(), 1.into());
        assert_eq!(moved.fingerprint(), Profile::named("h100").unwrap().fingerprint());
    }
}
