//! Samples of views, copies, and joins.

use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::{Family, Sampler, ints, plain, shape_of};
use crate::array::Arg;

pub(super) const FAMILY: Family = Family { fit_shape, argument, ..Family::PLAIN };

fn fit_shape(sampler: &mut Sampler, name: &str) -> Option<()> {
    sampler.at_least(match name {
        "aten::transpose" => 2,
        "aten::select.int"
        | "aten::slice.Tensor"
        | "aten::cat"
        | "aten::select_scatter"
        | "aten::slice_scatter"
        | "aten::squeeze.dim"
        | "aten::flip"
        | "aten::split.Tensor"
        | "aten::split_with_sizes"
        | "aten::chunk"
        | "aten::tensor_split.sections"
        | "aten::tensor_split.indices"
        | "aten::unbind.int"
        | "aten::split_copy.Tensor_out"
        | "aten::split_with_sizes_copy.out" => 1,
        _ => 0,
    });
    match name {
        "aten::squeeze" | "aten::squeeze.dim" | "aten::expand" => sampler.shape.insert(0, 1),
        // Nothing is selected among no elements.
        "aten::select.int" | "aten::select_scatter" => sampler.fill_empty(),
        _ => {}
    }
    Some(())
}

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, args: &[Arg]) -> Option<Arg> {
    let shape = sampler.shape.clone();
    let (rank, dim) = (shape.len(), sampler.dim());
    let first = shape_of(args, 0).unwrap_or(&shape).to_vec();
    match (name, &*argument.name) {
        (
            "aten::select.int"
            | "aten::select_scatter"
            | "aten::slice.Tensor"
            | "aten::slice_scatter"
            | "aten::cat"
            | "aten::split.Tensor"
            | "aten::split_with_sizes"
            | "aten::chunk"
            | "aten::tensor_split.sections"
            | "aten::tensor_split.indices"
            | "aten::unbind.int"
            | "aten::split_copy.Tensor_out"
            | "aten::split_with_sizes_copy.out",
            "dim",
        ) => sampler.dim_argument(),
        ("aten::split.Tensor" | "aten::split_copy.Tensor_out", "split_size") => {
            plain(Value::Int(shape[dim].div_ceil(2).max(1) as i64))
        }
        ("aten::chunk", "chunks") | ("aten::tensor_split.sections", "sections") => {
            plain(Value::Int(2 + (sampler.choice % 2) as i64))
        }
        ("aten::split_with_sizes" | "aten::split_with_sizes_copy.out", "split_sizes") => {
            ints(&[shape[dim] / 2, 0, shape[dim] - shape[dim] / 2])
        }
        ("aten::tensor_split.indices", "indices") => ints(&[shape[dim] / 2, shape[dim] + 3]),
        ("aten::split_copy.Tensor_out" | "aten::split_with_sizes_copy.out", "out") => {
            let (half, rest) = match name {
                "aten::split_copy.Tensor_out" => {
                    let half = shape[dim].div_ceil(2);
                    (half, if shape[dim] > half { vec![shape[dim] - half] } else { vec![] })
                }
                _ => (shape[dim] / 2, vec![0, shape[dim] - shape[dim] / 2]),
            };
            let sizes = std::iter::once(half).chain(rest);
            let outs = sizes.map(|size| {
                let mut part = shape.clone();
                part[dim] = size;
                Some(sampler.tensor(&part))
            });
            Some(Arg::Tensors(outs.collect()))
        }
        ("aten::squeeze.dim", "dim") => plain(Value::Int(0)),
        ("aten::unsqueeze" | "aten::stack", "dim") => {
            plain(Value::Int((sampler.choice % (rank + 1)) as i64))
        }
        ("aten::select_scatter", "src") => {
            let mut shape = first;
            shape.remove(dim);
            Some(Arg::Tensor(sampler.tensor(&shape)))
        }
        ("aten::slice_scatter", "src") => {
            let mut shape = first;
            shape[dim] = shape[dim].saturating_sub(1).div_ceil(2);
            Some(Arg::Tensor(sampler.tensor(&shape)))
        }
        ("aten::slice.Tensor" | "aten::slice_scatter", "start") => plain(Value::Int(1)),
        ("aten::slice.Tensor" | "aten::slice_scatter", "end") => plain(Value::None),
        ("aten::slice.Tensor" | "aten::slice_scatter", "step") => plain(Value::Int(2)),
        ("aten::cat" | "aten::stack", "tensors") => {
            let mut all = vec![sampler.tensor(&shape), sampler.tensor(&shape)];
            if name == "aten::cat" {
                let mut other = shape;
                other[dim] = sampler.choice % 3;
                all.push(sampler.tensor(&other));
            }
            Some(Arg::Tensors(all.into_iter().map(Some).collect()))
        }
        ("aten::reshape", "shape") => ints(&[first.iter().product::<usize>()]),
        ("aten::permute", "dims") => ints(&(0..rank).rev().collect::<Vec<_>>()),
        ("aten::flip", "dims") => {
            let is_flipped = |d: &usize| d % 2 == sampler.choice % 2 || rank == 1;
            ints(&(0..rank).filter(is_flipped).collect::<Vec<_>>())
        }
        ("aten::expand", "size") => {
            let mut shape = first;
            shape[0] = 3;
            ints(&shape)
        }
        ("aten::transpose", "dim0") => plain(Value::Int(0)),
        ("aten::transpose", "dim1") => plain(Value::Int(-1)),
        _ => None,
    }
}
