//! Large multi-threaded copies on the host copy the right bytes for any layouts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfold_core::{Device, Error, ErrorKind, Result};
use keyfold_tensor::device::{Content, Part, StreamId, memory_of, share_copies};
use keyfold_tensor::{HostBuffer, Tensor};
use proptest::prelude::*;

/// The number of parts of shared copies.
static PARTS: AtomicUsize = AtomicUsize::new(0);
/// The number of threads that run them; 0 is refused.
static THREADS: AtomicUsize = AtomicUsize::new(3);

fn share(parts: usize, copy: &(dyn Fn(usize) + Sync)) -> Result<()> {
    PARTS.fetch_add(parts, Ordering::Relaxed);
    let threads = THREADS.load(Ordering::Relaxed);
    if threads == 0 {
        return Err(Error::new(ErrorKind::Value, "no threads".to_owned()));
    }
    std::thread::scope(|scope| {
        // The last part first.
        let run = |thread| move || (thread..parts).step_by(threads).rev().for_each(copy);
        let spawned: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
        // ThreadSanitizer understands that a thread is joined, but not the waiting of a scope.
        spawned.into_iter().for_each(|thread| thread.join().unwrap());
    });
    Ok(())
}

/// Sets the number of threads. Tests that count parts hold the lock.
fn use_threads(threads: usize) -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    share_copies(share);
    THREADS.store(threads, Ordering::Relaxed);
    one
}

/// The layout of a shape's elements in memory.
#[derive(Clone, Debug)]
struct Place {
    strides: Vec<isize>,
    first: usize,
    len: usize,
}

/// Returns a layout: dimensions from the innermost outwards, with gaps between them, some
/// backwards; the repeated one has stride 0.
fn place(
    shape: &[usize],
    order: &[usize],
    odd: &[(bool, usize)],
    repeated: Option<usize>,
) -> Place {
    let mut place = Place { strides: vec![0; shape.len()], first: 0, len: 1 };
    for &dim in order.iter().filter(|dim| **dim < shape.len() && Some(**dim) != repeated) {
        let (backwards, gap) = odd[dim];
        let step = place.len + gap;
        let way = step * (shape[dim] - 1);
        place.first += if backwards { way } else { 0 };
        place.strides[dim] = if backwards { -(step as isize) } else { step as isize };
        place.len += way;
    }
    place
}

/// Returns bytes that differ between neighbours.
fn numbered(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i % 251 + i / 65_536) as u8).collect()
}

/// Copies element by element.
fn naive(shape: &[usize], size: usize, from: (&[u8], &Place), to: (&mut [u8], &Place)) {
    let at = |place: &Place, index: &[usize]| {
        let steps = index.iter().zip(&place.strides).map(|(i, step)| *i as isize * step);
        (place.first as isize + steps.sum::<isize>()) as usize * size
    };
    let mut index = vec![0; shape.len()];
    for _ in 0..shape.iter().product() {
        let (a, b) = (at(from.1, &index), at(to.1, &index));
        to.0[b..b + size].copy_from_slice(&from.0[a..a + size]);
        for (i, size) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < *size {
                break;
            }
            *i = 0;
        }
    }
}

const SIZES: [usize; 6] = [1, 2, 3, 4, 8, 16];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn large_copies_give_the_bytes_of_a_naive_one_for_any_layouts_and_threads(
        small in proptest::collection::vec(1_usize..12, 0..3),
        medium in 1_usize..200,
        at in 0_usize..8,
        size in prop::sample::select(&SIZES[..]),
        orders in (Just([0, 1, 2, 3]).prop_shuffle(), Just([0, 1, 2, 3]).prop_shuffle()),
        odd in prop::array::uniform2(prop::array::uniform4((any::<bool>(), 0_usize..3))),
        repeated in prop::option::weighted(0.2, 0_usize..4),
        threads in 1_usize..9,
    ) {
        let _one = use_threads(threads);
        let mut shape = small;
        shape.insert(at % (shape.len() + 1), medium);
        let others: usize = shape.iter().product();
        // The last dimension makes it large.
        shape.insert(at / 2 % (shape.len() + 1), ((1 << 20) / size).div_ceil(others) + at);
        let source = place(&shape, &orders.0, &odd[0], repeated);
        let target = place(&shape, &orders.1, &odd[1], None);
        let bytes = numbered(source.len * size);
        let mut expected = vec![0xee; target.len * size];
        naive(&shape, size, (&bytes, &source), (&mut expected, &target));
        let memory = memory_of(Device::CPU).unwrap();
        let from = HostBuffer::copy_of(&bytes).unwrap();
        let to = HostBuffer::copy_of(&vec![0xee; target.len * size]).unwrap();
        let (start, end) = (source.first * size, target.first * size);
        let read = Part::new(&from, start, &shape, &source.strides, size).unwrap();
        let written = Part::new(&to, end, &shape, &target.strides, size).unwrap();
        let before = PARTS.load(Ordering::Relaxed);
        // SAFETY: the buffers aren't shared, and the target's elements are disjoint.
        unsafe { memory.copy_strided(&read, &written, StreamId::DEFAULT) }.unwrap();
        prop_assert!(to.as_bytes() == expected);
        prop_assert!(PARTS.load(Ordering::Relaxed) > before + 3);
    }
}

#[test]
fn copies_of_whole_tensors_uploads_and_downloads_are_shared_and_small_ones_are_not() {
    let _one = use_threads(2);
    let shared = |run: &dyn Fn()| {
        let before = PARTS.load(Ordering::Relaxed);
        run();
        PARTS.load(Ordering::Relaxed) - before
    };
    let bytes = numbered(3 << 20);
    let x = Tensor::from_vec(bytes.clone(), &[3 << 20]).unwrap();
    assert_eq!(shared(&|| assert!(x.copy().unwrap().as_slice::<u8>().unwrap() == bytes)), 12);
    let overlapping = x.reshape(&[1536, 2048]).unwrap();
    assert!(
        shared(&|| {
            let whole = overlapping.copy().unwrap();
            let upper = whole.slice(0, Some(1), None, 1).unwrap();
            let lower = whole.slice(0, None, Some(-1), 1).unwrap();
            // SAFETY: the copy isn't shared. The two overlap in most rows.
            unsafe { upper.copy_from(&lower).unwrap() };
            let copied = whole.as_slice::<u8>().unwrap();
            assert!(copied[..2048] == bytes[..2048]);
            assert!(copied[2048..] == bytes[..bytes.len() - 2048]);
        }) > 12
    );
    let memory = memory_of(Device::CPU).unwrap();
    assert_eq!(
        shared(&|| {
            let buffer = memory.allocate(Device::CPU, bytes.len(), Content::Zeros).unwrap();
            let part = Part::new(&*buffer, 0, &[3 << 20], &[1], 1).unwrap();
            let mut back = vec![0; bytes.len()];
            // SAFETY: the buffer isn't shared.
            unsafe { memory.upload(&bytes, &part, StreamId::DEFAULT).unwrap() };
            memory.download(&part, &mut back, StreamId::DEFAULT).unwrap();
            assert!(back == bytes);
        }),
        24
    );
    let small = x.slice(0, None, Some((1 << 20) - 1), 1).unwrap();
    assert_eq!(shared(&|| drop(small.copy().unwrap())), 0);
    let strided = x.slice(0, None, Some((2 << 20) - 2), 2).unwrap();
    assert_eq!(shared(&|| drop(strided.copy().unwrap())), 0);

    // The first function stays set, and its errors are the copy's.
    assert!(!share_copies(|_, _| Ok(())));
    THREADS.store(0, Ordering::Relaxed);
    assert_eq!(x.copy().unwrap_err().message(), "no threads");
}
