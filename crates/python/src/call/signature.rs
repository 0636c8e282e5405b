//! The signature of a Python kernel, and the source of the function.

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::Provenance;
use keyfold_dispatch::schema::Schema;
use pyo3::prelude::*;
use pyo3::types::{PyModule, PyType};

/// How the function is called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// `fn(*args)`
    Plain,
    /// `fn(keyset, *args)`
    WithKeySet,
    /// `fn(op, keyset, args, kwargs)`
    Fallback,
}

/// Where a function comes from: its module, qualified name, file and line.
pub(crate) fn provenance_of(function: &Bound<'_, PyAny>) -> Provenance {
    let text = |name: &str| function.getattr(name).and_then(|v| v.extract::<String>()).ok();
    let place = || -> PyResult<(String, u32)> {
        let inspect = function.py().import("inspect")?;
        let inner = inspect.call_method1("unwrap", (function,))?;
        let code = inner.getattr("__code__")?;
        Ok((code.getattr("co_filename")?.extract()?, code.getattr("co_firstlineno")?.extract()?))
    };
    let (file, line) = place().unwrap_or_else(|_| ("no source".to_owned(), 0));
    let name = text("__qualname__").unwrap_or_else(|| {
        function.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
    });
    let named = text("__qualname__").is_some() && !name.contains('<');
    // A method bound to an object, and not to a class or module: the object makes it another.
    let owner = function
        .getattr("__self__")
        .ok()
        .filter(|owner| !owner.is_instance_of::<PyType>() && !owner.is_instance_of::<PyModule>());
    let instance = owner.map(|owner| owner.as_ptr() as usize);
    Provenance { language: "Python", name, module: text("__module__"), file, line, named, instance }
}

/// A function's signature, read once at registration.
pub(super) struct Signature {
    function: String,
    /// Parameters that can be given by position, in order: their names, and whether each must be.
    positional: Vec<(String, bool)>,
    /// Whether there may be any number of them.
    any_number: bool,
    /// Whether the key set comes first, ahead of the schema's arguments.
    takes_keyset: bool,
    /// Keyword-only parameters that must be given.
    required_keywords: Vec<String>,
    /// Names that can be given by keyword; `None`: any.
    keywords: Option<Vec<String>>,
    text: String,
}

/// The signature of a plain kernel; `None` where it can't be read, or isn't the schema's.
pub(super) fn signature_of(function: &Bound<'_, PyAny>, style: Style) -> Option<Signature> {
    let read = || -> PyResult<Signature> {
        let inspect = function.py().import("inspect")?;
        let signature = inspect.call_method1("signature", (function,))?;
        let parameter = inspect.getattr("Parameter")?;
        let empty = parameter.getattr("empty")?;
        let mut found = Signature {
            function: provenance_of(function).name,
            positional: Vec::new(),
            any_number: false,
            takes_keyset: style == Style::WithKeySet,
            required_keywords: Vec::new(),
            keywords: Some(Vec::new()),
            text: signature.str()?.to_string(),
        };
        for item in signature.getattr("parameters")?.call_method0("values")?.try_iter()? {
            let item = item?;
            let kind = item.getattr("kind")?.getattr("name")?.extract::<String>()?;
            let name = item.getattr("name")?.extract::<String>()?;
            let has_default = !item.getattr("default")?.is(&empty);
            match kind.as_str() {
                "VAR_POSITIONAL" => found.any_number = true,
                "VAR_KEYWORD" => found.keywords = None,
                "KEYWORD_ONLY" => {
                    if !has_default {
                        found.required_keywords.push(name.clone());
                    }
                    if let Some(known) = &mut found.keywords {
                        known.push(name);
                    }
                }
                _ => {
                    found.positional.push((name.clone(), !has_default));
                    if let Some(known) = &mut found.keywords
                        && kind == "POSITIONAL_OR_KEYWORD"
                    {
                        known.push(name);
                    }
                }
            }
        }
        Ok(found)
    };
    // Builtins and C functions without a text signature can't be read; they are taken as they are.
    read().ok()
}

impl Signature {
    pub(super) fn check(&self, schema: &Schema) -> Result<()> {
        match self.problem(schema) {
            None => Ok(()),
            Some(problem) => Err(Error::new(
                ErrorKind::Registration,
                format!(
                    "{}: the kernel {}{} contradicts the schema: {problem}\n  schema: {schema}",
                    schema.name, self.function, self.text
                ),
            )),
        }
    }

    /// Why a fallback could never be called: it gets four arguments by position.
    pub(super) fn fallback_problem(&self, style: Style) -> Option<String> {
        let required = self.positional.iter().filter(|(_, must)| *must).count();
        let fits = self.required_keywords.is_empty()
            && required <= 4
            && (self.any_number || self.positional.len() >= 4);
        (style == Style::Fallback && !fits).then(|| {
            format!(
                "the fallback {}{} is called with (op, keyset, args, kwargs), which it doesn't take",
                self.function, self.text
            )
        })
    }

    /// Why a call as the schema makes it could never work: positional arguments by position, the
    /// keyword-only ones by name.
    fn problem(&self, schema: &Schema) -> Option<String> {
        let passed = schema.positional_count();
        let by_keyword = &schema.arguments[passed..];
        let is_keyword = |name: &str| by_keyword.iter().any(|argument| argument.name == name);
        let places = passed + usize::from(self.takes_keyset);
        let what = if self.takes_keyset { "the key set and " } else { "" };
        let hint = "; a kernel that gets the key set first is registered with with_keyset=True";
        if !self.any_number && self.positional.len() < places {
            let most = self.positional.len();
            let s = if most == 1 { "" } else { "s" };
            return Some(format!(
                "it takes at most {most} positional argument{s}, but gets {what}{passed}"
            ));
        }
        if !self.takes_keyset
            && let Some((first, _)) = self.positional.first()
            && first == "keyset"
            && schema.argument_index("keyset").is_none()
        {
            return Some(format!("its parameter 'keyset' would get no key set{hint}"));
        }
        let (filled, rest) = self.positional.split_at(places.min(self.positional.len()));
        if let Some((name, _)) = filled.iter().find(|(name, _)| is_keyword(name)) {
            return Some(format!("its parameter '{name}' would be given by position and by name"));
        }
        if let Some((name, _)) = rest.iter().find(|(name, must)| *must && !is_keyword(name)) {
            let surplus = rest.iter().filter(|(name, must)| *must && !is_keyword(name)).count();
            let hint = if surplus == 1 && !self.takes_keyset { hint } else { "" };
            let required = self.positional.iter().filter(|(_, must)| *must).count();
            return Some(format!(
                "it requires {required} positional arguments ('{name}' among them), but gets \
                 {what}{passed}{hint}"
            ));
        }
        if let Some(name) = self.required_keywords.iter().find(|name| !is_keyword(name)) {
            return Some(format!(
                "it requires the keyword argument '{name}', which the schema doesn't have"
            ));
        }
        let known = self.keywords.as_ref()?;
        let missing = by_keyword.iter().find(|argument| !known.contains(&argument.name))?;
        Some(format!("it doesn't take the schema's keyword argument '{}'", missing.name))
    }
}
