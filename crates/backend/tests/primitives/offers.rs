//! Offers of backends with primitives, and reasons for missing ones.

use std::sync::Arc;

use keyfold_backend::primitives::{Primitive, primitives_of};
use keyfold_backend::{GpuBackend, Support, prepare};
use keyfold_core::DType;

use crate::compare::worst;
use crate::device::Host;
use crate::{by_evaluator, by_primitives, kernel, lowered, output, samples};

fn support(host: Host, text: &str, dtype: DType) -> Support {
    let backend: Arc<dyn GpuBackend> = Arc::new(host);
    prepare(&backend, &lowered(text, &[dtype]).unwrap()).support()
}

#[test]
fn expressions_are_offered_as_composites() {
    assert_eq!(support(Host::complete(), "gelu(x)", DType::F32), Support::ViaComposite);
}

#[test]
fn a_missing_primitive_is_named() {
    let without_exp = || Host::without(|primitive, _| primitive == Primitive::Exp);
    let Support::No(reason) = support(without_exp(), "gelu(x)", DType::F32) else { panic!() };
    assert_eq!(reason.0, "it lacks the primitive exp(float32) -> float32, which was left out");
    assert_eq!(support(without_exp(), "x * x", DType::F32), Support::ViaComposite);

    let without_float64 = || Host::without(|_, inputs| inputs.contains(&DType::F64));
    let Support::No(reason) = support(without_float64(), "exp(x)", DType::F64) else { panic!() };
    assert!(reason.0.contains("exp(float64)"), "{reason}");
    // No function of float32 or of a half needs float64.
    for (name, arguments) in keyfold_expr::functions().filter(|(name, _)| *name != "where") {
        let text = format!("{name}({})", ["x"; 3][..arguments].join(", "));
        for dtype in [DType::F16, DType::F32, DType::C64] {
            let Ok(lowered) = lowered(&text, &[dtype]) else { continue };
            let backend: Arc<dyn GpuBackend> = Arc::new(without_float64());
            let answer = prepare(&backend, &lowered).support();
            assert_eq!(answer, Support::ViaComposite, "{name} of {dtype}");
        }
    }
}

/// Without float64, functions of complex64 are computed in float32, less accurately.
#[test]
fn complex_numbers_need_no_float64() {
    let bounds = [
        ("abs(x)", 2.0),
        ("sqrt(x)", 4.0),
        ("exp(x)", 4.0),
        ("log(x)", 6.0),
        ("sin(x)", 6.0),
        ("cos(x)", 6.0),
        ("tanh(x)", 16.0),
        ("x / (x + 2)", 8.0),
        ("sign(x)", 4.0),
        ("x ** 0.7", 40.0),
    ];
    for (text, bound) in bounds {
        let lowered = lowered(text, &[DType::C64]).unwrap();
        let x = samples::random(DType::C64, 3000, 17);
        // Of moderate magnitude, so that neither part is lost beside the other.
        let near = crate::lowered("where(abs(x) < 20, x, x * 0 + 1)", &[DType::C64]).unwrap();
        let x = by_evaluator(&near, &[&x], &[]).unwrap();
        let backend: Arc<dyn GpuBackend> =
            Arc::new(Host::without(|_, inputs| inputs.contains(&DType::F64)));
        let out = output(&lowered, &[&x]).unwrap();
        // SAFETY: the output isn't shared.
        unsafe { kernel(&backend, &lowered).run(&[&x], &[], &out).unwrap() };
        let (error, at) = worst(&out, &by_evaluator(&lowered, &[&x], &[]).unwrap());
        assert!(error <= bound, "{text} at {:?}: {error}", x.get_scalar(&[at]));
        assert!(by_primitives(&lowered, &[&x], &[]).is_ok());
    }
}

#[test]
fn the_primitives_that_are_listed_are_launched() {
    let lowered = lowered("sigmoid(x) * 3", &[DType::F32]).unwrap();
    let host = Arc::new(Host::complete());
    let backend: Arc<dyn GpuBackend> = host.clone();
    let x = samples::random(DType::F32, 100, 1);
    let out = output(&lowered, &[&x]).unwrap();
    // SAFETY: the output isn't shared.
    unsafe { kernel(&backend, &lowered).run(&[&x], &[], &out).unwrap() };
    let used = primitives_of(&lowered).unwrap();
    assert!(host.launches() >= used.len(), "{} of {}", host.launches(), used.len());
    assert!(host.launches() < 15, "{}", host.launches());
}

#[test]
fn ids_are_stable_and_names_are_their_own() {
    let ids: Vec<u32> = Primitive::ALL.iter().map(|primitive| *primitive as u32).collect();
    assert_eq!(ids, (1..=24).collect::<Vec<u32>>());
    let mut names = Primitive::ALL.map(Primitive::name);
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}
