//! Views, copies, and joins: every element of the result is an element of an argument.

use keyfold_core::DType;
use keyfold_tensor::Value;

use super::{Expected, Given, axis};
use crate::array::{Array, for_each_index};
use crate::number::Number;

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Expected> {
    let x = match given.args.first() {
        Some(crate::array::Arg::Tensor(operand)) => &operand.array,
        _ => return joins(name, given),
    };
    let rank = x.shape.len();
    let array = match name {
        "aten::contiguous" | "aten::clone" | "aten::detach" | "aten::alias" | "aten::to.device" => {
            x.clone()
        }
        "aten::to" => x.cast(given.dtype(1)?),
        "aten::reshape" => reshaped(x, &given.ints(1)?),
        "aten::squeeze" => with_shape(x, x.shape.iter().copied().filter(|n| *n != 1).collect()),
        "aten::squeeze.dim" => {
            let dim = given.dim(1, rank);
            let keeps = |d: usize| d != dim || x.shape[d] != 1;
            with_shape(x, (0..rank).filter(|d| keeps(*d)).map(|d| x.shape[d]).collect())
        }
        "aten::unsqueeze" => {
            let mut shape = x.shape.clone();
            shape.insert(given.dim(1, rank + 1), 1);
            with_shape(x, shape)
        }
        "aten::transpose" => {
            let mut dims: Vec<usize> = (0..rank).collect();
            dims.swap(given.dim(1, rank), given.dim(2, rank));
            permuted(x, &dims)
        }
        "aten::permute" => {
            let dims: Vec<usize> = given.ints(1)?.into_iter().map(|d| axis(d, rank)).collect();
            permuted(x, &dims)
        }
        "aten::expand" => {
            let sizes = given.ints(1)?;
            let skipped = sizes.len() - rank;
            let size = |(d, size): (usize, &i64)| match size {
                -1 => x.shape[d - skipped],
                size => *size as usize,
            };
            let shape: Vec<usize> = sizes.iter().enumerate().map(size).collect();
            Array::from_fn(x.dtype, &shape, |index| x.broadcast_at(index))
        }
        "aten::flip" => {
            let dims: Vec<usize> = given.ints(1)?.into_iter().map(|d| axis(d, rank)).collect();
            Array::from_fn(x.dtype, &x.shape, |index| {
                let flipped = |(d, i): (usize, &usize)| {
                    if dims.contains(&d) { x.shape[d] - 1 - i } else { *i }
                };
                x.at(&index.iter().enumerate().map(flipped).collect::<Vec<_>>())
            })
        }
        "aten::select.int" => {
            let dim = given.dim(1, rank);
            let at = axis(given.int(2)?, x.shape[dim]);
            let shape = [&x.shape[..dim], &x.shape[dim + 1..]].concat();
            Array::from_fn(x.dtype, &shape, |index| {
                x.at(&[&index[..dim], &[at], &index[dim..]].concat())
            })
        }
        "aten::slice.Tensor" => {
            let dim = given.dim(1, rank);
            let places = sliced(given, 2, x.shape[dim]);
            let mut shape = x.shape.clone();
            shape[dim] = places.len();
            Array::from_fn(x.dtype, &shape, |index| {
                let mut own = index.to_vec();
                own[dim] = places[index[dim]];
                x.at(&own)
            })
        }
        "aten::select_scatter" => {
            let dim = given.dim(2, rank);
            let at = axis(given.int(3)?, x.shape[dim]);
            scattered(x, given.array(1), dim, &[at], true)
        }
        "aten::slice_scatter" => {
            let dim = given.dim(2, rank);
            scattered(x, given.array(1), dim, &sliced(given, 3, x.shape[dim]), false)
        }
        "aten::copy_" => {
            let source = given.array(1).cast(x.dtype);
            Array::from_fn(x.dtype, &x.shape, |index| source.broadcast_at(index))
        }
        "aten::fill_.Scalar" => {
            let value = Number::of(given.scalar(1)).cast(x.dtype);
            Array::from_fn(x.dtype, &x.shape, |_| value)
        }
        _ => return None,
    };
    Some(Expected::copied(array))
}

fn with_shape(x: &Array, shape: Vec<usize>) -> Array {
    Array { shape, ..x.clone() }
}

fn reshaped(x: &Array, sizes: &[i64]) -> Array {
    let known: i64 = sizes.iter().filter(|size| **size >= 0).product();
    let size = |size: &i64| match size {
        -1 => x.items.len() / known.max(1) as usize,
        size => *size as usize,
    };
    with_shape(x, sizes.iter().map(size).collect())
}

fn permuted(x: &Array, dims: &[usize]) -> Array {
    let shape: Vec<usize> = dims.iter().map(|d| x.shape[*d]).collect();
    Array::from_fn(x.dtype, &shape, |index| {
        let mut own = vec![0; dims.len()];
        dims.iter().zip(index).for_each(|(d, i)| own[*d] = *i);
        x.at(&own)
    })
}

/// Returns the positions that Python's `start:end:step` selects among `size`.
fn sliced(given: &Given<'_>, at: usize, size: usize) -> Vec<usize> {
    let end_of = |value: &Value, default: i64| match value {
        Value::Int(i) if *i < 0 => (*i + size as i64).max(0),
        Value::Int(i) => (*i).min(size as i64),
        _ => default,
    };
    let start = end_of(given.value(at), 0);
    let end = end_of(given.value(at + 1), size as i64);
    let step = given.int(at + 2).unwrap_or(1).max(1);
    (start..end).step_by(step as usize).map(|i| i as usize).collect()
}

/// Returns `x` with the positions along a dimension replaced by `source`, which lacks the dimension
/// if one is selected.
fn scattered(x: &Array, source: &Array, dim: usize, places: &[usize], selects: bool) -> Array {
    let source = source.cast(x.dtype);
    Array::from_fn(x.dtype, &x.shape, |index| {
        let Some(at) = places.iter().position(|place| *place == index[dim]) else {
            return x.at(index);
        };
        let mut own = index.to_vec();
        match selects {
            true => drop(own.remove(dim)),
            false => own[dim] = at,
        }
        source.at(&own)
    })
}

/// The parts of a tensor along a dimension.
pub(super) fn several(name: &str, given: &Given<'_>) -> Option<Vec<Expected>> {
    let first = given.args.first();
    let Some(crate::array::Arg::Tensor(operand)) = first else { return None };
    let (x, rank) = (&operand.array, operand.array.shape.len());
    let cut = |dim: usize, sizes: Vec<usize>| {
        let mut start = 0;
        let part = |size: usize| {
            let (from, mut shape) = (start, x.shape.clone());
            (start, shape[dim]) = (start + size, size);
            Expected::copied(Array::from_fn(x.dtype, &shape, |index| {
                let mut own = index.to_vec();
                own[dim] += from;
                x.at(&own)
            }))
        };
        sizes.into_iter().map(part).collect::<Vec<_>>()
    };
    let of_size = |dim: usize, size: usize| {
        let (whole, mut sizes) = (x.shape[dim], Vec::new());
        while sizes.iter().sum::<usize>() + size < whole {
            sizes.push(size);
        }
        sizes.push(whole - sizes.iter().sum::<usize>());
        cut(dim, sizes)
    };
    Some(match name {
        "aten::split.Tensor" | "aten::split_copy.Tensor_out" => {
            of_size(given.dim(2, rank), given.int(1)? as usize)
        }
        "aten::split_with_sizes" | "aten::split_with_sizes_copy.out" => {
            cut(given.dim(2, rank), given.sizes(1))
        }
        "aten::chunk" | "aten::tensor_split.sections" => {
            let (dim, count) = (given.dim(2, rank), given.int(1)? as usize);
            let whole = x.shape[dim];
            if name == "aten::chunk" && whole > 0 {
                return Some(of_size(dim, whole.div_ceil(count)));
            }
            cut(dim, (0..count).map(|i| whole / count + usize::from(i < whole % count)).collect())
        }
        "aten::tensor_split.indices" => {
            let (dim, places) = (given.dim(2, rank), given.sizes(1));
            let whole = x.shape[dim];
            let (mut sizes, mut last) = (Vec::new(), 0);
            for place in places.into_iter().chain([whole]) {
                sizes.push(place.min(whole) - last);
                last = place.min(whole);
            }
            cut(dim, sizes)
        }
        "aten::unbind.int" => {
            let dim = given.dim(1, rank);
            let mut parts = cut(dim, vec![1; x.shape[dim]]);
            for part in &mut parts {
                part.array.shape.remove(dim);
            }
            parts
        }
        _ => return None,
    })
}

fn joins(name: &str, given: &Given<'_>) -> Option<Expected> {
    if !matches!(name, "aten::cat" | "aten::stack") {
        return None;
    }
    let arrays: Vec<&Array> = given.tensors(0).into_iter().flatten().collect();
    let first = arrays.first()?;
    let dtype = arrays.iter().map(|array| array.dtype).reduce(DType::promote)?;
    let stacks = name == "aten::stack";
    let dim = given.dim(1, first.shape.len() + usize::from(stacks));
    let arrays = arrays.iter().map(|array| {
        let mut array = array.cast(dtype);
        if stacks {
            array.shape.insert(dim, 1);
        }
        array
    });
    let arrays: Vec<Array> = arrays.collect();
    let mut shape = arrays[0].shape.clone();
    shape[dim] = arrays.iter().map(|array| array.shape[dim]).sum();
    let mut items = Vec::new();
    for_each_index(&shape, |index| {
        let mut own = index.to_vec();
        for array in &arrays {
            if own[dim] < array.shape[dim] {
                items.push(array.at(&own));
                return;
            }
            own[dim] -= array.shape[dim];
        }
    });
    Some(Expected::copied(Array { dtype, shape, items }))
}
