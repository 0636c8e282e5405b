//! Explanations of calls, computed without running them.

use std::fmt;

use keyfold_core::Device;

use crate::key::{DispatchKey, RegistrationKey};
use crate::keyset::DispatchKeySet;
use crate::local::LocalKeys;
use crate::operator::Operator;
use crate::provenance::Provenance;
use crate::table::Rule;
use crate::value::{Tag, Value};

/// The keys of one argument of a call.
#[derive(Clone, Debug)]
pub struct ArgumentKeys {
    /// The argument's name, with the index inside a list.
    pub name: String,
    /// Its keys.
    pub keys: DispatchKeySet,
    /// Its device, if it has one.
    pub device: Option<Device>,
}

/// A kernel that would run, and the reason.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The key chosen from the set.
    pub key: DispatchKey,
    /// The runtime key's name, with the backend: `AutogradCPU`.
    pub runtime_key: String,
    /// Where the kernel was registered.
    pub registered_at: RegistrationKey,
    /// The rule that selected it.
    pub rule: Rule,
    /// The kernel's origin.
    pub kernel: Provenance,
    /// The kernels that it won against: key, rule and origin of each.
    pub losers: Vec<(RegistrationKey, Rule, Provenance)>,
    /// The kernels that it shadows at the same key, nearest first.
    pub shadows: Vec<Provenance>,
}

/// The explanation of a call.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The operator's schema.
    pub schema: String,
    /// The keys of each argument that has any.
    pub arguments: Vec<ArgumentKeys>,
    /// Whether the default device's key was added, since no argument has a backend key.
    pub default_backend: bool,
    /// The thread's local key sets.
    pub local: LocalKeys,
    /// The set after includes and excludes.
    pub keyset: DispatchKeySet,
    /// The backend whose row of the table is used.
    pub backend: DispatchKey,
    /// Modes of the set that are skipped, since they have no kernel or a fallthrough.
    pub skipped: DispatchKeySet,
    /// The kernel that would run; `None` if the call would fail.
    pub choice: Option<Choice>,
    /// The kernels that would run next if each layer redispatched below itself.
    pub next: Vec<Choice>,
    /// The call's error, if it would fail.
    pub error: Option<String>,
}

impl<V: Value> Operator<V> {
    /// Explains a call with these arguments on this thread. Runs no kernel.
    pub fn explain(&self, args: &[V::Ref<'_>]) -> Explanation {
        let mut arguments = Vec::new();
        let mut merged = Tag::NONE;
        for (position, arg) in args.iter().enumerate() {
            let name = self.schema().arguments.get(position).map_or("?", |a| &a.name);
            merged = merged.merge(V::tag(*arg));
            V::visit_tags(*arg, &mut |place, tag| {
                if !tag.keys().is_empty() {
                    let name = format!("{name}{place}");
                    arguments.push(ArgumentKeys { name, keys: tag.keys(), device: tag.device() });
                }
            });
        }
        let devices = if merged.is_mixed() { self.check_devices(args) } else { Ok(()) };
        let keyset = self.keyset_of(merged.keys());
        let backend = keyset.backend().unwrap_or(DispatchKey::CPU);
        let mask = self.with_fresh_table(|table| table.mask(keyset)).unwrap_or_default();
        let mut path = self.path_from(keyset, backend, mask).into_iter();
        let choice = path.next();
        let error = match (devices, &choice) {
            (Err(error), _) => Some(error.to_string()),
            (Ok(()), Some(_)) => None,
            (Ok(()), None) => Some(self.failure(keyset, mask)),
        };
        Explanation {
            schema: self.schema().to_string(),
            arguments,
            default_backend: merged.keys().backend().is_none(),
            local: LocalKeys::current(),
            keyset,
            backend,
            skipped: match &choice {
                Some(choice) => keyset.iter().filter(|key| *key > choice.key).collect(),
                None => keyset - mask,
            },
            choice,
            next: path.collect(),
            error,
        }
    }

    /// Returns the keys whose kernels a call with this set runs, in order, if each layer
    /// redispatches below itself: down to a backend, or to the last key that has a kernel.
    pub fn key_path(&self, keyset: DispatchKeySet) -> Vec<DispatchKey> {
        let mut path = Vec::new();
        // The look-up takes a frame, which fails if calls nest too deep; the path is empty then.
        let _ = self.with_table(|table| {
            for key in (keyset & table.mask(keyset)).iter() {
                if table.entry(key, keyset).is_none() {
                    break;
                }
                path.push(key);
                if key.is_backend() {
                    break;
                }
            }
        });
        path
    }

    /// Returns the choices from the highest key down to a backend or a missing entry.
    fn path_from(
        &self,
        keyset: DispatchKeySet,
        backend: DispatchKey,
        mask: DispatchKeySet,
    ) -> Vec<Choice> {
        let mut path = Vec::new();
        for key in (keyset & mask).iter() {
            let Some(entry) = self.entry_of(key, backend) else { break };
            if entry.kernel.is_fallthrough() {
                break;
            }
            let provenance = |kernel: &crate::kernel::Kernel<V>| kernel.provenance().clone();
            let stack = match entry.rule {
                Rule::Fallback => Vec::new(),
                _ => self.shadow_stack(entry.registered_at),
            };
            path.push(Choice {
                key,
                runtime_key: entry.runtime_key,
                registered_at: entry.registered_at,
                rule: entry.rule,
                kernel: provenance(&entry.kernel),
                losers: entry
                    .losers
                    .iter()
                    .map(|(at, rule, k)| (*at, *rule, provenance(k)))
                    .collect(),
                shadows: stack.iter().skip(1).map(|kernel| provenance(kernel)).collect(),
            });
            if key.is_backend() {
                break;
            }
        }
        path
    }

    fn failure(&self, keyset: DispatchKeySet, mask: DispatchKeySet) -> String {
        let local = LocalKeys::current();
        let error = if self.is_removed() {
            crate::errors::removed(self.name())
        } else if keyset.is_empty() {
            crate::errors::empty_keyset(self.name(), local.included(), local.excluded())
        } else {
            crate::errors::missing_kernel(self, keyset, (keyset & mask).highest())
        };
        error.to_string()
    }
}

fn names(keys: DispatchKeySet) -> String {
    if keys.is_empty() {
        return "nothing".to_owned();
    }
    keys.iter().map(DispatchKey::name).collect::<Vec<_>>().join(", ")
}

impl Explanation {
    /// The rows that it prints: what is said, and what it is.
    pub fn rows(&self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        let mut say = |head: &str, text: String| rows.push((head.to_owned(), text));
        for argument in &self.arguments {
            let place = argument.device.map_or_else(String::new, |d| format!("  (on {d})"));
            let keys = names(argument.keys);
            say(&format!("argument {}", argument.name), format!("{keys}{place}"));
        }
        if self.default_backend {
            let cpu = DispatchKey::CPU;
            say("default device", format!("{cpu}  (no argument brings a backend)"));
        }
        if !self.local.included().is_empty() {
            say("locally included", names(self.local.included()));
        }
        if !self.local.excluded().is_empty() {
            say("locally excluded", names(self.local.excluded()));
        }
        say("key set", names(self.keyset));
        if !self.skipped.is_empty() {
            say("skipped", format!("{}  (no kernel there)", names(self.skipped)));
        }
        if let Some(error) = &self.error {
            say("error", error.clone());
        } else if let Some(choice) = &self.choice {
            say("chosen key", choice.key.to_string());
            say("kernel", choice.kernel.to_string());
            say("because", format!("{}: {}", choice.registered_at, choice.rule.describe()));
            for (at, rule, kernel) in &choice.losers {
                say("lost to it", format!("{kernel} at {at} ({})", rule.describe()));
            }
            for kernel in &choice.shadows {
                say("shadowed by it", kernel.to_string());
            }
            for next in &self.next {
                say("a redispatch goes to", format!("{}: {}", next.runtime_key, next.kernel));
            }
        }
        rows
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.schema)?;
        for (head, text) in self.rows() {
            write!(f, "\n  {head:<20}  {text}")?;
        }
        Ok(())
    }
}
