//! A copy of the host's backend with one defect in its kernels.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_backend::{
    Expressions, GpuBackend, GroupKernel, Groups, Index, IndexParams, Launch, Linalg, Offer,
    Operation, Pointwise, PointwiseKernel, Positions, Random, Reduce, ReduceParams, Rows, Scan,
    Tiles,
};
use keyfold_core::{DType, Error, ErrorKind, Result, Scalar, f16, layout};
use keyfold_cpu::HostBackend;
use keyfold_expr::Lowered;
use keyfold_expr::fuse::{Fused, Limits};
use keyfold_tensor::Tensor;
use keyfold_tensor::device::Memory;

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    /// Expressions read strided inputs as if they were contiguous.
    WrongStride,
    /// Expressions leave the last element of a tail to the first one's value.
    WrongTail,
    /// Reductions don't write the last element.
    Unwritten,
    /// Reductions write one byte behind their output.
    OutOfBounds,
    /// Sums of float16 accumulate in float16.
    NarrowSum,
    /// Reductions of equal shapes have the dimensions of the first one.
    StaleCache,
    /// The greatest number ignores NaN.
    NanDropped,
    /// Sums of float16 are claimed, and there is no kernel.
    ClaimsTooMuch,
    /// An error of indexing is told by the next kernel.
    LateError,
    /// Expressions write 5 in the place of an infinity.
    FiniteInfinity,
    /// Expressions write 0.0 in the place of -0.0.
    ZeroSign,
    /// Products have 42 in the place of all rows from the sixteenth on.
    FirstTile,
    /// Every second error of indexing is lost.
    OneError,
    /// The last result of a group ends with its first element.
    GroupTail,
}

/// The dimensions of the first reduction of each operation and shapes.
type FirstDims = HashMap<(&'static Operation, Vec<usize>, Vec<usize>, DType), u64>;

#[derive(Debug)]
pub(crate) struct Planted {
    defect: Defect,
    cache: Mutex<FirstDims>,
    late: Arc<Mutex<Option<Error>>>,
    errors: AtomicUsize,
}

impl Planted {
    pub(crate) fn new(defect: Defect) -> Planted {
        let (cache, late, errors) = Default::default();
        Planted { defect, cache, late, errors }
    }

    /// Returns the error that an earlier kernel kept for itself.
    fn take_late(&self) -> Result<()> {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner).take();
        late.map_or(Ok(()), Err)
    }
}

impl GpuBackend for Planted {
    fn name(&self) -> &str {
        "planted"
    }

    fn memory(&self) -> Arc<dyn Memory> {
        HostBackend.memory()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        Some(Pointwise::Expressions(self))
    }

    fn reduce(&self) -> Option<&dyn Reduce> {
        Some(self)
    }

    fn rows(&self) -> Option<&dyn Rows> {
        Some(&HostBackend)
    }

    fn scan(&self) -> Option<&dyn Scan> {
        Some(&HostBackend)
    }

    fn linalg(&self) -> Option<&dyn Linalg> {
        Some(self)
    }

    fn index(&self) -> Option<&dyn Index> {
        Some(self)
    }

    fn random(&self) -> Option<&dyn Random> {
        Some(&HostBackend)
    }

    fn groups(&self) -> Groups<'_> {
        HostBackend.groups()
    }
}

/// Returns the bytes of an element, counted from the view's first one.
fn element(tensor: &Tensor, offset: isize) -> *mut u8 {
    let size = tensor.dtype().size() as isize;
    tensor.raw_data_ptr().unwrap().wrapping_offset(offset * size)
}

/// Returns the offsets of the first and the last element, in row-major order.
fn ends(tensor: &Tensor) -> (isize, isize) {
    let along = tensor.shape().iter().zip(tensor.strides());
    (0, along.map(|(size, stride)| (*size as isize - 1) * stride).sum())
}

/// Replaces the float32 elements of a contiguous tensor that a defect concerns.
fn replace(out: &Tensor, defect: Defect) {
    if out.dtype() != DType::F32 || !out.is_contiguous() {
        return;
    }
    for at in 0..out.numel() {
        let place = element(out, at as isize).cast::<f32>();
        // SAFETY: an element of the output, which nothing else accesses.
        let x = unsafe { place.read() };
        let new = match defect {
            Defect::FiniteInfinity if x.is_infinite() => 5.0,
            Defect::ZeroSign if x == 0.0 => 0.0,
            Defect::FirstTile => 42.0,
            _ => x,
        };
        // SAFETY: as above.
        unsafe { place.write(new) };
    }
}

struct PlantedExpression {
    below: Arc<dyn PointwiseKernel>,
    defect: Defect,
    late: Arc<Mutex<Option<Error>>>,
}

impl PointwiseKernel for PlantedExpression {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], out: &Tensor) -> Result<()> {
        if let Some(error) = self.late.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        let flattened: Vec<Tensor> = inputs
            .iter()
            .map(|input| {
                let strides = layout::contiguous_strides(input.shape());
                let (buffer, shape) = (input.buffer().clone(), input.shape().clone());
                let read = Tensor::from_parts(buffer, shape, strides, input.offset());
                read.unwrap_or_else(|_| input.detach())
            })
            .collect();
        let flattened: Vec<&Tensor> = flattened.iter().collect();
        let inputs = if self.defect == Defect::WrongStride { &flattened } else { inputs };
        // SAFETY: the caller's contract.
        unsafe { self.below.run(inputs, params, out)? };
        if matches!(self.defect, Defect::FiniteInfinity | Defect::ZeroSign) {
            replace(out, self.defect);
        }
        if self.defect == Defect::WrongTail && out.numel() > 8 && !out.numel().is_multiple_of(8) {
            let ((first, last), size) = (ends(out), out.dtype().size());
            // SAFETY: two elements of the output, which nothing else accesses.
            unsafe { element(out, last).copy_from(element(out, first), size) };
        }
        Ok(())
    }
}

struct PlantedGroup(Arc<dyn GroupKernel>);

impl GroupKernel for PlantedGroup {
    unsafe fn run(&self, inputs: &[&Tensor], params: &[Scalar], outs: &[&Tensor]) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { self.0.run(inputs, params, outs)? };
        if let Some(out) = outs.last().filter(|out| out.numel() > 1) {
            let ((first, last), size) = (ends(out), out.dtype().size());
            // SAFETY: two elements of the output, which nothing else accesses.
            unsafe { element(out, last).copy_from(element(out, first), size) };
        }
        Ok(())
    }
}

impl Expressions for Planted {
    fn prepare(&self, lowered: &Lowered) -> Offer<Arc<dyn PointwiseKernel>> {
        let Some(Pointwise::Expressions(host)) = HostBackend.pointwise() else {
            return Offer::No("the host has expressions".into());
        };
        let (defect, late) = (self.defect, Arc::clone(&self.late));
        host.prepare(lowered).map(|below| Arc::new(PlantedExpression { below, defect, late }) as _)
    }

    fn prepare_group(&self, fused: &Fused) -> Offer<Arc<dyn GroupKernel>> {
        let offer = HostBackend.prepare_group(fused);
        match self.defect {
            Defect::GroupTail => offer.map(|below| Arc::new(PlantedGroup(below)) as _),
            _ => offer,
        }
    }

    fn limits(&self) -> Limits {
        HostBackend.limits()
    }

    fn tiles(&self) -> Option<&dyn Tiles> {
        HostBackend.tiles()
    }
}

impl Reduce for Planted {
    fn reduce(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>> {
        Reduce::reduce(&HostBackend, op, input, output).map(|_| self as _)
    }
}

impl Launch<ReduceParams> for Planted {
    unsafe fn launch(&self, params: &ReduceParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        self.take_late()?;
        let (x, mut params) = (inputs[0], *params);
        let is_half_sum = params.op.name() == "sum" && x.dtype() == DType::F16;
        match self.defect {
            Defect::ClaimsTooMuch if is_half_sum => {
                return Err(Error::new(ErrorKind::NotSupported, "there is no such kernel"));
            }
            Defect::NarrowSum
                if is_half_sum
                    && out.dtype() == DType::F16
                    && out.numel() == 1
                    && x.numel() > 0 =>
            {
                let mut sum = f16::from_f32(0.0);
                for item in x.contiguous()?.to_vec::<f16>()? {
                    sum = f16::from_f32(sum.to_f32() + item.to_f32());
                }
                // SAFETY: the output's only element.
                unsafe { element(out, 0).cast::<f16>().write(sum) };
                return Ok(());
            }
            Defect::StaleCache => {
                let key = (params.op, x.shape().to_vec(), out.shape().to_vec(), x.dtype());
                let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
                params.dims = *cache.entry(key).or_insert(params.dims);
            }
            _ => {}
        }
        let kernel = Reduce::reduce(&HostBackend, params.op, x.dtype(), out.dtype()).kernel();
        let kernel =
            kernel.map_err(|reason| Error::new(ErrorKind::NotSupported, reason.to_string()))?;
        let size = out.dtype().size();
        let (_, last) = if out.numel() > 0 { ends(out) } else { (0, 0) };
        let mut before = [0; 16];
        if out.numel() > 0 {
            // SAFETY: the bytes of the output's last element.
            unsafe { element(out, last).copy_to(before.as_mut_ptr(), size) };
        }
        // SAFETY: the caller's contract.
        unsafe { kernel.launch(&params, inputs, out)? };
        let room = out.buffer().len() > out.offset() + last.unsigned_abs() + 1;
        let is_nan = out.numel() == 1 && out.get_scalar(&vec![0; out.ndim()])?.as_f64().is_nan();
        match self.defect {
            Defect::Unwritten if out.numel() > 1 => {
                // SAFETY: as above.
                unsafe { element(out, last).copy_from(before.as_ptr(), size) };
            }
            Defect::OutOfBounds if room && out.numel() > 0 && last >= 0 => {
                // SAFETY: the byte behind the last element is inside the buffer.
                unsafe { *element(out, last + 1) ^= 1 };
            }
            Defect::NanDropped if params.op.name() == "max" && is_nan => {
                // SAFETY: the output's only element, which becomes zero.
                unsafe { element(out, 0).write_bytes(0, size) };
            }
            _ => {}
        }
        Ok(())
    }
}

impl Linalg for Planted {
    fn matmul(&self, input: DType, output: DType) -> Offer<&dyn Launch<()>> {
        HostBackend.linalg().map_or_else(
            || Offer::No("the host has products".into()),
            |host| host.matmul(input, output).map(|_| self as _),
        )
    }
}

impl Launch<()> for Planted {
    unsafe fn launch(&self, (): &(), inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        let kernel = Linalg::matmul(&HostBackend, inputs[0].dtype(), out.dtype()).kernel();
        let kernel =
            kernel.map_err(|reason| Error::new(ErrorKind::NotSupported, reason.to_string()))?;
        // SAFETY: the caller's contract.
        unsafe { kernel.launch(&(), inputs, out)? };
        if self.defect == Defect::FirstTile && out.ndim() == 2 && out.shape()[0] > 16 {
            let (mut shape, row) = (out.shape().clone(), out.strides()[0]);
            shape[0] -= 16;
            let offset = out.offset().wrapping_add_signed(16 * row);
            let strides = out.strides().clone();
            let rest = Tensor::from_parts(out.buffer().clone(), shape, strides, offset)?;
            replace(&rest, self.defect);
        }
        Ok(())
    }
}

impl Index for Planted {
    fn index(&self, op: &'static Operation, elements: DType) -> Offer<&dyn Launch<IndexParams>> {
        Index::index(&HostBackend, op, elements).map(|_| self as _)
    }

    fn positions(&self) -> Offer<&dyn Positions> {
        Index::positions(&HostBackend).map(|_| &HostBackend as _)
    }
}

impl Launch<IndexParams> for Planted {
    unsafe fn launch(&self, params: &IndexParams, inputs: &[&Tensor], out: &Tensor) -> Result<()> {
        self.take_late()?;
        let kernel = Index::index(&HostBackend, params.op, out.dtype()).kernel();
        let kernel =
            kernel.map_err(|reason| Error::new(ErrorKind::NotSupported, reason.to_string()))?;
        // SAFETY: the caller's contract.
        let done = unsafe { kernel.launch(params, inputs, out) };
        match done {
            Err(error) if self.defect == Defect::LateError => {
                *self.late.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Ok(())
            }
            Err(error) if self.defect == Defect::OneError => {
                match self.errors.fetch_add(1, Ordering::Relaxed) % 2 {
                    0 => Err(error),
                    _ => Ok(()),
                }
            }
            done => done,
        }
    }
}
