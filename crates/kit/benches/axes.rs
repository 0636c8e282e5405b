//! The cost of selecting from a table over axes; the limit is 5 ns.
//!
//! The table has five axes and 240 points; the coordinates are read from memory, so the compiler can't
//! know them. `hash map` is the same table as a `HashMap`, for comparison.

use std::collections::HashMap;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use keyfold_kit::axes::{
    Axis, Contiguity, Cpu, Cuda, Determinism, Device, DispatchTable, Dtype, FLOATS, HasDtype, INTS,
    NotRequired, Placement, Space,
};
use keyfold_kit::body;

type Axes5 = (Device, Dtype, Contiguity, Placement, Determinism);
type Size = fn(usize) -> usize;

fn bytes<C: HasDtype>(_: C, count: usize) -> usize {
    count * size_of::<C::Element>()
}

fn table() -> DispatchTable<Axes5, Size> {
    let body = body!(bytes(count) -> Size where HasDtype);
    DispatchTable::builder("bytes")
        .cover((Cpu,), body)
        .cover((Cuda, INTS), body)
        .cover((Cuda, FLOATS, NotRequired), body)
        .build()
        .unwrap_or_else(|error| panic!("{error}"))
}

fn choose(criterion: &mut Criterion) {
    let table = table();
    // The coordinates come in an order that a branch predictor can't learn, 1024 per round.
    let covered: Vec<Axes5> = table.coverage().points().collect();
    let mut state = 1_u64;
    let points: Vec<Axes5> = (0..1024)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            covered[(state >> 33) as usize % covered.len()]
        })
        .collect();
    let mut group = criterion.benchmark_group("choose from 5 axes, 1024 times");
    group.bench_function("select, other order", |bencher| {
        bencher.iter(|| {
            for &(device, dtype, contiguity, placement, determinism) in black_box(&points) {
                let point = (determinism, placement, contiguity, dtype, device);
                black_box(table.select(point).map(|f| *f as usize).unwrap_or(0));
            }
        });
    });
    group.bench_function("try_select", |bencher| {
        bencher.iter(|| {
            for &point in black_box(&points) {
                black_box(table.try_select(point).map_or(0, |f| *f as usize));
            }
        });
    });
    group.bench_function("select and call", |bencher| {
        bencher.iter(|| {
            for &point in black_box(&points) {
                black_box(table.select(point).map_or(0, |f| f(3)));
            }
        });
    });
    let map: HashMap<[usize; 5], Size> = table
        .iter()
        .map(|((a, b, c, d, e), f)| ([a.index(), b.index(), c.index(), d.index(), e.index()], *f))
        .collect();
    group.bench_function("hash map", |bencher| {
        bencher.iter(|| {
            for &(a, b, c, d, e) in black_box(&points) {
                let key = [a.index(), b.index(), c.index(), d.index(), e.index()];
                black_box(map.get(&key));
            }
        });
    });
    group.bench_function("reading the coordinates only", |bencher| {
        bencher.iter(|| {
            for &point in black_box(&points) {
                black_box(Space::<Axes5>::index(point));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, choose);
criterion_main!(benches);
