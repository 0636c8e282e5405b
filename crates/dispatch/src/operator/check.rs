//! Checks around a call: devices, argument types, results.

use keyfold_core::{Device, Error, ErrorKind, Result};

use super::Operator;
use crate::kernel::Kernel;
use crate::schema::{ArgumentSource, Type};
use crate::value::{Tag, Value};

/// Python's keywords, which schemas may use as argument names and Python's parameters can't.
const PYTHON_KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];

impl<V: Value> Operator<V> {
    /// Checks that the arguments live on one device, or as the operator's policy allows.
    ///
    /// # Errors
    /// [`ErrorKind::Device`], naming both arguments and their devices.
    #[cold]
    #[inline(never)]
    pub fn check_devices(&self, args: &[V::Ref<'_>]) -> Result<()> {
        if self.options.mixed_devices {
            return Ok(());
        }
        let mut first: Option<(String, Tag)> = None;
        let mut clash = None;
        for (position, arg) in args.iter().enumerate() {
            V::visit_tags(*arg, &mut |place, tag| {
                let Some(device) = tag.device().filter(|_| !tag.is_cpu_scalar()) else { return };
                let name = self.schema.arguments.get(position).map_or("?", |a| &a.name);
                let here = format!("'{name}{place}'");
                match &first {
                    None => first = Some((here, tag)),
                    Some((there, other)) if other.device() != Some(device) && clash.is_none() => {
                        let other = other.device().unwrap_or_default();
                        clash = Some((there.clone(), other, here, device));
                    }
                    Some(_) => {}
                }
            });
        }
        let Some((there, other, here, device)) = clash else { return Ok(()) };
        // The hint moves the CPU tensor to the other device.
        let target = if device == Device::CPU { other } else { device }.to_string();
        Err(Error::new(
            ErrorKind::Device,
            format!(
                "{}: arguments on different devices: {there} is on {other}, {here} is on {device}; \
                 move one of them, with .to({target:?}) (only a 0-dim CPU tensor may stand beside another device's)",
                self.name
            ),
        ))
    }

    /// Fills in defaults after `args` and checks each against its type.
    pub(super) fn bind<'s, 'a: 's>(&'s self, args: &[V::Ref<'a>]) -> Result<Vec<V::Ref<'s>>> {
        let mut bound = Vec::with_capacity(self.schema.arguments.len());
        if args.len() > self.schema.arguments.len() {
            self.schema.bind(args.len(), &[])?;
        }
        for position in 0..self.schema.arguments.len() {
            match (args.get(position), self.default_value(position)) {
                (Some(given), _) => bound.push(V::shorten(*given)),
                (None, Some(default)) => bound.push(default.as_ref()),
                (None, None) => {
                    // Rust callers pass keyword-only arguments by position too.
                    self.schema.bind(args.len(), &[])?;
                    return Err(self.missing(position));
                }
            }
        }
        self.check_types(&bound)?;
        Ok(bound)
    }

    /// As `bind`, with arguments by name, too.
    pub(crate) fn bind_named<'s, 'a: 's>(
        &'s self,
        args: &[V::Ref<'a>],
        keywords: &[(&str, V::Ref<'a>)],
    ) -> Result<Vec<V::Ref<'s>>> {
        if keywords.is_empty() {
            return self.bind(args);
        }
        let names: Vec<&str> = keywords.iter().map(|(name, _)| *name).collect();
        let sources = self.schema.bind(args.len(), &names)?;
        let bound = sources.into_iter().enumerate().map(|(position, source)| match source {
            ArgumentSource::Positional(at) => Ok(V::shorten(args[at])),
            ArgumentSource::Keyword(at) => Ok(V::shorten(keywords[at].1)),
            ArgumentSource::Default => match self.default_value(position) {
                Some(default) => Ok(default.as_ref()),
                None => Err(self.missing(position)),
            },
        });
        let bound = bound.collect::<Result<Vec<_>>>()?;
        self.check_types(&bound)?;
        Ok(bound)
    }

    #[cold]
    fn missing(&self, position: usize) -> Error {
        let argument = &self.schema.arguments[position].name;
        Error::new(ErrorKind::Binding, format!("{}() missing argument '{argument}'", self.name))
    }

    /// Checks bound arguments against the schema's types.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`], naming the argument, the given and the expected type.
    #[inline]
    pub fn check_types(&self, args: &[V::Ref<'_>]) -> Result<()> {
        for (position, (argument, value)) in self.schema.arguments.iter().zip(args).enumerate() {
            if !V::conforms(*value, &argument.ty) {
                return Err(self.nonconforming(position, *value));
            }
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn nonconforming(&self, position: usize, value: V::Ref<'_>) -> Error {
        let argument = &self.schema.arguments[position];
        self.wrong_type(&argument.name, &argument.ty, &V::describe(value))
    }

    /// Returns the error for an argument of the wrong type.
    #[cold]
    pub fn wrong_type(&self, argument: &str, wanted: &Type, given: &str) -> Error {
        Error::new(
            ErrorKind::Binding,
            format!("{}() argument '{argument}' must be {wanted}, not {given}", self.name),
        )
    }

    /// Returns the line of Python that registers a kernel at a key, with the schema's arguments.
    pub fn registration_line(&self, key: &str) -> String {
        let place = self.schema.positional_count();
        let mut names: Vec<&str> = self.schema.arguments.iter().map(|a| a.name.as_str()).collect();
        if self.schema.has_kwarg_only() {
            names.insert(place, "*");
        }
        let parameters = match names.iter().any(|name| PYTHON_KEYWORDS.contains(name)) {
            true => "*args, **kwargs".to_owned(),
            false => names.join(", "),
        };
        let space = if parameters.is_empty() { "" } else { " " };
        let target = if self.is_isolated() { "dispatcher" } else { "kf" };
        format!("{target}.impl(\"{}\", \"{key}\", lambda{space}{parameters}: ...)", self.name)
    }

    /// Checks a kernel's result against the schema.
    ///
    /// # Errors
    /// [`ErrorKind::Return`], naming the kernel, its result and the schema's returns.
    #[inline]
    pub fn check_return(&self, kernel: &Kernel<V>, value: &V) -> Result<()> {
        let fits = match &self.schema.returns[..] {
            [] => V::is_none(value.as_ref()),
            [one] => V::conforms(value.as_ref(), &one.ty),
            many => value.as_tuple().is_some_and(|items| {
                items.len() == many.len()
                    && items.iter().zip(many).all(|(v, r)| V::conforms(v.as_ref(), &r.ty))
            }),
        };
        if fits { Ok(()) } else { Err(self.nonconforming_return(kernel, value)) }
    }

    #[cold]
    #[inline(never)]
    fn nonconforming_return(&self, kernel: &Kernel<V>, value: &V) -> Error {
        let given = match value.as_tuple() {
            Some(items) => {
                let items: Vec<_> = items.iter().map(|v| V::describe(v.as_ref())).collect();
                format!("{} values ({})", items.len(), items.join(", "))
            }
            None => V::describe(value.as_ref()),
        };
        self.wrong_return(kernel, &given)
    }

    /// Returns the error for a result of the wrong number or kind.
    #[cold]
    pub fn wrong_return(&self, kernel: &Kernel<V>, given: &str) -> Error {
        Error::new(
            ErrorKind::Return,
            format!(
                "{}: the kernel {} returned {given}, where the schema promises {}",
                self.name,
                kernel.provenance(),
                self.schema.returns_text()
            ),
        )
    }
}
