//! The dispatcher with a value type unrelated to tensors.

mod support;

use std::sync::{Arc, Mutex};

use keyfold_core::ErrorKind;
use keyfold_dispatch::{
    DispatchKey as K, DispatchKeySet, HostLock, Kernel, RegistrationKey, register_backend,
};
use support::{Context, D, Ref, Val, Word, list, said, says, word, wraps};

#[test]
fn dispatcher_register_and_has_kernel() {
    let d = D::new();
    d.register("add", K::CPU, says("cpu")).unwrap();
    assert!(d.has_kernel("add", K::CPU));
    assert!(!d.has_kernel("add", K::CUDA));
    assert!(!d.has_kernel("sub", K::CPU));
    assert_eq!(d.kernel_count(), 1);
    assert_eq!(format!("{d:?}"), "Dispatcher(1 operators, 1 kernels)");
}

#[test]
fn dispatcher_call_empty_keyset_errors() {
    let d = D::new();
    d.register("add", K::CPU, says("cpu")).unwrap();
    let error = d.redispatch("add", DispatchKeySet::empty(), &[list(K::CPU).r()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::EmptyKeySet);
    assert!(error.to_string().contains("empty keyset"), "{error}");
    assert!(error.to_string().starts_with("add:"), "{error}");
}

#[test]
fn dispatcher_call_no_kernel_errors() {
    let d = D::new();
    d.register("add", K::CUDA, says("cuda")).unwrap();
    let error = d.call("add", &[list(K::CPU).r()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingKernel);
    assert!(error.to_string().contains("no kernel registered for CPU"), "{error}");
    assert!(error.to_string().contains("CUDA"), "{error}");
}

#[test]
fn dispatcher_call_picks_highest_priority_key() {
    let d = D::new();
    d.register("add", K::CPU, says("cpu")).unwrap();
    d.register("add", K::Autograd, says("autograd")).unwrap();
    assert_eq!(said(d.call("add", &[list([K::CPU, K::Autograd]).r()]).unwrap()), "autograd");
    assert_eq!(said(d.call("add", &[list(K::CPU).r()]).unwrap()), "cpu");
}

#[test]
fn dispatcher_redispatch_chains_through_keys() {
    let d = D::new();
    d.register("add", K::CPU, says("cpu")).unwrap();
    d.register(
        "add",
        K::Autograd,
        Kernel::boxed(|context: &Context<'_>, args: &[Ref<'_>]| {
            let below = said(context.redispatch(context.keyset().remove(K::Autograd), args)?);
            Ok(word(&format!("autograd({below})"), K::CPU))
        }),
    )
    .unwrap();
    assert_eq!(said(d.call("add", &[list([K::CPU, K::Autograd]).r()]).unwrap()), "autograd(cpu)");
}

#[test]
fn dispatcher_skips_keys_without_kernel() {
    let d = D::new();
    d.register("add", K::CPU, says("cpu")).unwrap();
    assert_eq!(said(d.call("add", &[list([K::CPU, K::Autograd]).r()]).unwrap()), "cpu");
}

#[test]
fn dispatcher_call_direct_bypasses_priority() {
    let d = D::new();
    d.register("add", K::CPU, says("cpu")).unwrap();
    d.register("add", K::CUDA, says("cuda")).unwrap();
    let both = DispatchKeySet::from([K::CPU, K::CUDA]);
    assert_eq!(said(d.redispatch("add", both, &[list(both).r()]).unwrap()), "cuda");
    let direct = d.call_direct("add", K::CPU, &[list(both).r()], Some(both)).unwrap();
    assert_eq!(said(direct), "cpu");
}

#[test]
fn dispatcher_call_direct_missing_kernel_errors() {
    let d = D::new();
    d.register("add", K::CPU, says("cpu")).unwrap();
    let error = d.call_direct("add", K::CUDA, &[list(K::CPU).r()], None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingKernel);
    assert!(error.to_string().contains("CUDA"), "{error}");
}

#[test]
fn dispatcher_full_three_layer_stack() {
    let d = D::new();
    let log = Arc::new(Mutex::new(Vec::new()));
    for (key, name) in [(K::Tracer, "tracer"), (K::Autograd, "autograd")] {
        let log = Arc::clone(&log);
        let layer = Kernel::boxed(move |context: &Context<'_>, args: &[Ref<'_>]| {
            log.lock().unwrap().push(name);
            context.call_below(args)
        });
        d.register("add", key, layer.named(name)).unwrap();
    }
    let cpu_log = Arc::clone(&log);
    let cpu = Kernel::boxed(move |_: &Context<'_>, _: &[Ref<'_>]| {
        cpu_log.lock().unwrap().push("cpu");
        Ok(word("done", K::CPU))
    });
    d.register("add", K::CPU, cpu).unwrap();
    d.call("add", &[list([K::CPU, K::Autograd, K::Tracer]).r()]).unwrap();
    assert_eq!(*log.lock().unwrap(), ["tracer", "autograd", "cpu"]);
}

#[test]
fn typed_calls_infer_the_signature_from_the_closure() {
    let d = D::new();
    d.define("repeat(Tensor x, int n) -> Tensor").unwrap();
    let kernel =
        Kernel::typed(|x: &Word, n: i64| Ok(Word::new(&x.text.repeat(n as usize), x.keys)));
    d.register("repeat", K::CPU, kernel).unwrap();
    let repeat = d.typed::<(&Word, i64), Word>("repeat").unwrap();
    assert_eq!(repeat.call(&Word::new("ab", K::CPU), 3).unwrap().text, "ababab");
    let boxed = d.call("repeat", &[word("c", K::CPU).r(), Ref::Int(2)]).unwrap();
    assert_eq!(said(boxed), "cc");
}

#[test]
fn an_operator_serves_keys_that_are_registered_after_it() {
    let d = D::new();
    d.register("op", RegistrationKey::CompositeImplicitAutograd, says("composite")).unwrap();
    d.register("op", K::CPU, says("cpu")).unwrap();
    let operator = d.operator("op").unwrap();
    let npu = register_backend("latenpu").unwrap();
    let arg = list([K::Autograd, npu]);
    assert_eq!(said(operator.call(&[arg.r()]).unwrap()), "composite");
    assert!(operator.has_kernel("AutogradLATENPU".parse().unwrap()));
    let handle = d.register("op", npu, says("npu")).unwrap();
    assert_eq!(said(operator.call(&[arg.r()]).unwrap()), "npu");
    assert_eq!(said(operator.call_direct(npu, &[arg.r()], None).unwrap()), "npu");
    let both = DispatchKeySet::from([npu, K::CPU]);
    assert_eq!(said(operator.redispatch(both, &[arg.r()]).unwrap()), "npu");
    assert!(handle.remove());
    // Without the dispatcher, no table can be computed for a newer key.
    drop(d);
    let later = register_backend("laternpu").unwrap();
    let error = operator.call(&[list(later).r()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OperatorRemoved);
    assert!(error.to_string().contains("the dispatcher that op belongs to is gone"), "{error}");
    assert_eq!(said(operator.call(&[list(K::CPU).r()]).unwrap()), "cpu");
}

#[test]
fn what_an_implicit_composite_calls_is_recorded() {
    let d = D::new();
    let part = Kernel::boxed(|context: &Context<'_>, args: &[Ref<'_>]| {
        context.dispatcher()?.call("part", args)
    });
    d.register("whole", RegistrationKey::CompositeImplicitAutograd, part).unwrap();
    d.register("part", K::CPU, says("cpu")).unwrap();
    d.register("part", K::Autograd, wraps("autograd")).unwrap();
    let arg = list([K::Autograd, K::CPU]);
    assert_eq!(said(d.call("whole", &[arg.r()]).unwrap()), "autograd(cpu)");
    assert_eq!(said(d.call("whole", &[list(K::CPU).r()]).unwrap()), "cpu");
    // A layer's own kernel at the same key runs with the key excluded, too.
    let layer = Kernel::boxed(|context: &Context<'_>, args: &[Ref<'_>]| {
        context.dispatcher()?.call("part", args)
    });
    d.register("whole", K::Autograd, layer).unwrap();
    d.register("whole", K::CPU, says("own")).unwrap();
    assert_eq!(said(d.call("whole", &[arg.r()]).unwrap()), "cpu");
}

#[test]
fn a_kernel_carries_what_its_author_says() {
    let payload: Arc<dyn std::any::Any + Send + Sync> = Arc::new(42_i32);
    let kernel = says("k")
        .with_host_lock(HostLock::ReleaseFrom(1000))
        .with_payload(Arc::clone(&payload))
        .with_check(|schema| {
            let message = format!("not for {}", schema.name);
            Err(keyfold_core::Error::new(ErrorKind::Registration, message))
        });
    assert_eq!(kernel.host_lock(), HostLock::ReleaseFrom(1000));
    assert!(Arc::ptr_eq(kernel.payload().unwrap(), &payload));
    assert!(!kernel.is_removed() && !kernel.is_fallthrough());
    let d = D::default();
    let error = d.register("op", K::CPU, kernel).unwrap_err();
    assert_eq!(error.to_string(), "not for op");
    assert!(says("plain").payload().is_none());
    let error = Kernel::boxed(|_: &Context<'_>, _: &[Ref<'_>]| Ok(word("x", K::CPU)));
    assert!(format!("{error:?}").contains("a_kernel_carries_what_its_author_says"), "{error:?}");
}

#[test]
fn a_fallthrough_can_be_fetched_but_not_run() {
    let d = D::new();
    let handle = d.register("op", K::Tracer, Kernel::fallthrough()).unwrap();
    let operator = d.operator("op").unwrap();
    let kernel = handle.kernel().unwrap();
    assert!(operator.kernel_at(K::Tracer.into()).is_none());
    let error = operator
        .run_kernel_with(&kernel, K::CPU.into(), K::Tracer, |context, _| {
            assert_eq!(context.excluded(), K::Tracer.into());
            context.call_below(&[list(K::CPU).r()])
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MissingKernel);
}

#[test]
fn operators_and_defaults_are_listed() {
    let d = D::new();
    d.define("b(int n=3) -> int").unwrap();
    d.define("a(str s) -> int").unwrap();
    let names: Vec<_> = d.operators().iter().map(|o| o.name().to_owned()).collect();
    assert_eq!(names, ["a", "b"]);
    let b = d.operator("b").unwrap();
    assert_eq!(b.default_value(0), Some(&Val::Int(3)));
    assert_eq!(b.default_value(1), None);
    assert_eq!(b.schema().arguments.len(), 1);
    assert!(d.overloads("none").is_empty());
    assert_eq!(b.keyset_of(DispatchKeySet::EMPTY), K::CPU.into());
}
