//! Indexing by masks and positions.

use keyfold_core::{DType, layout};

use super::reduce::total;
use super::{Expected, Given, accumulator, sum_error};
use crate::array::{Array, for_each_index};
use crate::number::Number;

pub(super) fn expected(name: &str, given: &Given<'_>) -> Option<Expected> {
    Some(match name {
        "aten::index.Tensor" => {
            let x = given.array(0);
            let picked = Picked::new(x, &given.tensors(1));
            Expected::copied(Array::from_fn(x.dtype, &picked.shape, |at| x.at(&picked.index(at))))
        }
        "aten::index_put" | "aten::index_put_" => {
            let (x, values) = (given.array(0), given.array(2));
            let picked = Picked::new(x, &given.tensors(1));
            let mut writes = Vec::new();
            for_each_index(&picked.shape, |at| {
                writes.push((x.place(&picked.index(at)), values.broadcast_at(at)));
            });
            written(x, &writes, given.flag(3))
        }
        "aten::index_select" => {
            let x = given.array(0);
            let dim = given.dim(1, x.shape.len());
            let mut indices = vec![None; x.shape.len()];
            indices[dim] = Some(given.array(2));
            let picked = Picked::new(x, &indices);
            Expected::copied(Array::from_fn(x.dtype, &picked.shape, |at| x.at(&picked.index(at))))
        }
        "aten::index_add" => {
            let (x, source) = (given.array(0), given.array(3));
            let dim = given.dim(1, x.shape.len());
            let mut writes = Vec::new();
            for_each_index(&source.shape, |at| {
                let mut own = at.to_vec();
                own[dim] = position(given.array(2).items[at[dim]], x.shape[dim]);
                writes.push((x.place(&own), source.at(at)));
            });
            written(x, &writes, true)
        }
        "aten::gather" => {
            let (x, index) = (given.array(0), given.array(2));
            let dim = given.dim(1, x.shape.len());
            Expected::copied(Array::from_fn(x.dtype, &index.shape, |at| {
                let mut own = at.to_vec();
                own[dim] = position(index.at(at), x.shape[dim]);
                x.at(&own)
            }))
        }
        "aten::scatter_add" => {
            let (x, index, source) = (given.array(0), given.array(2), given.array(3));
            let dim = given.dim(1, x.shape.len());
            let mut writes = Vec::new();
            for_each_index(&index.shape, |at| {
                let mut own = at.to_vec();
                own[dim] = position(index.at(at), x.shape[dim]);
                writes.push((x.place(&own), source.at(at)));
            });
            written(x, &writes, true)
        }
        "aten::embedding" => {
            let (weight, indices) = (given.array(0), given.array(1));
            let shape = [&indices.shape[..], &weight.shape[1..]].concat();
            Expected::copied(Array::from_fn(weight.dtype, &shape, |at| {
                let (place, column) = at.split_at(at.len() - 1);
                weight.at(&[position(indices.at(place), weight.shape[0]), column[0]])
            }))
        }
        "aten::embedding_dense_backward" => {
            let (grad, indices, rows) = (given.array(0), given.array(1), given.int(2)? as usize);
            let zero = Number::Whole(0).cast(grad.dtype);
            let width = *grad.shape.last()?;
            let table = Array::from_fn(grad.dtype, &[rows, width], |_| zero);
            let mut writes = Vec::new();
            for_each_index(&grad.shape, |at| {
                let (place, column) = at.split_at(at.len() - 1);
                let row = position(indices.at(place), rows);
                if given.int(3) != Some(row as i64) {
                    writes.push((table.place(&[row, column[0]]), grad.at(at)));
                }
            });
            written(&table, &writes, true)
        }
        "keyfold::slice_write_" => {
            let (cache, source, pos) = (given.array(0), given.array(1), given.int(2)? as usize);
            let mut writes = Vec::new();
            for_each_index(&source.shape, |at| {
                let mut own = at.to_vec();
                match source.shape.len() == cache.shape.len() {
                    true => own[1] += pos,
                    false => own.insert(1, pos),
                }
                writes.push((cache.place(&own), source.at(at)));
            });
            written(cache, &writes, false)
        }
        "keyfold::slice_read" => {
            let (cache, mut shape) = (given.array(0), given.array(0).shape.clone());
            shape[1] = given.int(1)? as usize;
            Expected::copied(Array::from_fn(cache.dtype, &shape, |at| cache.at(at)))
        }
        "aten::masked_select" => {
            let (x, mask) = (given.array(0), given.array(1));
            let shape = layout::broadcast_shapes(&x.shape, &mask.shape).ok()?;
            let mut items = Vec::new();
            for_each_index(&shape, |at| {
                items.extend(mask.broadcast_at(at).truth().then(|| x.broadcast_at(at)));
            });
            Expected::copied(Array { dtype: x.dtype, shape: vec![items.len()], items })
        }
        _ => return None,
    })
}

/// Returns a position; negative ones count from the end.
fn position(number: Number, size: usize) -> usize {
    let at = number.whole();
    (if at < 0 { at + size as i128 } else { at }) as usize
}

/// Returns `x` with elements replaced, or with values added to them.
fn written(x: &Array, writes: &[(usize, Number)], adds: bool) -> Expected {
    let mut expected = Expected::copied(x.clone());
    expected.copied = !adds;
    expected.signed_zeros = !adds;
    if !adds {
        for (place, value) in writes {
            expected.array.items[*place] = value.cast(x.dtype);
        }
        return expected;
    }
    for (place, item) in x.items.iter().enumerate() {
        let added = writes.iter().filter(|(at, _)| *at == place).map(|(_, value)| *value);
        let all: Vec<Number> = [*item].into_iter().chain(added).collect();
        if all.len() == 1 {
            continue;
        }
        let u = sum_error(all.len(), x.dtype);
        let (sum, sizes) = match x.dtype {
            // Bools add by "or".
            DType::Bool => (Number::Whole(all.iter().any(|item| item.truth()).into()), 0.0),
            dtype => total(all.into_iter().map(|item| item.cast(accumulator(dtype))), dtype),
        };
        expected.array.items[place] = sum;
        expected.errors[place] = u * sizes;
    }
    expected
}

/// The elements that indices select: NumPy's rules.
struct Picked {
    shape: Vec<usize>,
    /// The dimension of the group of indexed dimensions in the result, and the group's shape.
    at: usize,
    group: Vec<usize>,
    /// One array of positions per dimension.
    positions: Vec<Option<Array>>,
    sizes: Vec<usize>,
}

impl Picked {
    fn new(x: &Array, indices: &[Option<&Array>]) -> Picked {
        let mut positions: Vec<Option<Array>> = Vec::new();
        for index in indices {
            match index {
                Some(mask) if mask.dtype == DType::Bool => {
                    let mut found = vec![Vec::new(); mask.shape.len()];
                    for_each_index(&mask.shape, |at| {
                        if mask.at(at).truth() {
                            found
                                .iter_mut()
                                .zip(at)
                                .for_each(|(found, i)| found.push(Number::Whole(*i as i128)));
                        }
                    });
                    for items in found {
                        let shape = vec![items.len()];
                        positions.push(Some(Array { dtype: DType::I64, shape, items }));
                    }
                }
                other => positions.push(other.cloned()),
            }
        }
        let sizes = x.shape.clone();
        positions.resize(sizes.len(), None);
        let mut group: Vec<usize> = Vec::new();
        for array in positions.iter().flatten() {
            let shape = layout::broadcast_shapes(&group, &array.shape);
            group = shape.map(|shape| shape.to_vec()).unwrap_or_default();
        }
        let indexed: Vec<usize> = (0..sizes.len()).filter(|d| positions[*d].is_some()).collect();
        let first = indexed.first().copied().unwrap_or(0);
        let adjacent = indexed.iter().enumerate().all(|(i, d)| *d == first + i);
        let at = if adjacent { first } else { 0 };
        let mut shape: Vec<usize> =
            (0..sizes.len()).filter(|d| positions[*d].is_none()).map(|d| sizes[d]).collect();
        shape.splice(at..at, group.iter().copied());
        Picked { shape, at, group, positions, sizes }
    }

    /// Returns the index of the element that an index of the result selects.
    fn index(&self, at: &[usize]) -> Vec<usize> {
        let end = self.at + self.group.len();
        let of_group = &at[self.at..end];
        let mut others = at[..self.at].iter().chain(&at[end..]);
        let own = self.positions.iter().zip(&self.sizes).map(|(positions, size)| match positions {
            Some(array) => position(array.broadcast_at(of_group), *size),
            None => others.next().copied().unwrap_or(0),
        });
        own.collect()
    }
}
