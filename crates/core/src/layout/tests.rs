use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn message(error: Error, kind: ErrorKind) -> String {
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

#[test]
fn numel_counts_and_refuses_overflow() {
    assert_eq!(numel(&[], 8).unwrap(), 1);
    assert_eq!(numel(&[2, 3], 8).unwrap(), 6);
    assert_eq!(numel(&[2, 0, 3], 8).unwrap(), 0);
    assert_eq!(numel(&[1 << 40, 1 << 20], 1).unwrap(), 1 << 60);
    for shape in [&[1 << 40, 1 << 40][..], &[usize::MAX], &[0, 1 << 40, 1 << 40], &[1 << 62, 2]] {
        let text = message(numel(shape, 1).unwrap_err(), ErrorKind::Shape);
        assert!(text.contains("too large"), "{text}");
    }
    // The element count fits, the byte count doesn't.
    assert!(numel(&[1 << 60], 8).is_err());
    assert!(numel(&[(1 << 60) - 1], 8).is_ok());
}

#[test]
fn contiguity_ignores_dimensions_of_one_and_empty_layouts() {
    assert_eq!(contiguous_strides(&[2, 3, 4]), [12, 4, 1]);
    assert_eq!(contiguous_strides(&[2, 0, 4]), [4, 4, 1]);
    assert!(is_contiguous(&[2, 3], &[3, 1]));
    assert!(is_contiguous(&[2, 1, 3], &[3, 77, 1]));
    assert!(is_contiguous(&[0, 3], &[5, -9]));
    assert!(is_contiguous(&[3, 0], &[5, -9]));
    assert!(is_contiguous(&[], &[]));
    assert!(!is_contiguous(&[2, 3], &[1, 2]));
    assert!(!is_contiguous(&[3], &[-1]));
    assert!(!is_contiguous(&[3], &[0]));
}

#[test]
fn broadcasting_follows_numpy_and_names_both_shapes() {
    assert_eq!(broadcast_shapes(&[2, 1, 3], &[4, 1]).unwrap(), [2, 4, 3]);
    assert_eq!(broadcast_shapes(&[], &[4]).unwrap(), [4]);
    assert_eq!(broadcast_shapes(&[0], &[1]).unwrap(), [0]);
    let text = message(broadcast_shapes(&[2, 3], &[4]).unwrap_err(), ErrorKind::Shape);
    assert!(text.contains("[2, 3]") && text.contains("[4]") && text.contains("axis -1"), "{text}");
    assert!(text.contains("3 and 4"), "{text}");
    let text = message(broadcast_shapes(&[4], &[5, 2, 3]).unwrap_err(), ErrorKind::Shape);
    assert!(text.contains("4 and 3"), "{text}");
    assert!(broadcast_shapes(&[0], &[2]).is_err());
    assert_eq!(broadcast_strides(&[3, 1], &[1, 7], &[2, 3, 4]).unwrap(), [0, 1, 0]);
    assert!(broadcast_strides(&[3], &[1], &[3, 2]).is_err());
    assert!(broadcast_strides(&[3, 2], &[2, 1], &[2]).is_err());
}

#[test]
fn axes_count_from_either_end() {
    assert_eq!(normalize_axis(-1, 3).unwrap(), 2);
    assert_eq!(normalize_axis(2, 3).unwrap(), 2);
    assert_eq!(
        message(normalize_axis(3, 2).unwrap_err(), ErrorKind::Index),
        "axis 3 is out of range for a tensor of 2 dimensions; use -2 to 1"
    );
    let text = message(normalize_axis(0, 0).unwrap_err(), ErrorKind::Index);
    assert!(text.contains("no axes"), "{text}");
    assert!(normalize_axis(i64::MIN, 2).is_err());
}

#[test]
fn one_size_of_a_reshape_can_be_left_open() {
    assert_eq!(infer_shape(&[2, -1], 6).unwrap(), [2, 3]);
    assert_eq!(infer_shape(&[-1], 0).unwrap(), [0]);
    assert_eq!(infer_shape(&[0, 5], 0).unwrap(), [0, 5]);
    assert_eq!(infer_shape(&[], 1).unwrap().len(), 0);
    let cases = [
        (&[-1, -1][..], 6, "only one"),
        (&[4, -1], 6, "multiple of 4"),
        (&[0, -1], 0, "any size"),
        (&[-2, 3], 6, "negative"),
        (&[4], 6, "it has 4"),
        (&[i64::MAX, i64::MAX], 6, "overflows"),
        (&[], 2, "it has 1"),
    ];
    for (sizes, count, word) in cases {
        let text = message(infer_shape(sizes, count).unwrap_err(), ErrorKind::Shape);
        assert!(text.contains(word), "{sizes:?}: {text}");
    }
}

#[test]
fn bounds_cover_negative_strides_and_refuse_what_no_buffer_holds() {
    assert_eq!(bounds(&[2, 3], &[3, 1], 5).unwrap(), Some((5, 10)));
    assert_eq!(bounds(&[3], &[-2], 4).unwrap(), Some((0, 4)));
    assert_eq!(bounds(&[0], &[-2], 0).unwrap(), None);
    assert_eq!(bounds(&[], &[], 7).unwrap(), Some((7, 7)));
    let text = message(bounds(&[3], &[-2], 3).unwrap_err(), ErrorKind::Shape);
    assert!(text.contains("before its buffer"), "{text}");
    let text = message(bounds(&[3], &[isize::MAX], 0).unwrap_err(), ErrorKind::Shape);
    assert!(text.contains("overflows"), "{text}");
    assert!(bounds(&[2, 2], &[isize::MAX, 1], 0).is_err());
    assert!(bounds(&[usize::MAX], &[1], 0).is_err());
    assert!(bounds(&[1], &[1], usize::MAX).is_err());
    assert!(bounds(&[2], &[isize::MIN], 0).is_err());
    assert_eq!(reach(&[3, 2], &[-2, 5]).unwrap(), Some((-4, 5)));
    assert_eq!(reach(&[3, 0], &[isize::MAX, 1]).unwrap(), None);
    assert_eq!(bounds(&[3, 2, 0], &[isize::MAX, 1, 1], 0).unwrap(), None);
}

#[test]
fn reshape_without_a_copy() {
    type Case<'a> = (&'a [usize], &'a [isize], &'a [usize], Option<&'a [isize]>);
    let cases: [Case<'_>; 9] = [
        (&[2, 3], &[3, 1], &[6], Some(&[1])),
        (&[2, 3], &[1, 2], &[6], None),
        (&[6], &[2], &[2, 3], Some(&[6, 2])),
        (&[6], &[-1], &[2, 3], Some(&[-3, -1])),
        (&[1, 6], &[99, 1], &[6, 1], Some(&[1, 1])),
        (&[4], &[0], &[2, 2], Some(&[0, 0])),
        (&[2, 2], &[4, 1], &[4], None),
        (&[1], &[5], &[], Some(&[])),
        (&[2, 3, 4], &[1, 8, 2], &[2, 12], Some(&[1, 2])),
    ];
    for (shape, strides, target, expected) in cases {
        let got = reshape_strides(shape, strides, target);
        assert_eq!(got.as_deref(), expected, "{shape:?} {strides:?} to {target:?}");
    }
    assert!(reshape_strides(&[0, 3], &[3, 1], &[3, 0]).is_some());
}

/// Returns the offset of every index, in row-major order of indices.
fn places(shape: &[usize], strides: &[isize]) -> Vec<isize> {
    let mut places = vec![0];
    for (&size, &stride) in shape.iter().zip(strides) {
        places = places
            .iter()
            .flat_map(|base| (0..size).map(move |i| base + i as isize * stride))
            .collect();
    }
    places
}

fn layouts() -> impl Strategy<Value = Vec<(usize, isize)>> {
    proptest::collection::vec((0_usize..4, -12_isize..13), 0..4)
}

/// Returns all factorisations of `n` into at most three sizes, ones among them.
fn targets(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![n]];
    for a in (1..=n.max(1)).filter(|a| n.is_multiple_of(*a)) {
        all.push(vec![a, n / a]);
        for b in (1..=n / a).filter(|b| (n / a).is_multiple_of(*b)) {
            all.push(vec![a, b, n / a / b]);
        }
    }
    all
}

proptest! {
    #[test]
    fn layouts_agree_with_a_naive_model(dims in layouts()) {
        let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
        let places = places(&shape, &strides);
        prop_assert_eq!(numel(&shape, 1).unwrap(), places.len());
        let row_major: Vec<isize> = (0..places.len() as isize).collect();
        prop_assert_eq!(is_contiguous(&shape, &strides), places == row_major);
        // The offset is large enough for the view to begin inside its buffer.
        let found = bounds(&shape, &strides, 1000).unwrap();
        let low = places.iter().min().map(|p| (1000 + p) as usize);
        let high = places.iter().max().map(|p| (1000 + p) as usize);
        prop_assert_eq!(found, low.zip(high));
        let distinct: HashSet<_> = places.iter().collect();
        if distinct.len() < places.len() {
            prop_assert!(may_overlap(&shape, &strides));
        }
        for target in targets(places.len()) {
            if let Some(new) = reshape_strides(&shape, &strides, &target) {
                prop_assert_eq!(&self::places(&target, &new), &places);
            } else if target.len() == 1 {
                // Merging to one dimension fails only if the steps differ.
                let steps: HashSet<_> = places.windows(2).map(|p| p[1] - p[0]).collect();
                prop_assert!(steps.len() > 1);
            }
        }
    }

    #[test]
    fn slices_and_transposes_of_a_dense_layout_never_count_as_overlapping(
        sizes in proptest::collection::vec(1_usize..5, 1..4),
        steps in proptest::collection::vec(prop_oneof![-2_isize..0, 1_isize..3], 4),
        swap in any::<bool>(),
    ) {
        let mut strides = contiguous_strides(&sizes);
        let mut shape = Shape::new(&sizes).unwrap();
        for ((stride, size), step) in strides.iter_mut().zip(shape.iter_mut()).zip(&steps) {
            *stride *= step;
            *size = size.div_ceil(step.unsigned_abs());
        }
        if swap {
            strides.reverse();
            shape.reverse();
        }
        prop_assert!(!may_overlap(&shape, &strides));
    }
    #[test]
    fn compact_strides_are_of_the_same_kind_and_within_twice_the_elements_of_each_row(
        sizes in proptest::collection::vec(1_usize..5, 0..5),
        gaps in proptest::collection::vec(0_usize..40, 5),
        steps in proptest::collection::vec(prop_oneof![Just(-3), Just(-1), Just(0), Just(1), Just(7)], 5),
        swap in any::<bool>(),
    ) {
        let mut shape = Shape::new(&sizes).unwrap();
        let mut strides = Strides::filled(0, sizes.len()).unwrap();
        let mut end = 1;
        for d in (0..sizes.len()).rev() {
            let step: isize = steps[d];
            strides[d] = step * end as isize;
            end = end * sizes[d] * step.unsigned_abs().max(1) + gaps[d] / 20 * gaps[d];
        }
        if swap {
            strides.reverse();
            shape.reverse();
        }
        let compact = compact_strides(&shape, &strides).unwrap();
        let kind = |strides: &[isize]| {
            let mut kind: Vec<_> = strides.iter().map(|s| (s.signum(), s.abs() == 1)).collect();
            for a in 0..strides.len() {
                for b in 0..strides.len() {
                    let reach = strides[b].abs() * shape[b] as isize;
                    let orders = shape[a] > 1 && shape[b] > 1 && strides[a] != 0;
                    let order = strides[a].abs().cmp(&reach);
                    kind.push(if orders { (order as isize, true) } else { (0, false) });
                }
            }
            kind
        };
        prop_assert_eq!(kind(&compact), kind(&strides));
        prop_assert!(!may_overlap(&shape, &compact) || may_overlap(&shape, &strides));
        let size = |strides: &[isize]| {
            let (low, high) = reach(&shape, strides).unwrap().unwrap();
            high - low + 1
        };
        let (elements, rows) = (shape.iter().product::<usize>(), shape.iter().map(|s| s + 1).product());
        prop_assert!(size(&compact) <= size(&strides).min(2 * elements.max(rows) as isize));
    }

    #[test]
    fn strides_of_overlapping_layouts_are_divided(
        size in 2_usize..5,
        step in 1_isize..9,
        other in 1_isize..4,
    ) {
        let strides = [step * 6, -step * other];
        let compact = compact_strides(&[size, size * 7], &strides).unwrap();
        prop_assert_eq!(compact[0] * strides[1], compact[1] * strides[0]);
        let is_one = |strides: &[isize]| strides.iter().map(|s| s.abs() == 1).collect::<Vec<_>>();
        prop_assert_eq!(is_one(&compact), is_one(&strides));
        prop_assert!(compact[0] <= 12 && compact_strides(&[size, 0], &strides).is_none());
    }
}
