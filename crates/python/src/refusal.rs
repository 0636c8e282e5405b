//! Why no overload of an operator takes a call's arguments, in as few words as say it.

use keyfold_core::{Error, ErrorKind};
use pyo3::prelude::*;

use crate::operator::PyOperator;

/// The error for arguments that no overload takes: the overloads with the reason of each.
///
/// Left out are overloads with an `out` that the call doesn't give, and those without a keyword that
/// the call gives and others have. Where the others have one reason
/// in common, or one of them alone has the argument that was meant, that error says all.
///
/// # Panics
/// If `tried` is empty.
#[cold]
pub(crate) fn no_overload(
    name: &str,
    tried: Vec<(&Bound<'_, PyOperator>, Error)>,
    keywords: &[String],
) -> Error {
    let out_is_missing = |operator: &Bound<'_, PyOperator>| {
        let params = &operator.get().params;
        params.all[params.positional..].iter().any(|param| {
            let name = param.name.bind(operator.py()).to_string_lossy();
            param.written && param.default.is_none() && !keywords.iter().any(|k| *k == name)
        })
    };
    let (mut meant, with_out): (Vec<_>, Vec<_>) =
        tried.into_iter().partition(|(operator, _)| !out_is_missing(operator));
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
    let (_, first) = &meant[0];
    if meant.iter().all(|(_, error)| reason(error) == reason(first)) {
        return meant.swap_remove(0).1;
    }
    let lines: String = meant
        .iter()
        .map(|(operator, why)| {
            format!("\n  {}\n    {}", operator.get().operator.schema(), why.message())
        })
        .collect();
    Error::new(ErrorKind::Binding, format!("{name}() has no overload for these arguments:{lines}"))
}

/// The message without the overload's name.
fn reason(error: &Error) -> &str {
    error.message().split_once("() ").map_or(error.message(), |(_, reason)| reason)
}
