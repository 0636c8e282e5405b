//! The cache of plans.

mod flight;
mod lru;
#[cfg(all(test, loom))]
mod models;
mod prepare;
mod prepared;
mod stats;
pub(crate) mod sync;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result};

use crate::canonical::Writer;
use crate::{
    Canonical, CanonicalKey, GraphSpec, Plan, Planner, Policy, Progress, Signature, Step, Uid,
};
use flight::Way;
pub(crate) use flight::{Failure, Shelf};
pub use lru::ByteHash;
pub(crate) use lru::Kept;
use lru::{Dropped, Key};
pub use prepare::ShapeClass;
use prepared::Record;
pub use prepared::{Member, Prepared};
use stats::KindCounts;
pub use stats::{Counts, EntryInfo, Kind, Stats};
use sync::{Mutex, lock};

/// The bounds of the process's cache: this many entries, and 1 GiB of what plans hold.
const ENTRIES: usize = 256;
const BYTES: u64 = 1 << 30;

/// Plans by graph, policy and device, for all threads.
///
/// An entry is found by the [canonical key](crate::CanonicalKey) of its graph together with the
/// policy and the planner's [profile](Planner::profile), compared whole: graphs that differ in
/// uids, names and order only share a plan. The least recently used entries are evicted when there
/// are too many, or when they hold too many bytes; plans in use stay in memory until they are
/// dropped. A plan that holds more bytes than the bound isn't kept.
///
/// If several threads request a plan that isn't in the cache, one builds it and the others wait. A
/// build that fails isn't kept, and the waiting threads return its error. If it was cancelled by
/// the [`Progress`] of its caller, one of the waiting threads builds the plan, since its own caller
/// hasn't cancelled. Builds run without a lock, and may request other plans.
///
/// ```
/// use keyfold_cudnn::{GraphSpec, PlanCache, Policy};
///
/// let cache = PlanCache::new(16, 1 << 20)?;
/// let graph = GraphSpec::default();
/// // A marker: this graph was prepared, on a machine without what would plan it.
/// cache.put(&graph, "h100", &Policy::default(), None)?;
/// assert!(cache.get(&graph, "h100", &Policy::default()).is_some_and(|entry| entry.is_none()));
/// assert!(cache.get(&graph, "a100", &Policy::default()).is_none());
/// # Ok::<(), keyfold_core::Error>(())
/// ```
pub struct PlanCache<S = ByteHash> {
    shelf: Shelf<Arc<Record>, S>,
    kinds: Mutex<BTreeMap<Kind, Arc<KindCounts>>>,
}

/// Returns the process's cache.
pub fn plan_cache() -> &'static PlanCache {
    static CACHE: LazyLock<PlanCache> =
        LazyLock::new(|| PlanCache::new(ENTRIES, BYTES).expect("its bounds aren't 0"));
    &CACHE
}

impl PlanCache {
    /// Makes a cache of at most this many entries, which hold at most this many bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a bound of 0.
    pub fn new(entries: usize, bytes: u64) -> Result<PlanCache> {
        PlanCache::with_hasher(entries, bytes, ByteHash::default())
    }
}

impl<S: BuildHasher> PlanCache<S> {
    /// Makes a cache whose map uses another hasher.
    ///
    /// # Errors
    /// Those of [`PlanCache::new`].
    pub fn with_hasher(entries: usize, bytes: u64, hasher: S) -> Result<PlanCache<S>> {
        check_bounds(entries, bytes)?;
        let shelf = Shelf::new(entries, bytes, hasher);
        Ok(PlanCache { shelf, kinds: Mutex::new(BTreeMap::new()) })
    }

    /// Returns the plan of a graph on the planner's device, and builds it where it isn't there.
    ///
    /// `progress` watches the build, and the waiting for another thread's build.
    ///
    /// # Errors
    /// Those of [`GraphSpec::validate`], the planner and `progress`; [`ErrorKind::Recursion`] where
    /// the planner asks for the plan that it makes; [`ErrorKind::KernelPanic`] where another
    /// thread's build of the plan panicked.
    pub fn get_or_build(
        &self,
        graph: &GraphSpec,
        planner: &dyn Planner,
        policy: &Policy,
        progress: Progress<'_>,
    ) -> Result<Prepared> {
        let asked = Asked::of(graph, planner.profile(), policy);
        let wait =
            || progress(Step { done: 0, total: 1, what: "wait for the build of another thread" });
        let build = || self.build(graph, &asked, planner, policy, progress);
        let (record, way) = self.shelf.get_or_build(&asked.key, &wait, build, let_go)?;
        match way {
            Way::Hit => record.note_hit(),
            Way::Waited => record.counts.note(|counts| counts.waits += 1),
            Way::Built => {}
        }
        Ok(Prepared::new(record, graph, asked.uids))
    }

    fn build(
        &self,
        graph: &GraphSpec,
        asked: &Asked,
        planner: &dyn Planner,
        policy: &Policy,
        progress: Progress<'_>,
    ) -> Result<Arc<Record>, Failure> {
        let counts = self.counts_of(graph);
        counts.note(|counts| counts.misses += 1);
        let begun = Instant::now();
        let cancelled = AtomicBool::new(false);
        let watched = |step: Step<'_>| {
            progress(step).inspect_err(|_| cancelled.store(true, Ordering::Relaxed))
        };
        let plan = graph
            .clone()
            .validate()
            .and_then(|valid| planner.plan(Arc::new(valid), policy, &watched));
        let time = begun.elapsed();
        counts.note(|counts| {
            counts.build_time += time;
            counts.failures += u64::from(plan.is_err());
        });
        match plan {
            Ok(plan) => Ok(Arc::new(Record::new(graph, asked, Some(plan), time, counts))),
            Err(error) if cancelled.into_inner() => Err(Failure::Cancelled(error)),
            Err(error) => Err(Failure::Failed(error)),
        }
    }

    /// Returns the entry of a graph: its plan, or `None` for a marker without a plan.
    pub fn get(
        &self,
        graph: &GraphSpec,
        profile: &str,
        policy: &Policy,
    ) -> Option<Option<Prepared>> {
        let asked = Asked::of(graph, profile, policy);
        let Some(record) = self.shelf.get(&asked.key) else {
            self.counts_of(graph).note(|counts| counts.misses += 1);
            return None;
        };
        record.note_hit();
        Some(record.plan.is_some().then(|| Prepared::new(record, graph, asked.uids)))
    }

    /// Keeps a plan of a graph, or without one a marker: it says that the graph was prepared, and
    /// the plan is built at the first request. It replaces the entry of the same key.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] where the plan is of another graph, for another device, or was chosen by
    /// another policy.
    pub fn put(
        &self,
        graph: &GraphSpec,
        profile: &str,
        policy: &Policy,
        plan: Option<Plan>,
    ) -> Result<()> {
        let mut asked = Asked::of(graph, profile, policy);
        let valid = plan.as_ref().map(|plan| Arc::clone(&plan.graph));
        let planned = valid.as_ref().map_or(graph, |valid| valid.spec());
        if let Some(plan) = &plan {
            let of_plan = Asked::of(planned, profile, policy);
            check_plan(plan, (&asked, &of_plan), profile, policy)?;
            asked = of_plan;
        }
        let record = Record::new(planned, &asked, plan, Duration::ZERO, self.counts_of(graph));
        let_go(self.shelf.put(Key::from(asked.key), Arc::new(record)));
        Ok(())
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.shelf.with(|lru| lru.len())
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bounds: of entries, and of their bytes.
    pub fn capacity(&self) -> (usize, u64) {
        self.shelf.with(|lru| lru.bounds())
    }

    /// Sets the bounds, and evicts the entries beyond them.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for a bound of 0.
    pub fn set_capacity(&self, entries: usize, bytes: u64) -> Result<()> {
        check_bounds(entries, bytes)?;
        let evicted = self.shelf.with(|lru| lru.set_bounds(entries, bytes));
        let_go(Dropped { replaced: None, evicted });
        Ok(())
    }

    /// Forgets all entries. Builds that have begun are kept when they end, and the counters go on.
    pub fn clear(&self) {
        let cleared = self.shelf.with(|lru| lru.clear());
        drop(cleared);
    }

    /// Returns the counters and the entries, the most recently used first.
    pub fn stats(&self) -> Stats {
        let records: Vec<_> = self.shelf.with(|lru| lru.values().cloned().collect());
        let (capacity, capacity_bytes) = self.capacity();
        let kinds: Vec<(Kind, Arc<KindCounts>)> =
            lock(&self.kinds).iter().map(|(&kind, counts)| (kind, Arc::clone(counts))).collect();
        // Behind the lock of the map: a thread locks one mutex at a time.
        let by_kind = kinds.into_iter().map(|(kind, counts)| (kind, counts.read())).collect();
        Stats::new(capacity, capacity_bytes, by_kind, records.iter().map(|r| r.info()).collect())
    }

    fn counts_of(&self, graph: &GraphSpec) -> Arc<KindCounts> {
        Arc::clone(lock(&self.kinds).entry(stats::kind(graph)).or_default())
    }
}

impl<S: BuildHasher> fmt::Debug for PlanCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanCache").field("len", &self.len()).finish_non_exhaustive()
    }
}

fn check_bounds(entries: usize, bytes: u64) -> Result<()> {
    if entries == 0 || bytes == 0 {
        return Err(Error::new(
            ErrorKind::Value,
            format!(
                "a plan cache of {entries} entries and {bytes} bytes keeps nothing: both are at \
                 least 1"
            ),
        ));
    }
    Ok(())
}

/// Proves that a plan is one for what its entry says.
fn check_plan(
    plan: &Plan,
    (asked, of_plan): (&Asked, &Asked),
    profile: &str,
    policy: &Policy,
) -> Result<()> {
    let wanted = asked.signature();
    let message = if asked.key != of_plan.key {
        let given = of_plan.signature();
        format!("the plan for graph {wanted} is one for another graph, {given}")
    } else if plan.spec.device != profile {
        let given = &plan.spec.device;
        format!("the plan for graph {wanted} on device {profile:?} is one for {given:?}")
    } else if plan.spec.policy != *policy {
        let given = &plan.spec.policy;
        format!(
            "the plan for graph {wanted} was chosen by {given:?}, and its entry is for {policy:?}"
        )
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Value, message))
}

/// A request: the key of an entry.
struct Asked {
    /// The graph's canonical key, then policy and profile.
    key: Vec<u8>,
    /// How much of it is the graph's.
    graph_bytes: usize,
    /// The graph's numbers in canonical order.
    uids: Vec<Uid>,
}

impl Asked {
    fn of(graph: &GraphSpec, profile: &str, policy: &Policy) -> Asked {
        let Canonical { key, uids } = graph.canonical();
        let mut writer = Writer(key.into_bytes());
        let graph_bytes = writer.0.len();
        writer.circumstances(profile, policy);
        Asked { key: writer.0, graph_bytes, uids }
    }

    fn signature(&self) -> Signature {
        CanonicalKey::signature_of(&self.key[..self.graph_bytes])
    }
}

/// Counts evictions, and drops the values, for which the caller holds no lock.
fn let_go(dropped: Dropped<Arc<Record>>) {
    let Dropped { replaced, evicted } = dropped;
    for record in &evicted {
        record.counts.note(|counts| counts.evictions += 1);
    }
    drop((replaced, evicted));
}
