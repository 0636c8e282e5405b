//! The domain's rules on a single thread.

use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::super::*;

/// A stack address, and a limit far below it.
const ADDRESS: usize = 1 << 40;
const FAST: EntryPath = EntryPath::FastAbove(1 << 30);

fn joined(domain: &Domain) -> Arc<Slots> {
    domain.join(barrier::is_asymmetric(), FAST)
}

#[repr(align(64))]
struct Snapshot<'a>(&'a AtomicUsize);

impl Drop for Snapshot<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_held_snapshot_waits_and_others_go() {
    let domain = Domain::new();
    let freed = AtomicUsize::new(0);
    let slots = joined(&domain);
    domain.reserve(&slots, 2);
    let slot = &slots.below(2)[0];
    let current = AtomicPtr::new(Box::into_raw(Box::new(Snapshot(&freed))));
    let held = slot.protect(&current, barrier::is_asymmetric());
    slot.hold(held, 5);
    assert_eq!(slot.held(), Some((held as usize, 5)));
    for _ in 0..10 {
        let old = current.swap(Box::into_raw(Box::new(Snapshot(&freed))), Ordering::AcqRel);
        // SAFETY: `old` was made by `Box::into_raw` and is unlinked now.
        domain.retire(unsafe { Box::from_raw(old) });
        domain.collect(None);
    }
    assert_eq!(freed.load(Ordering::SeqCst), 9, "all but the held one");
    assert_eq!(domain.waiting().0, 1);
    slot.release();
    domain.collect(None);
    assert_eq!(freed.load(Ordering::SeqCst), 10);
    // SAFETY: the last one is still linked and has no reader.
    drop(unsafe { Box::from_raw(current.load(Ordering::Acquire)) });
}

#[test]
fn an_unsettled_reader_blocks_every_free() {
    let domain = Domain::new();
    let freed = AtomicUsize::new(0);
    let slots = joined(&domain);
    domain.reserve(&slots, 1);
    let slot = &slots.below(1)[0];
    let current = AtomicPtr::new(Box::into_raw(Box::new(Snapshot(&freed))));
    slot.protect(&current, false);
    domain.retire(Box::new(Snapshot(&freed)));
    domain.collect(None);
    assert_eq!((freed.load(Ordering::SeqCst), domain.waiting().0), (0, 1));
    slot.release();
    domain.collect(None);
    assert_eq!((freed.load(Ordering::SeqCst), domain.waiting().0), (1, 0));
    // SAFETY: still linked, without readers.
    drop(unsafe { Box::from_raw(current.load(Ordering::Acquire)) });
}

#[test]
fn slots_of_ended_threads_are_given_back() {
    let domain = Domain::new();
    let threads: Vec<_> = (0..100).map(|_| joined(&domain)).collect();
    assert_eq!(domain.waiting(), (0, 100));
    for slots in &threads {
        domain.leave(Arc::as_ptr(slots));
        assert_eq!(Arc::strong_count(slots), 1);
    }
    assert_eq!(domain.waiting(), (0, 0));
    assert_eq!(domain.0.lock().threads.capacity(), 0);
}

/// Returns a domain, one reader's slots of it, and a pointer to a first snapshot.
fn one_reader(freed: &AtomicUsize) -> (Domain, Arc<Slots>, AtomicPtr<Snapshot<'_>>) {
    let domain = Domain::new();
    let slots = joined(&domain);
    domain.reserve(&slots, 2);
    (domain, slots, AtomicPtr::new(Box::into_raw(Box::new(Snapshot(freed)))))
}

fn replace<'a>(domain: &Domain, current: &AtomicPtr<Snapshot<'a>>, freed: &'a AtomicUsize) {
    let old = current.swap(Box::into_raw(Box::new(Snapshot(freed))), Ordering::AcqRel);
    // SAFETY: `old` was made by `Box::into_raw` and is unlinked now.
    domain.retire(unsafe { Box::from_raw(old) });
    domain.collect(None);
}

#[test]
fn who_holds_a_retired_snapshot_is_told_until_it_is_freed() {
    let freed = AtomicUsize::new(0);
    let (domain, slots, current) = one_reader(&freed);
    let [outer, inner] = slots.below(2) else { panic!("two slots") };
    let held = outer.protect(&current, barrier::is_asymmetric());
    outer.hold(held, 5);
    assert!(!outer.is_marked() && !outer.is_slow(ADDRESS));
    replace(&domain, &current, &freed);
    assert!(outer.is_marked() && outer.is_slow(ADDRESS));
    assert!(!inner.is_marked() && !inner.is_slow(ADDRESS));
    outer.release();
    domain.collect(Some(&slots));
    assert_eq!((freed.load(Ordering::SeqCst), domain.waiting().0), (1, 0));
    assert!(!outer.is_marked() && !outer.is_slow(ADDRESS));
    // SAFETY: still linked, without readers.
    drop(unsafe { Box::from_raw(current.load(Ordering::Acquire)) });
}

#[test]
fn threads_that_must_fence_are_slow_until_they_end() {
    let freed = AtomicUsize::new(0);
    let (domain, slots, current) = one_reader(&freed);
    slots.demand_fences();
    assert!(slots.in_use().iter().all(|slot| slot.is_slow(ADDRESS) && !slot.is_marked()));
    assert!(!slots.is_fenced());
    slots.confirm_fences();
    assert!(slots.is_fenced());
    domain.reserve(&slots, 4);
    assert!(slots.in_use().iter().all(|slot| slot.is_slow(ADDRESS)));
    replace(&domain, &current, &freed);
    assert_eq!(freed.load(Ordering::SeqCst), 1);
    assert!(slots.in_use().iter().all(|slot| slot.is_slow(ADDRESS) && !slot.is_marked()));
    // SAFETY: still linked, without readers.
    drop(unsafe { Box::from_raw(current.load(Ordering::Acquire)) });
}

#[test]
fn a_panicking_destructor_keeps_nothing() {
    #[repr(align(64))]
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a destructor's own fault");
        }
    }
    let freed = AtomicUsize::new(0);
    let domain = Domain::new();
    domain.retire(Box::new(Bomb));
    domain.retire(Box::new(Snapshot(&freed)));
    domain.collect(None);
    assert_eq!((freed.load(Ordering::SeqCst), domain.waiting().0), (1, 0));
}
