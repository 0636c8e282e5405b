//! Normalizations (layer norm, RMS norm, group norm, batch norm), their gradients, and those of softmax.
//!
//! Means are computed before the distances from them, so that nothing cancels; halves are computed in float32.
//! Elements that aren't dense are copied first. No result depends on the number of threads.

mod backward;
mod batch;
mod columns;
mod forward;
mod group;
mod layer;
mod layout;
mod loops;
mod memory;
mod short_lanes;
mod short_rows;
mod softmax;

use std::borrow::Cow;
use std::sync::LazyLock;

use keyfold_backend::{Execute, Kernels, NormParams, Offer, Operation};
use keyfold_core::{DType, Element, Error, ErrorKind, Result, bf16, f16};
use keyfold_kit::axes::{Body, DispatchTable, Dtype, FLOATS, HasDtype};
use keyfold_tensor::Tensor;

use self::backward::WeightGradients;
use self::memory::{Float, Source, Target};
use crate::HostBackend;
use crate::bits;
use crate::convert::{convert, converted};
use crate::kernel::{SeveralKernel, offer_several};

/// A kernel's function of a computed type.
type Function = fn(&NormParams, &[&Tensor], &[&Tensor]) -> Result<()>;

/// The functions of an operation for float32 and for float64.
#[derive(Clone, Copy)]
struct Functions {
    narrow: Function,
    wide: Function,
}

/// The float types of elements.
trait NormElement: Element {
    /// Whether it is computed in float64.
    const IS_WIDE: bool;
}

impl NormElement for f16 {
    const IS_WIDE: bool = false;
}
impl NormElement for bf16 {
    const IS_WIDE: bool = false;
}
impl NormElement for f32 {
    const IS_WIDE: bool = false;
}
impl NormElement for f64 {
    const IS_WIDE: bool = true;
}

impl<C: HasDtype<Element: NormElement>> Body<C, SeveralKernel<NormParams>> for Functions {
    fn instance(&self, _: C) -> SeveralKernel<NormParams> {
        SeveralKernel::new(if C::Element::IS_WIDE { self.wide } else { self.narrow })
    }
}

type Table = DispatchTable<(Dtype,), SeveralKernel<NormParams>>;

static KERNELS: LazyLock<Vec<(Operation, Table)>> = LazyLock::new(|| {
    let all = [
        ("layer_norm", layer::forward::<f32> as Function, layer::forward::<f64> as Function),
        ("layer_norm_backward", layer::backward::<f32>, layer::backward::<f64>),
        ("rms_norm", layer::rms_forward::<f32>, layer::rms_forward::<f64>),
        ("rms_norm_backward", layer::rms_backward::<f32>, layer::rms_backward::<f64>),
        ("group_norm", group::forward::<f32>, group::forward::<f64>),
        ("group_norm_backward", group::backward::<f32>, group::backward::<f64>),
        ("batch_norm", batch::forward::<f32>, batch::forward::<f64>),
        ("batch_norm_inference", batch::inference::<f32>, batch::inference::<f64>),
        ("batch_norm_backward", batch::backward::<f32>, batch::backward::<f64>),
        (
            "batch_norm_inference_backward",
            batch::inference_backward::<f32>,
            batch::inference_backward::<f64>,
        ),
        ("softmax_backward", softmax_backward::<f32, false>, softmax_backward::<f64, false>),
        ("log_softmax_backward", softmax_backward::<f32, true>, softmax_backward::<f64, true>),
    ];
    let table = |(name, narrow, wide)| {
        let table = DispatchTable::builder(name).cover((FLOATS,), Functions { narrow, wide });
        (Operation::new(name), table.build().expect("each dtype is covered once"))
    };
    all.into_iter().map(table).collect()
});

impl Kernels<NormParams> for HostBackend {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<NormParams>> {
        let Some((_, table)) = KERNELS.iter().find(|(known, _)| known == op) else {
            return Offer::No(format!("it has no operation named '{}'", op.name()).into());
        };
        let Some(first) = inputs.first() else {
            return Offer::No(format!("{} has inputs", op.name()).into());
        };
        if let Some(other) = inputs.iter().chain(outputs).find(|dtype| !dtype.is_floating()) {
            return Offer::No(format!("{} takes floats, not {other}", op.name()).into());
        }
        offer_several(table, (*first,))
    }
}

/// A float type that norms are computed in, with the tensors whose elements are read as it.
trait Computed: Float + Element {
    /// The elements of a dense tensor, which are of this type or, for float32, halves.
    fn source(x: &Tensor) -> Result<Source<Self>>;
    /// As [`Computed::source`], for writing.
    fn target(x: &Tensor) -> Result<Target<Self>>;
}

/// The error of a tensor whose dtype isn't among the computed type's.
#[cold]
fn other_dtype(x: &Tensor, computed: DType) -> Error {
    let message = format!("elements of {} aren't computed in {computed}", x.dtype());
    Error::new(ErrorKind::DType, message)
}

impl Computed for f32 {
    fn source(x: &Tensor) -> Result<Source<f32>> {
        Ok(match x.dtype() {
            DType::F16 => Source::plain(bits::strided_slice::<u16>(x)?.0.as_ptr().cast::<f16>()),
            DType::BF16 => Source::plain(bits::strided_slice::<u16>(x)?.0.as_ptr().cast::<bf16>()),
            DType::F32 => Source::plain(bits::strided_slice::<f32>(x)?.0.as_ptr()),
            _ => return Err(other_dtype(x, DType::F32)),
        })
    }

    fn target(x: &Tensor) -> Result<Target<f32>> {
        Ok(match x.dtype() {
            DType::F16 => Target::plain(bits::ptr_for_writing::<u16>(x)?.cast::<f16>()),
            DType::BF16 => Target::plain(bits::ptr_for_writing::<u16>(x)?.cast::<bf16>()),
            DType::F32 => Target::plain(bits::ptr_for_writing::<f32>(x)?),
            _ => return Err(other_dtype(x, DType::F32)),
        })
    }
}

impl Computed for f64 {
    fn source(x: &Tensor) -> Result<Source<f64>> {
        match x.dtype() {
            DType::F64 => Ok(Source::plain(bits::strided_slice::<f64>(x)?.0.as_ptr())),
            _ => Err(other_dtype(x, DType::F64)),
        }
    }

    fn target(x: &Tensor) -> Result<Target<f64>> {
        match x.dtype() {
            DType::F64 => Ok(Target::plain(bits::ptr_for_writing::<f64>(x)?)),
            _ => Err(other_dtype(x, DType::F64)),
        }
    }
}

/// Returns the tensor with dense elements: itself, or a copy.
fn dense(x: &Tensor) -> Result<Cow<'_, Tensor>> {
    Ok(if x.is_contiguous() { Cow::Borrowed(x) } else { Cow::Owned(x.copy()?) })
}

/// Returns a tensor of the dtype that is computed in, dense.
fn dense_as<'t, A: Computed>(x: &'t Tensor, like: &Tensor) -> Result<Cow<'t, Tensor>> {
    match x.dtype() == like.dtype() {
        true => dense(x),
        false => Ok(Cow::Owned(converted(x, like.dtype())?.contiguous()?)),
    }
}

/// Returns the elements of a small tensor.
fn vector<A: Computed>(x: &Tensor) -> Result<Vec<A>> {
    converted(x, A::DTYPE)?.to_vec::<A>()
}

/// Writes the elements of a small tensor.
fn write_vector<A: Computed>(items: impl Iterator<Item = f64>, out: &Tensor) -> Result<()> {
    let items = Tensor::from_vec(items.map(A::from_f64).collect::<Vec<A>>(), out.shape())?;
    convert(&items, out)
}

/// Writes the gradients of weights and biases to those of the next outputs that are wanted.
fn write_weight_gradients<A: Computed>(
    params: &NormParams,
    mut outputs: Optional,
    (dw, db): WeightGradients,
) -> Result<()> {
    for (wanted, items) in [(NormParams::GRAD_WEIGHT, dw), (NormParams::GRAD_BIAS, db)] {
        if let Some(out) = outputs.next(params.has(wanted)) {
            write_vector::<A>(items.into_iter(), out)?;
        }
    }
    Ok(())
}

/// The optional inputs behind the first ones.
struct Optional<'a, 't>(&'a [&'t Tensor]);

impl<'t> Optional<'_, 't> {
    /// Returns the next input if it is there.
    fn next(&mut self, is_there: bool) -> Option<&'t Tensor> {
        if !is_there {
            return None;
        }
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
}

/// The weights and biases of an operation, with ones and zeros for those that are absent; `None` if both are.
fn affine<A: Computed>(
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<Option<(Vec<A>, Vec<A>)>> {
    Ok(match (weight.map(vector).transpose()?, bias.map(vector).transpose()?) {
        (None, None) => None,
        (Some(w), Some(b)) => Some((w, b)),
        (Some(w), None) => {
            let zeros = vec![A::ZERO; w.len()];
            Some((w, zeros))
        }
        (None, Some(b)) => Some((vec![A::ONE; b.len()], b)),
    })
}

/// The gradient of softmax, or of its logarithm, along `params.axis`.
fn softmax_backward<A: Computed, const LOG: bool>(
    params: &NormParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let output = dense(inputs[1])?;
    let grad = dense_as::<A>(inputs[0], &output)?;
    if output.numel() == 0 {
        return Ok(());
    }
    let axis = params.axis as usize;
    let size = |dims: &[usize]| dims.iter().product::<usize>();
    let shape = output.shape();
    let (outer, inner) = match shape.is_empty() {
        true => (1, 1),
        false => (size(&shape[..axis]), size(&shape[axis + 1..])),
    };
    softmax::SoftmaxBackward {
        grad: A::source(&grad)?,
        output: A::source(&output)?,
        dx: A::target(outputs[0])?,
        outer,
        len: output.numel() / (outer * inner),
        inner,
        log: LOG,
    }
    .run()
}
