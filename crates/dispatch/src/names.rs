//! The process-wide registry of dispatch keys: names, bits, modes.
//!
//! Built-in keys are constants; user keys get reserved bits. A bit is never freed, so that it means
//! one key for ever.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use keyfold_core::{DeviceType, Error, ErrorKind, Result, USER_DEVICE_TYPES};

use crate::key::{BUILTIN, DispatchKey, RegistrationKey};
use crate::keyset::DispatchKeySet;
use keyfold_core::nearest;

struct UserKey {
    key: DispatchKey,
    name: String,
    /// The key that it was registered above; `None` for a backend.
    above: Option<DispatchKey>,
    skippable: bool,
}

static USER_KEYS: RwLock<Vec<UserKey>> = RwLock::new(Vec::new());

/// Bits of all keys, and of those that calls may skip. Written under the lock of `USER_KEYS` after
/// the name is stored; read by every computation of a table.
static REGISTERED: AtomicU64 = AtomicU64::new(builtin_bits(false));
static MODES: AtomicU64 = AtomicU64::new(builtin_bits(true));

/// Bits by device type number, for [`backend_was_removed`].
static REMOVED: AtomicU16 = AtomicU16::new(0);

/// Marks the backend of a device type as removed, for error messages, until its name is registered
/// again.
pub fn note_removed_backend(kind: DeviceType) {
    REMOVED.fetch_or(1 << kind.index(), Ordering::Relaxed);
}

/// Returns whether the backend of a device type is marked as removed.
pub fn backend_was_removed(kind: DeviceType) -> bool {
    REMOVED.load(Ordering::Relaxed) & 1 << kind.index() != 0
}

const fn builtin_bits(modes_only: bool) -> u64 {
    let mut bits = 0;
    let mut i = 0;
    while i < BUILTIN.len() {
        let bit = BUILTIN[i].0.bit();
        let mode = bit == DispatchKey::Tracer.bit()
            || bit == DispatchKey::Profiler.bit()
            || bit == DispatchKey::Pipeline.bit()
            || bit == DispatchKey::Autograd.bit()
            || bit == DispatchKey::Autocast.bit();
        if mode || !modes_only {
            bits |= 1 << bit;
        }
        i += 1;
    }
    bits
}

/// Returns all keys of this process.
pub(crate) fn registered() -> DispatchKeySet {
    DispatchKeySet::from_bits(REGISTERED.load(Ordering::Acquire))
}

/// Returns the keys that calls skip if they have no kernel.
pub(crate) fn modes() -> DispatchKeySet {
    DispatchKeySet::from_bits(MODES.load(Ordering::Acquire))
}

pub(crate) fn name_of(key: DispatchKey) -> String {
    if let Some((_, name)) = BUILTIN.iter().find(|(k, _)| *k == key) {
        return (*name).to_owned();
    }
    let users = USER_KEYS.read().unwrap_or_else(PoisonError::into_inner);
    match users.iter().find(|u| u.key == key) {
        Some(user) => user.name.clone(),
        None => format!("key{}", key.bit()),
    }
}

pub(crate) fn find(text: &str) -> Option<DispatchKey> {
    if let Some((key, _)) = BUILTIN.iter().find(|(_, name)| *name == text) {
        return Some(*key);
    }
    let users = USER_KEYS.read().unwrap_or_else(PoisonError::into_inner);
    users.iter().find(|u| u.name == text).map(|u| u.key)
}

/// Parses `AutogradCUDA`: a functionality's name followed by a backend's.
pub(crate) fn find_narrow(text: &str) -> Option<RegistrationKey> {
    let functionalities = registered() - DispatchKeySet::BACKENDS;
    functionalities.iter().find_map(|functionality| {
        let backend = find(text.strip_prefix(functionality.name().as_str())?)?;
        backend.is_backend().then_some(RegistrationKey::Narrow { functionality, backend })
    })
}

/// Other libraries' names for keys, each with keyfold's.
const FOREIGN: [(&str, &str); 3] =
    [("GPU", "CUDA"), ("FuncTorchBatched", "Vmap"), ("FuncTorchGradWrapper", "Autograd")];

/// Returns the error for a name that isn't a single key's.
pub(crate) fn unknown(text: &str) -> Error {
    if let Some(narrow) = find_narrow(text)
        && let RegistrationKey::Narrow { functionality, backend } = narrow
    {
        return Error::new(
            ErrorKind::UnknownKey,
            format!(
                "{text:?} is two dispatch keys, {functionality} and {backend}, where one is \
                 wanted: give {functionality} or {backend} (registrations and key sets take both)"
            ),
        );
    }
    if text.parse::<RegistrationKey>().is_ok() {
        return Error::new(
            ErrorKind::UnknownKey,
            format!("{text:?} is an alias that registrations alone take, and no dispatch key"),
        );
    }
    let known: Vec<String> = registered().iter().map(DispatchKey::name).collect();
    suggest(text, &known, &known)
}

/// Returns the error for a name at which no kernel can be registered.
pub(crate) fn unknown_place(text: &str) -> Error {
    let mut known: Vec<String> = registered().iter().map(DispatchKey::name).collect();
    known.extend(["CompositeExplicitAutograd", "CompositeImplicitAutograd"].map(String::from));
    let mut accepted = known.clone();
    for functionality in (registered() - DispatchKeySet::BACKENDS).iter() {
        for backend in (registered() & DispatchKeySet::BACKENDS).iter() {
            let narrow = format!("{functionality}{backend}");
            if functionality == DispatchKey::Autograd {
                known.push(narrow.clone());
            }
            accepted.push(narrow);
        }
    }
    suggest(text, &accepted, &known)
}

/// Returns the error for an unknown name, with the nearest accepted names or a list of them.
fn suggest(text: &str, accepted: &[String], listed: &[String]) -> Error {
    // The whole name, or the backend at its end: `GPU`, `AutogradGPU`.
    let translated = FOREIGN.iter().find_map(|(foreign, own)| {
        let at = text.len().checked_sub(foreign.len())?;
        let (head, tail) = text.split_at_checked(at)?;
        let name = format!("{head}{own}");
        (tail.eq_ignore_ascii_case(foreign) && accepted.contains(&name)).then_some(name)
    });
    let close = match &translated {
        Some(name) => vec![name.as_str()],
        None => nearest(text, accepted.iter().map(String::as_str)),
    };
    let hint = if close.is_empty() {
        format!("known keys are {}", listed.join(", "))
    } else {
        format!("did you mean {}?", close.join(" or "))
    };
    Error::new(ErrorKind::UnknownKey, format!("unknown dispatch key {text:?}; {hint}"))
}

fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn check_new_name(name: &str) -> Result<()> {
    let reserved = ["CompositeExplicitAutograd", "CompositeImplicitAutograd"];
    let problem = if !is_identifier(name) {
        "isn't an identifier (letters, digits and underscores, not starting with a digit)"
    } else if reserved.contains(&name) || find_narrow(name).is_some() {
        "already names an alias or a functionality on a backend"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::UnknownKey, format!("the key name {name:?} {problem}")))
}

/// Registers a functionality key, at the lowest free bit above `above` and below the next built-in
/// key. `above` may be a functionality key, built in or the user's, or a backend (then the key is
/// just above all backends).
///
/// A `skippable` key is a mode: calls skip it if it has no kernel. Any other key is a
/// representation, and a call without a kernel for it is an error.
///
/// Registering the same name, position and kind again returns the same key.
///
/// ```
/// use keyfold_dispatch::{DispatchKey, register_key};
/// let audit = register_key("Audit", DispatchKey::Autograd, true)?;
/// assert!(audit.priority() > DispatchKey::Autograd.priority());
/// # Ok::<(), keyfold_core::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::UnknownKey`] if the name is registered at another position or isn't an identifier,
/// or if the bits there are taken (four, or three above the backends).
pub fn register_key(name: &str, above: DispatchKey, skippable: bool) -> Result<DispatchKey> {
    check_new_name(name)?;
    // Every backend means the same position: above them all, and above the key that defers work for
    // them, so that the layers of such keys run when a call is recorded.
    let above = if above.is_backend() { DispatchKey::Deferred } else { above };
    let mut users = USER_KEYS.write().unwrap_or_else(PoisonError::into_inner);
    let builtin = BUILTIN.iter().find(|(_, n)| *n == name).map(|(k, _)| *k);
    if let Some(user) = users.iter().find(|u| u.name == name) {
        if user.above == Some(above) && user.skippable == skippable {
            return Ok(user.key);
        }
        let place = match user.above {
            Some(key) => format!("above {}", plain_name(&users, key)),
            None => "as a backend".to_owned(),
        };
        let kind = if user.skippable { "skippable" } else { "not skippable" };
        return Err(Error::new(
            ErrorKind::UnknownKey,
            format!("the key {name:?} is already registered {place}, {kind}; keys never move"),
        ));
    }
    if builtin.is_some() {
        return Err(Error::new(
            ErrorKind::UnknownKey,
            format!("{name:?} is a built-in dispatch key; choose another name"),
        ));
    }
    // The gap ends at the next built-in key, or at the top bit.
    let end = BUILTIN.iter().map(|(k, _)| k.bit()).filter(|b| *b > above.bit()).min().unwrap_or(64);
    let taken = REGISTERED.load(Ordering::Acquire);
    let Some(bit) = (above.bit() + 1..end).find(|bit| taken & (1 << bit) == 0) else {
        let below = BUILTIN.iter().map(|(k, _)| k.bit()).filter(|b| *b < end).max().unwrap_or(0);
        let places = end - below - 1;
        let there: Vec<_> = users
            .iter()
            .filter(|u| (below..end).contains(&u.key.bit()))
            .map(|u| u.name.as_str())
            .collect();
        return Err(Error::new(
            ErrorKind::UnknownKey,
            format!(
                "no place left for the key {name:?} above {}: there are {places} before the next \
                 built-in key, taken by {}; places are never reused",
                plain_name(&users, above),
                there.join(", ")
            ),
        ));
    };
    let key = DispatchKey::from_bit(bit);
    users.push(UserKey { key, name: name.to_owned(), above: Some(above), skippable });
    if skippable {
        MODES.fetch_or(1 << bit, Ordering::Release);
    }
    REGISTERED.fetch_or(1 << bit, Ordering::Release);
    Ok(key)
}

fn plain_name(users: &[UserKey], key: DispatchKey) -> String {
    match BUILTIN.iter().find(|(k, _)| *k == key) {
        Some((_, name)) => (*name).to_owned(),
        None => users.iter().find(|u| u.key == key).map_or_else(String::new, |u| u.name.clone()),
    }
}

/// Registers a backend: `register_backend("npu")` adds the key `NPU`, `AutogradNPU` and the other
/// narrowed keys, the device type `npu`, and a row in every operator's table. Its priority is above
/// CUDA's and below Meta's. Registering it again returns the same key.
///
/// # Errors
/// [`ErrorKind::UnknownKey`] if the name is a functionality key's or isn't an identifier, or if all
/// twelve bits are taken.
pub fn register_backend(name: &str) -> Result<DispatchKey> {
    if let Ok(kind) = name.parse::<DeviceType>() {
        REMOVED.fetch_and(!(1 << kind.index()), Ordering::Relaxed);
        let key = DispatchKey::from_device_type(kind);
        if registered().contains(key) {
            return Ok(key);
        }
    }
    check_backend_name(name)?;
    let kind = DeviceType::register(name).map_err(with_removed)?;
    debug_assert!(USER_DEVICE_TYPES.contains(&kind.index()));
    let key = DispatchKey::from_device_type(kind);
    let mut users = USER_KEYS.write().unwrap_or_else(PoisonError::into_inner);
    if !users.iter().any(|u| u.key == key) {
        let name = name.to_ascii_uppercase();
        users.push(UserKey { key, name, above: None, skippable: false });
        REGISTERED.fetch_or(1 << key.bit(), Ordering::Release);
    }
    Ok(key)
}

/// Checks that a backend can have the name: it is a registered one's, or new and no other key's.
/// There may still be no place left for it.
///
/// # Errors
/// As [`register_backend`].
pub fn check_backend_name(name: &str) -> Result<()> {
    let registered_kind = name.parse::<DeviceType>().map(DispatchKey::from_device_type);
    if registered_kind.is_ok_and(|key| registered().contains(key)) {
        return Ok(());
    }
    let upper = name.to_ascii_uppercase();
    check_new_name(&upper)?;
    // In any case, since a backend AUTOGRAD beside Autograd would mislead.
    let taken = registered().iter().map(DispatchKey::name).find(|k| k.eq_ignore_ascii_case(&upper));
    if let Some(taken) = taken {
        return Err(Error::new(
            ErrorKind::UnknownKey,
            format!("the backend name {name:?} is already taken by the dispatch key {taken}"),
        ));
    }
    // Otherwise a functionality key such as "AutogradNPU" would become ambiguous.
    for functionality in (registered() - DispatchKeySet::BACKENDS).iter() {
        let narrow = format!("{functionality}{upper}");
        if find(&narrow).is_some() {
            return Err(Error::new(
                ErrorKind::UnknownKey,
                format!("the backend name {name:?} would make {narrow} ambiguous: a key has it"),
            ));
        }
    }
    Ok(())
}

/// Adds what to do: the device types that a backend can be registered under again, if there are
/// any.
#[cold]
fn with_removed(error: Error) -> Error {
    let kinds = USER_DEVICE_TYPES.filter_map(DeviceType::from_index);
    let free: Vec<_> = kinds.filter(|kind| backend_was_removed(*kind)).map(|k| k.name()).collect();
    let advice = match free.is_empty() {
        true => "use it in another process, which has places of its own".to_owned(),
        false => format!("register it under a name that has no backend: {}", free.join(", ")),
    };
    let message = format!("{}; {advice}", error.message());
    Error::new(error.kind(), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_key_sits_between_its_neighbours() {
        let audit = register_key("NamesAudit", DispatchKey::Quantized, true).unwrap();
        assert!(audit > DispatchKey::Quantized && audit < DispatchKey::Nested);
        assert!(audit.is_skippable());
        assert_eq!(audit.to_string(), "NamesAudit");
        assert_eq!("NamesAudit".parse::<DispatchKey>().unwrap(), audit);
        assert!(DispatchKey::registered().contains(&audit));
        let over = register_key("NamesOver", audit, false).unwrap();
        assert!(over > audit && over < DispatchKey::Nested);
        assert!(!over.is_skippable());
    }

    #[test]
    fn registering_again_is_idempotent_and_moving_is_an_error() {
        let key = register_key("NamesTwice", DispatchKey::Sparse, true).unwrap();
        assert_eq!(register_key("NamesTwice", DispatchKey::Sparse, true).unwrap(), key);
        let moved = register_key("NamesTwice", DispatchKey::Autograd, true).unwrap_err();
        assert!(moved.to_string().contains("above Sparse"), "{moved}");
        assert!(register_key("NamesTwice", DispatchKey::Sparse, false).is_err());
    }

    #[test]
    fn running_out_of_places_is_a_clear_error() {
        for i in 0..4 {
            register_key(&format!("NamesFull{i}"), DispatchKey::Tracer, true).unwrap();
        }
        let error = register_key("NamesFull9", DispatchKey::Tracer, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownKey);
        assert!(error.to_string().contains("NamesFull0"), "{error}");
    }

    #[test]
    fn bad_names_are_refused() {
        let taken = ["CPU", "Autograd", "AutogradCPU", "CompositeExplicitAutograd"];
        for name in taken.into_iter().chain(["", "a b", "1x", "é"]) {
            let error = register_key(name, DispatchKey::Autograd, true).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnknownKey, "{name:?}: {error}");
        }
        assert!(register_backend("a-b").is_err());
        assert!(register_backend("autograd").is_err());
    }

    #[test]
    fn a_backend_brings_key_device_and_narrow_keys() {
        let npu = register_backend("namesnpu").unwrap();
        assert_eq!(register_backend("NamesNPU").unwrap(), npu);
        assert!(npu > DispatchKey::CUDA && npu < DispatchKey::Meta);
        assert_eq!(npu.device_type().unwrap().name(), "namesnpu");
        let narrow: RegistrationKey = "AutogradNAMESNPU".parse().unwrap();
        assert_eq!(
            narrow,
            RegistrationKey::Narrow { functionality: DispatchKey::Autograd, backend: npu }
        );
        assert_eq!(register_backend("cpu").unwrap(), DispatchKey::CPU);
    }
}
