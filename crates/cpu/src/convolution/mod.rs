//! Convolutions along one to three dimensions, their transposes, and the gradients of their weights.
//!
//! All are products of matrices, one of which is packed into the cache a tile of pixels after another:
//! nothing holds the columns of a whole image. Tensors of one or two dimensions of space have depth 1.
//! Halves are converted to float32 first; strided tensors are copied.

mod directions;
mod geometry;
mod lanes;
mod product;
mod shared;
mod tile;
mod transpose;
mod weight_gradient;
mod window;

use std::borrow::Cow;
use std::sync::LazyLock;

use keyfold_backend::{Activation, ConvolutionParams, Execute, Kernels, Offer, Operation};
use keyfold_core::{DType, Element, Result};
use keyfold_kit::axes::{Body, DispatchTable, Dtype, F32, F64, HALVES, HasDtype, OneOf, plain};
use keyfold_kit::math;
use keyfold_tensor::Tensor;

use self::geometry::Geometry;
use self::lanes::Real;
use self::product::Finish;
use self::shared::Shared;
use self::window::Three;
use crate::HostBackend;
use crate::bits::{self, Bits};
use crate::convert::convert;
use crate::epilogue::activate;
use crate::kernel::{SeveralKernel, offer_several};

const CONVOLUTION: &Operation = &Operation::new("convolution");
const TRANSPOSED: &Operation = &Operation::new("transposed");
const WEIGHT_GRADIENT: &Operation = &Operation::new("weight_gradient");
const BIAS_GRADIENT: &Operation = &Operation::new("bias_gradient");

type Kernel = SeveralKernel<ConvolutionParams>;

static KERNELS: LazyLock<DispatchTable<(Dtype,), Kernel>> = LazyLock::new(|| {
    DispatchTable::builder("convolution")
        .cover((OneOf::<(F32, F64)>::new(),), Own)
        .cover((HALVES,), plain("of_halves", Kernel::new(of_halves)))
        .build()
        .expect("each dtype is covered once")
});

impl Kernels<ConvolutionParams> for HostBackend {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<ConvolutionParams>> {
        if ![CONVOLUTION, TRANSPOSED, WEIGHT_GRADIENT, BIAS_GRADIENT].contains(&op) {
            return Offer::No(format!("it has no operation named '{}'", op.name()).into());
        }
        let dtype = outputs[0];
        match inputs.iter().find(|input| **input != dtype) {
            Some(other) => {
                let reason = format!("its convolutions of {other} are {other}, not {dtype}");
                Offer::No(reason.into())
            }
            None => offer_several(&KERNELS, (dtype,)),
        }
    }
}

/// Kernels that compute in the dtype itself.
struct Own;

impl<C: HasDtype<Element: Computed>> Body<C, Kernel> for Own {
    fn instance(&self, _: C) -> Kernel {
        Kernel::new(|params, inputs, outputs| run::<C::Element>(params, inputs, outputs[0]))
    }
}

/// The element types that convolutions are computed in.
trait Computed: Element + Bits + Real + math::Real {}

impl Computed for f32 {}
impl Computed for f64 {}

/// Computes halves in float32 and rounds the results once.
fn of_halves(params: &ConvolutionParams, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
    let out = outputs[0];
    let wide = Tensor::empty(out.shape(), DType::F32, out.device())?;
    run::<f32>(params, inputs, &wide)?;
    convert(&wide, out)
}

/// Returns the tensor, or a copy of it, contiguous and of that element type.
fn dense<T: Computed>(x: &Tensor) -> Result<Cow<'_, Tensor>> {
    if x.dtype() == T::DTYPE && x.is_contiguous() {
        return Ok(Cow::Borrowed(x));
    }
    let copy = Tensor::empty(x.shape(), T::DTYPE, x.device())?;
    convert(x, &copy)?;
    Ok(Cow::Owned(copy))
}

/// Returns the sizes of space of a tensor, with 1 for each dimension that it lacks.
fn space(x: &Tensor) -> Three<usize> {
    let sizes = &x.shape()[2..];
    let mut space = [1; 3];
    space[3 - sizes.len()..].copy_from_slice(sizes);
    space
}

/// Returns numbers of the parameters, with others for the dimensions that the tensors lack.
fn spread<N: Copy>(numbers: [u64; 3], rank: usize, other: N, convert: fn(u64) -> N) -> Three<N> {
    let mut spread = [other; 3];
    for (to, from) in spread[3 - rank..].iter_mut().zip(numbers) {
        *to = convert(from);
    }
    spread
}

/// Returns the sizes of a convolution of `input` with `weight` to `output`.
fn geometry(
    params: &ConvolutionParams,
    input: &Tensor,
    weight: &Tensor,
    output: &Tensor,
) -> Geometry {
    let (rank, groups) = (params.rank as usize, params.groups as usize);
    Geometry {
        images: input.shape()[0],
        groups,
        channels: input.shape()[1] / groups,
        rows: output.shape()[1] / groups,
        input: space(input),
        output: space(output),
        kernel: space(weight),
        stride: spread(params.stride, rank, 1, |n| n as usize),
        padding: spread(params.padding, rank, 0, |n| n as isize),
        dilation: spread(params.dilation, rank, 1, |n| n as usize),
    }
}

/// Runs an operation; the output is of the element type `T`, inputs may be of another one.
fn run<T: Computed>(params: &ConvolutionParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
    if out.numel() == 0 {
        return Ok(());
    }
    let result = Shared(bits::ptr_for_writing::<T>(out)?);
    let inputs = inputs.iter().map(|x| dense::<T>(x)).collect::<Result<Vec<_>>>()?;
    let numbers = inputs.iter().map(|x| Ok(bits::strided_slice::<T>(x)?.0));
    let numbers = numbers.collect::<Result<Vec<_>>>()?;
    let bias = params.has_bias.then(|| numbers[2]);
    let finish = |x: &mut [T]| activate(params.activation, x);
    let finish: Finish<'_, T> = match params.activation {
        Activation::None => None,
        _ => Some(&finish),
    };
    // SAFETY: the tensors are dense and have the shapes that the operation's contract says, which the
    // geometry is taken from; nothing else accesses the output (`Execute::execute`).
    unsafe {
        if params.op == BIAS_GRADIENT {
            let gradient = &inputs[0];
            let pixels = gradient.shape()[2..].iter().product();
            let (images, channels) = (gradient.shape()[0], gradient.shape()[1]);
            let data = numbers[0].as_ptr();
            return weight_gradient::bias_gradient((images, channels, pixels), data, result);
        }
        let data = (numbers[0].as_ptr(), numbers[1].as_ptr());
        if params.op == CONVOLUTION {
            let geometry = geometry(params, &inputs[0], &inputs[1], out);
            directions::forward(&geometry, data, bias, result, finish)
        } else if params.op == TRANSPOSED {
            let geometry = geometry(params, out, &inputs[1], &inputs[0]);
            directions::input_gradient(&geometry, data, bias, result, finish)
        } else {
            let geometry = geometry(params, &inputs[0], out, &inputs[1]);
            directions::weight_gradient(&geometry, data, result)
        }
    }
}
