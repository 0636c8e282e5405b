//! The plan cache: what it keeps, what it counts, and what threads see of each other.

mod support;

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, Weak};
use std::thread;
use std::time::Duration;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_cudnn::{
    Choice, Counts, DataType, Graph, GraphSpec, Layout, OpSpec, Operation, PlanCache, Planner,
    PointwiseMode, Policy, Port, Prepared, Reduction, ReductionMode, Step, TensorSpec, plan_cache,
};
use support::planner::Fake;
use support::{Random, conv, conv_relu, described_anew, pointwise};

const THREADS: usize = 8;

fn silent(_: Step<'_>) -> Result<()> {
    Ok(())
}

fn cache(entries: usize) -> PlanCache {
    PlanCache::new(entries, 1 << 20).unwrap()
}

fn get<S: BuildHasher>(cache: &PlanCache<S>, graph: &GraphSpec, planner: &dyn Planner) -> Prepared {
    cache.get_or_build(graph, planner, &Policy::default(), &silent).unwrap()
}

fn engine_of(cache: &PlanCache, graph: &GraphSpec, profile: &str) -> Option<Option<String>> {
    let entry = cache.get(graph, profile, &Policy::default());
    entry.map(|plan| plan.map(|plan| plan.plan().spec.config.engine.clone()))
}

#[test]
fn plan_cache_lru_eviction() {
    let (cache, planner) = (cache(2), Fake::new("toy"));
    let first = get(&cache, &conv(1), &planner);
    get(&cache, &conv(2), &planner);
    get(&cache, &conv(1), &planner);
    get(&cache, &conv(3), &planner);
    assert_eq!(planner.builds(), 3);
    assert_eq!(cache.len(), 2);
    // The second was used longest ago.
    assert_eq!(engine_of(&cache, &conv(2), "toy"), None);
    assert_eq!(engine_of(&cache, &conv(1), "toy"), Some(Some("fake".to_string())));
    assert_eq!(engine_of(&cache, &conv(3), "toy"), Some(Some("fake".to_string())));
    assert_eq!(cache.stats().total.evictions, 1);
    cache.set_capacity(1, 1 << 20).unwrap();
    assert_eq!((cache.len(), cache.capacity()), (1, (1, 1 << 20)));
    cache.clear();
    assert!(cache.is_empty());
    // A plan in use outlives its entry.
    assert_eq!(first.plan().graph.spec().tensors.len(), 3);
}

#[test]
fn a_second_call_builds_nothing_under_any_description() {
    let (cache, planner) = (cache(8), Fake::new("toy"));
    let graph = conv_relu();
    let first = get(&cache, &graph, &planner);
    let mut random = Random(5);
    for _ in 0..100 {
        let (other, names) = described_anew(&mut random, &graph);
        let again = get(&cache, &other, &planner);
        // Each tensor of the one is its counterpart of the other.
        let renamed: Vec<i64> = first.uids().iter().map(|uid| names[uid]).collect();
        assert_eq!(again.uids(), renamed);
        assert_eq!(again.signature(), first.signature());
    }
    assert_eq!(planner.builds(), 1);
    let total = cache.stats().total;
    assert_eq!((total.hits, total.misses, total.waits), (100, 1, 0));
}

#[test]
fn what_a_plan_depends_on_is_in_the_key() {
    let (cache, graph) = (cache(16), conv_relu());
    let policies = [
        Policy::default(),
        Policy { choice: Choice::Deterministic, ..Policy::default() },
        Policy { choice: Choice::Autotune, ..Policy::default() },
        Policy { workspace_limit: Some(0), ..Policy::default() },
        Policy { workspace_limit: Some(1 << 20), ..Policy::default() },
        Policy { tf32: true, ..Policy::default() },
    ];
    for profile in ["h100, 9.20", "h100, 9.27"] {
        let planner = Fake::new(profile);
        for policy in &policies {
            let before = planner.builds();
            cache.get_or_build(&graph, &planner, policy, &silent).unwrap();
            cache.get_or_build(&graph, &planner, policy, &silent).unwrap();
            assert_eq!(planner.builds(), before + 1, "{profile}, {policy:?}");
        }
    }
    assert_eq!(cache.len(), 12);
}

#[test]
fn a_bound_of_bytes_evicts_and_refuses() {
    let mut planner = Fake::new("toy");
    planner.bytes = 100_000;
    let cache = PlanCache::new(100, 350_000).unwrap();
    let kept: Vec<Prepared> = (1..=5).map(|images| get(&cache, &conv(images), &planner)).collect();
    assert_eq!(cache.len(), 3);
    let stats = cache.stats();
    assert!(stats.bytes <= 350_000 && stats.bytes > 300_000, "{}", stats.bytes);
    assert_eq!(stats.total.evictions, 2);
    assert!(kept.iter().all(|plan| plan.plan().bytes == 100_000), "plans in use are whole");
    // A plan beyond the bound is returned, kept nowhere, and costs no other plan its place.
    planner.bytes = 1_000_000;
    get(&cache, &conv(9), &planner);
    assert_eq!(cache.len(), 3);
    assert_eq!(engine_of(&cache, &conv(9), "toy"), None);
}

#[test]
fn a_cache_of_nothing_is_an_error() {
    for (entries, bytes) in [(0, 1), (1, 0)] {
        let error = PlanCache::new(entries, bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        let cache = cache(3);
        assert_eq!(cache.set_capacity(entries, bytes).unwrap_err().kind(), ErrorKind::Value);
        assert_eq!(cache.capacity(), (3, 1 << 20));
    }
    assert_eq!(plan_cache().capacity().0, 256);
}

#[test]
fn markers_say_that_a_graph_was_prepared_and_hold_no_plan() {
    let (cache, planner, policy) = (cache(8), Fake::new("toy"), Policy::default());
    let mut refused = conv_relu();
    refused.tensors[0].strides = vec![999, 1, 1, 1];
    assert!(refused.clone().validate().is_err());
    cache.put(&refused, "toy", &policy, None).unwrap();
    assert_eq!(engine_of(&cache, &refused, "toy"), Some(None));
    cache.put(&conv_relu(), "toy", &policy, None).unwrap();
    assert!(cache.stats().entries.iter().all(|entry| entry.is_marker));
    // Who wants a plan gets one, in the marker's place.
    get(&cache, &conv_relu(), &planner);
    assert_eq!((planner.builds(), cache.len()), (1, 2));
    assert_eq!(engine_of(&cache, &conv_relu(), "toy"), Some(Some("fake".to_string())));
}

#[test]
fn a_plan_that_is_put_serves_graphs_under_other_numbers() {
    let (cache, planner, policy) = (cache(8), Fake::new("toy"), Policy::default());
    let valid = Arc::new(conv_relu().validate().unwrap());
    let plan = || planner.plan(Arc::clone(&valid), &policy, &silent).unwrap();
    let (other, names) = described_anew(&mut Random(7), &conv_relu());
    cache.put(&other, "toy", &policy, Some(plan())).unwrap();
    let prepared = cache.get(&other, "toy", &policy).unwrap().unwrap();
    let members: Vec<i64> = prepared.members().map(|member| member.uid).collect();
    assert_eq!(members, [1, 2, 4].map(|uid| names[&uid]));
    let refused = |graph: &GraphSpec, profile: &str, policy: &Policy| {
        let error = cache.put(graph, profile, policy, Some(plan())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        error.message().to_string()
    };
    let of_graph = refused(&conv(1), "toy", &policy);
    assert!(of_graph.contains(&conv(1).signature().to_string()), "{of_graph}");
    let of_device = refused(&other, "h100", &policy);
    assert!(of_device.contains("on device \"h100\" is one for \"toy\""), "{of_device}");
    let of_policy = refused(&other, "toy", &Policy { tf32: true, ..policy.clone() });
    assert!(of_policy.contains("tf32: false") && of_policy.contains("tf32: true"), "{of_policy}");
    assert_eq!(cache.len(), 1);
}

#[test]
fn counters_are_by_operation_and_dtype() {
    let (cache, planner) = (cache(3), Fake::new("toy"));
    let mut half = conv(2);
    half.tensors.iter_mut().for_each(|tensor| tensor.dtype = Some(DataType::F16));
    let mut relu = conv_relu();
    relu.operations.remove(0);
    relu.tensors.drain(..2);
    relu.tensors[0].is_virtual = false;
    for graph in [&conv(1), &conv(1), &half, &conv_relu(), &relu] {
        get(&cache, graph, &planner);
    }
    let failing = Fake::with_work("failing", |_, _| Err(Error::new(ErrorKind::NotSupported, "no")));
    assert!(cache.get_or_build(&half, &failing, &Policy::default(), &silent).is_err());
    let stats = cache.stats();
    let counts = |counts: Counts| {
        let Counts { entries, hits, misses, waits, failures, evictions, build_time } = counts;
        assert_eq!(build_time.is_zero(), misses == 0);
        [entries, hits, misses, waits, failures, evictions]
    };
    let of = |operation, dtype| counts(stats.by_kind[&(operation, Some(dtype))]);
    // The first of the float32 convolutions was evicted for the relu.
    assert_eq!(of("conv_fprop", DataType::F32), [1, 1, 2, 0, 0, 1]);
    assert_eq!(of("conv_fprop", DataType::F16), [1, 0, 2, 0, 1, 0]);
    assert_eq!(of("relu", DataType::F32), [1, 0, 1, 0, 0, 0]);
    assert_eq!(stats.by_kind.len(), 3);
    assert_eq!(counts(stats.by_operation["conv_fprop"]), [2, 1, 4, 0, 1, 1]);
    assert_eq!(counts(stats.total), [3, 1, 5, 0, 1, 1]);
    let build_time = stats.by_kind.values().map(|counts| counts.build_time).sum::<Duration>();
    assert_eq!(stats.total.build_time, build_time);
    let last = &stats.entries[0];
    assert_eq!(
        (last.operation, last.engine.as_str(), last.device.as_str()),
        ("relu", "fake", "toy")
    );
    assert_eq!(last.signature, relu.signature());
    let table = stats.to_string();
    for word in [
        "3 of 3 plans",
        "1 hits, 5 misses",
        "evicted",
        "conv_fprop",
        "f16",
        &relu.signature().to_string(),
    ] {
        assert!(table.contains(word), "{word} in\n{table}");
    }
}

#[test]
fn shapes_of_a_reduction_follow_or_are_asked_for() {
    let graph = |x: &[i64], y: &[i64]| {
        let tensor =
            |uid, dims: &[i64]| TensorSpec::new(uid, DataType::F32, dims, Layout::Packed).unwrap();
        let reduction = Operation::Reduction(Reduction { mode: ReductionMode::Add });
        GraphSpec {
            tensors: vec![tensor(1, x).named("x"), tensor(2, y).named("y")],
            operations: vec![OpSpec::new(reduction, &[(Port::X, 1)], &[(Port::Y, 2)])],
            ..GraphSpec::default()
        }
    };
    let sizes = |graph: &GraphSpec, dims: &[(i64, Vec<i64>)]| {
        graph.with_dims(dims).map(|graph| graph.tensors[1].dims.clone())
    };
    let of_rows = graph(&[2, 3], &[2, 1]);
    assert_eq!(sizes(&of_rows, &[(1, vec![5, 7])]).unwrap(), [5, 1]);
    // The sum of one row: of all rows, or of each?
    let of_one = graph(&[1, 3], &[1, 1]);
    assert_eq!(sizes(&of_one, &[(1, vec![1, 7])]).unwrap(), [1, 1]);
    let error = sizes(&of_one, &[(1, vec![4, 3])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    for word in ["reduction", "dimension 0", "\"y\"", "[1, 3]", "[4, 3]"] {
        assert!(error.message().contains(word), "{error}");
    }
    for y in [vec![4, 1], vec![1, 1]] {
        let dims = [(1, vec![4, 3]), (2, y.clone())];
        assert_eq!(sizes(&of_one, &dims).unwrap(), y);
        of_one.with_dims(&dims).unwrap().validate().unwrap();
    }
    // Nothing was reduced, or the one row.
    assert!(sizes(&graph(&[1, 3], &[1, 3]), &[(1, vec![4, 3])]).is_err());
    assert_eq!(sizes(&graph(&[2, 3], &[2, 3]), &[(1, vec![4, 5])]).unwrap(), [4, 5]);
}

#[test]
fn shapes_keep_the_order_of_strides_and_what_is_broadcast() {
    let strides = |dims: &[i64], strides: &[i64], new: &[i64]| {
        let layout = Layout::Strides(strides.to_vec());
        let x = TensorSpec::new(1, DataType::F32, dims, layout).unwrap();
        let y = TensorSpec::new(2, DataType::F32, dims, Layout::Packed).unwrap();
        let relu = pointwise(PointwiseMode::Relu, &[(Port::X, 1)], &[(Port::Y, 2)]);
        let graph =
            GraphSpec { tensors: vec![x, y], operations: vec![relu], ..GraphSpec::default() };
        let resized = graph.with_dims(&[(1, new.to_vec())]).unwrap();
        let mut builder = Graph::from_spec(graph);
        builder.set_dims(1, new).unwrap();
        assert_eq!(builder.spec().tensors[0], resized.tensors[0]);
        resized.tensors[0].strides.clone()
    };
    // Channels last, of one channel.
    assert_eq!(strides(&[2, 1, 4, 4], &[16, 1, 4, 1], &[2, 3, 4, 4]), [48, 1, 12, 3]);
    assert_eq!(strides(&[4, 5], &[0, 1], &[6, 8]), [0, 1]);
    assert_eq!(strides(&[4, 5, 2], &[2, 0, 1], &[6, 8, 3]), [3, 0, 1]);
    assert_eq!(strides(&[4, 5], &[1, 4], &[6, 8]), [1, 6]);
}

/// Gives every key one digest.
struct OneDigest;

impl BuildHasher for OneDigest {
    type Hasher = OneDigest;

    fn build_hasher(&self) -> OneDigest {
        OneDigest
    }
}

impl Hasher for OneDigest {
    fn write(&mut self, _: &[u8]) {}

    fn finish(&self) -> u64 {
        7
    }
}

#[test]
fn digests_that_collide_mix_no_plans() {
    let cache = PlanCache::with_hasher(64, 1 << 20, OneDigest).unwrap();
    let planner = Fake::new("toy");
    for round in 1..=2 {
        for images in 1..=20 {
            let prepared = get(&cache, &conv(images), &planner);
            let dims = prepared.members().map(|member| member.spec.dims[0]).max();
            assert_eq!(dims, Some(images.max(32)), "round {round}");
            assert_eq!(prepared.members().next().unwrap().spec.dims[0], images);
        }
    }
    assert_eq!(planner.builds(), 20);
}

/// Waits for threads one by one: ThreadSanitizer sees the end of a thread that is joined, and not
/// that of a scope.
fn join_all<T>(threads: Vec<thread::ScopedJoinHandle<'_, T>>) {
    threads.into_iter().for_each(|thread| drop(thread.join().unwrap()));
}

/// Counts a thread that waits for another one's build. Atomics order what ThreadSanitizer can
/// follow.
fn count_once(waiting: &AtomicUsize, is_counted: &AtomicBool, step: Step<'_>) {
    if step.what.starts_with("wait") && !is_counted.swap(true, Ordering::SeqCst) {
        waiting.fetch_add(1, Ordering::SeqCst);
    }
}

/// Asks for one plan from all threads, whose build doesn't end before all others wait for it, and
/// returns what each of them got.
fn all_at_once(
    work: impl Fn(usize) -> Result<()> + Send + Sync + 'static,
) -> (Vec<thread::Result<Result<Prepared>>>, usize, PlanCache) {
    let cache = cache(4);
    let waiting = Arc::new(AtomicUsize::new(0));
    let build = AtomicUsize::new(0);
    let planner = {
        let waiting = Arc::clone(&waiting);
        Fake::with_work("toy", move |_, _| {
            let number = build.fetch_add(1, Ordering::SeqCst);
            while number == 0 && waiting.load(Ordering::SeqCst) < THREADS - 1 {
                thread::sleep(Duration::from_millis(1));
            }
            work(number)
        })
    };
    let got = thread::scope(|scope| {
        let asks: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let is_counted = AtomicBool::new(false);
                    let watch = |step: Step<'_>| {
                        count_once(&waiting, &is_counted, step);
                        Ok(())
                    };
                    cache.get_or_build(&conv_relu(), &planner, &Policy::default(), &watch)
                })
            })
            .collect();
        asks.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    (got, planner.builds(), cache)
}

#[test]
fn eight_threads_make_one_build() {
    let (got, builds, cache) = all_at_once(|_| Ok(()));
    assert_eq!(builds, 1);
    let plans: Vec<Prepared> = got.into_iter().map(|plan| plan.unwrap().unwrap()).collect();
    assert!(plans.iter().all(|plan| std::ptr::eq(plan.plan(), plans[0].plan())));
    let total = cache.stats().total;
    assert_eq!((total.misses, total.waits, total.hits), (1, 7, 0));
}

#[test]
fn a_build_that_fails_wakes_all_who_wait_and_is_kept_nowhere() {
    let (got, builds, cache) =
        all_at_once(|_| Err(Error::new(ErrorKind::NotSupported, "no engine takes it")));
    assert_eq!(builds, 1);
    for result in got {
        let error = result.unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), error.message()),
            (ErrorKind::NotSupported, "no engine takes it")
        );
    }
    assert_eq!((cache.len(), cache.stats().total.failures), (0, 1));
    // The next one tries again.
    let planner = Fake::new("toy");
    get(&cache, &conv_relu(), &planner);
    assert_eq!(planner.builds(), 1);
}

#[test]
fn a_build_that_panics_wakes_all_who_wait() {
    let (got, builds, cache) = all_at_once(|_| panic!("a bug of the planner"));
    assert_eq!(builds, 1);
    let (mut panics, mut errors) = (0, 0);
    for result in got {
        match result {
            Err(_) => panics += 1,
            Ok(result) => {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::KernelPanic);
                errors += 1;
            }
        }
    }
    assert_eq!((panics, errors), (1, 7));
    get(&cache, &conv_relu(), &Fake::new("toy"));
    assert_eq!(cache.len(), 1);
}

#[test]
fn a_build_that_is_cancelled_is_made_by_one_who_waits() {
    // The builder's progress returns an error once all others wait.
    let cache = cache(4);
    let waiting = AtomicUsize::new(0);
    let planner = Fake::with_work("toy", |_, progress| {
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(5));
            progress(Step { done: 0, total: 1, what: "plan more" })?;
        }
        Ok(())
    });
    let is_cancelled = AtomicBool::new(false);
    let (plans, errors) = thread::scope(|scope| {
        let asks: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let is_counted = AtomicBool::new(false);
                    let watch = |step: Step<'_>| {
                        count_once(&waiting, &is_counted, step);
                        if step.what.starts_with("wait") {
                            return Ok(());
                        }
                        if is_cancelled.load(Ordering::SeqCst) {
                            return Ok(());
                        }
                        // The first builder: it gives up when the seven others wait.
                        while waiting.load(Ordering::SeqCst) < THREADS - 1 {
                            thread::sleep(Duration::from_millis(1));
                        }
                        is_cancelled.store(true, Ordering::SeqCst);
                        Err(Error::new(ErrorKind::Value, "cancelled"))
                    };
                    cache.get_or_build(&conv_relu(), &planner, &Policy::default(), &watch)
                })
            })
            .collect();
        asks.into_iter().map(|ask| ask.join().unwrap()).fold((0, 0), |(plans, errors), result| {
            match result {
                Ok(_) => (plans + 1, errors),
                Err(error) => {
                    assert_eq!(error.message(), "cancelled");
                    (plans, errors + 1)
                }
            }
        })
    });
    assert_eq!((plans, errors, planner.builds()), (7, 1, 2));
}

#[test]
fn one_who_waits_can_stop_waiting() {
    let cache = cache(4);
    let may_end = Arc::new(AtomicBool::new(false));
    let planner = {
        let may_end = Arc::clone(&may_end);
        Fake::with_work("toy", move |_, _| {
            while !may_end.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })
    };
    thread::scope(|scope| {
        let builder = scope.spawn(|| get(&cache, &conv_relu(), &planner));
        while planner.builds() == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        let give_up = |_: Step<'_>| Err(Error::new(ErrorKind::Value, "enough"));
        let result = cache.get_or_build(&conv_relu(), &planner, &Policy::default(), &give_up);
        assert_eq!(result.unwrap_err().message(), "enough");
        may_end.store(true, Ordering::SeqCst);
        builder.join().unwrap();
    });
    assert_eq!(planner.builds(), 1);
}

/// A planner that asks the cache for other plans while it makes one.
fn asking(
    cache: &Arc<PlanCache>,
    asks: impl Fn(i64) -> Option<i64> + Send + Sync + 'static,
) -> Arc<Fake> {
    Arc::new_cyclic(|planner: &Weak<Fake>| {
        let (cache, planner) = (Arc::clone(cache), Weak::clone(planner));
        Fake::with_work("toy", move |graph, progress| {
            if let Some(images) = asks(graph.tensors[0].dims[0]) {
                let planner = planner.upgrade().expect("it is asked by a test that holds it");
                cache.get_or_build(&conv(images), &*planner, &Policy::default(), progress)?;
            }
            Ok(())
        })
    })
}

#[test]
fn builds_may_ask_for_other_plans() {
    let cache = Arc::new(cache(16));
    let planner = asking(&cache, |images| (images > 1).then(|| images - 1));
    thread::scope(|scope| {
        let ask = |images| {
            let (cache, planner) = (&cache, &planner);
            scope.spawn(move || get(cache, &conv(images), &**planner))
        };
        join_all((4..=8).map(ask).collect());
    });
    assert_eq!((planner.builds(), cache.len()), (8, 8));
}

#[test]
fn a_build_that_asks_for_itself_is_refused() {
    let cache = Arc::new(cache(16));
    let planner = asking(&cache, Some);
    let result = cache.get_or_build(&conv(1), &*planner, &Policy::default(), &silent);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Recursion);
    assert_eq!(cache.len(), 0);
}

#[test]
fn builds_that_ask_for_each_other_end() {
    for _ in 0..20 {
        let cache = Arc::new(cache(16));
        let both = Arc::new(Barrier::new(2));
        let planner = asking(&cache, {
            let both = Arc::clone(&both);
            let met = AtomicUsize::new(0);
            move |images| {
                // Once: a thread whose build failed asks no other.
                if met.fetch_add(1, Ordering::SeqCst) < 2 {
                    both.wait();
                }
                Some(3 - images)
            }
        });
        let errors: Vec<Error> = thread::scope(|scope| {
            let asks = [1, 2].map(|images| {
                let (cache, planner) = (&cache, &planner);
                scope.spawn(move || {
                    cache.get_or_build(&conv(images), &**planner, &Policy::default(), &silent)
                })
            });
            asks.into_iter().map(|ask| ask.join().unwrap().unwrap_err()).collect()
        });
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::Recursion), "{errors:?}");
    }
}

#[test]
fn a_cache_of_one_entry_serves_eight_threads() {
    let (cache, planner) = (cache(1), Fake::new("toy"));
    thread::scope(|scope| {
        let ask = |seed| {
            let (cache, planner) = (&cache, &planner);
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..500 {
                    let images = 1 + random.below(4) as i64;
                    let prepared = get(cache, &conv(images), planner);
                    assert_eq!(prepared.members().next().unwrap().spec.dims[0], images);
                    if random.below(50) == 0 {
                        cache.clear();
                    }
                }
            })
        };
        join_all((0..THREADS as u64).map(ask).collect());
    });
    assert!(cache.len() <= 1);
    let total = cache.stats().total;
    assert_eq!(total.hits + total.misses + total.waits, 8 * 500);
    assert_eq!(total.misses as usize, planner.builds());
}

#[test]
fn graphs_that_are_not_valid_fail_by_name_and_leave_nothing() {
    let (cache, planner) = (cache(2), Fake::new("toy"));
    let mut graph = conv_relu();
    graph.operations.clear();
    let error = cache.get_or_build(&graph, &planner, &Policy::default(), &silent).unwrap_err();
    assert!(error.message().contains("block"), "{error}");
    assert_eq!((planner.builds(), cache.len()), (0, 0));
}

#[test]
fn plans_are_made_ahead_for_each_of_a_list_of_shapes() {
    let (cache, planner) = (cache(8), Fake::new("toy"));
    let graph = conv_relu();
    let shapes: Vec<_> = [(1, 56), (2, 28), (4, 14)]
        .into_iter()
        .map(|(images, size)| vec![(1, vec![images, 64, size, size])])
        .collect();
    let steps = Mutex::new(Vec::new());
    let watch = |step: Step<'_>| {
        steps.lock().unwrap().push((step.done, step.total));
        Ok(())
    };
    let policy = Policy::default();
    let prepared = cache.prepare(&graph, &shapes, &planner, &policy, &watch).unwrap();
    assert_eq!((prepared.len(), planner.builds()), (3, 3));
    assert_eq!(*steps.lock().unwrap(), [(0, 3), (0, 3), (1, 3), (1, 3), (2, 3), (2, 3)]);
    let y = prepared[1].members().find(|member| member.is_output).unwrap();
    assert_eq!((&y.spec.dims, &y.spec.strides), (&vec![2, 32, 28, 28], &vec![25088, 1, 896, 32]));
    // No request waits for a plan afterwards.
    let request = graph.with_dims(&[(1, vec![2, 64, 28, 28])]).unwrap();
    get(&cache, &request, &planner);
    assert_eq!(planner.builds(), 3);
    assert_eq!(cache.stats().total.hits, 1);

    let wrong = vec![shapes[0].clone(), vec![(1, vec![1, 63, 56, 56])]];
    let error = cache.prepare(&graph, &wrong, &planner, &policy, &silent).unwrap_err();
    assert!(error.message().contains("shape 1 of 2") && error.message().contains("63"), "{error}");
    let error = graph.with_dims(&[(9, vec![1])]).unwrap_err();
    assert!(error.message().contains("#9"), "{error}");
    let error = graph.with_dims(&[(1, vec![1])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
}
