//! Pooling and its gradients. Images of one dimension are computed as those of two.

use keyfold_core::{DType, Error, ErrorKind, Result, Scalar};
use keyfold_tensor::{Tensor, ValueRef};

use super::calls::{padded, sizes};
use super::node::{Node, Results};
use super::resample;
use crate::{Port, Resample, ResampleMode};

/// Windows over padded images of 2 or 3 dimensions.
struct Windows {
    window: Vec<i64>,
    stride: Vec<i64>,
    pre: Vec<i64>,
    post: Vec<i64>,
    mode: ResampleMode,
    /// Whether a dimension of size 1 was inserted.
    flat: bool,
}

impl Windows {
    fn new(resample: &Resample) -> Windows {
        let whole = |list: &[crate::Fraction]| list.iter().map(|f| f.numerator).collect::<Vec<_>>();
        let mut windows = Windows {
            window: resample.window.clone(),
            stride: whole(&resample.stride),
            pre: whole(&resample.pre_padding),
            post: whole(&resample.post_padding),
            mode: resample.mode,
            flat: resample.window.len() == 1,
        };
        if windows.flat {
            windows.window.insert(0, 1);
            windows.stride.insert(0, 1);
            windows.pre.insert(0, 0);
            windows.post.insert(0, 0);
        }
        windows
    }

    /// Returns images as operators take them.
    fn image(&self, x: &Tensor) -> Result<Tensor> {
        if self.flat { x.unsqueeze(2) } else { Ok(x.clone()) }
    }

    fn padded(&self, node: &Node<'_>, x: &Tensor) -> Result<Tensor> {
        let with = if self.mode == ResampleMode::Maxpool { f64::NEG_INFINITY } else { 0.0 };
        node.calls().pad(&self.image(x)?, &self.pre, &self.post, with)
    }

    /// Returns the sizes of padded images.
    fn padded_sizes(&self, dims: &[i64]) -> Result<Vec<i64>> {
        let mut shape = dims.to_vec();
        if self.flat {
            shape.insert(2, 1);
        }
        padded(&shape, &self.pre, &self.post)
    }

    fn name(&self, of: &str) -> String {
        of.replace('?', &self.window.len().to_string())
    }

    /// Returns the means of windows, padding counted.
    fn means(&self, node: &Node<'_>, padded: &Tensor) -> Result<Tensor> {
        let args = [padded.into(), ValueRef::Ints(&self.window), ValueRef::Ints(&self.stride)];
        node.calls().one(&self.name("aten::avg_pool?d"), &args)
    }

    /// Returns which part of each window isn't padding.
    fn parts(&self, node: &Node<'_>, dims: &[i64]) -> Result<Tensor> {
        let mut ones = dims.to_vec();
        (ones[0], ones[1]) = (1, 1);
        let ones = node.calls().full(&ones, 1.0, node.dtype)?;
        self.means(node, &self.padded(node, &ones)?)
    }

    /// Returns the greatest elements, and their places in the padded images.
    fn greatest(&self, node: &Node<'_>, padded: &Tensor) -> Result<(Tensor, Tensor)> {
        let args = [padded.into(), ValueRef::Ints(&self.window), ValueRef::Ints(&self.stride)];
        let name = self.name("aten::max_pool?d_with_indices");
        let mut results = node.calls().several(&name, &args)?.into_iter();
        match (results.next().flatten(), results.next().flatten()) {
            (Some(y), Some(index)) => Ok((y, index)),
            _ => Err(Error::new(ErrorKind::Return, format!("{name} lacks a result"))),
        }
    }

    /// Returns an expression of places between two numberings: `to_window` says in which direction.
    fn renumber(
        &self,
        node: &Node<'_>,
        index: &Tensor,
        sizes: &[i64],
        to_window: bool,
    ) -> Result<Tensor> {
        let space = self.window.len();
        let (mut names, mut numbers, mut body) = (Vec::new(), Vec::new(), String::new());
        // From the innermost dimension: a digit of the place, moved, and counted in the other
        // numbering.
        let mut terms = Vec::new();
        for axis in (0..space).rev() {
            for (name, number) in
                [("s", self.stride[axis]), ("w", self.window[axis]), ("n", sizes[axis + 2])]
            {
                names.push(format!("{name}{axis}"));
                numbers.push(Scalar::Int(number));
            }
            let (from, to, sign) = if to_window { ("n", "w", "-") } else { ("w", "n", "+") };
            let rest = if axis + 1 == space { "x".to_string() } else { format!("r{}", axis + 1) };
            let digit = if axis == 0 { rest.clone() } else { format!("({rest} % {from}{axis})") };
            body.push_str(&format!(
                "d{axis} = {digit} {sign} index({}) * s{axis}; ",
                space - 1 - axis
            ));
            if axis > 0 {
                body.push_str(&format!("r{axis} = {rest} // {from}{axis}; "));
            }
            let unit: String = ((axis + 1)..space).map(|inner| format!(" * {to}{inner}")).collect();
            terms.push(format!("d{axis}{unit}"));
        }
        let text = format!("x; {}: {body}{}", names.join(", "), terms.join(" + "));
        node.calls().map(&text, &[index], &numbers)
    }
}

pub(super) fn forward(node: &Node<'_>, attributes: &Resample) -> Result<Results> {
    let x = node.read(Port::X)?;
    if matches!(attributes.mode, ResampleMode::Bilinear | ResampleMode::Nearest) {
        return Ok(vec![(Port::Y, resample::forward(node, attributes, &x)?)]);
    }
    let windows = Windows::new(attributes);
    let padded = windows.padded(node, &x)?;
    match attributes.mode {
        ResampleMode::Maxpool => {
            let (y, index) = windows.greatest(node, &padded)?;
            let mut results = vec![(Port::Y, y)];
            if node.wants(Port::Index) {
                let index = windows.renumber(node, &index, &sizes(&padded), true)?;
                results.push((Port::Index, index));
            }
            Ok(results)
        }
        ResampleMode::AvgpoolExcludePadding => {
            let means = windows.means(node, &padded)?;
            let parts = windows.parts(node, &sizes(&x))?;
            Ok(vec![(Port::Y, node.calls().map("y, p: y / p", &[&means, &parts], &[])?)])
        }
        _ => Ok(vec![(Port::Y, windows.means(node, &padded)?)]),
    }
}

pub(super) fn backward(node: &Node<'_>, attributes: &Resample) -> Result<Results> {
    let (calls, dy) = (node.calls(), node.read(Port::Dy)?);
    let dims = node.output_dims(Port::Dx)?;
    if matches!(attributes.mode, ResampleMode::Bilinear | ResampleMode::Nearest) {
        return Ok(vec![(Port::Dx, resample::backward(node, attributes, &dy, dims)?)]);
    }
    let windows = Windows::new(attributes);
    let shape = windows.padded_sizes(dims)?;
    let mut dy = windows.image(&dy)?;
    let index = match (attributes.mode, node.find_as(Port::Index, DType::I64)?) {
        (ResampleMode::Maxpool, Some(index)) => {
            let last = windows.window.iter().product::<i64>() - 1;
            let inside = calls.map("x; n: clamp(x, 0, n)", &[&index], &[Scalar::Int(last)])?;
            Some(windows.renumber(node, &windows.image(&inside)?, &shape, false)?)
        }
        (ResampleMode::Maxpool, None) => {
            let padded = windows.padded(node, &node.read(Port::X)?)?;
            Some(windows.greatest(node, &padded)?.1)
        }
        (ResampleMode::AvgpoolExcludePadding, _) => {
            let parts = windows.parts(node, dims)?;
            dy = calls.map("y, p: y / p", &[&dy, &parts], &[])?;
            None
        }
        _ => None,
    };
    let like: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
    let like = Tensor::empty(&like, node.dtype, calls.device())?;
    let none = vec![0_i64; windows.window.len()];
    let ones = vec![1_i64; windows.window.len()];
    let (window, stride) = (ValueRef::Ints(&windows.window), ValueRef::Ints(&windows.stride));
    let dx = match &index {
        Some(index) => {
            let (padding, dilation) = (ValueRef::Ints(&none), ValueRef::Ints(&ones));
            let args = [
                (&dy).into(),
                (&like).into(),
                window,
                stride,
                padding,
                dilation,
                false.into(),
                index.into(),
            ];
            calls.one(&windows.name("aten::max_pool?d_with_indices_backward"), &args)?
        }
        None => {
            let padding = ValueRef::Ints(&none);
            let rest = [false.into(), true.into(), ValueRef::None];
            let args = [(&dy).into(), (&like).into(), window, stride, padding];
            let args: Vec<ValueRef<'_>> = args.into_iter().chain(rest).collect();
            calls.one(&windows.name("aten::avg_pool?d_backward"), &args)?
        }
    };
    let space = if windows.flat { vec![1, dims[2]] } else { dims[2..].to_vec() };
    let dx = calls.crop(&dx, &windows.pre, &space)?;
    Ok(vec![(Port::Dx, dx)])
}
