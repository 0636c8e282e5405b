//! Samples of operators that read and write by masks and positions.

use keyfold_core::DType;
use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::{Family, Sampler, plain, shape_of};
use crate::array::Arg;
use crate::number::Number;

pub(super) const FAMILY: Family = Family {
    sums: &[
        "aten::index_add",
        "aten::scatter_add",
        "aten::index_put",
        "aten::index_put_",
        "aten::embedding_dense_backward",
    ],
    fit_shape,
    argument,
    fit_values,
};

fn fit_shape(sampler: &mut Sampler, name: &str) -> Option<()> {
    let least = match name {
        "aten::gather" | "aten::scatter_add" | "aten::index_put" | "aten::index_put_"
        | "aten::index.Tensor" => 2,
        "aten::embedding" | "keyfold::slice_write_" | "keyfold::slice_read" => 2,
        "aten::embedding_dense_backward" => 3,
        "aten::index_add" | "aten::index_select" => 1,
        _ => return Some(()),
    };
    sampler.at_least(least);
    match name {
        // A table has two dimensions; the gradient of its rows has those of 2-dimensional indices, and one more.
        "aten::embedding" => sampler.shape = last(&sampler.shape, 2),
        "aten::embedding_dense_backward" => sampler.shape = last(&sampler.shape, 3),
        "keyfold::slice_write_" | "keyfold::slice_read" => return Some(()),
        _ => {}
    }
    // Nothing is selected among no elements.
    (!sampler.shape.contains(&0)).then_some(())
}

/// Returns the last sizes of a shape.
fn last(shape: &[usize], rank: usize) -> Vec<usize> {
    shape[shape.len() - rank..].to_vec()
}

/// Rows of a table are numbered from the front.
fn fit_values(_: &Sampler, name: &str, args: &mut [Arg]) {
    if !name.starts_with("aten::embedding") {
        return;
    }
    if let Some(Arg::Tensor(indices)) = args.get_mut(1) {
        for item in &mut indices.array.items {
            *item = Number::Whole(item.whole().max(0));
        }
    }
}

/// The rows of the table whose gradient is summed.
const TABLE_ROWS: usize = 4;

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, args: &[Arg]) -> Option<Arg> {
    let dim = sampler.dim();
    let first = shape_of(args, 0).unwrap_or(&sampler.shape).to_vec();
    match (name, &*argument.name) {
        (
            "aten::gather" | "aten::scatter_add" | "aten::index_add" | "aten::index_select",
            "dim",
        ) => sampler.dim_argument(),
        ("aten::gather" | "aten::scatter_add", "index") => {
            // Longer than `self` along the dimension, shorter along others.
            let mut shape: Vec<usize> = first.iter().map(|n| n.div_ceil(2)).collect();
            if name == "aten::gather" {
                shape[dim] = 5;
            }
            Some(Arg::Tensor(sampler.positions(&shape, first[dim])))
        }
        ("aten::index_add" | "aten::index_select", "index") => {
            Some(Arg::Tensor(sampler.positions(&[4], first[dim])))
        }
        ("aten::index.Tensor" | "aten::index_put" | "aten::index_put_", "indices") => {
            Some(sampler.indices(name, &first))
        }
        ("aten::index_put" | "aten::index_put_", "values") => {
            let Some(Arg::Tensors(indices)) = args.get(1) else { return None };
            // One of a group, broadcast over the dimensions behind it.
            let mask = indices.iter().flatten().any(|one| one.array.dtype == DType::Bool);
            let shape = if mask || sampler.choice.is_multiple_of(2) {
                vec![]
            } else {
                vec![first[first.len() - 1]]
            };
            let shape = if indices.len() == 1 { shape } else { vec![] };
            Some(Arg::Tensor(sampler.tensor(&shape)))
        }
        // Without it, of several values for one element any may stay.
        ("aten::index_put" | "aten::index_put_", "accumulate") => {
            plain(Value::Bool(sampler.choice.is_multiple_of(2)))
        }
        ("aten::embedding", "weight") | ("aten::embedding_dense_backward", "grad_output") => {
            let shape = sampler.shape.clone();
            Some(Arg::Tensor(sampler.tensor(&shape)))
        }
        ("aten::embedding", "indices") => {
            let shape = [vec![5], vec![2, 3], vec![]][sampler.choice % 3].clone();
            Some(Arg::Tensor(sampler.positions(&shape, first[0])))
        }
        ("aten::embedding_dense_backward", "indices") => {
            Some(Arg::Tensor(sampler.positions(&first[..2], TABLE_ROWS)))
        }
        ("aten::embedding_dense_backward", "num_weights") => plain(Value::Int(TABLE_ROWS as i64)),
        // Finite differences don't know that the gradient of a row for padding is 0.
        ("aten::embedding", "padding_idx") => plain(Value::Int(-1)),
        ("aten::embedding_dense_backward", "padding_idx") => {
            plain(Value::Int(if sampler.choice.is_multiple_of(2) { -1 } else { 1 }))
        }
        ("aten::embedding" | "aten::embedding_dense_backward", "scale_grad_by_freq" | "sparse") => {
            plain(Value::Bool(false))
        }
        ("keyfold::slice_write_", "source") => {
            let mut shape = first;
            match sampler.choice.is_multiple_of(2) {
                true => shape[1] = shape[1].div_ceil(2),
                false if shape[1] == 0 => {}
                false => drop(shape.remove(1)),
            }
            Some(Arg::Tensor(sampler.tensor(&shape)))
        }
        ("keyfold::slice_write_", "pos") => {
            plain(Value::Int((first[1] - first[1].div_ceil(2)) as i64))
        }
        ("keyfold::slice_read", "length") => plain(Value::Int(first[1].div_ceil(2) as i64)),
        ("aten::scatter_add", "src") => Some(Arg::Tensor(sampler.tensor(&first))),
        ("aten::index_add", "source") => {
            let mut shape = first;
            shape[dim] = 4;
            Some(Arg::Tensor(sampler.tensor(&shape)))
        }
        _ => None,
    }
}
