//! Uniform and normal numbers.

use std::sync::LazyLock;

use keyfold_backend::{Launch, Offer, Operation, Random, RandomParams};
use keyfold_core::{DType, Element, Result, bf16, f16};
use keyfold_kit::axes::{BF16, Dtype, F16, F32, F64, plain};
use keyfold_kit::random::{block, normal_f32, normal_f64, uniform_f32, uniform_f64};
use keyfold_tensor::Tensor;

use crate::HostBackend;
use crate::kernel::{Group, HostKernel, Table};

/// Fills a contiguous output with `N` numbers per block of the stream.
fn fill<T: Element, const N: usize>(
    params: &RandomParams,
    out: &Tensor,
    numbers: impl Fn([u32; 4]) -> [T; N],
) -> Result<()> {
    let to = out.data_mut_ptr::<T>()?;
    // SAFETY: the output is contiguous, and no other code accesses it (`Launch::launch`).
    let items = unsafe { std::slice::from_raw_parts_mut(to, out.numel()) };
    for (i, chunk) in (0_u64..).zip(items.chunks_mut(N)) {
        let made = numbers(block(params.seed, params.offset.wrapping_add(i)));
        chunk.copy_from_slice(&made[..chunk.len()]);
    }
    Ok(())
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
        static KERNELS: LazyLock<Group<(Dtype,), RandomParams>> =
            LazyLock::new(|| Group::new([("uniform", uniform), ("normal", normal)]));
        KERNELS.offer(op, (output,))
    }
}
