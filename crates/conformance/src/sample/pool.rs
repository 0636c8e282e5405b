//! Samples of pooling.

use keyfold_core::DType;
use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::{Family, Sampler, ints, plain};
use crate::array::{Arg, Array, Layout, Operand};
use crate::elements::Values;
use crate::model::{Windows, dims_of, windows_of};
use crate::number::Number;

pub(super) const FAMILY: Family = Family {
    sums: &[
        "aten::avg_pool1d",
        "aten::avg_pool2d",
        "aten::avg_pool3d",
        "aten::avg_pool2d_backward",
        "aten::avg_pool3d_backward",
        "aten::adaptive_avg_pool1d",
        "aten::adaptive_avg_pool2d",
        "aten::adaptive_avg_pool3d",
        "aten::_adaptive_avg_pool2d_backward",
        "aten::_adaptive_avg_pool3d_backward",
        "aten::max_pool2d_with_indices_backward",
        "aten::max_pool3d_with_indices_backward",
    ],
    fit_shape,
    argument,
    fit_values,
};

/// The most elements of a sample.
const MOST: usize = 400;

fn fit_shape(sampler: &mut Sampler, name: &str) -> Option<()> {
    let Some(dims) = dims_of(name) else { return Some(()) };
    let shape = &mut sampler.shape;
    let fits = (dims + 1..=dims + 2).contains(&shape.len());
    let (count, sizes) = (shape.iter().product::<usize>(), shape.len().saturating_sub(dims));
    if fits && count <= MOST && !shape[sizes..].contains(&0) {
        return Some(());
    }
    // Of several groups of windows side by side, and of few.
    let own: &[usize] = [&[2, 3, 19][..], &[3, 4, 5], &[2, 5, 9]][sampler.choice % 3];
    let planes: &[usize] = [&[2][..], &[1, 3], &[1, 1]][sampler.choice / 3 % 3];
    *shape = [planes, &own[3 - dims..]].concat();
    Some(())
}

/// The windows of a sample, as arguments: kernel, stride, padding and dilation.
fn lists(sampler: &Sampler, dims: usize, dilates: bool) -> [Vec<usize>; 4] {
    let choice = sampler.choice;
    let sizes = &sampler.shape[sampler.shape.len() - dims..];
    let kernel: Vec<usize> =
        sizes.iter().enumerate().map(|(d, n)| [2, 3, 1][(choice + d) % 3].min(*n)).collect();
    let stride = [vec![], vec![1; dims], vec![2; dims], vec![3; dims]][choice % 4].clone();
    let padding = kernel.iter().map(|k| if choice % 2 == 1 { k / 2 } else { 0 }).collect();
    let doubles = |(k, n): (&usize, &usize)| if 2 * (k - 1) < *n { 2 } else { 1 };
    let dilation = match dilates && choice % 3 == 1 {
        true => kernel.iter().zip(sizes).map(doubles).collect(),
        false => vec![1; dims],
    };
    [kernel, stride, padding, dilation]
}

fn ceil_mode(sampler: &Sampler) -> bool {
    sampler.choice % 4 >= 2
}

fn even_sizes(sampler: &Sampler, dims: usize) -> Vec<usize> {
    (0..dims).map(|d| [1, 3, 4][(sampler.choice + d) % 3]).collect()
}

/// The shape of the result.
fn result_shape(sampler: &Sampler, name: &str, dims: usize) -> Vec<usize> {
    let (planes, sizes) = sampler.shape.split_at(sampler.shape.len() - dims);
    let outs = match name.contains("adaptive") {
        true => even_sizes(sampler, dims),
        false => {
            let lists = lists(sampler, dims, name.contains("max"));
            let lists = lists.map(|list| Some(list.into_iter().map(|item| item as i64).collect()));
            windows_of(sizes, lists, ceil_mode(sampler)).iter().map(Windows::count).collect()
        }
    };
    [planes, &outs].concat()
}

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, _: &[Arg]) -> Option<Arg> {
    let dims = dims_of(name)?;
    let shape = sampler.shape.clone();
    let [kernel, stride, padding, dilation] = lists(sampler, dims, name.contains("max"));
    match &*argument.name {
        "self" => Some(Arg::Tensor(sampler.tensor(&shape))),
        "grad_output" => {
            let shape = result_shape(sampler, name, dims);
            Some(Arg::Tensor(sampler.tensor(&shape)))
        }
        "indices" => {
            let size: usize = shape[shape.len() - dims..].iter().product();
            let result = result_shape(sampler, name, dims);
            let random = &mut sampler.random;
            let item = |_: &[usize]| Number::Whole(random.below(size) as i128);
            let array = Array::from_fn(DType::I64, &result, item);
            Some(Arg::Tensor(Operand { array, layout: Layout::Transposed }))
        }
        "kernel_size" => ints(&kernel),
        "stride" => ints(&stride),
        "padding" => ints(&padding),
        "dilation" => ints(&dilation),
        "ceil_mode" => plain(Value::Bool(ceil_mode(sampler))),
        "count_include_pad" => plain(Value::Bool(sampler.choice % 3 != 1)),
        "divisor_override" => plain(match sampler.choice % 5 {
            3 => Value::Int(-3),
            _ => Value::None,
        }),
        "output_size" => ints(&even_sizes(sampler, dims)),
        _ => None,
    }
}

/// Makes the elements of each plane distinct where derivatives are asked for: equal ones have none.
fn fit_values(sampler: &Sampler, name: &str, args: &mut [Arg]) {
    let Some(dims) = dims_of(name).filter(|_| sampler.values == Values::Smooth) else { return };
    let Some(Arg::Tensor(Operand { array, .. })) = args.first_mut() else { return };
    if !name.contains("max_pool") || name.ends_with("backward") || !array.dtype.is_floating() {
        return;
    }
    let size: usize = array.shape[array.shape.len() - dims..].iter().product();
    for (place, item) in array.items.iter_mut().enumerate() {
        // Exact in bfloat16, and distinct for up to 251 elements.
        *item = Number::Float((place % size * 7 % 251 + 1) as f64 / 128.0);
    }
}
