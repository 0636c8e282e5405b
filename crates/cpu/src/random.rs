//! Uniform and normal numbers.

use std::sync::LazyLock;

use keyfold_backend::{Launch, Offer, Operation, Random, RandomParams};
use keyfold_core::{DType, Element, Result, bf16, f16};
use keyfold_kit::axes::{BF16, Dtype, F16, F32, F64, plain};
use keyfold_kit::pool::{Schedule, parallel_for};
use keyfold_kit::random::{block, fill_words, normal_f32, normal_f64, uniform_f32, uniform_f64};
use keyfold_tensor::Tensor;

use crate::HostBackend;
use crate::kernel::{Group, HostKernel, Table};

/// Philox blocks whose words are made together, and such groups per task of one thread.
const GROUP: usize = 256;
const TASK: usize = 4;

/// The blocks of outputs so small that words made in vectors would cost more: most would be thrown away.
const FEW: usize = 4;

/// An output's elements, of which each thread writes others.
struct Items<T>(*mut T, usize);

// SAFETY: threads write to different elements of an output that outlives the call.
unsafe impl<T> Sync for Items<T> {}

impl<T: Element> Items<T> {
    /// Returns the elements of a group, of which a block makes `n`.
    ///
    /// # Safety
    /// No other code accesses these elements.
    #[expect(clippy::mut_from_ref, reason = "the elements aren't the struct's")]
    unsafe fn group(&self, group: usize, n: usize) -> &mut [T] {
        let first = group * GROUP * n;
        // SAFETY: the group begins inside the output and is cut off at its end; the caller's promise.
        unsafe {
            std::slice::from_raw_parts_mut(self.0.add(first), (self.1 - first).min(GROUP * n))
        }
    }
}

/// Fills a contiguous output with `N` numbers per block of the stream.
fn fill<T: Element, const N: usize>(
    params: &RandomParams,
    out: &Tensor,
    numbers: impl Fn([u32; 4]) -> [T; N] + Sync,
) -> Result<()> {
    let items = &Items(out.data_mut_ptr::<T>()?, out.numel());
    if items.1 <= FEW * N {
        // SAFETY: no other code accesses the output (`Launch::launch`), and it is one group.
        let items = unsafe { items.group(0, N) };
        for (at, chunk) in (0_u64..).zip(items.chunks_mut(N)) {
            let made = numbers(block(params.seed, params.offset.wrapping_add(at)));
            chunk.copy_from_slice(&made[..chunk.len()]);
        }
        return Ok(());
    }
    let groups = items.1.div_ceil(GROUP * N);
    parallel_for(Schedule::Adaptive, 0..groups, TASK, |groups| {
        let mut words = [0; 4 * GROUP];
        for group in groups {
            // SAFETY: each group is one thread's, and no other code accesses the output
            // (`Launch::launch`).
            let items = unsafe { items.group(group, N) };
            let words = &mut words[..4 * items.len().div_ceil(N)];
            fill_words(params.seed, params.offset.wrapping_add((group * GROUP) as u64), words);
            let (blocks, _) = words.as_chunks::<4>();
            for (chunk, block) in items.chunks_mut(N).zip(blocks) {
                let made = numbers(*block);
                chunk.copy_from_slice(&made[..chunk.len()]);
            }
        }
        Ok(())
    })
}

type Kernels = Table<(Dtype,), RandomParams>;

fn uniform(name: &str) -> Kernels {
    Kernels::builder(name)
        .cover(
            (F64,),
            plain("float64", HostKernel::new(|params, _, out| fill(params, out, uniform_f64))),
        )
        .cover(
            (F32,),
            plain(
                "float32",
                HostKernel::new(|params, _, out| fill(params, out, |words| uniform_f32(words, 24))),
            ),
        )
        .cover(
            (F16,),
            plain(
                "float16",
                HostKernel::new(|params, _, out| {
                    fill(params, out, |words| uniform_f32(words, 11).map(f16::from_f32))
                }),
            ),
        )
        .cover(
            (BF16,),
            plain(
                "bfloat16",
                HostKernel::new(|params, _, out| {
                    fill(params, out, |words| uniform_f32(words, 8).map(bf16::from_f32))
                }),
            ),
        )
        .build()
        .expect("each dtype is covered once")
}

fn normal(name: &str) -> Kernels {
    Kernels::builder(name)
        .cover(
            (F64,),
            plain("float64", HostKernel::new(|params, _, out| fill(params, out, normal_f64))),
        )
        .cover(
            (F32,),
            plain("float32", HostKernel::new(|params, _, out| fill(params, out, normal_f32))),
        )
        .cover(
            (F16,),
            plain(
                "float16",
                HostKernel::new(|params, _, out| {
                    fill(params, out, |words| normal_f32(words).map(f16::from_f32))
                }),
            ),
        )
        .cover(
            (BF16,),
            plain(
                "bfloat16",
                HostKernel::new(|params, _, out| {
                    fill(params, out, |words| normal_f32(words).map(bf16::from_f32))
                }),
            ),
        )
        .build()
        .expect("each dtype is covered once")
}

impl Random for HostBackend {
    fn random(&self, op: &'static Operation, output: DType) -> Offer<&dyn Launch<RandomParams>> {
        static KERNELS: LazyLock<Group<(Dtype,), HostKernel<RandomParams>>> =
            LazyLock::new(|| Group::new([("uniform", uniform), ("normal", normal)]));
        KERNELS.offer(op, (output,))
    }
}
