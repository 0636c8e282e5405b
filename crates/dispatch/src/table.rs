//! The computed table of an operator: one row per backend, one entry per functionality.
//!
//! The rules are PyTorch's own (c10/aten `OperatorEntry::computeDispatchTableEntry`), less its
//! special cases for AutogradOther and nested tensors; see the [`Rule`]s. A table is an
//! immutable snapshot: a row's mask and its entries always belong together.

use std::sync::Arc;

use crate::kernel::Kernel;
use crate::key::{DispatchKey, FIRST_FUNCTIONALITY, RegistrationKey};
use crate::keyset::DispatchKeySet;
use crate::names;
use crate::registrations::Registrations;
use crate::value::Value;

/// By which rule a kernel got its place in the table. The first that applies wins.
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

    /// The rule in words.
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

/// A kernel that applies at a runtime key, and why.
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

    /// Every runtime key of this process: for each backend the plain one, then the functionalities.
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

/// Every kernel that applies at a runtime key, the winner first.
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
    // Implicit composites stand back from an autograd key whose backend has its own kernel:
    // that kernel wants the Autograd alias, not a decomposition recorded step by step.
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

/// Backends that a row can be for.
const ROWS: usize = FIRST_FUNCTIONALITY as usize;

/// The entries of one backend, by the key's bit. Null means nothing, or fallthrough.
struct Row<V: Value> {
    /// Keys that stay in a set here: all but the modes whose entry is null.
    mask: DispatchKeySet,
    entries: [*const Kernel<V>; 64],
}

impl<V: Value> Row<V> {
    const EMPTY: Row<V> =
        Row { mask: DispatchKeySet::from_bits(u64::MAX), entries: [std::ptr::null(); 64] };
}

/// The start of every table, whatever its value type: what a path is printed from.
#[repr(C)]
struct Header {
    label: Arc<str>,
}

/// One operator's computed table.
#[repr(C, align(64))]
pub(crate) struct Table<V: Value> {
    header: Header,
    /// By the backend's bit, into `_rows`: those of backends that aren't known to an empty row.
    rows: [*const Row<V>; ROWS],
    /// Keys that existed when this was computed; more may have come since.
    known: DispatchKeySet,
    /// Never moves: the rows point into it.
    _rows: Box<[Row<V>]>,
    /// Keeps the kernels alive that the entries point to.
    _kernels: Vec<Arc<Kernel<V>>>,
}

// SAFETY: the pointers are into `_rows`, immutable once made, and into `_kernels`, which are
// `Send + Sync` and immutable.
unsafe impl<V: Value> Send for Table<V> {}
// SAFETY: as above.
unsafe impl<V: Value> Sync for Table<V> {}

impl<V: Value> Table<V> {
    /// A table without entries: of an operator that was removed.
    pub(crate) fn empty(label: Arc<str>) -> Self {
        Table::new(label, DispatchKeySet::EMPTY, names::registered(), Vec::new(), Vec::new())
    }

    /// A table with one row per backend, from the highest.
    fn new(
        label: Arc<str>,
        backends: DispatchKeySet,
        known: DispatchKeySet,
        mut rows: Vec<Row<V>>,
        kernels: Vec<Arc<Kernel<V>>>,
    ) -> Self {
        debug_assert_eq!(rows.len(), backends.len());
        rows.push(Row::EMPTY);
        let stored = rows.into_boxed_slice();
        let mut rows = [&raw const stored[stored.len() - 1]; ROWS];
        for (backend, row) in backends.iter().zip(&stored) {
            rows[usize::from(backend.bit())] = row;
        }
        Table { header: Header { label }, rows, known, _rows: stored, _kernels: kernels }
    }

    /// The table that follows from what is registered, in whatever order that came about.
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
            let mut row = Row::EMPTY;
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

    /// The row of a set's highest backend; CPU's for a set without one.
    #[inline(always)]
    fn row(&self, set: DispatchKeySet) -> &Row<V> {
        // CPU is bit 0 and the lowest, so adding it changes nothing where there is a backend.
        let backends = (set & DispatchKeySet::BACKENDS).bits() | 1;
        // SAFETY: it points into `_rows`, which lives with the table.
        unsafe { &*self.rows[63 - backends.leading_zeros() as usize] }
    }

    /// The kernel and key that a set leads to; `None` where there is none (see the errors).
    #[inline(always)]
    pub(crate) fn select(&self, set: DispatchKeySet) -> Option<(&Kernel<V>, DispatchKey)> {
        let row = self.row(set);
        // A backend below the highest has no entry in that one's row.
        let key = (set & row.mask).highest()?;
        // SAFETY: a non-null entry points to a kernel in `_kernels`, which lives with the table.
        let kernel = unsafe { row.entries[usize::from(key.bit())].as_ref() }?;
        Some((kernel, key))
    }

    /// The kernel at one key, for the backend of a set; the key need not be in the set.
    pub(crate) fn entry(&self, key: DispatchKey, set: DispatchKeySet) -> Option<&Kernel<V>> {
        let backend = if key.is_backend() { key.into() } else { set };
        // SAFETY: as in `select`.
        unsafe { self.row(backend).entries[usize::from(key.bit())].as_ref() }
    }

    /// The mask of the row that a set selects.
    pub(crate) fn mask(&self, set: DispatchKeySet) -> DispatchKeySet {
        self.row(set).mask
    }

    /// Whether keys were registered after this was computed.
    pub(crate) fn is_stale(&self) -> bool {
        self.known != names::registered()
    }
}

/// The operator's name out of a table whose value type isn't known.
///
/// # Safety
/// `table` must be the address of a live `Table<V>` of any `V`.
pub(crate) unsafe fn label_at(table: usize) -> Arc<str> {
    // SAFETY: `Table` is `repr(C)` and starts with its header, for every `V`.
    let header = unsafe { &*(table as *const Header) };
    Arc::clone(&header.label)
}
