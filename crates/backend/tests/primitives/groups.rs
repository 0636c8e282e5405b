//! Groups of expressions on a device with primitives: bit for bit their members one by one.

use std::sync::Arc;

use keyfold_backend::{GpuBackend, fusion_limits, prepare_group};
use keyfold_core::{DType, Device};
use keyfold_expr::Expr;
use keyfold_expr::fuse::{Fused, Fusion, Group, GroupInput, Member, Source};
use keyfold_tensor::Tensor;

use crate::compare::worst;
use crate::device::Host;
use crate::{by_primitives, lowered, samples};

/// Returns a chain: the first member reads both inputs, each other one the result before and the first
/// input.
fn chain(texts: &[&str], dtype: DType, results: &[u32]) -> Option<Fused> {
    let members = texts.iter().enumerate().map(|(at, text)| {
        let sources = match at {
            0 => [Source::Input(0), Source::Input(1)],
            _ => [Source::Member(at as u32 - 1), Source::Input(0)],
        };
        Member::new(Arc::new(Expr::parse(text).unwrap()), &sources)
    });
    let inputs = vec![GroupInput { dtype, rank: None }; 2];
    let members = members.collect();
    let group = Group { inputs, params: vec![], members, results: results.into() };
    let backend = Host::complete();
    match group.fuse(&fusion_limits(&backend)).ok()? {
        Fusion::Program(fused) => Some(fused),
        cut => panic!("{cut:?}"),
    }
}

const CHAINS: [&[&str]; 4] = [
    &["x + y", "x * y", "x - y * y"],
    &["x * y", "exp(x) - y", "x / y", "tanh(x) + y"],
    &["x - y", "where(x > y, x, y)", "sqrt(x * y)"],
    &["maximum(x, y)", "x * 0.1 + y", "sigmoid(x) * y", "x + y", "sin(x) - y"],
];

#[test]
fn chains_have_the_results_of_their_members() {
    let backend: Arc<dyn GpuBackend> = Arc::new(Host::complete());
    let mut done = 0;
    for (seed, texts) in CHAINS.iter().enumerate() {
        for dtype in DType::ALL {
            let Some(fused) = chain(texts, dtype, &[texts.len() as u32 - 1]) else { continue };
            let inputs = samples::inputs(&[dtype, dtype], 2000, seed as u64);
            let mut value = inputs[1].clone();
            for (at, text) in texts.iter().enumerate() {
                let operands = if at == 0 { [&inputs[0], &value] } else { [&value, &inputs[0]] };
                let member = lowered(text, &operands.map(Tensor::dtype)).unwrap();
                value = by_primitives(&member, &operands, &[]).unwrap();
            }
            let offer = prepare_group(&backend, &fused).kernel();
            if dtype == DType::C64 {
                assert!(offer.is_err());
                continue;
            }
            let out = Tensor::zeros(value.shape(), value.dtype(), Device::CPU).unwrap();
            let operands = [&inputs[0], &inputs[1]];
            // SAFETY: the output isn't shared.
            unsafe { offer.unwrap().run(&operands, &[], &[&out]).unwrap() };
            assert_eq!(worst(&out, &value).0, 0.0, "{texts:?} of {dtype}");
            done += 1;
        }
    }
    assert!(done > 40, "{done} chains");
}

#[test]
fn what_a_backend_does_not_compute_together_is_refused() {
    let backend: Arc<dyn GpuBackend> = Arc::new(Host::complete());
    assert_eq!(fusion_limits(&*backend).results, 1);
    let two = chain(&["x + y", "x * y"], DType::F32, &[0, 1]).unwrap();
    let reason = prepare_group(&backend, &two).kernel().err().unwrap().to_string();
    assert_eq!(reason, "it runs primitives, of one result each");
    let one = chain(&["x + y", "x * y"], DType::F32, &[1]).unwrap();
    let kernel = prepare_group(&backend, &one).kernel().ok().unwrap();
    let x = Tensor::zeros(&[2], DType::F32, Device::CPU).unwrap();
    // SAFETY: nothing is written.
    let error = unsafe { kernel.run(&[&x, &x], &[], &[]) }.unwrap_err();
    assert_eq!(error.message(), "the group has 1 result, but 0 outputs were given");
}
