//! Views: reading through every layout, and the constructions that are refused.

#[allow(dead_code)]
mod support;

use keyfold_core::{DType, Device, Element, ErrorKind, MAX_DIMS, Result};
use keyfold_kit::for_each::{generate, map};
use keyfold_kit::view::{Contiguous, FlatView, FlatViewMut, RankedView, RankedViewMut, Strided};
use keyfold_tensor::{BufferHandle, HostBuffer, Tensor};
use proptest::prelude::*;
use support::{MemoryLayout, layouts};

type Flat<'a, T> = FlatView<'a, T, Strided>;
type FlatMut<'a, T> = FlatViewMut<'a, T, Strided>;
type Ranked<'a, T, const R: usize> = RankedView<'a, T, R, Strided>;
type RankedMut<'a, T, const R: usize> = RankedViewMut<'a, T, R, Strided>;

/// Reads every element through a ranked view.
fn ranked<const R: usize>(data: &[u32], layout: &MemoryLayout) -> Vec<u32> {
    let (sizes, strides) = (&layout.shape[..], &layout.strides[..]);
    let (sizes, strides) = (sizes.try_into().unwrap(), strides.try_into().unwrap());
    let view: Ranked<'_, u32, R> =
        RankedView::from_slice(data, sizes, strides, layout.offset).unwrap();
    assert_eq!(view.len(), layout.shape.iter().product::<usize>());
    let flat = view.flat().unwrap();
    let mut items = Vec::new();
    for i in 0..view.len() {
        let (mut rest, mut index) = (i, [0; R]);
        for d in (0..R).rev() {
            index[d] = rest % sizes[d];
            rest /= sizes[d];
        }
        items.push(view.at(index));
        assert_eq!(view.get(index), flat.get(i));
        for d in 0..R {
            let mut outside = index;
            outside[d] = sizes[d];
            assert_eq!(view.get(outside), None);
        }
    }
    items
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn views_read_what_a_naive_loop_reads(layouts in layouts(5)) {
        let layout = &layouts[1];
        let data: Vec<u32> = (0..layout.elements as u32).collect();
        let naive: Vec<u32> = layout.offsets().into_iter().map(|place| place as u32).collect();
        let flat = Flat::from_slice(&data, &layout.shape, &layout.strides, layout.offset).unwrap();
        prop_assert_eq!(flat.len(), naive.len());
        let read: Vec<u32> = (0..flat.len()).map(|i| flat.at(i)).collect();
        prop_assert_eq!(&read, &naive);
        prop_assert_eq!(flat.get(flat.len()), None);
        let ranked = match layout.shape.len() {
            0 => ranked::<0>(&data, layout),
            1 => ranked::<1>(&data, layout),
            2 => ranked::<2>(&data, layout),
            3 => ranked::<3>(&data, layout),
            4 => ranked::<4>(&data, layout),
            5 => ranked::<5>(&data, layout),
            _ => ranked::<6>(&data, layout),
        };
        prop_assert_eq!(&ranked, &naive);
    }

    #[test]
    fn a_layout_is_accepted_exactly_if_every_element_is_inside(
        dims in proptest::collection::vec((0_usize..4, -4_isize..5), 0..4),
        offset in 0_usize..12,
        len in 0_usize..24,
    ) {
        let (shape, strides): (Vec<usize>, Vec<isize>) = dims.into_iter().unzip();
        let mut offsets = vec![offset as isize];
        for (&size, &stride) in shape.iter().zip(&strides) {
            let along = |p: isize| (0..size as isize).map(move |i| p + i * stride);
            offsets = offsets.into_iter().flat_map(along).collect();
        }
        let inside = offsets.iter().all(|p| (0..len as isize).contains(p)) && offset <= len;
        let mut data = vec![0_u8; len];
        prop_assert_eq!(Flat::from_slice(&data, &shape, &strides, offset).is_ok(), inside);
        let distinct = {
            let mut sorted = offsets.clone();
            sorted.sort_unstable();
            sorted.dedup();
            sorted.len() == offsets.len()
        };
        // Writing is refused if elements coincide, and may be refused if they interleave.
        let writes = FlatMut::from_slice(&mut data, &shape, &strides, offset).is_ok();
        prop_assert!(!writes || (inside && distinct));
    }
}

fn refused<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) {
    let Err(error) = result else { panic!("accepted; expected {words:?}") };
    assert_eq!(error.kind(), kind, "{error}");
    assert!(words.iter().all(|word| error.message().contains(word)), "{error}: no {words:?}");
}

#[test]
fn construction_out_of_range_is_an_error() {
    let data = [0.0_f32; 12];
    let flat = |shape: &[usize], strides: &[isize], offset| {
        Flat::from_slice(&data, shape, strides, offset).map(|view| view.len())
    };
    let outside = |result| refused(result, ErrorKind::Shape, &["FlatView", "beyond", "12"]);
    outside(flat(&[13], &[1], 0));
    outside(flat(&[3, 4], &[4, 1], 1));
    outside(flat(&[3, 4], &[5, 1], 0));
    outside(flat(&[], &[], 12));
    outside(flat(&[0], &[1], 13));
    refused(flat(&[4], &[-1], 2), ErrorKind::Shape, &["begins before"]);
    refused(flat(&[2, 3], &[1], 0), ErrorKind::Shape, &["1 strides", "[2, 3]"]);
    let huge = isize::MAX;
    refused(flat(&[3, 3], &[huge, huge], 0), ErrorKind::Shape, &["overflows"]);
    refused(flat(&[usize::MAX], &[0], 0), ErrorKind::Shape, &["too large"]);
    refused(flat(&[1 << 40, 1 << 40], &[0, 0], 0), ErrorKind::Shape, &["too large"]);
    refused(flat(&[2], &[huge], usize::MAX), ErrorKind::Shape, &["overflows"]);
    let many = MAX_DIMS + 1;
    refused(flat(&vec![1; many], &vec![1; many], 0), ErrorKind::Shape, &["65", "64"]);
    assert_eq!(flat(&[1; MAX_DIMS], &[99; MAX_DIMS], 11).unwrap(), 1);
    assert_eq!(flat(&[0, 5], &[1000, huge], 12).unwrap(), 0);
    assert_eq!(flat(&[1 << 30], &[0], 11).unwrap(), 1 << 30);
    // Sizes are powers of two and strides don't merge, so that an offset is computed from more
    // dimensions than usual.
    let data = vec![0_u8; 1 << 20];
    let strides: Vec<isize> = (0..20).map(|d| 1 << ((d * 7) % 20)).collect();
    let view = Flat::from_slice(&data, &[2; 20], &strides, 0).unwrap();
    assert_eq!((view.len(), view.at((1 << 20) - 1)), (1 << 20, 0));

    let ranked = RankedView::<f32, 2>::from_slice(&[0.0; 5], [2, 3], [3, 1], 0);
    refused(ranked, ErrorKind::Shape, &["RankedView", "5 elements"]);
    let mut elements = [0.0_f32; 5];
    let ranked = RankedMut::<f32, 2>::from_slice(&mut elements, [2, 3], [3, 1], 0);
    refused(ranked, ErrorKind::Shape, &["RankedViewMut"]);
}

#[test]
fn contiguous_views_are_of_contiguous_memory_only() {
    let data: Vec<i16> = (0..12).collect();
    let view = FlatView::<i16, Contiguous>::from_slice(&data, &[2, 3], &[3, 1], 4).unwrap();
    assert_eq!((view.len(), view.at(0), view.at(5)), (6, 4, 9));
    let turned = FlatView::<i16, Contiguous>::from_slice(&data, &[2, 3], &[1, 2], 0);
    refused(turned, ErrorKind::Value, &["contiguous", "Strided"]);
    let ranked = RankedView::<i16, 2, Contiguous>::from_slice(&data, [2, 3], [3, 1], 6).unwrap();
    assert_eq!((ranked.at([1, 2]), ranked.strides()), (11, [3, 1]));
    let turned = RankedView::<i16, 2, Contiguous>::from_slice(&data, [2, 3], [1, 2], 0);
    refused(turned, ErrorKind::Value, &["RankedView", "contiguous"]);
    let tensor = Tensor::from_vec(data, &[3, 4]).unwrap().transpose(0, 1).unwrap();
    let turned = FlatView::<i16, Contiguous>::from_tensor(&tensor);
    refused(turned, ErrorKind::Value, &["[4, 3]"]);
    assert_eq!(FlatView::<i16, Strided>::from_tensor(&tensor).unwrap().at(1), 4);
}

#[test]
fn views_of_tensors_check_dtype_device_rank_and_owners() {
    let mut tensor = Tensor::from_vec(vec![1_i32, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
    refused(Flat::<f32>::from_tensor(&tensor), ErrorKind::DType, &["int32", "float32"]);
    refused(Ranked::<i32, 3>::from_tensor(&tensor), ErrorKind::Shape, &["2 dimensions", "3"]);
    let meta = Tensor::meta(&[2], DType::F32).unwrap();
    refused(Flat::<f32>::from_tensor(&meta), ErrorKind::NotSupported, &["meta"]);
    assert_eq!(meta.device(), Device::META);
    assert_eq!(FlatMut::<i32>::from_tensor(&mut tensor).unwrap().len(), 6);
    let other = tensor.clone();
    refused(FlatMut::<i32>::from_tensor(&mut tensor), ErrorKind::ReadOnly, &["another owner"]);
    refused(RankedMut::<i32, 2>::from_tensor(&mut tensor), ErrorKind::ReadOnly, &["another owner"]);
    drop(other);
    let mut tensor = tensor.into_read_only();
    refused(FlatMut::<i32>::from_tensor(&mut tensor), ErrorKind::ReadOnly, &["read-only"]);
}

#[test]
fn broadcasting_repeats_and_refuses_incompatible_shapes() {
    let tensor = Tensor::from_vec(vec![1.0_f64, 2.0, 3.0], &[3, 1]).unwrap();
    let wide = FlatView::<f64>::broadcast(&tensor, &[2, 3, 2]).unwrap();
    let read: Vec<f64> = (0..12).map(|i| wide.at(i)).collect();
    assert_eq!(read, [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    let bad = FlatView::<f64>::broadcast(&tensor, &[2, 4, 2]);
    refused(bad, ErrorKind::Shape, &["[3, 1]", "[2, 4, 2]"]);
    refused(FlatView::<f64>::broadcast(&tensor, &[3]), ErrorKind::Shape, &["[3, 1]"]);
    refused(
        FlatView::<f64>::broadcast(&tensor, &[usize::MAX, 3, 1]),
        ErrorKind::Shape,
        &["too large"],
    );
    let ranked = Ranked::<f64, 2>::from_tensor(&tensor).unwrap();
    let wide = ranked.broadcast_to([4, 3, 5]).unwrap();
    assert_eq!((wide.at([3, 2, 4]), wide.sizes(), wide.strides()), (3.0, [4, 3, 5], [0, 1, 0]));
    refused(ranked.broadcast_to([2]), ErrorKind::Shape, &["[3, 1]"]);
    refused(ranked.broadcast_to([3, 1 << 62]), ErrorKind::Shape, &["too large"]);
    let one = 7.0;
    let scalar: Ranked<'_, f64, 0> =
        RankedView::from_slice(std::slice::from_ref(&one), [], [], 0).unwrap();
    assert_eq!((scalar.at([]), scalar.broadcast_to([2, 2]).unwrap().at([1, 1])), (7.0, 7.0));
}

#[test]
fn views_for_writing_refuse_overlapping_elements() {
    let mut elements = [0_u8; 64];
    let mut write = |shape: &[usize], strides: &[isize]| {
        FlatMut::from_slice(&mut elements, shape, strides, 0).map(|view| view.len())
    };
    refused(write(&[4], &[0]), ErrorKind::Value, &["FlatViewMut", "same element"]);
    // Overlapping windows of three elements at a distance of one.
    refused(write(&[8, 3], &[1, 1]), ErrorKind::Value, &["same element"]);
    refused(write(&[2, 2, 3], &[4, 2, 1]), ErrorKind::Value, &["same element"]);
    assert_eq!(write(&[1, 5], &[0, 2]).unwrap(), 5);
    assert_eq!(write(&[0, 5], &[0, 0]).unwrap(), 0);
    let twice = RankedMut::<u8, 2>::from_slice(&mut elements, [2, 2], [0, 1], 0);
    refused(twice, ErrorKind::Value, &["RankedViewMut", "same element"]);
}

/// Calls `map` with views of one buffer, which may overlap.
fn over_itself(out: (usize, isize), x: (usize, isize), count: usize) -> Result<Vec<i64>> {
    let data: Tensor = Tensor::from_vec((0..100_i64).collect(), &[100]).unwrap();
    let part = |(start, step): (usize, isize)| {
        let (start, stop) = (start as i64, start as i64 + count as i64 * step as i64);
        data.slice(0, Some(start), (stop >= 0).then_some(stop), step as i64).unwrap()
    };
    let (out, x) = (part(out), part(x));
    {
        // SAFETY: the memory is used by this call of `map` only.
        let out = unsafe { FlatMut::<i64>::from_shared(&out) }?;
        map((), out, Flat::<i64>::from_tensor(&x)?, |x| x + 1000)?;
    }
    data.to_vec::<i64>()
}

#[test]
fn inputs_that_overlap_the_output_are_refused_unless_identical() {
    let refuse = |out, x| {
        refused(over_itself(out, x, 10), ErrorKind::Value, &["map: input 0 overlaps the output"]);
    };
    refuse((0, 1), (1, 1));
    refuse((5, 1), (0, 1));
    refuse((0, 1), (9, -1));
    refuse((0, 2), (0, 1));
    refuse((0, 3), (3, 3));
    // The same elements in the same order, interleaved elements, and separate ones.
    assert_eq!(
        over_itself((0, 1), (0, 1), 10).unwrap()[..11],
        [1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007, 1008, 1009, 10]
    );
    assert_eq!(over_itself((29, -2), (29, -2), 10).unwrap()[27..31], [1027, 28, 1029, 30]);
    assert_eq!(over_itself((0, 2), (1, 2), 10).unwrap()[..4], [1001, 1, 1003, 3]);
    assert_eq!(over_itself((10, 1), (0, 1), 10).unwrap()[10], 1000);
    // Interleaved columns of one matrix share no element.
    let matrix = Tensor::from_vec((0..40_i32).collect(), &[10, 4]).unwrap();
    let (left, right) =
        (matrix.slice(1, None, Some(2), 1).unwrap(), matrix.slice(1, Some(2), None, 1).unwrap());
    // SAFETY: the memory is used by this call of `map` only.
    let out = unsafe { FlatMut::<i32>::from_shared(&left) }.unwrap();
    map((), out, Flat::<i32>::from_tensor(&right).unwrap(), |x| -x).unwrap();
    assert_eq!(matrix.to_vec::<i32>().unwrap()[36..], [-38, -39, 38, 39]);
}

#[test]
fn a_body_cannot_write_its_own_output_a_second_time() {
    std::thread_local! {
        static VIEW: std::cell::Cell<Option<FlatViewMut<'static, u32, Contiguous>>> =
            const { std::cell::Cell::new(None) };
    }
    // Leaked, since a view in a thread-local must outlive the process's threads.
    let elements: &'static mut [u32] = Box::leak(vec![0_u32; 8].into_boxed_slice());
    let view = FlatViewMut::new(elements);
    VIEW.set(Some(view));
    let refusals = std::sync::atomic::AtomicUsize::new(0);
    generate((), view, |i| {
        if let Some(view) = VIEW.get() {
            let error = generate((), view, |_| 1).unwrap_err();
            assert!(error.message().contains("own output"), "{error}");
            refusals.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        // Writing other memory is allowed.
        let mut own = [0_u32; 3];
        generate((), FlatViewMut::new(&mut own), |k| k as u32).unwrap();
        own[i % 3]
    })
    .unwrap();
    assert!(refusals.into_inner() > 0);
    // After the call, the view can be written again.
    generate((), view, |i| i as u32).unwrap();
}

#[test]
fn bytes_other_than_0_and_1_are_true() {
    // Another library's bools: any byte but 0 is true.
    let bytes = Tensor::from_vec(vec![0_u8, 1, 2, 255, 0, 128], &[2, 3]).unwrap();
    let bools = as_bools(bytes);
    let flat = FlatView::<bool, Contiguous>::from_tensor(&bools).unwrap();
    let read: Vec<bool> = (0..6).map(|i| flat.at(i)).collect();
    let expected = [false, true, true, true, false, true];
    assert_eq!(read, expected);
    let mut out = vec![false; 6];
    map((), FlatViewMut::new(&mut out), flat, |x| x).unwrap();
    assert_eq!(out, expected);
    let mut numbers = vec![0_i32; 6];
    map((), FlatViewMut::new(&mut numbers), flat, i32::from).unwrap();
    assert_eq!(numbers, [0, 1, 1, 1, 0, 1]);
    let raw = FlatView::<u8, Contiguous>::from_tensor(&bools).unwrap();
    assert_eq!(raw.at(3), 255);
    let turned = bools.transpose(0, 1).unwrap();
    map((), FlatViewMut::new(&mut out), Flat::<bool>::from_tensor(&turned).unwrap(), |x| !x)
        .unwrap();
    assert_eq!(out, [true, false, false, true, false, false]);
}

/// The same memory with another dtype.
fn as_bools(bytes: Tensor) -> Tensor {
    let (shape, strides) = (bytes.shape().clone(), bytes.strides().clone());
    let buffer = bytes.into_buffer().into_inner::<HostBuffer>().unwrap();
    let buffer = BufferHandle::new(std::sync::Arc::new(buffer), DType::Bool).unwrap();
    Tensor::from_parts(buffer, shape, strides, 0).unwrap()
}

#[test]
fn views_are_copies_and_read_from_any_thread() {
    fn check<T: Copy + Send + Sync>(_: T) {}
    let data = [1.0_f32, 2.0];
    check(FlatView::new(&data));
    check(Ranked::<f32, 1>::from_slice(&data, [2], [1], 0).unwrap());
    fn element<T: Element>() -> usize {
        size_of::<FlatView<'_, T, Contiguous>>()
    }
    assert_eq!(element::<f32>(), 16);
}
