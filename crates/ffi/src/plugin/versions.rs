//! The agreement of host and plugin on a version of the ABI.

use keyfold_plugin::abi::{ABI_MAJOR, ABI_MINOR, FEATURES, Requirements};

/// The versions and features of a host: all minor versions up to its own.
pub(super) struct HostVersions {
    pub(super) major: u32,
    pub(super) minor: u32,
    /// The features, with their names.
    pub(super) features: &'static [(u64, &'static str)],
}

/// This host.
pub(super) const HOST: HostVersions =
    HostVersions { major: ABI_MAJOR, minor: ABI_MINOR, features: &FEATURES };

impl HostVersions {
    /// Returns the bits of all features.
    pub(super) const fn feature_bits(&self) -> u64 {
        let (mut bits, mut at) = (0, 0);
        while at < self.features.len() {
            bits |= self.features[at].0;
            at += 1;
        }
        bits
    }

    /// Returns the minor version that host and plugin use, the greatest that both have.
    ///
    /// # Errors
    /// The reason why there is none, with a correction.
    pub(super) fn agree(
        &self,
        (major, minor): (u32, u32),
        given: Option<Requirements>,
    ) -> Result<u32, String> {
        let HostVersions { major: own, minor: latest, .. } = *self;
        if major != own || minor > latest {
            let advice = if (major, minor) > (own, latest) {
                "load it with a newer keyfold, or build it with an older keyfold-plugin"
            } else {
                "build it with a newer keyfold-plugin"
            };
            return Err(format!(
                "it was built for version {major}.{minor} of the plugin ABI, and this keyfold has \
                 {own}.{latest}: {advice}"
            ));
        }
        let Some(Requirements { size, minor_min, minor_max, features, .. }) = given else {
            return Ok(minor);
        };
        if (size as usize) < size_of::<Requirements>() || minor_min != minor || minor_max < minor {
            return Err(format!(
                "its keyfold_plugin_requirements are at fault: {size} bytes, versions \
                 {major}.{minor_min} to {major}.{minor_max}; right are {} bytes, and versions from \
                 its descriptor's, {major}.{minor}, on",
                size_of::<Requirements>()
            ));
        }
        let missing = features & !self.feature_bits();
        if missing != 0 {
            let known: Vec<&str> = self.features.iter().map(|(_, name)| *name).collect();
            return Err(format!(
                "it needs features that this keyfold doesn't have (bits {missing:#x}); its plugin \
                 ABI {own}.{latest} has: {}; load it with a newer keyfold",
                if known.is_empty() { "none".to_owned() } else { known.join(", ") }
            ));
        }
        Ok(minor_max.min(latest))
    }
}

#[cfg(test)]
mod tests {
    use keyfold_plugin::abi::FEATURE_DEVICES;

    use super::*;

    /// A host as it was when 1.0 was the latest version, if it had known requirements.
    const OLD: HostVersions = HostVersions { major: 1, minor: 0, features: &[] };
    /// A host that has the version but not the feature.
    const BARE: HostVersions = HostVersions { major: 1, minor: 1, features: &[] };

    #[test]
    fn both_use_the_greatest_version_that_both_have() {
        let range =
            |minor_min, minor_max| Requirements { minor_max, ..Requirements::new(minor_min, 0) };
        assert_eq!(HOST.agree((1, 0), None), Ok(0));
        assert_eq!(HOST.agree((1, 0), Some(range(0, 0))), Ok(0));
        assert_eq!(HOST.agree((1, 0), Some(range(0, 1))), Ok(1));
        assert_eq!(HOST.agree((1, 1), Some(range(1, 7))), Ok(2));
        assert_eq!(OLD.agree((1, 0), Some(range(0, 1))), Ok(0));
    }

    #[test]
    fn a_host_without_the_version_or_the_feature_says_which() {
        let devices = Requirements::new(1, FEATURE_DEVICES);
        assert_eq!(HOST.agree((1, 1), Some(devices)), Ok(2));
        let refused = OLD.agree((1, 1), Some(devices)).unwrap_err();
        assert!(
            refused.contains("version 1.1") && refused.contains("has 1.0: load it with a newer")
        );
        let refused = BARE.agree((1, 1), Some(devices)).unwrap_err();
        assert!(refused.contains("bits 0x1") && refused.contains("1.1 has: none"), "{refused}");
        let refused = HOST.agree((1, 1), Some(Requirements::new(1, 1 << 63))).unwrap_err();
        assert!(refused.contains("0x8000000000000000") && refused.contains("has: devices"));
        let refused = HOST.agree((0, 9), None).unwrap_err();
        assert!(refused.contains("build it with a newer keyfold-plugin"), "{refused}");
    }

    #[test]
    fn requirements_that_contradict_the_descriptor_are_refused() {
        let good = Requirements::new(0, 0);
        for wrong in [
            Requirements { size: 16, ..good },
            Requirements { minor_min: 1, ..good },
            Requirements { minor_min: 1, minor_max: 0, ..good },
        ] {
            let minor = if wrong.minor_max == 0 { 1 } else { 0 };
            let refused = HOST.agree((1, minor), Some(wrong)).unwrap_err();
            assert!(refused.contains("keyfold_plugin_requirements are at fault"), "{refused}");
        }
    }
}
