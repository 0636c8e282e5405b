//! Inclusive scans: every size compared with a plain loop, equal bits for any number of threads, panics.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{THREADS, exclusive};
use keyfold_core::f16;
use keyfold_kit::pool::set_num_threads;
use keyfold_kit::scan::inclusive_scan;

/// None, one, the ends of blocks and of groups of blocks, and many groups with a remainder.
const SIZES: [usize; 12] =
    [0, 1, 2, 1023, 1024, 1025, 8191, 8192, 8193, 65_536, 300_007, 1_000_003];

fn numbers(len: usize) -> impl Iterator<Item = u64> {
    // Pseudo-random numbers by Knuth's multiplier.
    (0..len as u64).map(|at| (at + 1).wrapping_mul(6_364_136_223_846_793_005) >> 33)
}

#[test]
fn integers_are_summed_as_by_a_plain_loop() {
    let _exclusive = exclusive();
    for threads in 1..=8 {
        set_num_threads(threads).unwrap();
        for len in SIZES {
            let mut items: Vec<u64> = numbers(len).collect();
            let mut sum = 0_u64;
            let expected: Vec<u64> = items
                .iter()
                .map(|item| {
                    sum = sum.wrapping_add(*item);
                    sum
                })
                .collect();
            inclusive_scan(&mut items, |x| x, u64::wrapping_add, |sum| sum).unwrap();
            assert!(items == expected, "{threads} threads, {len} numbers");
        }
    }
}

#[test]
fn floats_have_the_same_bits_for_any_number_of_threads() {
    let _exclusive = exclusive();
    for len in SIZES {
        let items: Vec<f32> =
            numbers(len).map(|x| (x as f32 - 1e9) * 10_f32.powi(x as i32 % 9)).collect();
        let halves: Vec<f16> = numbers(len).map(|x| f16::from_f32(x as f32 / 1e12)).collect();
        let scanned = |threads| {
            set_num_threads(threads).unwrap();
            let (mut sums, mut halves) = (items.clone(), halves.clone());
            inclusive_scan(&mut sums, |x| x, |a, b| a + b, |sum| sum).unwrap();
            inclusive_scan(&mut halves, f16::to_f32, |a, b| a + b, f16::from_f32).unwrap();
            let bits: Vec<u32> = sums.iter().map(|sum| sum.to_bits()).collect();
            (bits, halves.iter().map(|half| half.to_bits()).collect::<Vec<_>>(), sums)
        };
        let alone = scanned(1);
        for threads in 2..=8 {
            let shared = scanned(threads);
            assert!(shared.0 == alone.0 && shared.1 == alone.1, "{threads} threads, {len} floats");
        }
        // The sums are near the exact ones.
        let (mut exact, mut all) = (0.0, 0.0);
        for (sum, item) in alone.2.iter().zip(&items) {
            exact += f64::from(*item);
            all += f64::from(item.abs());
            assert!((f64::from(*sum) - exact).abs() <= all * 1e-4, "{sum}, not {exact}");
        }
    }
}

#[test]
fn operations_that_do_not_commute_keep_their_order_and_signed_zeros_their_sign() {
    let _exclusive = exclusive();
    set_num_threads(4).unwrap();
    // Affine maps x -> a x + b, the earlier one applied first.
    let mut maps: Vec<(u32, u32)> =
        numbers(100_001).map(|x| ((x as u32) | 1, (x >> 7) as u32)).collect();
    let after = |first: (u32, u32), then: (u32, u32)| {
        let a = first.0.wrapping_mul(then.0);
        (a, first.1.wrapping_mul(then.0).wrapping_add(then.1))
    };
    let mut all = (1, 0);
    let expected: Vec<_> = maps
        .iter()
        .map(|map| {
            all = after(all, *map);
            all
        })
        .collect();
    inclusive_scan(&mut maps, |map| map, after, |map| map).unwrap();
    assert!(maps == expected);

    let mut zeros = vec![-0.0_f64; 20_000];
    inclusive_scan(&mut zeros, |x| x, |a, b| a + b, |sum| sum).unwrap();
    assert!(zeros.iter().all(|zero| zero.to_bits() == (-0.0_f64).to_bits()));
}

#[test]
fn a_panic_ends_the_scan_on_every_thread() {
    let _exclusive = exclusive();
    for threads in THREADS {
        set_num_threads(threads).unwrap();
        for guilty in [0_u64, 77_777, 299_999] {
            let mut items: Vec<u64> = (0..300_000).collect();
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let widen = |x| {
                    assert!(x != guilty, "{guilty} can't be widened");
                    0_u64
                };
                inclusive_scan(&mut items, widen, |a, b| a + b, |sum| sum)
            }));
            let text = panic.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(*text, format!("{guilty} can't be widened"));
        }
    }
}
