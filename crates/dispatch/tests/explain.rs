//! Explanations of calls, as data and as text. No kernel runs.

mod support;

use keyfold_dispatch::{
    DispatchKey as K, DispatchKeySet, Kernel, Override, RegistrationKey, Rule, describe_path,
    exclude_keys, include_keys,
};
use support::{Context, D, Ref, Val, Word, says, wraps};

/// Returns `demo::add` with a composite, a CPU kernel that shadows another, and an Autograd layer.
fn layered() -> D {
    let d = D::new();
    d.define("demo::add(Tensor a, Tensor? b=None) -> Tensor").unwrap();
    let operator = d.operator("demo::add").unwrap();
    let composite = RegistrationKey::CompositeImplicitAutograd;
    d.register("demo::add", composite, says("composite")).unwrap();
    d.register("demo::add", K::CPU, says("below")).unwrap();
    d.register_with(&operator, K::CPU, says("add_cpu"), Override::Shadow).unwrap();
    d.register("demo::add", K::Autograd, wraps("add_grad")).unwrap();
    d
}

#[test]
fn the_choice_its_reasons_and_where_a_redispatch_goes() {
    let d = layered();
    let x = Word::new("x", [K::Autograd, K::CPU]);
    let explanation = d.operator("demo::add").unwrap().explain(&[Ref::Word(&x), Ref::Nil]);
    assert_eq!(explanation.keyset, [K::Autograd, K::CPU].into());
    assert_eq!(explanation.backend, K::CPU);
    assert!(explanation.error.is_none() && !explanation.default_backend);
    assert!(explanation.skipped.is_empty());
    assert_eq!(explanation.arguments.len(), 1);
    assert_eq!(explanation.arguments[0].name, "a");
    assert_eq!(explanation.arguments[0].device.unwrap().to_string(), "cpu");
    let choice = explanation.choice.as_ref().unwrap();
    assert_eq!((choice.key, choice.rule), (K::Autograd, Rule::AutogradAlias));
    assert_eq!(choice.runtime_key, "AutogradCPU");
    assert_eq!(choice.registered_at, K::Autograd.into());
    assert_eq!(choice.kernel.name, "add_grad");
    assert!(choice.kernel.file.ends_with("explain.rs") && choice.kernel.line > 0);
    let [next] = &explanation.next[..] else { panic!("one more: {:?}", explanation.next) };
    assert_eq!((next.key, next.rule, next.kernel.name.as_str()), (K::CPU, Rule::Direct, "add_cpu"));
    assert_eq!(next.shadows.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["below"]);
    let lost: Vec<_> = next.losers.iter().map(|(_, rule, who)| (*rule, &who.name[..])).collect();
    assert_eq!(lost, [(Rule::CompositeImplicitAutograd, "composite")]);

    let text = explanation.to_string();
    for part in [
        "demo::add(Tensor a, Tensor? b=None) -> Tensor",
        "argument a            Autograd, CPU  (on cpu)",
        "chosen key            Autograd",
        "kernel                add_grad (Rust, ",
        "because               Autograd: the Autograd alias",
        "a redispatch goes to  CPU: add_cpu (Rust, ",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn losers_shadows_and_skipped_keys_in_the_text() {
    let d = layered();
    let x = Word::new("x", [K::Tracer, K::CPU]);
    let text = d.operator("demo::add").unwrap().explain(&[Ref::Word(&x)]).to_string();
    for part in [
        "skipped               Tracer  (no kernel there)",
        "lost to it            composite (Rust, ",
        "at CompositeImplicitAutograd (CompositeImplicitAutograd, for backends",
        "shadowed by it        below (Rust, ",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn local_keys_and_the_default_device() {
    let d = D::new();
    d.define("demo::make(int n) -> int").unwrap();
    d.register("demo::make", K::CPU, Kernel::typed(|n: i64| Ok(n))).unwrap();
    d.fallback(K::Profiler, wraps("profiler"), Override::Error).unwrap();
    let operator = d.operator("demo::make").unwrap();
    let _in = include_keys([K::Profiler, K::Tracer].into());
    let _out = exclude_keys(K::Tracer.into());
    let explanation = operator.explain(&[Ref::Int(3)]);
    assert!(explanation.default_backend);
    assert_eq!(explanation.keyset, [K::Profiler, K::CPU].into());
    assert_eq!(explanation.local.included(), [K::Profiler, K::Tracer].into());
    assert_eq!(explanation.choice.as_ref().unwrap().rule, Rule::Fallback);
    let text = explanation.to_string();
    for part in [
        "default device        CPU  (no argument brings a backend)",
        "locally included      Tracer, Profiler",
        "locally excluded      Tracer",
        "Profiler: the key's fallback",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_call_that_would_fail() {
    let d = layered();
    let operator = d.operator("demo::add").unwrap();
    let sparse = Word::new("x", [K::Sparse, K::CPU]);
    let explanation = operator.explain(&[Ref::Word(&sparse)]);
    assert!(explanation.choice.is_none() && explanation.next.is_empty());
    assert!(explanation.error.as_ref().unwrap().contains("no kernel registered for SparseCPU"));
    assert!(explanation.to_string().contains("  error                 demo::add: no kernel"));

    let (cpu, cuda) = (Word::new("x", K::CPU), Word::new("x", K::CUDA));
    let explanation = operator.explain(&[Ref::Word(&cpu), Ref::Word(&cuda)]);
    assert!(explanation.error.unwrap().contains("different devices"));

    let all = exclude_keys(DispatchKeySet::all());
    let explanation = operator.explain(&[Ref::Word(&cpu)]);
    assert!(explanation.error.as_ref().unwrap().contains("empty keyset"));
    assert!(explanation.to_string().contains("key set               nothing"));
    drop(all);
}

#[test]
fn explaining_runs_nothing_and_the_call_agrees() {
    let d = D::new();
    let panics = Kernel::boxed(|_: &Context<'_>, _: &[Ref<'_>]| panic!("it ran"));
    d.register("op", K::CPU, panics).unwrap();
    let arg = support::list(K::CPU);
    let explanation = d.operator("op").unwrap().explain(&[arg.r()]);
    assert_eq!(
        explanation.choice.unwrap().kernel.name,
        "closure in explaining_runs_nothing_and_the_call_agrees"
    );
    assert_eq!(explanation.arguments[0].name, "inputs[0]");
}

#[test]
fn the_path_of_the_calls_in_progress_is_readable() {
    let d = D::new();
    let path = Kernel::boxed(|_: &Context<'_>, _: &[Ref<'_>]| Ok(Val::Text(describe_path())));
    d.define("inner() -> str").unwrap();
    d.register("inner", K::CPU, path).unwrap();
    d.define("outer(Tensor x) -> str").unwrap();
    let outer = Kernel::boxed(|context: &Context<'_>, _: &[Ref<'_>]| {
        context.dispatcher()?.call("inner", &[])
    });
    d.register("outer", K::CPU, outer).unwrap();
    let layer = Kernel::boxed(|context: &Context<'_>, args: &[Ref<'_>]| context.call_below(args));
    d.register("outer", K::Autograd, layer).unwrap();
    let x = Word::new("x", [K::Autograd, K::CPU]);
    let text = d.call("outer", &[Ref::Word(&x)]).unwrap();
    assert_eq!(text, Val::Text("outer: Autograd > CPU, inner: CPU".into()));
    assert_eq!(describe_path(), "");
}

#[test]
fn looking_at_tables_kernels_and_debug_text() {
    let d = layered();
    let operator = d.operator("demo::add").unwrap();
    let names: Vec<_> = operator.entries(false).into_iter().map(|e| e.runtime_key).collect();
    let cpu: Vec<_> = names.iter().filter(|name| name.ends_with("CPU")).collect();
    assert_eq!(cpu, ["CPU", "AutogradCPU"]);
    assert_eq!(operator.kernels().len(), 3);
    assert!(operator.has_kernel(RegistrationKey::CompositeImplicitAutograd));
    assert!(!operator.has_kernel(RegistrationKey::CompositeExplicitAutograd));
    assert!(d.has_kernel("demo::add", "AutogradCUDA".parse::<RegistrationKey>().unwrap()));
    assert!(!d.has_kernel("demo::add", K::Tracer));
    let stack = operator.shadow_stack(K::CPU.into());
    assert_eq!(
        stack.iter().map(|k| &k.provenance().name[..]).collect::<Vec<_>>(),
        ["add_cpu", "below"]
    );
    let text = format!("{operator:?}");
    assert_eq!(text, "Operator(demo::add(Tensor a, Tensor? b=None) -> Tensor, 3 kernels)");
    assert!(format!("{:?}", stack[0]).starts_with("Kernel(add_cpu (Rust, "));
    let handle = d.register("other", K::CPU, says("other")).unwrap();
    assert_eq!(format!("{handle:?}"), "Handle(other at CPU)");
    handle.remove();
    assert_eq!(format!("{handle:?}"), "Handle(other at CPU, removed)");
    let definition = d.define("third() -> int").unwrap();
    assert_eq!(format!("{definition:?}"), "Handle(definition of third)");
    let typed = d.typed::<(), i64>("third").unwrap();
    assert_eq!(format!("{typed:?}"), "Operator(third() -> int, 0 kernels)");
    let same = typed.clone();
    assert!(std::sync::Arc::ptr_eq(typed.operator(), same.operator()));
    for rule in Rule::ALL {
        assert!(!rule.describe().is_empty() && !rule.to_string().is_empty());
    }
}
