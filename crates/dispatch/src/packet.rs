//! All overloads of a name, and which of them a call means.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};

use crate::dispatcher::Dispatcher;
use crate::errors;
use crate::operator::Operator;
use crate::schema::Schema;
use crate::value::Value;

/// The operators of one name: `ns::name` and its overloads, in the order of their definition. A call
/// runs the first that takes its arguments.
///
/// A packet knows its name alone, so overloads that are defined or removed later count.
#[derive(Clone, Debug)]
pub struct Packet<V: Value> {
    dispatcher: Dispatcher<V>,
    name: String,
}

impl<V: Value> Dispatcher<V> {
    /// The packet of a qualified name, `ns::name` without an overload.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownOperator`] where nothing is defined under it.
    pub fn packet(&self, name: &str) -> Result<Packet<V>> {
        if self.overloads(name).is_empty() {
            self.operator(name)?;
        }
        Ok(Packet { dispatcher: self.clone(), name: name.to_owned() })
    }
}

impl<V: Value> Packet<V> {
    /// The name, `ns::name`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The dispatcher in which the overloads are.
    pub fn dispatcher(&self) -> &Dispatcher<V> {
        &self.dispatcher
    }

    /// The overloads that exist now, in the order of their definition.
    ///
    /// # Errors
    /// [`ErrorKind::OperatorRemoved`] if none is left.
    pub fn overloads(&self) -> Result<Vec<Arc<Operator<V>>>> {
        match self.dispatcher.overloads(&self.name) {
            none if none.is_empty() => Err(errors::removed(&self.name)),
            overloads => Ok(overloads),
        }
    }

    /// The overload that is meant where no arguments say which: the default one, or the only one.
    ///
    /// # Errors
    /// [`ErrorKind::UnknownOperator`] where there are several and no default one;
    /// [`ErrorKind::OperatorRemoved`] if none is left.
    pub fn sole(&self) -> Result<Arc<Operator<V>>> {
        self.overloads()?;
        self.dispatcher.operator(&self.name)
    }

    /// Calls the first overload that takes the arguments: `args` in declaration order, then those that
    /// `keywords` name. Defaults are filled in.
    ///
    /// # Errors
    /// [`ErrorKind::Binding`] where no overload takes them, with the reason of each; those of
    /// [`Operator::call`].
    pub fn call<'a>(&self, args: &[V::Ref<'a>], keywords: &[(&str, V::Ref<'a>)]) -> Result<V> {
        let overloads = self.overloads()?;
        let mut bound = Vec::new();
        let chosen = first_that_takes(
            &self.name,
            &overloads,
            |operator| operator.schema(),
            |operator| {
                bound = operator.bind_named(args, keywords)?;
                Ok(())
            },
            || keywords.iter().map(|(name, _)| (*name).to_owned()).collect(),
        )?;
        chosen.call_bound(&bound)
    }
}

/// The first of a name's overloads that takes a call's arguments, for a language binding that has
/// arguments of its own kind: `accepts` says why one doesn't, `keywords` gives the names of arguments
/// that are given by name.
///
/// # Errors
/// The first error that is about an argument itself, a dtype that isn't supported, say, which is no
/// better for another overload. Else [`ErrorKind::Binding`] with the overloads and the reason of each. Left
/// out are overloads with an `out` that the call doesn't give, and those without a keyword that the call
/// gives and others have. Where the others have one reason in common, or one of them alone has the argument
/// that was meant, that error says all.
pub fn first_that_takes<'o, O: 'o>(
    name: &str,
    overloads: &'o [O],
    schema: impl Fn(&'o O) -> &'o Schema,
    mut accepts: impl FnMut(&'o O) -> Result<()>,
    keywords: impl FnOnce() -> Vec<String>,
) -> Result<&'o O> {
    let mut tried = Vec::new();
    for overload in overloads {
        match accepts(overload) {
            Ok(()) => return Ok(overload),
            Err(error) if is_about_the_argument(&error) => return Err(error),
            Err(error) => tried.push((schema(overload), error)),
        }
    }
    Err(none_takes(name, tried, &keywords()))
}

/// Whether the error is what an argument raised, or why it is refused, and not that it doesn't fit.
fn is_about_the_argument(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Foreign
            | ErrorKind::DType
            | ErrorKind::Device
            | ErrorKind::Exchange
            | ErrorKind::Gradient
    )
}

#[cold]
fn none_takes(name: &str, tried: Vec<(&Schema, Error)>, keywords: &[String]) -> Error {
    let out_is_missing =
        |schema: &Schema| schema.outs().any(|argument| !keywords.contains(&argument.name));
    let (mut meant, with_out): (Vec<_>, Vec<_>) =
        tried.into_iter().partition(|(schema, _)| !out_is_missing(schema));
    if meant.is_empty() {
        meant = with_out;
    }
    let suggests = |error: &Error| error.message().contains(". Did you mean '");
    if meant.iter().any(|(_, error)| suggests(error)) {
        meant.retain(|(_, error)| suggests(error));
    }
    let is_unknown = |error: &Error| error.message().contains("unexpected keyword argument");
    if meant.iter().any(|(_, error)| !is_unknown(error)) {
        meant.retain(|(_, error)| !is_unknown(error));
    }
    let first = meant.first().map(|(_, error)| reason(error));
    if first.is_some_and(|first| meant.iter().all(|(_, error)| reason(error) == first)) {
        return meant.swap_remove(0).1;
    }
    let lines: String =
        meant.iter().map(|(schema, why)| format!("\n  {schema}\n    {}", why.message())).collect();
    Error::new(ErrorKind::Binding, format!("{name}() has no overload for these arguments:{lines}"))
}

/// The message without the overload's name.
fn reason(error: &Error) -> &str {
    error.message().split_once("() ").map_or(error.message(), |(_, reason)| reason)
}
