//! The computed table of an operator: one row per backend, one entry per functionality.
//!
//! The rules are PyTorch's (c10/aten `OperatorEntry::computeDispatchTableEntry`), without its
//! special cases for AutogradOther and nested tensors; see the [`Rule`]s. A table is an immutable
//! snapshot, so that a row's mask and its entries are always consistent.

use std::sync::Arc;

use crate::kernel::Kernel;
use crate::key::{DispatchKey, FIRST_FUNCTIONALITY, RegistrationKey};
use crate::keyset::DispatchKeySet;
use crate::names;
use crate::registrations::Registrations;
use crate::value::Value;

/// The rule by which a kernel is selected for the table. The first that applies wins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Registered at exactly this runtime key.
    Direct,
    /// Registered at the functionality without a backend.
    Functionality,
    /// `CompositeExplicitAutograd`, for a backend key.
    CompositeExplicitAutograd,
    /// `CompositeImplicitAutograd`, for a backend or autograd key.
    CompositeImplicitAutograd,
    /// The `Autograd` alias, for an autograd key.
    AutogradAlias,
    /// The key's fallback, for every operator.
    Fallback,
}

impl Rule {
    /// Every rule, in the order in which they are tried.
    pub const ALL: [Rule; 6] = [
        Rule::Direct,
        Rule::Functionality,
        Rule::CompositeExplicitAutograd,
        Rule::CompositeImplicitAutograd,
        Rule::AutogradAlias,
        Rule::Fallback,
    ];

    /// Returns the description of the rule.
    pub fn describe(self) -> &'static str {
        match self {
            Rule::Direct => "registered at exactly this key",
            Rule::Functionality => "registered at the functionality, for every backend",
            Rule::CompositeExplicitAutograd => "CompositeExplicitAutograd, for every backend",
            Rule::CompositeImplicitAutograd => {
                "CompositeImplicitAutograd, for backends and their autograd keys"
            }
            Rule::AutogradAlias => "the Autograd alias, for every backend's autograd key",
            Rule::Fallback => "the key's fallback, for every operator",
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A kernel that applies at a runtime key, with its rule.
pub(crate) struct Candidate<'r, V: Value> {
    pub(crate) kernel: &'r Arc<Kernel<V>>,
    pub(crate) registered_at: RegistrationKey,
    pub(crate) rule: Rule,
}

/// A runtime key: a functionality, or none, over a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RuntimeKey {
    pub(crate) functionality: Option<DispatchKey>,
    pub(crate) backend: DispatchKey,
}

impl RuntimeKey {
    pub(crate) fn name(self) -> String {
        match self.functionality {
            Some(functionality) => format!("{functionality}{}", self.backend),
            None => self.backend.name(),
        }
    }

    /// Returns every runtime key of this process: for each backend the plain one, then the
    /// functionalities.
    pub(crate) fn all() -> Vec<RuntimeKey> {
        let keys = names::registered();
        let functionalities = keys - DispatchKeySet::BACKENDS;
        let mut all = Vec::new();
        for backend in (keys & DispatchKeySet::BACKENDS).iter() {
            all.push(RuntimeKey { functionality: None, backend });
            all.extend(
                functionalities.iter().map(|f| RuntimeKey { functionality: Some(f), backend }),
            );
        }
        all
    }
}

/// Returns every kernel that applies at a runtime key, the winner first.
pub(crate) fn candidates<'r, V: Value>(
    operator: &'r Registrations<V>,
    fallbacks: &'r Registrations<V>,
    runtime: RuntimeKey,
) -> Vec<Candidate<'r, V>> {
    use RegistrationKey::{CompositeExplicitAutograd, CompositeImplicitAutograd, Key, Narrow};
    let RuntimeKey { functionality, backend } = runtime;
    let exact = match functionality {
        None => Key(backend),
        Some(functionality) => Narrow { functionality, backend },
    };
    let is_backend = functionality.is_none();
    let is_autograd = functionality == Some(DispatchKey::Autograd);
    // Implicit composites don't apply at an autograd key whose backend has a kernel of its own:
    // that kernel needs the Autograd alias, and a decomposition would be recorded step by step.
    let implicit_applies = is_backend
        || (is_autograd
            && operator.top(Key(backend)).is_none()
            && operator.top(CompositeExplicitAutograd).is_none());

    let mut found = Vec::new();
    let mut consider = |registrations: &'r Registrations<V>, at: RegistrationKey, rule: Rule| {
        if let Some(kernel) = registrations.top(at) {
            found.push(Candidate { kernel, registered_at: at, rule });
        }
    };
    consider(operator, exact, Rule::Direct);
    if let Some(functionality) = functionality.filter(|_| !is_autograd) {
        consider(operator, Key(functionality), Rule::Functionality);
    }
    if is_backend {
        consider(operator, CompositeExplicitAutograd, Rule::CompositeExplicitAutograd);
    }
    if implicit_applies {
        consider(operator, CompositeImplicitAutograd, Rule::CompositeImplicitAutograd);
    }
    if is_autograd {
        consider(operator, Key(DispatchKey::Autograd), Rule::AutogradAlias);
    }
    consider(fallbacks, exact, Rule::Fallback);
    if let Some(functionality) = functionality {
        consider(fallbacks, Key(functionality), Rule::Fallback);
    }
    found
}

/// The number of rows: one per backend bit.
const ROWS: usize = FIRST_FUNCTIONALITY as usize;

/// The entries of one backend, by the key's bit. Null means none, or fallthrough.
struct BackendRow<V: Value> {
    /// The keys that a lookup keeps: all but modes whose entry is null.
    mask: DispatchKeySet,
    entries: [*const Kernel<V>; 64],
}

impl<V: Value> BackendRow<V> {
    const EMPTY: BackendRow<V> =
        BackendRow { mask: DispatchKeySet::from_bits(u64::MAX), entries: [std::ptr::null(); 64] };
}

/// The first field of every table, for any value type, from which call paths are printed.
#[repr(C)]
struct TableHeader {
    label: Arc<str>,
}

/// One operator's computed table.
#[repr(C, align(64))]
pub(crate) struct Table<V: Value> {
    header: TableHeader,
    /// By the backend's bit, pointers into `_rows`; unknown backends point to an empty row.
    rows: [*const BackendRow<V>; ROWS],
    /// The keys that existed at the computation; more may be registered since.
    known: DispatchKeySet,
    /// Never reallocated, since the rows point into it.
    _rows: Box<[BackendRow<V>]>,
    /// Keeps the entries' kernels alive.
    _kernels: Vec<Arc<Kernel<V>>>,
}

// SAFETY: the pointers are into `_rows`, which is immutable, and to kernels of `_kernels`, which
// are `Send + Sync` and immutable.
unsafe impl<V: Value> Send for Table<V> {}
// SAFETY: as above.
unsafe impl<V: Value> Sync for Table<V> {}

impl<V: Value> Table<V> {
    /// Returns a table without entries, for a removed operator.
    pub(crate) fn empty(label: Arc<str>) -> Self {
        Table::new(label, DispatchKeySet::EMPTY, names::registered(), Vec::new(), Vec::new())
    }

    /// Returns a table with one row per backend, the highest first.
    fn new(
        label: Arc<str>,
        backends: DispatchKeySet,
        known: DispatchKeySet,
        mut rows: Vec<BackendRow<V>>,
        kernels: Vec<Arc<Kernel<V>>>,
    ) -> Self {
        debug_assert_eq!(rows.len(), backends.len());
        rows.push(BackendRow::EMPTY);
        let stored = rows.into_boxed_slice();
        let mut rows = [&raw const stored[stored.len() - 1]; ROWS];
        for (backend, row) in backends.iter().zip(&stored) {
            rows[usize::from(backend.bit())] = row;
        }
        Table { header: TableHeader { label }, rows, known, _rows: stored, _kernels: kernels }
    }

    /// Computes the table. It depends on the registrations, but not on their order.
    pub(crate) fn compute(
        label: Arc<str>,
        operator: &Registrations<V>,
        fallbacks: &Registrations<V>,
    ) -> Self {
        let known = names::registered();
        let modes = names::modes();
        let backends = known & DispatchKeySet::BACKENDS;
        let mut kernels = Vec::new();
        let mut entry = |functionality: Option<DispatchKey>, backend| -> *const Kernel<V> {
            let runtime = RuntimeKey { functionality, backend };
            match candidates(operator, fallbacks, runtime).first() {
                Some(winner) if !winner.kernel.is_fallthrough() => {
                    kernels.push(Arc::clone(winner.kernel));
                    Arc::as_ptr(winner.kernel)
                }
                _ => std::ptr::null(),
            }
        };
        let mut rows = Vec::with_capacity(backends.len() + 1);
        for backend in backends.iter() {
            let mut row = BackendRow::EMPTY;
            row.entries[usize::from(backend.bit())] = entry(None, backend);
            for functionality in (known - backends).iter() {
                let kernel = entry(Some(functionality), backend);
                row.entries[usize::from(functionality.bit())] = kernel;
                if kernel.is_null() && modes.contains(functionality) {
                    row.mask = row.mask.remove(functionality);
                }
            }
            rows.push(row);
        }
        Table::new(label, backends, known, rows, kernels)
    }

    /// Returns the row of a set's highest backend; CPU's for a set without one.
    #[inline(always)]
    fn row(&self, set: DispatchKeySet) -> &BackendRow<V> {
        // CPU is bit 0, the lowest, so adding it changes nothing if there is another backend.
        let backends = (set & DispatchKeySet::BACKENDS).bits() | 1;
        // SAFETY: it points into `_rows`, which lives with the table.
        unsafe { &*self.rows[63 - backends.leading_zeros() as usize] }
    }

    /// Returns the kernel and key that a set selects; `None` if there is none (see the errors).
    #[inline(always)]
    pub(crate) fn select(&self, set: DispatchKeySet) -> Option<(&Kernel<V>, DispatchKey)> {
        let row = self.row(set);
        // A lower backend has no entry in the highest one's row.
        let key = (set & row.mask).highest()?;
        // SAFETY: a non-null entry points to a kernel in `_kernels`, which lives with the table.
        let kernel = unsafe { row.entries[usize::from(key.bit())].as_ref() }?;
        Some((kernel, key))
    }

    /// Returns the kernel at one key for the backend of a set; the key need not be in the set.
    pub(crate) fn entry(&self, key: DispatchKey, set: DispatchKeySet) -> Option<&Kernel<V>> {
        let backend = if key.is_backend() { key.into() } else { set };
        // SAFETY: as in `select`.
        unsafe { self.row(backend).entries[usize::from(key.bit())].as_ref() }
    }

    /// Returns the mask of the row that a set selects.
    pub(crate) fn mask(&self, set: DispatchKeySet) -> DispatchKeySet {
        self.row(set).mask
    }

    /// Returns whether keys were registered since the computation.
    pub(crate) fn is_stale(&self) -> bool {
        self.known != names::registered()
    }
}

/// Returns the operator's name from a table of an unknown value type.
///
/// # Safety
/// `table` must be the address of a live `Table<V>` of any `V`.
pub(crate) unsafe fn label_at(table: usize) -> Arc<str> {
    // SAFETY: `Table` is `repr(C)` and starts with its header, for every `V`.
    let header = unsafe { &*(table as *const TableHeader) };
    Arc::clone(&header.label)
}
