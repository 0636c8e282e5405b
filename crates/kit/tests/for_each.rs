//! `map` and `for_each` compared with naive loops, over random layouts; and the calls that they refuse.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_core::{Device, Element, ErrorKind, Scalar};
use keyfold_kit::for_each::{for_each, generate, map, map_indexed};
use keyfold_kit::isa::{self, Level};
use keyfold_kit::pool::Schedule;
use keyfold_kit::view::{Contiguous, FlatView, FlatViewMut, RankedView, RankedViewMut, Strided};
use proptest::prelude::*;
use support::{MemoryLayout, layouts};

type Flat<'a, T> = FlatView<'a, T, Strided>;
type FlatMut<'a, T> = FlatViewMut<'a, T, Strided>;

fn numbers<T: Element>(count: usize, first: usize) -> Vec<T> {
    (0..count).map(|i| T::from_scalar(Scalar::Int(((i * 7 + first) % 101) as i64))).collect()
}

fn view<'a, T: Element>(data: &'a [T], layout: &MemoryLayout) -> Flat<'a, T> {
    Flat::from_slice(data, &layout.shape, &layout.strides, layout.offset).unwrap()
}

/// Checks `out = f(x, y)` by `map` against a naive loop; memory between the elements must not change.
fn check<T: Element, R: Element>(layouts: &[MemoryLayout; 3], f: impl Fn(T, T) -> R + Sync + Copy) {
    let [out_lie, x_lie, y_lie] = layouts;
    let (x, y) = (numbers::<T>(x_lie.elements, 1), numbers::<T>(y_lie.elements, 50));
    let before = numbers::<R>(out_lie.elements, 9);
    let mut expected = before.clone();
    for ((out, a), b) in out_lie.offsets().into_iter().zip(x_lie.offsets()).zip(y_lie.offsets()) {
        expected[out] = f(x[a], y[b]);
    }
    let mut out = before;
    let target =
        FlatMut::from_slice(&mut out, &out_lie.shape, &out_lie.strides, out_lie.offset).unwrap();
    map((), target, (view(&x, x_lie), view(&y, y_lie)), |(a, b)| f(a, b)).unwrap();
    assert_eq!(out, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn map_agrees_with_a_naive_loop(layouts in layouts(5)) {
        check::<f32, f32>(&layouts, |a, b| a * 2.0 - b);
        check::<f64, bool>(&layouts, |a, b| a < b);
        check::<u8, u16>(&layouts, |a, b| u16::from(a) * 3 + u16::from(b));
    }

    #[test]
    fn indices_are_those_of_row_major_order(layouts in layouts(4)) {
        let [out_lie, x_lie, _] = &layouts;
        let x = numbers::<i64>(x_lie.elements, 3);
        let mut out = vec![-1_i64; out_lie.elements];
        let target = FlatMut::from_slice(
            &mut out, &out_lie.shape, &out_lie.strides, out_lie.offset).unwrap();
        map_indexed(Schedule::Uniform, target, view(&x, x_lie), |i, x| x * 10_000 + i as i64).unwrap();
        let mut expected = vec![-1_i64; out_lie.elements];
        for (i, (place, a)) in out_lie.offsets().into_iter().zip(x_lie.offsets()).enumerate() {
            expected[place] = x[a] * 10_000 + i as i64;
        }
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn in_place_works_in_every_layout(layouts in layouts(5)) {
        let [layout, other, _] = &layouts;
        let y = numbers::<f32>(other.elements, 5);
        let mut data = numbers::<f32>(layout.elements, 1);
        let mut expected = data.clone();
        for (place, b) in layout.offsets().into_iter().zip(other.offsets()) {
            expected[place] = expected[place] * 3.0 + y[b];
        }
        let x = FlatMut::from_slice(&mut data, &layout.shape, &layout.strides, layout.offset).unwrap();
        map((), x, (x, view(&y, other)), |(x, y)| x * 3.0 + y).unwrap();
        prop_assert_eq!(data, expected);
    }

    #[test]
    fn flat_views_of_different_shapes_enumerate_in_the_same_order(
        (a, b, at) in (1_usize..5, 1_usize..5, 1_usize..5).prop_map(|(a, b, c)| (a * b, b * c, c)),
    ) {
        // A transposed a x b matrix, read as a transposed (a * b / at) x at matrix if the sizes divide.
        let count = a * b;
        let (x, y) = (numbers::<i32>(count, 1), numbers::<i32>(count, 60));
        let at = if count.is_multiple_of(at) { at } else { 1 };
        let x_view = Flat::from_slice(&x, &[a, b], &[1, a as isize], 0).unwrap();
        let y_view = Flat::from_slice(&y, &[count / at, at], &[1, (count / at) as isize], 0).unwrap();
        let mut out = vec![0; count];
        map((), FlatViewMut::new(&mut out), (x_view, y_view), |(x, y)| x * 1000 + y).unwrap();
        let expected: Vec<i32> =
            (0..count).map(|i| x[i % b * a + i / b] * 1000 + y[i % at * (count / at) + i / at]).collect();
        prop_assert_eq!(&out, &expected);
        // The same layout as an output.
        let mut across = vec![0; count];
        let target =
            FlatMut::from_slice(&mut across, &[a, b], &[1, a as isize], 0).unwrap();
        map((), target, (x_view, y_view), |(x, y)| x * 1000 + y).unwrap();
        let back: Vec<i32> = (0..count).map(|i| across[i % b * a + i / b]).collect();
        prop_assert_eq!(back, expected);
    }
}

#[test]
fn large_arrays_are_shared_out_and_every_level_gives_the_same() {
    let used = isa::level();
    for level in Level::ALL.into_iter().filter(|level| level.is_available()) {
        isa::set_level(level);
        for (rows, columns) in [(1, 300_001), (1000, 301), (301, 1000), (100_003, 3), (3, 100_003)]
        {
            let count = rows * columns;
            let (x, y) = (numbers::<f32>(count, 1), numbers::<f32>(columns, 2));
            let strides = [1, rows as isize];
            let turned = Flat::from_slice(&x, &[rows, columns], &strides, 0).unwrap();
            let row = Flat::from_slice(&y, &[rows, columns], &[0, 1], 0).unwrap();
            let mut out = vec![0.0_f32; count];
            map((), FlatViewMut::new(&mut out), (turned, row), |(x, y)| x * 2.0 + y).unwrap();
            let mut across = vec![0.0_f32; count];
            let target = FlatMut::from_slice(&mut across, &[rows, columns], &strides, 0).unwrap();
            map(Schedule::Uniform, target, (FlatView::new(&x), row), |(x, y)| x * 2.0 + y).unwrap();
            for i in 0..rows {
                for j in 0..columns {
                    assert_eq!(out[i * columns + j], x[j * rows + i] * 2.0 + y[j]);
                    assert_eq!(across[j * rows + i], x[i * columns + j] * 2.0 + y[j]);
                }
            }
        }
    }
    isa::set_level(used);
}

#[test]
fn results_larger_than_the_caches_are_complete_and_leave_gaps_unchanged() {
    let (rows, columns) = (1500, 1501);
    let x = numbers::<f32>(rows * columns, 1);
    let mut out = vec![0.0_f32; rows * columns];
    map((), FlatViewMut::new(&mut out), FlatView::new(&x), |x| x + 1.0).unwrap();
    assert!(out.iter().zip(&x).all(|(out, x)| *out == x + 1.0));
    // Rows with gaps, at any offset within a cache line.
    let apart = columns + 2;
    let mut out = vec![-1.0_f32; rows * apart + 1];
    let strides = [apart as isize, 1];
    let target = FlatMut::from_slice(&mut out, &[rows, columns], &strides, 1).unwrap();
    map((), target, FlatView::new(&x), |x| x + 1.0).unwrap();
    assert_eq!(out[0], -1.0);
    for (out, x) in out[1..].chunks(apart).zip(x.chunks(columns)) {
        assert!(out.iter().zip(x).all(|(out, x)| *out == x + 1.0));
        assert_eq!(out[columns..], [-1.0, -1.0]);
    }
}

#[test]
fn every_element_type_passes_through() {
    fn copies<T: Element>() {
        let x = numbers::<T>(1003, 4);
        let mut out = vec![T::default(); 1003];
        map((), FlatViewMut::new(&mut out), FlatView::new(&x), |x| x).unwrap();
        assert_eq!(out, x);
        let back = Flat::from_slice(&x, &[17, 59], &[1, 17], 0).unwrap();
        map((), FlatViewMut::new(&mut out), back, |x| x).unwrap();
        assert!((0..1003).all(|i| out[i] == x[i % 59 * 17 + i / 59]));
    }
    copies::<bool>();
    copies::<u8>();
    copies::<i16>();
    copies::<keyfold_core::f16>();
    copies::<keyfold_core::bf16>();
    copies::<u32>();
    copies::<f64>();
    copies::<i64>();
    copies::<keyfold_core::Complex<f32>>();
    copies::<keyfold_core::Complex<f64>>();
}

#[test]
fn ranked_indices_reach_the_body_in_any_layout() {
    let lens = [3_usize, 40, 5];
    for strides in [[200_isize, 5, 1], [1, 3, 120], [40, 1, 120], [5, 15, 1]] {
        let mut out = vec![0_u32; 600];
        let target: RankedViewMut<'_, u32, 3> =
            RankedViewMut::from_slice(&mut out, lens, strides, 0).unwrap();
        generate((), target, |[i, j, k]| (i * 10_000 + j * 100 + k) as u32).unwrap();
        let view: RankedView<'_, u32, 3> = RankedView::from_slice(&out, lens, strides, 0).unwrap();
        for i in 0..3 {
            for j in 0..40 {
                for k in 0..5 {
                    assert_eq!(view.at([i, j, k]), (i * 10_000 + j * 100 + k) as u32);
                }
            }
        }
    }
    // A reversed view, and a view of rank 0.
    let mut out = vec![0_u64; 6];
    let target: RankedViewMut<'_, u64, 2> =
        RankedViewMut::from_slice(&mut out, [2, 3], [-3, -1], 5).unwrap();
    generate((), target, |[i, j]| (10 * i + j) as u64).unwrap();
    assert_eq!(out, [12, 11, 10, 2, 1, 0]);
    let mut one = [0.0_f32];
    let target: RankedViewMut<'_, f32, 0> = RankedViewMut::from_slice(&mut one, [], [], 0).unwrap();
    generate((), target, |[]| 7.0).unwrap();
    assert_eq!(one, [7.0]);
}

#[test]
fn for_each_calls_every_index_once() {
    for count in [0, 1, 2, 1000, 100_000] {
        let calls: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        for schedule in [Schedule::Uniform, Schedule::Adaptive] {
            for_each(schedule, count, |i| {
                calls[i].fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        }
        assert!(calls.iter().all(|calls| calls.load(Ordering::Relaxed) == 2));
    }
}

#[test]
fn writers_scatter() {
    let mut out = vec![0_u32; 10_000];
    let writer = FlatViewMut::new(&mut out).writer();
    for_each((), 10_000, |i| {
        // SAFETY: 7919 has no divisor in common with 10000, so every index is written once.
        unsafe { writer.write(i * 7919 % 10_000, i as u32) }.unwrap();
    })
    .unwrap();
    assert!((0..10_000).all(|i| out[i * 7919 % 10_000] == i as u32));
    let writer = FlatViewMut::new(&mut out).writer();
    // SAFETY: no other thread accesses the memory.
    let error = unsafe { writer.write(10_000, 1) }.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Index);
}

#[test]
fn a_body_that_panics_is_an_error_and_the_pool_stays_usable() {
    let x = numbers::<u32>(200_000, 0);
    for at in [0_u32, 150_000] {
        let mut out = vec![0_u32; 200_000];
        let error = map_indexed((), FlatViewMut::new(&mut out), FlatView::new(&x), |i, x| {
            assert!(i as u32 != at, "no {at} here");
            x
        })
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::KernelPanic);
        assert!(error.message().contains(&format!("no {at} here")), "{error}");
        let past_the_end = FlatView::<_, Contiguous>::new(&x);
        let error = for_each((), 200_001, |i| assert!(past_the_end.at(i) < 101)).unwrap_err();
        assert!(error.message().contains("index 200000 is out of range"), "{error}");
        map((), FlatViewMut::new(&mut out), FlatView::new(&x), |x| x + 1).unwrap();
        assert!(out.iter().zip(&x).all(|(out, x)| *out == x + 1));
    }
}

#[test]
fn sizes_that_differ_are_an_error_with_both() {
    let (x, mut out) = (vec![1.0_f32; 6], vec![0.0_f32; 5]);
    let error = map((), FlatViewMut::new(&mut out), FlatView::new(&x), |x| x).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(error.message().contains("input 0 has 6 elements and the output has 5"), "{error}");
    let mut out = vec![0.0_f32; 6];
    let x: RankedView<'_, f32, 2> = RankedView::from_slice(&x, [2, 3], [3, 1], 0).unwrap();
    let target: RankedViewMut<'_, f32, 2> =
        RankedViewMut::from_slice(&mut out, [3, 2], [2, 1], 0).unwrap();
    let error = map((), target, x, |x| x).unwrap_err();
    assert!(error.message().contains("[2, 3]") && error.message().contains("[3, 2]"), "{error}");
}

#[test]
fn a_device_without_a_backend_is_an_error() {
    let cuda = Device::cuda(1);
    let error = for_each(cuda, 3, |_| panic!("must not run")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert!(error.message().contains("cuda:1"), "{error}");
    let mut out = vec![0_u8; 3];
    let error = generate(Device::META, FlatViewMut::new(&mut out), |_| 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    assert_eq!(out, [0; 3]);
}
