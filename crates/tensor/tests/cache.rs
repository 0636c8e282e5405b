//! The cache of host memory: reuse, bound, trimming, zeroing, failure, threads, fork, numbers.

#[cfg(target_os = "linux")]
#[path = "../../dispatch/tests/support/child.rs"]
mod child;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use keyfold_core::{DType, Device, ErrorKind};
use keyfold_tensor::cache::{CacheStats, set_limit, stats, trim};
use keyfold_tensor::{DeviceBuffer, HostBuffer, Tensor};
use proptest::prelude::*;

const MIB: usize = 1 << 20;

/// Locks the process's cache for a test, and empties it.
fn exclusive(limit: usize) -> MutexGuard<'static, ()> {
    static EXCLUSIVE: Mutex<()> = Mutex::new(());
    let guard = EXCLUSIVE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    set_limit(limit);
    trim();
    assert_eq!(stats().unwrap().allocated, 0, "a buffer is alive");
    guard
}

fn address(buffer: &HostBuffer) -> usize {
    buffer.host_ptr().unwrap().addr().get()
}

fn recycled(bytes: usize) -> HostBuffer {
    HostBuffer::recycled(bytes).unwrap()
}

/// Returns the size of the block for so many bytes: rounded up to an eighth of the power of two
/// below.
fn rounded(bytes: usize) -> usize {
    let below = bytes.next_power_of_two() / if bytes.is_power_of_two() { 1 } else { 2 };
    bytes.next_multiple_of(below / 8)
}

#[test]
fn freed_blocks_are_used_again() {
    let _exclusive = exclusive(64 * MIB);
    for bytes in [4096, 5000, 70_000, 300_000, 3 * MIB, 20 * MIB] {
        let before = stats().unwrap();
        let buffer = recycled(bytes);
        let first = address(&buffer);
        drop(buffer);
        // Nearly the same size is in the same class.
        let buffer = recycled(rounded(bytes) - if bytes > 4096 { 3 } else { 0 });
        assert_eq!(address(&buffer), first);
        let after = stats().unwrap();
        assert_eq!(after.misses - before.misses, 1);
        assert_eq!(after.hits - before.hits, 1);
    }
}

#[test]
fn blocks_are_aligned_to_64_and_large_ones_to_pages() {
    let _exclusive = exclusive(64 * MIB);
    let sizes = [4096, 4097, 10_000, 100_001, 300_000, MIB, 3 * MIB + 1, 9 * MIB];
    let buffers: Vec<_> = sizes.iter().map(|bytes| recycled(*bytes)).collect();
    for (buffer, bytes) in buffers.iter().zip(sizes) {
        let alignment = if bytes >= 256 << 10 { 4096 } else { 64 };
        assert_eq!(address(buffer) % alignment, 0, "{bytes}");
        assert_eq!(buffer.as_bytes().len(), bytes);
    }
}

#[test]
fn zeroed_memory_is_zero_after_dirty_use() {
    let _exclusive = exclusive(64 * MIB);
    for bytes in [1, 100, 4095, 4096, 50_000, 300_000, 5 * MIB, 17 * MIB + 5] {
        let mut dirty = recycled(bytes);
        dirty.as_bytes_mut().fill(0xa5);
        drop(dirty);
        let clean = HostBuffer::zeroed(bytes).unwrap();
        assert!(clean.as_bytes().iter().all(|byte| *byte == 0), "{bytes}");
    }
}

#[test]
fn fresh_memory_is_zero_and_recycled_memory_keeps_what_was_there() {
    let _exclusive = exclusive(64 * MIB);
    for bytes in [4096, 300_000, 5 * MIB] {
        let mut buffer = recycled(bytes);
        assert!(buffer.as_bytes().iter().all(|byte| *byte == 0), "{bytes}");
        buffer.as_bytes_mut().fill(7);
        drop(buffer);
        assert!(recycled(bytes).as_bytes().iter().all(|byte| *byte == 7), "{bytes}");
    }
}

#[test]
fn an_empty_tensor_of_bools_has_bools_in_it() {
    let _exclusive = exclusive(64 * MIB);
    let mut buffer = recycled(5000);
    buffer.as_bytes_mut().fill(7);
    drop(buffer);
    let tensor = Tensor::empty(&[5000], DType::Bool, Device::CPU).unwrap();
    assert_eq!(tensor.to_vec::<bool>().unwrap(), [false; 5000]);
}

#[test]
fn no_more_than_the_limit_is_kept() {
    let _exclusive = exclusive(10 * MIB);
    let buffers: Vec<_> = (0..20).map(|_| recycled(MIB)).collect();
    assert_eq!(stats().unwrap().live, 20 * MIB as u64);
    drop(buffers);
    let after = stats().unwrap();
    assert_eq!((after.live, after.cached, after.limit), (0, 10 * MIB as u64, 10 * MIB as u64));
    // A block above the limit evicts nothing.
    drop(recycled(11 * MIB));
    assert_eq!(stats().unwrap().cached, 10 * MIB as u64);
    set_limit(3 * MIB);
    assert_eq!(stats().unwrap().cached, 3 * MIB as u64);
}

#[test]
fn the_sizes_not_used_for_longest_make_room() {
    let _exclusive = exclusive(10 * MIB);
    drop(recycled(4 * MIB));
    drop(recycled(5 * MIB));
    drop(recycled(2 * MIB));
    // 4, the least recently used, was evicted; 5 and 2 remain.
    let before = stats().unwrap();
    assert_eq!(before.cached, 7 * MIB as u64);
    drop((recycled(5 * MIB), recycled(2 * MIB)));
    let after = stats().unwrap();
    assert_eq!((after.hits - before.hits, after.misses), (2, before.misses));
}

#[test]
fn trimming_gives_everything_free_to_the_system() {
    let _exclusive = exclusive(64 * MIB);
    let kept = recycled(MIB);
    drop((recycled(2 * MIB), recycled(10_000)));
    let before = stats().unwrap();
    assert_eq!(trim() as u64, before.cached);
    let after = stats().unwrap();
    assert_eq!((after.cached, after.live, after.allocated), (0, MIB as u64, MIB as u64));
    assert_eq!(after.returned - before.returned, before.cached);
    drop(kept);
}

#[test]
fn limit_0_switches_the_cache_off() {
    let _exclusive = exclusive(64 * MIB);
    let before_off = recycled(MIB);
    set_limit(0);
    let before = stats().unwrap();
    drop(recycled(MIB));
    drop(HostBuffer::zeroed(3 * MIB).unwrap());
    let after = stats().unwrap();
    assert_eq!((after.hits, after.misses, after.cached), (before.hits, before.misses, 0));
    // Blocks from the cache are freed properly after it is disabled.
    drop(before_off);
    assert_eq!(stats().unwrap().allocated, 0);
}

#[test]
fn what_is_freed_on_another_thread_comes_back() {
    let _exclusive = exclusive(64 * MIB);
    let buffers: Vec<_> = (0..10).map(|_| recycled(100_000)).collect();
    let mut addresses: Vec<_> = buffers.iter().map(address).collect();
    std::thread::spawn(move || drop(buffers)).join().unwrap();
    let again: Vec<_> = (0..10).map(|_| recycled(100_000)).collect();
    let mut addresses_again: Vec<_> = again.iter().map(address).collect();
    addresses.sort_unstable();
    addresses_again.sort_unstable();
    assert_eq!(addresses, addresses_again);
}

#[test]
fn threads_never_share_a_block() {
    let _exclusive = exclusive(2 * MIB);
    let threads: Vec<_> = (0..4_u8)
        .map(|thread| {
            std::thread::spawn(move || {
                let mut kept: Vec<(HostBuffer, u8)> = Vec::new();
                for round in 0..2000_usize {
                    let bytes = 4096 + (round * 7919 + usize::from(thread) * 104_729) % 200_000;
                    let mark = thread.wrapping_mul(64).wrapping_add(round as u8);
                    let mut buffer = recycled(bytes);
                    buffer.as_bytes_mut()[..64].fill(mark);
                    buffer.as_bytes_mut()[bytes - 64..].fill(mark);
                    kept.push((buffer, mark));
                    if kept.len() > 8 {
                        let (buffer, mark) = kept.swap_remove(round % 8);
                        let bytes = buffer.as_bytes();
                        let mut ends = bytes[..64].iter().chain(&bytes[bytes.len() - 64..]);
                        assert!(ends.all(|byte| *byte == mark));
                    }
                    if round % 500 == 0 {
                        trim();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let after = stats().unwrap();
    assert_eq!((after.live, after.allocated), (0, after.cached));
    assert!(after.cached <= after.limit);
}

#[test]
fn an_allocation_beyond_all_memory_is_an_error_with_the_size() {
    let _exclusive = exclusive(64 * MIB);
    for bytes in [1 << 47, (1 << 47) + 1, 1 << 60, usize::MAX] {
        let error = HostBuffer::recycled(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory);
        assert_eq!(error.message(), format!("can't allocate {bytes} bytes of host memory"));
    }
}

#[cfg(target_os = "linux")]
mod processes {
    use super::child::in_child;
    use super::*;

    #[test]
    fn a_failed_allocation_is_tried_again_after_a_trim() {
        let _exclusive = exclusive(256 * MIB);
        assert!(in_child(|| {
            // 128 MiB are cached, and the system has only 64 MiB more.
            drop(recycled(128 * MIB));
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = pages.split_whitespace().next().unwrap().parse().unwrap();
            let most = pages * 4096 + 64 * MIB as u64;
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            // SAFETY: a limit for this process, in a valid struct.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
            let cached = stats().unwrap().cached == 128 * MIB as u64;
            let second = HostBuffer::recycled(144 * MIB).is_ok_and(|b| b.as_bytes()[MIB] == 0);
            let trimmed = stats().unwrap().returned >= 128 * MIB as u64;
            let third = HostBuffer::recycled(512 * MIB).unwrap_err();
            cached && second && trimmed && third.message().contains("536870912 bytes")
        }));
    }

    #[test]
    fn a_child_of_fork_allocates_whatever_the_parents_threads_do() {
        use std::sync::atomic::{AtomicBool, Ordering};
        static STOP: AtomicBool = AtomicBool::new(false);
        let _exclusive = exclusive(4 * MIB);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                std::thread::spawn(|| {
                    while !STOP.load(Ordering::Relaxed) {
                        drop((recycled(8192), recycled(8192), recycled(10 * MIB)));
                    }
                })
            })
            .collect();
        for _ in 0..100 {
            let right = in_child(|| {
                let before = stats().unwrap();
                drop([8192; 5].map(recycled));
                let after = stats().unwrap();
                after.hits + after.misses == before.hits + before.misses + 5
            });
            assert!(right);
        }
        STOP.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// A slow model of the cache.
#[derive(Default)]
struct Model {
    live: u64,
    free: HashMap<usize, u64>,
    hits: u64,
    misses: u64,
    peak: u64,
    returned: u64,
}

impl Model {
    fn cached(&self) -> u64 {
        self.free.iter().map(|(size, count)| *size as u64 * count).sum()
    }

    fn take(&mut self, bytes: usize) {
        let size = rounded(bytes);
        let free = self.free.entry(size).or_default();
        if *free > 0 {
            *free -= 1;
            self.hits += 1;
        } else {
            self.misses += 1;
        }
        self.live += size as u64;
        self.peak = self.peak.max(self.live + self.cached());
    }

    fn give(&mut self, bytes: usize) {
        *self.free.entry(rounded(bytes)).or_default() += 1;
        self.live -= rounded(bytes) as u64;
    }

    fn trim(&mut self) {
        self.returned += self.cached();
        self.free.clear();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(usize),
    Give(prop::sample::Index),
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (4096_usize..600_000).prop_map(Step::Take),
        2 => prop::sample::select(vec![4096, 5000, 65_536, 300_000]).prop_map(Step::Take),
        7 => any::<prop::sample::Index>().prop_map(Step::Give),
        1 => Just(Step::Trim),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..Default::default() })]

    #[test]
    fn the_numbers_are_those_of_a_model(steps in steps()) {
        let limit = 1 << 40;
        let _exclusive = exclusive(limit);
        let start = stats().unwrap();
        let (mut model, mut live) = (Model::default(), Vec::new());
        for step in steps {
            match step {
                Step::Take(bytes) => {
                    live.push(recycled(bytes));
                    model.take(bytes);
                }
                Step::Give(which) if !live.is_empty() => {
                    let buffer = live.swap_remove(which.index(live.len()));
                    model.give(buffer.byte_len());
                }
                Step::Give(_) => {}
                Step::Trim => {
                    trim();
                    model.trim();
                }
            }
            let expected = CacheStats {
                allocated: model.live + model.cached(),
                live: model.live,
                cached: model.cached(),
                peak: start.peak.max(model.peak),
                hits: start.hits + model.hits,
                misses: start.misses + model.misses,
                returned: start.returned + model.returned,
                limit: limit as u64,
            };
            prop_assert_eq!(stats().unwrap(), expected);
        }
    }

    #[test]
    fn the_numbers_add_up_at_the_limit(steps in steps()) {
        let limit = 700_000;
        let _exclusive = exclusive(limit);
        let start = stats().unwrap();
        let (mut live, mut taken) = (Vec::new(), 0);
        for step in steps {
            match step {
                Step::Take(bytes) => {
                    live.push(recycled(bytes));
                    taken += 1;
                }
                Step::Give(which) if !live.is_empty() => {
                    drop(live.swap_remove(which.index(live.len())));
                }
                Step::Give(_) => {}
                Step::Trim => {
                    trim();
                }
            }
            let now = stats().unwrap();
            let in_use: usize = live.iter().map(|buffer| rounded(buffer.byte_len())).sum();
            prop_assert_eq!(now.live, in_use as u64);
            prop_assert_eq!(now.allocated, now.live + now.cached);
            prop_assert!(now.cached <= limit as u64);
            prop_assert_eq!(now.hits + now.misses, start.hits + start.misses + taken);
        }
    }
}
