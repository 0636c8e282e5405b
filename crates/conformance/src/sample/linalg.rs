//! Samples of linear algebra.

use keyfold_core::DType;
use keyfold_dispatch::schema::Argument;
use keyfold_tensor::Value;

use super::{Family, Sampler, plain, shape_of};
use crate::array::Arg;

pub(super) const FAMILY: Family = Family { sums: PRODUCERS, fit_shape, argument, ..Family::PLAIN };

/// The operators that multiply matrices.
const PRODUCERS: &[&str] = &[
    "aten::matmul",
    "aten::mm",
    "aten::bmm",
    "aten::mv",
    "aten::dot",
    "aten::addmm",
    "aten::baddbmm",
    "aten::linear",
    "keyfold::linear_activation",
    "keyfold::matmul_mixed",
];

/// Products of several tiles of a kernel, with tails: the shape of `self`, and the columns of
/// `other`.
const PRODUCTS: [(&[usize], usize); 4] =
    [(&[70, 40], 130), (&[64, 64], 64), (&[37, 300], 33), (&[2, 40, 34], 35)];
/// The longest row of a sample of a product that isn't among [`PRODUCTS`]: the reference is cubic.
const LONGEST_ROW: usize = 300;

/// The activations of samples, in turn.
pub(super) const ACTIVATIONS: [&str; 7] =
    ["none", "relu", "gelu", "gelu_tanh", "gelu_sigmoid", "sigmoid", "tanh"];

/// The bounds of an operator's rank.
fn ranks(name: &str) -> Option<(usize, usize)> {
    Some(match name {
        "aten::matmul" | "keyfold::matmul_mixed" => (2, usize::MAX),
        "aten::mm" | "aten::addmm" | "aten::mv" => (2, 2),
        "aten::bmm" | "aten::baddbmm" => (3, 3),
        "aten::dot" => (1, 1),
        "aten::linear" | "keyfold::linear_activation" => (1, usize::MAX),
        _ => return None,
    })
}

fn fit_shape(sampler: &mut Sampler, name: &str) -> Option<()> {
    let Some((least, most)) = ranks(name) else { return Some(()) };
    sampler.at_least(least);
    let extra = sampler.shape.len().saturating_sub(most);
    sampler.shape.drain(..extra);
    if least > 1 && sampler.shape[sampler.shape.len() - 1] > LONGEST_ROW {
        let fitting: Vec<_> =
            PRODUCTS.iter().filter(|(shape, _)| (least..=most).contains(&shape.len())).collect();
        sampler.shape = fitting[sampler.choice % fitting.len()].0.to_vec();
    }
    Some(())
}

/// Returns the columns of `other` for one of [`PRODUCTS`].
fn columns(shape: &[usize]) -> Option<usize> {
    PRODUCTS.iter().find(|(known, _)| *known == shape).map(|(_, columns)| *columns)
}

fn argument(sampler: &mut Sampler, name: &str, argument: &Argument, args: &[Arg]) -> Option<Arg> {
    ranks(name)?;
    if argument.name == "activation" {
        let turn = if sampler.dtype.is_floating() { sampler.choice } else { 0 };
        return plain(Value::Str(ACTIVATIONS[turn % ACTIVATIONS.len()].into()));
    }
    if argument.name == "dtype" {
        let dtype = [DType::F16, DType::BF16][sampler.choice % 2];
        return plain(Value::DType(dtype));
    }
    if matches!(name, "aten::linear" | "keyfold::linear_activation") {
        return linear(sampler, argument, args);
    }
    let shape = sampler.shape.clone();
    let (rank, known) = (shape.len(), columns(&shape));
    let inner = shape[rank - 1];
    let n = known.unwrap_or([5, 1, 33][sampler.choice % 3]);
    let shape = match (name, &*argument.name) {
        ("aten::matmul" | "keyfold::matmul_mixed", "self") => {
            let is_vector = sampler.choice % 4 == 3 && known.is_none();
            if is_vector { vec![inner] } else { shape }
        }
        ("aten::matmul" | "keyfold::matmul_mixed", "other") => {
            let inner = *shape_of(args, 0)?.last()?;
            match (known, sampler.choice % 4) {
                (Some(columns), _) => vec![inner, columns],
                (None, 0) => vec![inner, 5],
                (None, 1) if rank == 2 => vec![2, inner, 3],
                (None, 1) => vec![inner, 3],
                (None, 2) => vec![inner],
                (None, _) => vec![inner, 33],
            }
        }
        ("aten::addmm" | "aten::baddbmm", "self") => match sampler.choice % 4 {
            0 => vec![n],
            1 => [&shape[..rank - 1], &[n]].concat(),
            2 => vec![shape[rank - 2], 1],
            _ => Vec::new(),
        },
        (_, "self" | "mat1" | "batch1") => shape,
        (_, "mat2" | "batch2") => [&shape[..rank - 2], &[inner, n]].concat(),
        (_, "vec" | "tensor") => vec![inner],
        _ => return None,
    };
    Some(Arg::Tensor(sampler.tensor(&shape)))
}

/// Returns an argument of a layer with or without a bias, some of which have one output without a
/// dimension.
fn linear(sampler: &mut Sampler, argument: &Argument, args: &[Arg]) -> Option<Arg> {
    let inputs = sampler.shape[sampler.shape.len() - 1];
    let has_number = sampler.choice % 5 == 4;
    let outputs = columns(&sampler.shape).unwrap_or(5);
    let shape = match &*argument.name {
        "input" => sampler.shape.clone(),
        "weight" if has_number => vec![inputs],
        "weight" => vec![outputs, inputs],
        "bias" if sampler.choice % 3 == 1 => return plain(Value::None),
        "bias" => match shape_of(args, 1)? {
            [outputs, _] => vec![*outputs],
            _ => Vec::new(),
        },
        _ => return None,
    };
    Some(Arg::Tensor(sampler.tensor(&shape)))
}
