//! The host's backend with one mistake in the kernels of an operation with several outputs.

use std::any::Any;
use std::sync::Arc;

use keyfold_backend::{
    Execute, GpuBackend, Groups, Index, Kernels, Linalg, Offer, Operation, Params, Pointwise,
    Random, Reduce, Rows, Scan,
};
use keyfold_conformance::array::for_each_index;
use keyfold_core::{DType, Error, ErrorKind, Result};
use keyfold_cpu::HostBackend;
use keyfold_tensor::Tensor;
use keyfold_tensor::device::Memory;

/// A mistake; outputs are named by their places.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mistake {
    /// The output isn't written: a moment that stays, a mask that nobody made.
    Unwritten(usize),
    /// The elements of the output are those of their neighbours: a window that begins too late.
    Shifted(usize),
    /// The last element of the output is the first one's: a row that was left out.
    LastIsFirst(usize),
    /// Bad input is no error.
    Unrefused,
    /// There is a kernel for all dtypes, but it has no code for these.
    Refuses,
    /// The input isn't read, but the one before it: biases, or gates, that were exchanged.
    ReadsOther(usize),
}

/// The backend.
#[derive(Debug)]
pub(crate) struct Fused {
    pub(crate) operation: &'static str,
    pub(crate) mistake: Mistake,
}

/// Returns the elements of a tensor of the host, in row-major order.
fn places(tensor: &Tensor) -> Vec<*mut u8> {
    let size = tensor.dtype().size() as isize;
    let mut all = Vec::with_capacity(tensor.numel());
    for_each_index(tensor.shape(), |index| {
        let moved: isize = index.iter().zip(tensor.strides()).map(|(i, s)| *i as isize * s).sum();
        all.push(tensor.raw_data_ptr().unwrap().wrapping_offset(moved * size));
    });
    all
}

/// Returns the bytes of each element.
///
/// # Safety
/// Nothing writes to the tensor.
unsafe fn read(tensor: &Tensor) -> Vec<Vec<u8>> {
    let size = tensor.dtype().size();
    // SAFETY: an element of the tensor has so many bytes; the contract.
    let bytes = |place: &*mut u8| unsafe { std::slice::from_raw_parts(*place, size).to_vec() };
    places(tensor).iter().map(bytes).collect()
}

/// Writes the bytes of each element.
///
/// # Safety
/// Nothing else accesses the tensor.
unsafe fn write(tensor: &Tensor, elements: &[Vec<u8>]) {
    for (place, bytes) in places(tensor).into_iter().zip(elements) {
        // SAFETY: an element of the tensor has so many bytes; the contract.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

impl<P: Params> Kernels<P> for Fused {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<P>> {
        match P::group(&HostBackend.groups()) {
            Some(group) => group.kernel(op, inputs, outputs).map(|_| self as _),
            None => Offer::No("the host has no such group".into()),
        }
    }
}

impl<P: Params> Execute<P> for Fused {
    unsafe fn execute(&self, params: &P, inputs: &[&Tensor], outputs: &[&Tensor]) -> Result<()> {
        let dtypes = |tensors: &[&Tensor]| tensors.iter().map(|t| t.dtype()).collect::<Vec<_>>();
        let groups = HostBackend.groups();
        let group = P::group(&groups).expect("the kernel was offered");
        let op = params.operation();
        let offer = group.kernel(op, &dtypes(inputs), &dtypes(outputs));
        let kernel = offer.kernel().expect("the kernel was offered");
        if op.name() != self.operation {
            // SAFETY: the caller's contract.
            return unsafe { kernel.execute(params, inputs, outputs) };
        }
        let mut inputs = inputs.to_vec();
        if let Mistake::ReadsOther(at) = self.mistake
            && at < inputs.len()
            && inputs[at - 1].shape() == inputs[at].shape()
        {
            inputs[at] = inputs[at - 1];
        }
        let at = match self.mistake {
            Mistake::Unwritten(at) | Mistake::Shifted(at) | Mistake::LastIsFirst(at) => Some(at),
            Mistake::ReadsOther(_) => None,
            Mistake::Unrefused => {
                // SAFETY: the caller's contract.
                return match unsafe { kernel.execute(params, &inputs, outputs) } {
                    Err(error) if error.kind() == ErrorKind::Value => Ok(()),
                    result => result,
                };
            }
            Mistake::Refuses => {
                let message = format!("{}: no code for these dtypes", op.name());
                return Err(Error::new(ErrorKind::NotSupported, message));
            }
        };
        let out = at.and_then(|at| outputs.get(at));
        // SAFETY: the caller's contract, for all of the block: the outputs are this call's.
        unsafe {
            let before = out.map(|out| read(out));
            kernel.execute(params, &inputs, outputs)?;
            let (Some(out), Some(before)) = (out, before) else { return Ok(()) };
            let mut after = read(out);
            match self.mistake {
                Mistake::Unwritten(_) => after = before,
                Mistake::Shifted(_) if after.len() > 1 => after.rotate_left(1),
                Mistake::LastIsFirst(_) if after.len() > 1 => {
                    let last = after.len() - 1;
                    after[last] = after[0].clone();
                }
                // One element has no neighbour.
                _ => {}
            }
            write(out, &after);
        }
        Ok(())
    }
}

impl GpuBackend for Fused {
    fn name(&self) -> &str {
        "fused"
    }

    fn memory(&self) -> Arc<dyn Memory> {
        HostBackend.memory()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        HostBackend.pointwise()
    }

    fn reduce(&self) -> Option<&dyn Reduce> {
        Some(&HostBackend)
    }

    fn rows(&self) -> Option<&dyn Rows> {
        Some(&HostBackend)
    }

    fn scan(&self) -> Option<&dyn Scan> {
        Some(&HostBackend)
    }

    fn linalg(&self) -> Option<&dyn Linalg> {
        Some(&HostBackend)
    }

    fn index(&self) -> Option<&dyn Index> {
        Some(&HostBackend)
    }

    fn random(&self) -> Option<&dyn Random> {
        Some(&HostBackend)
    }

    fn groups(&self) -> Groups<'_> {
        HostBackend.groups().offered_by(self, |_| true)
    }
}
