//! Registered kernels: a stack per key, whose top is active.

use std::collections::BTreeMap;
use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};

use crate::kernel::Kernel;
use crate::key::RegistrationKey;
use crate::value::Value;

/// The policy for registering a kernel at an occupied key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Override {
    /// An error that names both origins, unless the same source is registered again.
    #[default]
    Error,
    /// The new kernel shadows the old one, which becomes active again when the new one is removed.
    Shadow,
    /// The old kernel is removed.
    Replace,
}

impl std::str::FromStr for Override {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "error" => Ok(Override::Error),
            "shadow" => Ok(Override::Shadow),
            "replace" => Ok(Override::Replace),
            _ => Err(Error::new(
                ErrorKind::Value,
                format!("override={text:?} must be \"error\", \"shadow\" or \"replace\""),
            )),
        }
    }
}

pub(crate) struct Registration<V: Value> {
    pub(crate) id: u64,
    pub(crate) kernel: Arc<Kernel<V>>,
}

/// The fate of the kernel that a new one replaces.
pub(crate) enum Replaced<V: Value> {
    /// There was none, or it is shadowed.
    Nothing,
    /// It was removed.
    Taken(Arc<Kernel<V>>),
    /// It is shadowed until the caller removes it; its number.
    Kept(u64),
}

/// The kernels of one operator, or the fallbacks of a dispatcher.
pub(crate) struct Registrations<V: Value> {
    stacks: BTreeMap<RegistrationKey, Vec<Registration<V>>>,
}

impl<V: Value> Default for Registrations<V> {
    fn default() -> Self {
        Registrations { stacks: BTreeMap::new() }
    }
}

impl<V: Value> Registrations<V> {
    /// Returns the active kernel at a key.
    pub(crate) fn top(&self, key: RegistrationKey) -> Option<&Arc<Kernel<V>>> {
        self.stacks.get(&key)?.last().map(|registration| &registration.kernel)
    }

    /// Returns the whole stack at a key, bottom first.
    pub(crate) fn stack(&self, key: RegistrationKey) -> &[Registration<V>] {
        self.stacks.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Keys with a kernel, and their stacks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (RegistrationKey, &[Registration<V>])> {
        self.stacks.iter().map(|(key, stack)| (*key, stack.as_slice()))
    }

    /// Returns how many kernels are active.
    pub(crate) fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Adds a kernel. Returns the fate of the kernel that it replaces, which must be dropped
    /// outside of any lock. With `keep` a replaced kernel stays shadowed, for the caller to remove
    /// later.
    ///
    /// # Errors
    /// If the key is occupied and `mode` is [`Override::Error`]; the message names both origins.
    pub(crate) fn add(
        &mut self,
        place: &str,
        key: RegistrationKey,
        new: Registration<V>,
        mode: Override,
        keep: bool,
    ) -> Result<Replaced<V>> {
        let stack = self.stacks.entry(key).or_default();
        let Some(top) = stack.last_mut() else {
            stack.push(new);
            return Ok(Replaced::Nothing);
        };
        let reload = new.kernel.provenance().is_reload_of(top.kernel.provenance());
        match mode {
            // Requested explicitly: not even a reload replaces.
            Override::Shadow => {
                stack.push(new);
                Ok(Replaced::Nothing)
            }
            Override::Error if !reload => Err(Error::new(
                ErrorKind::Registration,
                format!(
                    "{place} already has a kernel at {key}: {}; the new one is {}. Remove the \
                     first, or register with override=\"shadow\" (the first comes back when the \
                     second is removed) or override=\"replace\"",
                    top.kernel.provenance(),
                    new.kernel.provenance()
                ),
            )),
            _ if keep => {
                let below = top.id;
                stack.push(new);
                Ok(Replaced::Kept(below))
            }
            _ => {
                let old = std::mem::replace(top, new);
                old.kernel.mark_removed();
                Ok(Replaced::Taken(old.kernel))
            }
        }
    }

    /// Removes a registration at any position of its stack.
    pub(crate) fn remove(&mut self, key: RegistrationKey, id: u64) -> Option<Arc<Kernel<V>>> {
        let stack = self.stacks.get_mut(&key)?;
        let at = stack.iter().position(|registration| registration.id == id)?;
        let removed = stack.remove(at).kernel;
        if stack.is_empty() {
            self.stacks.remove(&key);
        }
        removed.mark_removed();
        Some(removed)
    }

    /// Removes all registrations.
    pub(crate) fn clear(&mut self) -> Vec<Arc<Kernel<V>>> {
        let stacks = std::mem::take(&mut self.stacks);
        let kernels: Vec<_> = stacks.into_values().flatten().map(|r| r.kernel).collect();
        for kernel in &kernels {
            kernel.mark_removed();
        }
        kernels
    }

    /// Returns the kernel right below this one in its stack.
    pub(crate) fn below(&self, kernel: &Kernel<V>) -> Option<Arc<Kernel<V>>> {
        self.stacks.values().find_map(|stack| {
            let at = stack.iter().position(|r| std::ptr::eq(Arc::as_ptr(&r.kernel), kernel))?;
            stack.get(at.checked_sub(1)?).map(|r| Arc::clone(&r.kernel))
        })
    }
}
