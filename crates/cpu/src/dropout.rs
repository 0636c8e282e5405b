//! Dropout by random words: the result and the mask in one pass.
//!
//! Blocks of a few kilobytes get their words, are converted to the type of the product where they have
//! another or aren't dense, and are multiplied and masked, all in the first-level cache.

use std::mem::MaybeUninit;
use std::sync::LazyLock;

use keyfold_backend::{DropoutParams, Execute, Kernels, Offer, Operation};
use keyfold_core::{DType, Element, Result};
use keyfold_kit::axes::{Body, DispatchTable, Dtype, F32, F64, HALVES, HasDtype, plain};
use keyfold_kit::interpreter::access::Access;
use keyfold_kit::isa::{Isa, Work, dispatch};
use keyfold_kit::pool::{Schedule, parallel_for};
use keyfold_kit::random::fill_words;
use keyfold_tensor::{Tensor, Walk};

use crate::HostBackend;
use crate::kernel::{SeveralKernel, offer_several};

type Kernel = SeveralKernel<DropoutParams>;

impl Kernels<DropoutParams> for HostBackend {
    fn kernel(
        &self,
        op: &'static Operation,
        inputs: &[DType],
        outputs: &[DType],
    ) -> Offer<&dyn Execute<DropoutParams>> {
        static TABLE: LazyLock<DispatchTable<(Dtype,), Kernel>> = LazyLock::new(|| {
            let table = DispatchTable::builder("dropout")
                .cover((F32,), plain("float32", Kernel::new(dropout::<f32, f32>)))
                .cover((F64,), plain("float64", Kernel::new(dropout::<f64, f64>)))
                .cover((HALVES,), Halves);
            table.build().expect("each dtype is covered once")
        });
        match (op.name(), inputs, outputs) {
            ("dropout", [x], [out, DType::Bool]) if x == out => offer_several(&TABLE, (*x,)),
            ("dropout", ..) => Offer::No("its results are of the input's dtype and of bool".into()),
            (other, ..) => Offer::No(format!("it has no operation named '{other}'").into()),
        }
    }
}

/// Kernels of halves, which are multiplied in float32.
#[derive(Clone, Copy)]
struct Halves;

impl<C: HasDtype> Body<C, Kernel> for Halves {
    fn instance(&self, _: C) -> Kernel {
        Kernel::new(dropout::<C::Element, f32>)
    }
}

/// The floats that products are computed in.
trait Factor: Element {
    fn of(x: f64) -> Self;
    fn times(self, by: Self) -> Self;
}

impl Factor for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }

    #[inline(always)]
    fn times(self, by: f32) -> f32 {
        self * by
    }
}

impl Factor for f64 {
    fn of(x: f64) -> f64 {
        x
    }

    #[inline(always)]
    fn times(self, by: f64) -> f64 {
        self * by
    }
}

/// Elements per block, and blocks per task of one thread.
const BLOCK: usize = 1024;
const TASK: usize = 8;

/// The tensors of a call, whose elements threads read and write apart from each other.
struct Job<'a, A> {
    x: *const u8,
    out: *mut u8,
    mask: *mut u8,
    access: Access,
    /// Whether elements are stored in the type of the product.
    direct: bool,
    walk: Walk<1>,
    params: &'a DropoutParams,
    scale: A,
}

// SAFETY: threads write to different elements of tensors that outlive the call.
unsafe impl<A> Sync for Job<'_, A> {}

fn dropout<T: Element, A: Factor>(
    params: &DropoutParams,
    inputs: &[&Tensor],
    outputs: &[&Tensor],
) -> Result<()> {
    let (x, out, mask) = (inputs[0], outputs[0], outputs[1]);
    let job = Job {
        x: x.data_ptr::<T>()?.cast(),
        out: out.data_mut_ptr::<T>()?.cast(),
        mask: mask.data_mut_ptr::<u8>()?,
        access: Access::new(T::DTYPE),
        direct: T::DTYPE == A::DTYPE,
        walk: Walk::new(x.shape(), [&**x.strides()])?,
        params,
        scale: A::of(params.scale),
    };
    run(&job, x.numel())
}

/// Compiled once for all element types that are multiplied in one type.
#[inline(never)]
fn run<A: Factor>(job: &Job<'_, A>, count: usize) -> Result<()> {
    parallel_for(Schedule::Adaptive, 0..count.div_ceil(BLOCK), TASK, |blocks| {
        let mut words = [0; BLOCK];
        let mut values = [const { MaybeUninit::<A>::uninit() }; BLOCK];
        for block in blocks {
            let start = block * BLOCK;
            let words = &mut words[..BLOCK.min(count - start)];
            // SAFETY: the block's elements are inside the tensors, and this thread's alone.
            unsafe { job.block(start, words, values.as_mut_ptr().cast()) };
        }
        Ok(())
    })
}

impl<A: Factor> Job<'_, A> {
    /// Computes the elements from `start` on, one for each of the words. `values` is a block's memory.
    ///
    /// # Safety
    /// There are as many elements, which no other thread accesses.
    unsafe fn block(&self, start: usize, words: &mut [u32], values: *mut A) {
        let DropoutParams { threshold, seed, offset, .. } = *self.params;
        match threshold {
            // The loop compares 32 bits: no word is below 0, and words of 0 are below 1.
            0 => {}
            1..=0xffff_ffff => fill_words(seed, offset.wrapping_add(start as u64 / 4), words),
            _ => words.fill(0),
        }
        let least = u32::try_from(threshold).unwrap_or(1);
        let size = self.access.size;
        let (step, out) = (self.walk.run_steps()[0], self.out.wrapping_add(start * size));
        let mut from = values.cast_const();
        if self.direct && step == 1 && self.walk.run_len() >= start + words.len() {
            from = self.x.cast::<A>().wrapping_add(start);
        } else {
            let mut at = values;
            self.walk.runs_of(start..start + words.len(), |[offset], len| {
                let run = self.x.wrapping_offset(offset * size as isize);
                // SAFETY: the walk stays inside the tensor, and its runs fill the block.
                unsafe { (self.access.load)(at.cast(), run, step, len) };
                at = at.wrapping_add(len);
            });
        }
        let to = if self.direct { out.cast() } else { values };
        let mask = self.mask.wrapping_add(start);
        dispatch(Mask { words, least, from, scale: self.scale, to, mask });
        if !self.direct {
            // SAFETY: the elements are in the result, and the block holds as many.
            unsafe { (self.access.store)(out, 1, values.cast_const().cast(), words.len()) };
        }
    }
}

/// The product and the mask of a block; `from` may be `to`.
struct Mask<'a, A> {
    words: &'a [u32],
    least: u32,
    from: *const A,
    scale: A,
    to: *mut A,
    mask: *mut u8,
}

impl<A: Factor> Work for Mask<'_, A> {
    type Output = ();
    const AVX512: bool = false;

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Mask { words, least, from, scale, to, mask } = self;
        for (i, word) in words.iter().enumerate() {
            let keeps = *word >= least;
            // SAFETY: `Job::block` made the pointers for as many elements as there are words.
            unsafe {
                let product = from.add(i).read().times(scale);
                to.add(i).write(if keeps { product } else { A::of(0.0) });
                mask.add(i).write(u8::from(keeps));
            }
        }
    }
}
