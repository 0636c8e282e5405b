//! The texts of the engine's errors.

use keyfold_core::{Error, ErrorKind};

use crate::context::{CallContext, call_path, repeated_calls};
use crate::kernel::Kernel;
use crate::key::DispatchKey;
use crate::keyset::DispatchKeySet;
use crate::names::backend_was_removed;
use crate::operator::Operator;
use crate::value::Value;
use keyfold_core::{did_you_mean, nearest};

fn list(keys: DispatchKeySet) -> String {
    keys.iter().map(DispatchKey::name).collect::<Vec<_>>().join(", ")
}

/// Returns the error for a name without an operator; `known` are the names that exist.
pub(crate) fn unknown_operator<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Error {
    // Sorted, so that equally near names have a fixed order.
    let mut known: Vec<&str> = known.collect();
    known.sort_unstable();
    let close = nearest_operators(name, &known);
    let hint = if close.is_empty() {
        "define it first".to_owned()
    } else {
        format!("did you mean {}?", close.join(" or "))
    };
    Error::new(
        ErrorKind::UnknownOperator,
        format!("no operator named {}; {hint}", if name.is_empty() { "\"\"" } else { name }),
    )
}

/// Returns the error for a name that has overloads, but no default one.
pub(crate) fn no_default(name: &str, overloads: &[String]) -> Error {
    Error::new(
        ErrorKind::UnknownOperator,
        format!(
            "{name} has several overloads and no default one; say which: {}",
            overloads.join(", ")
        ),
    )
}

/// Returns the error for an operator without that overload.
pub(crate) fn unknown_overload(name: &str, overload: &str, known: &[String]) -> Error {
    let names: Vec<&str> = known
        .iter()
        .map(|full| full[name.len()..].strip_prefix('.').unwrap_or("default"))
        .collect();
    let hint = did_you_mean(overload, names.iter().copied());
    Error::new(
        ErrorKind::UnknownOperator,
        format!(
            "{name} has no overload '{overload}'{hint}; its overloads are {}",
            names.join(", ")
        ),
    )
}

/// Returns the known names nearest to `name`. A bare name is compared with bare names. A name in a
/// known namespace is compared with that namespace's names only, since a long common prefix would
/// make short names look alike. A name in an unknown namespace is compared as a whole.
fn nearest_operators(name: &str, known: &[&str]) -> Vec<String> {
    if let Some((namespace, bare)) = name.split_once("::") {
        let prefix = format!("{namespace}::");
        let inside = known.iter().filter_map(|full| full.strip_prefix(prefix.as_str()));
        let close = nearest(bare, inside);
        if !close.is_empty() {
            return close.iter().map(|name| format!("{prefix}{name}")).collect();
        }
        if known.iter().any(|full| full.starts_with(&prefix)) {
            return Vec::new();
        }
    } else {
        let mut bare: Vec<(&str, &str)> = known
            .iter()
            .map(|full| full.split('.').next().unwrap_or(full))
            .filter_map(|full| full.split_once("::").map(|(_, bare)| (bare, full)))
            .collect();
        bare.dedup();
        let same: Vec<_> = bare.iter().filter(|(bare, _)| *bare == name).collect();
        let near = nearest(name, bare.iter().map(|(bare, _)| *bare));
        let near = bare.iter().filter(|(bare, _)| near.contains(bare)).collect();
        let close = if same.is_empty() { near } else { same };
        if !close.is_empty() {
            return close.into_iter().take(3).map(|(_, full)| (*full).to_owned()).collect();
        }
    }
    nearest(name, known.iter().copied()).iter().map(|name| (*name).to_owned()).collect()
}

pub(crate) fn removed(name: &str) -> Error {
    Error::new(
        ErrorKind::OperatorRemoved,
        format!("{name} was removed; define it again and fetch it anew"),
    )
}

pub(crate) fn kernel_removed<V: Value>(name: &str, kernel: &Kernel<V>) -> Error {
    Error::new(
        ErrorKind::OperatorRemoved,
        format!("the kernel {} of {name} was removed", kernel.provenance()),
    )
}

pub(crate) fn dispatcher_gone(name: &str) -> Error {
    Error::new(ErrorKind::OperatorRemoved, format!("the dispatcher that {name} belongs to is gone"))
}

pub(crate) fn empty_keyset(name: &str, include: DispatchKeySet, exclude: DispatchKeySet) -> Error {
    let locals = match (include.is_empty(), exclude.is_empty()) {
        (true, true) => String::new(),
        _ => format!(" (locally included: [{}], excluded: [{}])", list(include), list(exclude)),
    };
    Error::new(
        ErrorKind::EmptyKeySet,
        format!("{name}: empty keyset: there is no dispatch key to call it with{locals}"),
    )
}

/// Returns the error for a chosen key without a kernel, with a short explanation.
pub(crate) fn missing_kernel<V: Value>(
    operator: &Operator<V>,
    set: DispatchKeySet,
    key: Option<DispatchKey>,
) -> Error {
    let name = operator.name();
    // The operator's own entries, since the layers' fallbacks are in every table.
    let mut entries = operator.entries(false);
    entries.retain(|entry| !entry.kernel.is_fallthrough());
    let mut text = match key {
        Some(key) => format!("{name}: no kernel registered for {}", runtime_name(key, set)),
        None => format!("{name}: no kernel registered for any of its keys"),
    };
    text.push_str(&format!(" (key set: [{}]", list(set)));
    let skipped =
        key.map_or(set, |key| set.iter().filter(|other| *other > key).collect::<DispatchKeySet>());
    if !skipped.is_empty() && key.is_some() {
        text.push_str(&format!(", skipped: [{}]", list(skipped)));
    }
    text.push(')');
    let kind = set.backend().and_then(DispatchKey::device_type);
    if let Some(kind) = kind.filter(|kind| backend_was_removed(*kind)) {
        text.push_str(&format!(
            "; the backend of {kind} was removed: copy tensors that are on {kind} to the CPU with \
             .cpu(), or register a backend for {kind} again"
        ));
        return Error::new(ErrorKind::MissingKernel, text);
    }
    if key == Some(DispatchKey::Meta) {
        text.push_str(&format!(
            "; a Meta kernel says which shapes and dtypes the results have, without data: add one \
             (in Python: @keyfold.register_fake(\"{name}\"), in Rust: a kernel at \
             DispatchKey::Meta)"
        ));
    }
    if let Some(key) = key.filter(|key| !key.is_backend()) {
        text.push_str(&format!(
            "; {key} says what the data is, so skipping it would hand a kernel data that it \
             misreads: register a kernel or a fallback for {key}"
        ));
    }
    // Backends first, then the layers over them. A kernel at Deferred infers results, and computes none.
    let deferred = DispatchKey::Deferred.name();
    let mut keys: Vec<_> = entries.iter().map(|entry| entry.runtime_key.as_str()).collect();
    keys.retain(|key| !key.starts_with(&*deferred));
    if keys.is_empty() {
        text.push_str("; it has no kernels of its own");
    } else {
        keys.sort_by_key(|name| (name.len(), *name));
        let shown = keys.len().min(8);
        let more = keys.len() - shown;
        text.push_str(&format!("; it has kernels for {}", keys[..shown].join(", ")));
        if more > 0 {
            text.push_str(&format!(" and {more} more"));
        }
    }
    let key = match key {
        // The hint above explains how.
        Some(DispatchKey::Meta) => return Error::new(ErrorKind::MissingKernel, text),
        Some(key) => runtime_name(key, set),
        None => set.backend().unwrap_or(DispatchKey::CPU).name(),
    };
    text.push_str(&format!("; to add one: {}", operator.registration_line(&key)));
    Error::new(ErrorKind::MissingKernel, text)
}

/// Returns the name of the runtime key that a key in a set selects.
fn runtime_name(key: DispatchKey, set: DispatchKeySet) -> String {
    match set.backend() {
        Some(backend) if !key.is_backend() => format!("{key}{backend}"),
        _ => key.name(),
    }
}

pub(crate) fn no_direct_kernel<V: Value>(
    operator: &Operator<V>,
    key: DispatchKey,
    set: DispatchKeySet,
) -> Error {
    let mut error = missing_kernel(operator, set.insert(key), Some(key));
    if error.kind() == ErrorKind::MissingKernel {
        error = Error::new(
            ErrorKind::MissingKernel,
            format!("{} (call_direct takes this key's kernel and no other)", error.message()),
        );
    }
    error
}

pub(crate) fn fallthrough_called<V: Value>(context: &CallContext<'_, V>) -> Error {
    Error::new(
        ErrorKind::MissingKernel,
        format!("{}: {} is a fallthrough", context.operator().name(), context.key()),
    )
}

pub(crate) fn nothing_shadowed<V: Value>(
    name: &str,
    key: DispatchKey,
    kernel: &Kernel<V>,
) -> Error {
    Error::new(
        ErrorKind::MissingKernel,
        format!(
            "{name}: the kernel {} at {key} shadows none; register it with override=\"shadow\" \
             over another",
            kernel.provenance()
        ),
    )
}

/// Adds the place of a recursion: the repeating calls, or the innermost operators and keys.
pub(crate) fn recursion(name: &str, error: Error) -> Error {
    if let Some(endless) = endless_call(error.message()) {
        return endless;
    }
    let path = call_path();
    let mut last: Vec<String> =
        path.iter().rev().take(4).map(|(operator, key)| format!("{operator} at {key}")).collect();
    last.reverse();
    Error::new(
        error.kind(),
        format!(
            "{name}: {}; does a kernel call its own operator, or redispatch without removing its \
             key?; the last calls: {}",
            error.message(),
            last.join(", then ")
        ),
    )
}

/// Returns the error for endlessly repeating calls that `limit` stopped: operator, key, and a
/// correction. `None` if the calls in progress on this thread don't repeat.
#[cold]
pub fn endless_call(limit: &str) -> Option<Error> {
    let (round, times) = repeated_calls()?;
    let (name, _) = round.last()?;
    let calls: Vec<String> =
        round.iter().map(|(operator, key)| format!("{operator} at {key}")).collect();
    let layer = round.iter().rev().find(|(_, key)| !key.is_backend());
    let advice = match (layer, round.last()) {
        (Some((operator, key)), _) => format!(
            "a layer removes its own key before it passes a call on: \
             kf.redispatch(\"{operator}\", keyset.remove(\"{key}\"), ...)"
        ),
        (None, Some((_, key))) => format!(
            "a kernel at {key} can't compute with its own operator: call other operators, or the \
             arrays' own library"
        ),
        (None, None) => return None,
    };
    Some(Error::new(
        ErrorKind::Recursion,
        format!(
            "{name}: {limit}: {} runs inside itself {times} times; {advice}",
            calls.join(", then ")
        ),
    ))
}
