//! A kernel's origin: author, file and line.

use std::fmt;
use std::panic::Location;

/// The folder of keyfold's crates, as it begins the file names of `file!()` and `Location`.
const CRATES: &str = {
    let (folder, _) = file!().split_at(file!().len() - "dispatch/src/provenance.rs".len());
    folder
};

/// The origin of a kernel, for explanations and for distinguishing a reload from a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provenance {
    /// The language the kernel is written in: `Rust`, `Python`, `C`.
    pub language: &'static str,
    /// The kernel's name in its source.
    pub name: String,
    /// The module or library it comes from.
    pub module: Option<String>,
    /// The source file of the registration.
    pub file: String,
    /// The line in that file; 0 if unknown.
    pub line: u32,
    /// Whether module and name identify the kernel across reloads of its source. They don't for
    /// lambdas and nested functions, which share names.
    pub named: bool,
    /// The object's identity, for a method: methods of two objects are two kernels.
    pub instance: Option<usize>,
}

impl Provenance {
    /// Returns the origin of a Rust kernel registered at that place.
    pub fn rust(name: impl Into<String>, place: &Location<'_>) -> Self {
        Provenance {
            language: "Rust",
            name: name.into(),
            module: None,
            file: place.file().to_owned(),
            line: place.line(),
            named: false,
            instance: None,
        }
    }

    /// Returns whether the kernel is from one of keyfold's crates. Users don't know its name and its
    /// file.
    pub fn is_built_in(&self) -> bool {
        let inside = self.file.strip_prefix(CRATES).and_then(|path| path.split_once("/src/"));
        self.language == "Rust"
            && self.module.is_none()
            && inside.is_some_and(|(name, _)| !name.contains('/'))
    }

    /// Returns "built in", and what the kernel does where its name says so in words.
    fn built_in(&self) -> String {
        if self.name.contains(' ') {
            return format!("built in: {}", self.name);
        }
        "built in".to_owned()
    }

    /// Returns the source for users: a file with its line, or "built in".
    pub fn source(&self) -> String {
        match self.line {
            _ if self.is_built_in() => "built in".to_owned(),
            0 => self.file.clone(),
            line => format!("{}:{line}", self.file),
        }
    }

    /// Returns whether this is the same source registered again: the same module and qualified
    /// name, or the same file and line.
    pub fn is_reload_of(&self, earlier: &Provenance) -> bool {
        // Without a module (a symbol of a shared library) the file distinguishes equal names.
        let same_name = self.named
            && earlier.named
            && (self.module.is_some() || self.file == earlier.file)
            && self.module == earlier.module
            && self.name == earlier.name;
        // `<stdin>` and the like aren't files: every statement typed there is at line 1.
        let is_place = self.line != 0 && !self.file.starts_with('<');
        let same_place = is_place && self.line == earlier.line && self.file == earlier.file;
        self.language == earlier.language
            && self.instance == earlier.instance
            && (same_name || same_place)
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_built_in() {
            return f.write_str(&self.built_in());
        }
        match &self.module {
            // The text says all, but where the name says in words what was made of it.
            Some(_) if self.language == "expression" && self.name.contains(' ') => {
                f.write_str(&self.name)?;
            }
            Some(text) if self.language == "expression" => f.write_str(text)?,
            Some(module) => write!(f, "{module}.{}", self.name)?,
            None => f.write_str(&self.name)?,
        }
        write!(f, " ({}, {})", self.language, self.source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(name: &str, line: u32, named: bool) -> Provenance {
        Provenance {
            language: "Python",
            name: name.into(),
            module: Some("pkg.mod".into()),
            file: "pkg/mod.py".into(),
            line,
            named,
            instance: None,
        }
    }

    #[test]
    fn reloads_are_told_by_name_or_place() {
        assert!(python("f", 10, true).is_reload_of(&python("f", 3, true)));
        assert!(python("f", 10, false).is_reload_of(&python("g", 10, false)));
        assert!(!python("<lambda>", 10, false).is_reload_of(&python("<lambda>", 11, false)));
        assert!(!python("f", 10, true).is_reload_of(&python("g", 11, true)));
        let of = |instance| Provenance { instance: Some(instance), ..python("C.f", 10, true) };
        assert!(of(1).is_reload_of(&of(1)) && !of(1).is_reload_of(&of(2)));
        let rust = Provenance::rust("f", Location::caller());
        assert!(!rust.is_reload_of(&python("f", rust.line, true)));
    }

    #[test]
    fn prints_name_language_and_place() {
        assert_eq!(python("f", 10, true).to_string(), "pkg.mod.f (Python, pkg/mod.py:10)");
        assert_eq!(python("f", 0, true).to_string(), "pkg.mod.f (Python, pkg/mod.py)");
    }

    #[test]
    fn names_no_source_of_keyfold_itself() {
        let own = Provenance::rust("add_cpu", Location::caller());
        assert_eq!((own.to_string(), own.source()), ("built in".into(), "built in".into()));
        let told = Provenance { name: "one call per example".into(), ..own.clone() };
        assert_eq!(told.to_string(), "built in: one call per example");
        for file in ["src/lib.rs", "other/crates/ops/src/lib.rs", "crates/ops/tests/calls.rs"] {
            let other = Provenance { file: file.into(), line: 7, ..own.clone() };
            assert_eq!(other.to_string(), format!("add_cpu (Rust, {file}:7)"));
        }
    }
}
