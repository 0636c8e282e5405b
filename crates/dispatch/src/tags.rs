//! Properties of an operator that hold for every call and aren't in its schema.

use std::fmt;
use std::ops::BitOr;

use keyfold_core::{Error, ErrorKind, Result};

/// A set of properties of an operator, with PyTorch's names for its operator tags.
///
/// ```
/// use keyfold_dispatch::Tags;
///
/// let tags = Tags::from_names(["nondeterministic_seeded"])?;
/// assert!(tags.contains(Tags::NONDETERMINISTIC_SEEDED));
/// assert_eq!(tags.to_string(), "nondeterministic_seeded");
/// assert!(Tags::from_names(["random"]).is_err());
/// # Ok::<(), keyfold_core::Error>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Tags(u8);

impl Tags {
    /// No tag.
    pub const NONE: Tags = Tags(0);
    /// The operator draws random numbers from its device's generator: two calls differ, a replay
    /// must draw again, and `vmap` needs to know whether examples share them.
    pub const NONDETERMINISTIC_SEEDED: Tags = Tags(1);
    /// The result's shape depends on the values of the arguments, so there is no Meta kernel.
    pub const DATA_DEPENDENT_SHAPE: Tags = Tags(2);

    const ALL: [(&'static str, Tags); 2] = [
        ("nondeterministic_seeded", Tags::NONDETERMINISTIC_SEEDED),
        ("data_dependent_shape", Tags::DATA_DEPENDENT_SHAPE),
    ];

    /// Returns whether all tags of another set are in this one.
    pub const fn contains(self, other: Tags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the names of the tags in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let present = Tags::ALL.into_iter().filter(move |(_, tag)| self.contains(*tag));
        present.map(|(name, _)| name)
    }

    /// Returns the set of tags with these names.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for an unknown name.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Tags> {
        names.into_iter().try_fold(Tags::NONE, |tags, name| {
            let known = Tags::ALL.iter().find(|(known, _)| *known == name);
            known.map(|(_, tag)| tags | *tag).ok_or_else(|| {
                let known = Tags::ALL.map(|(known, _)| format!("'{known}'")).join(", ");
                Error::new(
                    ErrorKind::Value,
                    format!("'{name}' isn't a tag of operators; the tags are {known}"),
                )
            })
        })
    }
}

impl BitOr for Tags {
    type Output = Tags;

    fn bitor(self, other: Tags) -> Tags {
        Tags(self.0 | other.0)
    }
}

impl fmt::Display for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().collect::<Vec<_>>().join(", "))
    }
}

impl fmt::Debug for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tags({self})")
    }
}
