//! Views against a naive model: a list of the positions of all indices.

use keyfold_core::{DType, Device, ErrorKind, Scalar, Shape, Strides};
use proptest::prelude::*;

use super::Tensor;

/// An n-dimensional array of numbers in logical order; every view copies it.
#[derive(Clone, Debug)]
struct Model {
    shape: Vec<usize>,
    items: Vec<i64>,
}

impl Model {
    fn indices(&self) -> Vec<Vec<usize>> {
        let mut all = vec![vec![]];
        for &size in &self.shape {
            all = all
                .iter()
                .flat_map(|index| (0..size).map(move |i| [&index[..], &[i]].concat()))
                .collect();
        }
        all
    }

    /// Returns the item at an index, by linear search.
    fn at(&self, index: &[usize]) -> i64 {
        let place = self.indices().iter().position(|i| i == index).unwrap();
        self.items[place]
    }

    /// Returns a model of that shape whose items are at `source(index)` of this one.
    fn map(&self, shape: Vec<usize>, source: impl Fn(&[usize]) -> Vec<usize>) -> Model {
        let mut new = Model { shape, items: vec![] };
        new.items = new.indices().iter().map(|i| self.at(&source(i))).collect();
        new
    }
}

/// A view operation, with raw numbers that are reduced to the shape's range.
#[derive(Clone, Debug)]
enum Op {
    Transpose(usize, usize),
    Slice(usize, Option<i64>, Option<i64>, i64),
    Select(usize, usize),
    Broadcast(usize),
    Unsqueeze(usize),
    Squeeze,
    Flip(usize),
    Flatten,
    Contiguous,
}

fn ops() -> impl Strategy<Value = Op> {
    let position = proptest::option::of(-6_i64..6);
    let step = prop_oneof![-3_i64..0, 1_i64..4];
    prop_oneof![
        (0..4_usize, 0..4_usize).prop_map(|(a, b)| Op::Transpose(a, b)),
        (0..4_usize, position.clone(), position, step)
            .prop_map(|(a, i, j, s)| Op::Slice(a, i, j, s)),
        (0..4_usize, 0..9_usize).prop_map(|(a, i)| Op::Select(a, i)),
        (0..4_usize).prop_map(Op::Broadcast),
        (0..4_usize).prop_map(Op::Unsqueeze),
        Just(Op::Squeeze),
        (0..4_usize).prop_map(Op::Flip),
        Just(Op::Flatten),
        Just(Op::Contiguous),
    ]
}

/// Python's rule, step by step.
fn sliced(size: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> Vec<usize> {
    let n = size as i64;
    let wrap = |p: i64| if p < 0 { p + n } else { p };
    let mut at = start.map_or(if step > 0 { 0 } else { n - 1 }, wrap);
    at = if step > 0 { at.max(0) } else { at.min(n - 1) };
    let stop = stop.map(wrap);
    let mut found = vec![];
    while (0..n).contains(&at) && stop.is_none_or(|s| if step > 0 { at < s } else { at > s }) {
        found.push(at as usize);
        at += step;
    }
    found
}

fn apply(op: &Op, tensor: &Tensor, model: &Model) -> Option<(Tensor, Model)> {
    let n = tensor.ndim();
    let shape = model.shape.clone();
    if n == 0 && !matches!(op, Op::Unsqueeze(_) | Op::Flatten | Op::Contiguous | Op::Broadcast(_)) {
        return None;
    }
    Some(match *op {
        Op::Transpose(a, b) => {
            let (a, b) = (a % n, b % n);
            let mut new = shape;
            new.swap(a, b);
            let swapped = |i: &[usize]| {
                let mut i = i.to_vec();
                i.swap(a, b);
                i
            };
            (tensor.transpose(a as i64, b as i64 - n as i64).unwrap(), model.map(new, swapped))
        }
        Op::Slice(axis, start, stop, step) => {
            let axis = axis % n;
            let picks = sliced(shape[axis], start, stop, step);
            let mut new = shape;
            new[axis] = picks.len();
            let pick = |i: &[usize]| {
                let mut i = i.to_vec();
                i[axis] = picks[i[axis]];
                i
            };
            (tensor.slice(axis as i64, start, stop, step).unwrap(), model.map(new, pick))
        }
        Op::Select(axis, index) => {
            let axis = axis % n;
            if shape[axis] == 0 {
                assert!(tensor.select(axis as i64, 0).is_err());
                return None;
            }
            let index = index % shape[axis];
            let mut new = shape.clone();
            new.remove(axis);
            let insert = |i: &[usize]| {
                let mut i = i.to_vec();
                i.insert(axis, index);
                i
            };
            let from_end = index as i64 - shape[axis] as i64;
            (tensor.select(axis as i64, from_end).unwrap(), model.map(new, insert))
        }
        Op::Broadcast(extra) => {
            if n + 1 > 4 {
                return None;
            }
            // Repeats along a new dimension, and along those of size 1.
            let mut new = vec![extra];
            new.extend(shape.iter().map(|&size| if size == 1 { 2 } else { size }));
            let back = |i: &[usize]| {
                i[1..].iter().zip(&shape).map(|(&i, &size)| if size == 1 { 0 } else { i }).collect()
            };
            (tensor.broadcast_to(&new).unwrap(), model.map(new.clone(), back))
        }
        Op::Unsqueeze(axis) => {
            if n + 1 > 4 {
                return None;
            }
            let axis = axis % (n + 1);
            let mut new = shape;
            new.insert(axis, 1);
            (
                tensor.unsqueeze(axis as i64).unwrap(),
                Model { shape: new, items: model.items.clone() },
            )
        }
        Op::Squeeze => {
            let axis = shape.iter().position(|&size| size == 1)?;
            let mut new = shape;
            new.remove(axis);
            (tensor.squeeze(axis as i64).unwrap(), Model { shape: new, items: model.items.clone() })
        }
        Op::Flip(axis) => {
            let axis = axis % n;
            let size = shape[axis];
            let mirror = |i: &[usize]| {
                let mut i = i.to_vec();
                i[axis] = size - 1 - i[axis];
                i
            };
            (tensor.flip(&[axis as i64]).unwrap(), model.map(shape, mirror))
        }
        Op::Flatten => {
            let flat = Model { shape: vec![model.items.len()], items: model.items.clone() };
            (tensor.reshape(&[model.items.len() as i64]).unwrap(), flat)
        }
        Op::Contiguous => (tensor.contiguous().unwrap(), model.clone()),
    })
}

proptest! {
    #[test]
    fn chains_of_views_agree_with_the_model(
        sizes in proptest::collection::vec(0_usize..4, 0..4),
        chain in proptest::collection::vec(ops(), 0..7),
    ) {
        let numel: usize = sizes.iter().product();
        let items: Vec<i64> = (0..numel as i64).collect();
        let mut tensor = Tensor::from_vec(items.clone(), &sizes).unwrap();
        let mut model = Model { shape: sizes, items };
        for op in &chain {
            // Repeated broadcasting can produce millions of elements.
            if model.items.len() > 300 {
                break;
            }
            let Some(next) = apply(op, &tensor, &model) else { continue };
            (tensor, model) = next;
            prop_assert_eq!(&**tensor.shape(), &model.shape[..], "after {:?}", op);
            prop_assert_eq!(tensor.numel(), model.items.len());
            prop_assert_eq!(&tensor.to_vec::<i64>().unwrap(), &model.items, "after {:?}", op);
        }
        for (index, item) in model.indices().iter().zip(&model.items) {
            prop_assert_eq!(tensor.get::<i64>(index).unwrap(), *item);
        }
        let (memory, origin) = tensor.as_strided_slice::<i64>().unwrap();
        if let Some(first) = model.items.first() {
            prop_assert_eq!(memory[origin], *first);
        }
        if tensor.is_contiguous() {
            prop_assert_eq!(tensor.as_slice::<i64>().unwrap(), &model.items[..]);
        }
        let copy = tensor.copy().unwrap();
        prop_assert_eq!(copy.as_slice::<i64>().unwrap(), &model.items[..]);
        // The same view passes the checks of the constructor.
        let again = Tensor::from_parts(
            tensor.buffer().clone(), tensor.shape().clone(), tensor.strides().clone(), tensor.offset(),
        );
        prop_assert!(again.is_ok());
    }

    #[test]
    fn from_parts_accepts_exactly_what_lies_inside(
        dims in proptest::collection::vec((0_usize..4, -6_isize..7), 0..4),
        offset in 0_usize..12,
        len in 0_usize..12,
    ) {
        let mut places = vec![offset as isize];
        for &(size, stride) in &dims {
            places = places
                .iter()
                .flat_map(|p| (0..size as isize).map(move |i| p + i * stride))
                .collect();
        }
        let inside = places.iter().all(|p| (0..len as isize).contains(p))
            && (!places.is_empty() || offset <= len);
        let (shape, strides): (Vec<_>, Vec<_>) = dims.into_iter().unzip();
        let buffer = Tensor::zeros(&[len], DType::U16, Device::CPU).unwrap().into_buffer();
        let (shape, strides) = (Shape::new(&shape).unwrap(), Strides::new(&strides).unwrap());
        let tensor = Tensor::from_parts(buffer, shape, strides, offset);
        prop_assert_eq!(tensor.is_ok(), inside);
    }

    #[test]
    fn copies_into_views_write_exactly_those_elements(
        start in 0_i64..4, step in prop_oneof![-2_i64..0, 1_i64..3], transpose in any::<bool>(),
    ) {
        let target = Tensor::zeros(&[4, 4], DType::I64, Device::CPU).unwrap();
        let mut view = target.slice(1, Some(start), None, step).unwrap();
        if transpose {
            view = view.transpose(0, 1).unwrap();
        }
        let source = Tensor::from_vec((1..=view.numel() as i64).collect(), view.shape()).unwrap();
        // SAFETY: nothing else accesses the memory, and no slice is alive.
        unsafe { view.copy_from(&source).unwrap() };
        prop_assert_eq!(view.to_vec::<i64>().unwrap(), source.to_vec::<i64>().unwrap());
        let written: i64 = target.to_vec::<i64>().unwrap().iter().sum();
        prop_assert_eq!(written, source.to_vec::<i64>().unwrap().iter().sum::<i64>());
    }
}

fn range(n: i64) -> Tensor {
    Tensor::from_vec((0..n).collect(), &[n as usize]).unwrap()
}

#[test]
fn overlapping_copies_read_before_they_write() {
    let t = range(5);
    let reversed = t.flip(&[0]).unwrap();
    // SAFETY: nothing else accesses the memory, and no slice is alive.
    unsafe { t.copy_from(&reversed).unwrap() };
    assert_eq!(t.to_vec::<i64>().unwrap(), [4, 3, 2, 1, 0]);
}

#[test]
fn copies_refuse_what_they_cannot_do() {
    let (t, f) = (range(4), Tensor::zeros(&[4], DType::F32, Device::CPU).unwrap());
    let kind = |to: &Tensor, from: &Tensor| {
        // SAFETY: nothing else accesses the memory, and no slice is alive.
        unsafe { to.copy_from(from) }.unwrap_err().kind()
    };
    assert_eq!(kind(&t, &f), ErrorKind::DType);
    assert_eq!(kind(&t, &range(3)), ErrorKind::Shape);
    assert_eq!(kind(&t.clone().into_read_only(), &range(4)), ErrorKind::ReadOnly);
    let repeated = range(1).broadcast_to(&[4]).unwrap();
    assert_eq!(kind(&repeated, &range(4)), ErrorKind::Value);
    let meta = Tensor::meta(&[4], DType::I64).unwrap();
    assert_eq!(kind(&t, &meta), ErrorKind::NotSupported);
}

#[test]
fn view_errors_name_what_is_wrong() {
    let t = Tensor::zeros(&[2, 3], DType::F64, Device::CPU).unwrap();
    let cases = [
        (t.slice(0, None, None, 0).unwrap_err(), ErrorKind::Value, "step"),
        (t.slice(2, None, None, 1).unwrap_err(), ErrorKind::Index, "axis 2"),
        (t.select(1, 3).unwrap_err(), ErrorKind::Index, "use -3 to 2"),
        (t.select(1, i64::MIN).unwrap_err(), ErrorKind::Index, "axis 1"),
        (t.permute(&[0]).unwrap_err(), ErrorKind::Value, "[0]"),
        (t.permute(&[0, 0]).unwrap_err(), ErrorKind::Value, "once"),
        (t.permute(&[0, 1, 1]).unwrap_err(), ErrorKind::Value, "once"),
        (t.squeeze(0).unwrap_err(), ErrorKind::Value, "size 2"),
        (t.flip(&[0, -2]).unwrap_err(), ErrorKind::Value, "twice"),
        (t.broadcast_to(&[3]).unwrap_err(), ErrorKind::Shape, "[2, 3]"),
        (t.broadcast_to(&[1 << 40, 1 << 40, 2, 3]).unwrap_err(), ErrorKind::Shape, "too large"),
        (t.reshape(&[4, -1]).unwrap_err(), ErrorKind::Shape, "6"),
        (t.reshape_view(&[7].into()).unwrap_err(), ErrorKind::Shape, "[7]"),
        (t.item().unwrap_err(), ErrorKind::Value, "has 6"),
        (t.get::<f32>(&[0, 0]).unwrap_err(), ErrorKind::DType, "float64"),
        (t.get::<f64>(&[0, 3]).unwrap_err(), ErrorKind::Index, "[0, 3]"),
        (t.get_scalar(&[0]).unwrap_err(), ErrorKind::Index, "[0]"),
        (t.transpose(0, 1).unwrap().as_slice::<f64>().unwrap_err(), ErrorKind::Value, "contiguous"),
    ];
    for (error, kind, word) in cases {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(word), "{error}");
    }
    let deep = t.reshape(&[[1; 62].as_slice(), &[2, 3]].concat()).unwrap();
    assert_eq!(deep.unsqueeze(0).unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(deep.permute(&(0..64).collect::<Vec<_>>()).unwrap().ndim(), 64);
}

#[test]
fn slices_accept_any_numbers() {
    let t = range(5);
    let all = t.slice(0, Some(i64::MIN), Some(i64::MAX), 1).unwrap();
    assert_eq!(all.to_vec::<i64>().unwrap(), [0, 1, 2, 3, 4]);
    let last = t.slice(0, None, None, i64::MIN).unwrap();
    assert_eq!(last.to_vec::<i64>().unwrap(), [4]);
    let first = t.slice(0, None, None, i64::MAX).unwrap();
    assert_eq!(first.to_vec::<i64>().unwrap(), [0]);
    assert_eq!(t.slice(0, Some(5), None, 1).unwrap().numel(), 0);
}

#[test]
fn views_share_memory_and_start_over_with_keys_and_token() {
    let t = Tensor::zeros(&[2, 3], DType::F32, Device::CPU).unwrap().with_token(77);
    t.set_requires_grad(true).unwrap();
    let tracer = keyfold_dispatch::DispatchKey::Quantized;
    t.insert_key(tracer).unwrap();
    assert_eq!(t.keys().to_string(), "DispatchKeySet(Autograd, Quantized, CPU)");
    let same = t.clone();
    assert_eq!((same.token(), same.keys(), same.requires_grad()), (77, t.keys(), true));
    let view = t.transpose(0, 1).unwrap();
    assert_eq!((view.token(), view.requires_grad()), (0, false));
    assert_eq!(view.keys().to_string(), "DispatchKeySet(CPU)");
    assert_eq!(view.raw_data_ptr().unwrap(), t.raw_data_ptr().unwrap());
    assert!(view.touches(&t) && !view.touches(&t.copy().unwrap()));
    t.set_requires_grad(false).unwrap();
    assert!(!t.requires_grad() && same.requires_grad());
    let key = keyfold_dispatch::DispatchKey::CUDA;
    assert_eq!(t.insert_key(key).unwrap_err().kind(), ErrorKind::Value);
    let ints = range(2);
    assert_eq!(ints.set_requires_grad(true).unwrap_err().kind(), ErrorKind::DType);
    assert!(ints.set_requires_grad(false).is_ok());
}

#[test]
fn only_the_sole_owner_of_fresh_memory_gets_a_mutable_slice() {
    let mut t = Tensor::zeros(&[3], DType::I64, Device::CPU).unwrap();
    t.as_mut_slice::<i64>().unwrap().copy_from_slice(&[1, 2, 3]);
    let view = t.flip(&[0]).unwrap();
    assert_eq!(t.as_mut_slice::<i64>().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(view.to_vec::<i64>().unwrap(), [3, 2, 1]);
    drop(view);
    assert_eq!(t.as_mut_slice::<i64>().unwrap(), [1, 2, 3]);
    let mut t = t.into_read_only();
    assert_eq!(t.as_mut_slice::<i64>().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(t.data_mut_ptr::<i64>().unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn bools_with_odd_bytes_are_read_as_numbers_and_refused_as_a_slice() {
    let bytes = Tensor::from_vec(vec![0_u8, 1, 2], &[3]).unwrap();
    let mut memory = bytes.into_buffer().into_inner::<crate::HostBuffer>().unwrap();
    memory.as_bytes_mut()[2] = 2;
    let buffer = crate::BufferHandle::new(std::sync::Arc::new(memory), DType::Bool).unwrap();
    let t = Tensor::from_parts(buffer, Shape::from([3]), Strides::from([1]), 0).unwrap();
    assert_eq!(t.to_vec::<bool>().unwrap(), [false, true, true]);
    assert_eq!(t.get_scalar(&[2]).unwrap(), Scalar::Bool(true));
    assert_eq!(t.as_slice::<bool>().unwrap_err().kind(), ErrorKind::Value);
    assert_eq!(t.as_slice::<u8>().unwrap(), [0, 1, 2]);
    assert_eq!(t.slice(0, None, Some(2), 1).unwrap().as_slice::<bool>().unwrap(), [false, true]);
}

#[test]
fn debug_shows_the_metadata() {
    let t = Tensor::zeros(&[2, 3], DType::BF16, Device::CPU).unwrap();
    assert_eq!(
        format!("{t:?}"),
        "Tensor(shape=[2, 3], strides=[3, 1], offset=0, dtype=bfloat16, device=cpu, \
         keys=DispatchKeySet(CPU))"
    );
}
