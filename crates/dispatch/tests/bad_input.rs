//! One test per kind of error: it names the operator, the given value and the correct one, and the
//! dispatcher works afterwards. Errors in schema text are tested beside the parser, use after
//! removal in `removal`, recursion and panics in `concurrency`.

mod support;

use keyfold_core::{Device, DeviceType, Error, ErrorKind};
use keyfold_dispatch::schema::Schema;
use keyfold_dispatch::{
    DefineOptions, DispatchKey as K, DispatchKeySet, Dispatcher, Kernel, Override, Provenance,
    RegistrationKey, Stage, TypedOperator, exclude_keys, include_keys, register_key,
};
use support::{Context, D, Ref, Val, Word, list, said, says, word, wraps};

/// Checks the kind of an error, and that its message contains all `parts`.
#[track_caller]
fn says_all(error: &Error, kind: ErrorKind, parts: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// Returns a dispatcher with `demo::scale(Tensor x, int n=2, *, str mode="up") -> Tensor` at CPU.
fn demo() -> D {
    let d = D::new();
    d.define("demo::scale(Tensor x, int n=2, *, str mode=\"up\") -> Tensor").unwrap();
    let kernel = Kernel::boxed(|_: &Context<'_>, args: &[Ref<'_>]| match args {
        [Ref::Word(x), Ref::Int(n), Ref::Text(mode)] => {
            Ok(word(&format!("{} {n} {mode}", x.text), K::CPU))
        }
        other => panic!("bound wrongly: {other:?}"),
    });
    d.register("demo::scale", K::CPU, kernel.named("scale_cpu")).unwrap();
    d
}

/// Checks that the dispatcher still works.
#[track_caller]
fn works_on(d: &D) {
    let x = Word::new("x", K::CPU);
    assert_eq!(said(d.call("demo::scale", &[Ref::Word(&x)]).unwrap()), "x 2 up");
}

#[test]
fn a_second_kernel_at_a_taken_key() {
    let d = demo();
    let error = d.register("demo::scale", K::CPU, says("second")).unwrap_err();
    let parts = ["demo::scale already has a kernel at CPU", "scale_cpu", "second", "override="];
    says_all(&error, ErrorKind::Registration, &parts);
    assert_eq!(error.to_string().matches("bad_input.rs:").count(), 2, "both places: {error}");
    works_on(&d);
}

#[test]
fn the_same_source_again_replaces_without_complaint() {
    let d = D::new();
    let register = |label: &str| {
        let kernel = Kernel::boxed(|_: &Context<'_>, _: &[Ref<'_>]| Ok(Val::Nil)).named(label);
        d.register("op", K::CPU, kernel).unwrap()
    };
    let first = register("first");
    let second = register("second");
    assert_eq!(d.operator("op").unwrap().kernels()[0].1.provenance().name, "second");
    assert!(!first.remove(), "a replaced handle's remove does nothing");
    assert!(second.is_active());
    assert_eq!(d.kernel_count(), 1);
    // The same module and qualified name, at any line.
    let named = |line| Provenance {
        language: "Python",
        name: "scale".into(),
        module: Some("pkg".into()),
        file: "pkg.py".into(),
        line,
        named: true,
        instance: None,
    };
    d.register("other", K::CPU, says("a").with_provenance(named(3))).unwrap();
    d.register("other", K::CPU, says("b").with_provenance(named(30))).unwrap();
    assert_eq!(said(d.call("other", &[list(K::CPU).r()]).unwrap()), "b");
}

#[test]
fn shadow_and_replace_are_asked_for() {
    let d = D::new();
    let first = d.register("op", K::CPU, says("first")).unwrap();
    let operator = d.operator("op").unwrap();
    let call = || said(d.call("op", &[list(K::CPU).r()]).unwrap());
    let shadow = Kernel::boxed(|context: &Context<'_>, args: &[Ref<'_>]| {
        Ok(word(&format!("over {}", said(context.call_shadowed(args)?)), K::CPU))
    });
    let shadow = d.register_with(&operator, K::CPU, shadow, Override::Shadow).unwrap();
    assert_eq!(call(), "over first");
    assert_eq!(shadow.shadowed().unwrap().provenance().name, "first");
    assert!(first.shadowed().is_none());
    assert_eq!(d.kernel_count(), 1, "shadowed ones are not counted");
    let replace = d.register_with(&operator, K::CPU, says("third"), Override::Replace).unwrap();
    assert_eq!(call(), "third");
    assert!(!shadow.remove());
    assert!(replace.remove());
    assert_eq!(call(), "first", "what the replaced one shadowed");
    for (text, mode) in
        [("error", Override::Error), ("shadow", Override::Shadow), ("replace", Override::Replace)]
    {
        assert_eq!(text.parse::<Override>().unwrap(), mode);
    }
    let error = "overwrite".parse::<Override>().unwrap_err();
    says_all(&error, ErrorKind::Value, &["\"overwrite\"", "\"shadow\""]);
}

#[test]
fn calling_a_shadowed_kernel_that_is_not_there() {
    let d = D::new();
    let kernel =
        Kernel::boxed(|context: &Context<'_>, args: &[Ref<'_>]| context.call_shadowed(args));
    d.register("op", K::CPU, kernel.named("alone")).unwrap();
    let error = d.call("op", &[list(K::CPU).r()]).unwrap_err();
    says_all(&error, ErrorKind::MissingKernel, &["op: the kernel alone", "CPU shadows none"]);
}

#[test]
fn defining_twice_differently() {
    let d = demo();
    let again = d.define("demo::scale(Tensor x, int n=2, *, str mode=\"up\") -> Tensor").unwrap();
    assert!(again.is_active() && again.key().is_none());
    let error = d.define("demo::scale(Tensor x) -> Tensor").unwrap_err();
    let parts = ["demo::scale is already defined differently", "int n=2", "(Tensor x) -> Tensor"];
    says_all(&error, ErrorKind::Registration, &parts);
    let schema = Schema::parse("demo::scale(Tensor x, int n=2, *, str mode=\"up\") -> Tensor");
    let options = DefineOptions { mixed_devices: true, ..DefineOptions::default() };
    assert!(d.define_with(schema.unwrap(), options).is_err(), "other options");
    works_on(&d);
}

#[test]
fn a_kernel_before_its_schema() {
    let d = D::shared();
    assert!(!d.takes_plain_names());
    let error = d.implement("ns::op", K::CPU, says("cpu"), Override::Error).unwrap_err();
    says_all(&error, ErrorKind::UnknownOperator, &["define ns::op before impl ns::op"]);
    let error = d.register("op", K::CPU, says("cpu")).unwrap_err();
    says_all(&error, ErrorKind::Schema, &["op", "namespace"]);
    assert_eq!(d.kernel_count(), 0);
    assert!(d.operators().is_empty());
}

#[test]
fn a_stage_sorts_and_rolls_back() {
    let d = demo();
    let stage = |schema: &str, second: &str| {
        let mut stage = Stage::new(&d);
        stage.implement("lib::a", K::CPU, says("a"), Override::Error);
        stage.implement(second, K::CPU, says("b"), Override::Error);
        stage.define(Schema::parse(schema).unwrap(), DefineOptions::default());
        assert_eq!(format!("{stage:?}"), "Stage(1 definitions, 2 kernels)");
        stage
    };
    let error = stage("lib::a(Tensor x) -> Tensor", "lib::b").commit().unwrap_err();
    says_all(&error, ErrorKind::UnknownOperator, &["lib::b"]);
    assert!(d.operator("lib::a").is_err(), "taken back");
    let error = stage("lib::a(Tensor x) -> Tensor", "demo::scale").commit().unwrap_err();
    says_all(&error, ErrorKind::Registration, &["demo::scale already has a kernel at CPU"]);
    assert_eq!((d.operators().len(), d.kernel_count()), (1, 1));
    works_on(&d);
    let mut stage = Stage::new(&d);
    stage.implement("lib::a", K::CPU, says("a"), Override::Error);
    stage.define(Schema::parse("lib::a(Tensor x) -> Tensor").unwrap(), DefineOptions::default());
    let handles = stage.commit().unwrap();
    assert_eq!(handles.iter().map(|h| h.key()).collect::<Vec<_>>(), [None, Some(K::CPU.into())]);
    let x = Word::new("x", K::CPU);
    assert_eq!(said(d.call("lib::a", &[Ref::Word(&x)]).unwrap()), "a");
}

#[test]
fn a_failed_stage_leaves_what_it_would_have_replaced() {
    let d = D::new();
    d.define("op(Tensor x) -> Tensor").unwrap();
    let first = d.register("op", K::CPU, says("first")).unwrap();
    let x = Word::new("x", K::CPU);
    let call = || said(d.call("op", &[Ref::Word(&x)]).unwrap());
    let mut stage = Stage::new(&d);
    stage.implement("op", K::CPU, says("second"), Override::Replace);
    stage.implement("missing", K::CPU, says("third"), Override::Error);
    stage.commit().unwrap_err();
    assert_eq!((call(), first.is_active(), d.kernel_count()), ("first".to_owned(), true, 1));
    let mut stage = Stage::new(&d);
    stage.implement("op", K::CPU, says("second"), Override::Replace);
    let handles = stage.commit().unwrap();
    assert_eq!((call(), first.is_active(), d.kernel_count()), ("second".to_owned(), false, 1));
    assert!(handles[0].remove());
    assert_eq!(d.kernel_count(), 0, "the replaced one is gone for good");
}

#[test]
fn a_typed_kernel_that_contradicts_its_schema() {
    let d = D::new();
    d.define("op(Tensor x, int n) -> Tensor").unwrap();
    let arity = Kernel::typed(|x: &Word| Ok(x.clone()));
    let kind = Kernel::typed(|n: i64, x: &Word| Ok(Word::new(&n.to_string(), x.keys)));
    let returns = Kernel::typed(|_: &Word, n: i64| Ok(n));
    for (kernel, part) in [
        (arity, "it takes 1 arguments, the schema has 2"),
        (kind, "argument 'x' is Tensor in the schema and i64 in the signature"),
        (returns, "it returns i64, where the schema promises Tensor"),
    ] {
        let error = d.register("op", K::CPU, kernel).unwrap_err();
        let parts =
            ["op: the kernel contradicts the schema", part, "op(Tensor x, int n) -> Tensor"];
        says_all(&error, ErrorKind::Registration, &parts);
    }
    assert_eq!(d.kernel_count(), 0);
}

#[test]
fn a_typed_handle_that_contradicts_its_schema() {
    let d = demo();
    let error = d.typed::<(&Word, i64), Word>("demo::scale").unwrap_err();
    let parts = ["demo::scale: the typed handle contradicts the schema", "2 arguments"];
    says_all(&error, ErrorKind::Binding, &parts);
    let error = d.typed::<(&Word,), Word>("demo::scal").unwrap_err();
    says_all(&error, ErrorKind::UnknownOperator, &["demo::scal", "did you mean demo::scale?"]);
}

#[test]
fn wrong_arity() {
    let d = demo();
    let x = Word::new("x", K::CPU);
    let x = Ref::Word(&x);
    let error = d.call("demo::scale", &[]).unwrap_err();
    says_all(&error, ErrorKind::Binding, &["missing 1 required positional argument: 'x'"]);
    let up = Ref::Text("up");
    let error = d.call("demo::scale", &[x, Ref::Int(1), up, up]).unwrap_err();
    says_all(&error, ErrorKind::Binding, &["demo::scale", "but 4 were given"]);
    works_on(&d);
}

#[test]
fn a_keyword_only_argument_without_default_left_out() {
    let d = D::new();
    d.define("op(Tensor x, *, int n) -> Tensor").unwrap();
    d.register("op", K::CPU, says("cpu")).unwrap();
    let x = Word::new("x", K::CPU);
    let error = d.call("op", &[Ref::Word(&x)]).unwrap_err();
    says_all(&error, ErrorKind::Binding, &["op", "'n'"]);
    assert!(d.call("op", &[Ref::Word(&x), Ref::Int(1)]).is_ok());
}

#[test]
fn a_wrong_type_and_none_for_a_tensor() {
    let d = demo();
    let x = Word::new("x", K::CPU);
    let up = Ref::Text("up");
    let error = d.call("demo::scale", &[Ref::Word(&x), Ref::Float(2.5), up]).unwrap_err();
    says_all(
        &error,
        ErrorKind::Binding,
        &["demo::scale() argument 'n' must be int, not float 2.5"],
    );
    let error = d.call("demo::scale", &[Ref::Nil]).unwrap_err();
    says_all(&error, ErrorKind::Binding, &["demo::scale() argument 'x' must be Tensor, not None"]);
    works_on(&d);
}

#[test]
fn a_typed_kernel_called_with_the_wrong_boxed_values() {
    let d = D::new();
    d.define("op(Tensor x, int n) -> Tensor").unwrap();
    let kernel =
        Kernel::typed(|x: &Word, n: i64| Ok(Word::new(&x.text.repeat(n as usize), x.keys)));
    d.register("op", K::CPU, kernel).unwrap();
    let operator = d.operator("op").unwrap();
    let kernel = operator.kernel_at(K::CPU.into()).unwrap();
    // Bypasses the checks, as a binding could; the kernel itself refuses.
    let set = DispatchKeySet::from(K::CPU);
    let run = |args: &[Ref<'_>]| {
        operator.run_kernel_with(&kernel, set, K::CPU, |context, _| context.redispatch(set, args))
    };
    let x = Word::new("ab", K::CPU);
    let error = run(&[Ref::Word(&x)]).unwrap_err();
    says_all(&error, ErrorKind::Binding, &["a kernel of 2 arguments was called with 1"]);
    let error = run(&[Ref::Int(1), Ref::Int(1)]).unwrap_err();
    says_all(&error, ErrorKind::Binding, &["wanted a word, not int 1"]);
    assert_eq!(said(run(&[Ref::Word(&x), Ref::Int(2)]).unwrap()), "abab");
}

#[test]
fn an_unknown_operator() {
    let d = demo();
    let error = d.call("demo::scael", &[]).unwrap_err();
    says_all(&error, ErrorKind::UnknownOperator, &["demo::scael", "did you mean demo::scale?"]);
    let error = d.redispatch("zzz::q", K::CPU.into(), &[]).unwrap_err();
    says_all(&error, ErrorKind::UnknownOperator, &["zzz::q; define it first"]);
    assert!(d.call_direct("zzz::q", K::CPU, &[], None).is_err());
    assert!(d.operator("demo::scale.default").is_ok());
}

#[test]
fn an_unknown_key() {
    for name in ["Autogard", "cpu", "", "AutogradNPU"] {
        let error = name.parse::<RegistrationKey>().unwrap_err();
        says_all(&error, ErrorKind::UnknownKey, &["unknown dispatch key", &format!("{name:?}")]);
    }
    says_all(&"Profler".parse::<K>().unwrap_err(), ErrorKind::UnknownKey, &["Profiler"]);
}

#[test]
fn an_alias_where_a_key_is_wanted() {
    let d = demo();
    let x = Word::new("x", K::CPU);
    let alias = RegistrationKey::CompositeImplicitAutograd;
    let error = d.call_direct("demo::scale", alias, &[Ref::Word(&x)], None).unwrap_err();
    let parts = ["demo::scale: CompositeImplicitAutograd is an alias", "such as CPU"];
    says_all(&error, ErrorKind::UnknownKey, &parts);
    let error = DispatchKeySet::parse("CompositeExplicitAutograd").unwrap_err();
    says_all(&error, ErrorKind::UnknownKey, &["alias", "key set"]);
}

#[test]
fn an_empty_key_set() {
    let d = demo();
    let x = Word::new("x", K::CPU);
    let error = d.redispatch("demo::scale", DispatchKeySet::EMPTY, &[Ref::Word(&x)]).unwrap_err();
    says_all(&error, ErrorKind::EmptyKeySet, &["demo::scale: empty keyset"]);
    let guard = exclude_keys(K::CPU.into());
    let error = d.call("demo::scale", &[Ref::Word(&x)]).unwrap_err();
    says_all(&error, ErrorKind::EmptyKeySet, &["empty keyset", "excluded: [CPU]"]);
    guard.close().unwrap();
    works_on(&d);
}

#[test]
fn no_kernel_for_any_key() {
    let d = demo();
    let x = Word::new("x", [K::Autograd, K::CUDA]);
    let error = d.call("demo::scale", &[Ref::Word(&x)]).unwrap_err();
    let parts = [
        "demo::scale: no kernel registered for CUDA",
        "key set: [Autograd, CUDA]",
        "skipped: [Autograd]",
        "it has kernels for CPU",
    ];
    says_all(&error, ErrorKind::MissingKernel, &parts);
    let error = d.redispatch("demo::scale", K::Tracer.into(), &[Ref::Word(&x)]).unwrap_err();
    says_all(&error, ErrorKind::MissingKernel, &["no kernel registered for any of its keys"]);
    d.define("demo::none() -> int").unwrap();
    let error = d.call("demo::none", &[]).unwrap_err();
    says_all(&error, ErrorKind::MissingKernel, &["demo::none", "it has no kernels of its own"]);
    works_on(&d);
}

#[test]
fn an_error_lists_a_few_of_many_kernels() {
    let d = D::new();
    d.register("op", RegistrationKey::CompositeImplicitAutograd, says("all")).unwrap();
    for key in [K::Tracer, K::Profiler, K::Autocast] {
        d.register("op", key, says(&key.name())).unwrap();
    }
    let error = d.call("op", &[list([K::Sparse, K::CPU]).r()]).unwrap_err();
    says_all(&error, ErrorKind::MissingKernel, &["kernels for CPU, CUDA, Meta", " more"]);
}

#[test]
fn a_representation_key_without_a_kernel() {
    let d = demo();
    let x = Word::new("x", [K::Sparse, K::CPU]);
    let error = d.call("demo::scale", &[Ref::Word(&x)]).unwrap_err();
    let parts =
        ["no kernel registered for SparseCPU", "skipping it would hand a kernel data", "fallback"];
    says_all(&error, ErrorKind::MissingKernel, &parts);
    // User keys are a mode or a representation, as registered.
    let ragged = register_key("BadInputRagged", K::Sparse, false).unwrap();
    let audit = register_key("BadInputAudit", K::Sparse, true).unwrap();
    let x = Word::new("x", [ragged, K::CPU]);
    assert!(d.call("demo::scale", &[Ref::Word(&x)]).is_err());
    let x = Word::new("x", [audit, K::CPU]);
    assert!(d.call("demo::scale", &[Ref::Word(&x)]).is_ok(), "a table older than the key, too");
}

#[test]
fn call_direct_takes_no_other_key() {
    let d = demo();
    d.register("demo::scale", K::Autograd, wraps("grad")).unwrap();
    let x = Word::new("x", [K::Autograd, K::CPU]);
    let x = [Ref::Word(&x)];
    let direct =
        |key: &str| d.call_direct("demo::scale", key.parse::<RegistrationKey>().unwrap(), &x, None);
    assert_eq!(said(direct("CPU").unwrap()), "x 2 up");
    assert_eq!(said(direct("Autograd").unwrap()), "grad(x 2 up)");
    assert_eq!(said(direct("AutogradCUDA").unwrap()), "grad(x 2 up)");
    for key in ["CUDA", "Tracer", "SparseCPU"] {
        let parts = ["demo::scale: no kernel", "call_direct takes this key's kernel and no other"];
        says_all(&direct(key).unwrap_err(), ErrorKind::MissingKernel, &parts);
    }
}

fn pair() -> D {
    let d = D::new();
    d.define("demo::add(Tensor a, Tensor b) -> Tensor").unwrap();
    for key in [K::CPU, K::CUDA] {
        let label = key.name();
        let kernel = Kernel::typed(move |_: &Word, _: &Word| Ok(Word::new(&label, K::CPU)));
        let operator = d.operator("demo::add").unwrap();
        d.register_with(&operator, key, kernel, Override::Error).unwrap();
    }
    d
}

#[test]
fn tensors_on_different_devices() {
    let d = pair();
    let typed: TypedOperator<Val, (&Word, &Word), Word> = d.typed("demo::add").unwrap();
    let (cpu, cuda) = (Word::new("a", K::CPU), Word::new("b", K::CUDA));
    let meta = Word::new("m", K::Meta);
    let parts = ["demo::add: arguments on different devices", "'a' is on cpu", "'b' is on cuda"];
    let boxed = d.call("demo::add", &[Ref::Word(&cpu), Ref::Word(&cuda)]).unwrap_err();
    for error in [boxed, typed.call(&cpu, &cuda).unwrap_err()] {
        says_all(&error, ErrorKind::Device, &parts);
    }
    says_all(&typed.call(&cpu, &meta).unwrap_err(), ErrorKind::Device, &["'b' is on meta"]);
    assert_eq!(typed.call(&cuda, &cuda).unwrap().text, "CUDA");
}

#[test]
fn tensors_on_two_indices_of_one_device() {
    let d = pair();
    let typed: TypedOperator<Val, (&Word, &Word), Word> = d.typed("demo::add").unwrap();
    let at = |index| Word::new("x", K::CUDA).on(Device::new(DeviceType::CUDA, index));
    let parts = ["'a' is on cuda:0", "'b' is on cuda:1"];
    says_all(&typed.call(&at(0), &at(1)).unwrap_err(), ErrorKind::Device, &parts);
    says_all(&typed.call(&at(2), &at(1)).unwrap_err(), ErrorKind::Device, &["cuda:2", "cuda:1"]);
    assert_eq!(typed.call(&at(1), &at(1)).unwrap().text, "CUDA");
    // The message names the index inside a list.
    d.register("many", K::CUDA, says("cuda")).unwrap();
    let items = Val::List(vec![Val::Word(at(0)), Val::Word(at(0)), Val::Word(at(1))]);
    let error = d.call("many", &[items.r()]).unwrap_err();
    says_all(&error, ErrorKind::Device, &["'inputs[0]' is on cuda:0", "'inputs[2]' is on cuda:1"]);
}

#[test]
fn a_zero_dim_cpu_tensor_may_stand_beside_a_cuda_one() {
    let d = pair();
    let typed: TypedOperator<Val, (&Word, &Word), Word> = d.typed("demo::add").unwrap();
    let scalar = Word::new("s", K::CPU).zero_dim();
    let cuda = Word::new("x", K::CUDA);
    assert_eq!(typed.call(&scalar, &cuda).unwrap().text, "CUDA");
    assert_eq!(typed.call(&cuda, &scalar).unwrap().text, "CUDA");
    let there = Word::new("s", K::CUDA).zero_dim();
    let cpu = Word::new("x", K::CPU);
    assert!(typed.call(&there, &cpu).is_err(), "the other way round it may not");
}

#[test]
fn an_operator_may_allow_different_devices() {
    let d = D::new();
    let schema = Schema::parse("demo::copy(Tensor to, Tensor from) -> Tensor").unwrap();
    d.define_with(schema, DefineOptions { mixed_devices: true, ..DefineOptions::default() })
        .unwrap();
    d.register("demo::copy", K::CUDA, says("cuda")).unwrap();
    let (cpu, cuda) = (Word::new("a", K::CPU), Word::new("b", K::CUDA));
    assert_eq!(said(d.call("demo::copy", &[Ref::Word(&cpu), Ref::Word(&cuda)]).unwrap()), "cuda");
    assert!(d.operator("demo::copy").unwrap().allows_mixed_devices());
}

#[test]
fn guards_closed_out_of_order() {
    let first = include_keys(K::Tracer.into());
    let second = exclude_keys(K::Profiler.into());
    let error = first.close().unwrap_err();
    says_all(&error, ErrorKind::Guard, &["closed out of order", "1 opened after it"]);
    second.close().unwrap();
    works_on(&demo());
}

#[test]
fn a_kernel_that_returns_the_wrong_kind_or_number() {
    let d = D::new();
    d.define("one() -> int").unwrap();
    d.define("two() -> (int, int)").unwrap();
    d.define("none() -> ()").unwrap();
    let gives = |value: Val| {
        Kernel::boxed(move |_: &Context<'_>, _: &[Ref<'_>]| Ok(value.clone())).named("bad")
    };
    let cases = [
        ("one", Val::Text("no".into()), "str \"no\", where the schema promises int"),
        ("two", Val::Tuple(vec![Val::Int(1)]), "1 values (int 1), where the schema promises"),
        ("two", Val::Int(1), "int 1, where the schema promises"),
        ("two", Val::Tuple(vec![Val::Int(1), Val::Nil]), "2 values (int 1, None)"),
        ("none", Val::Int(1), "int 1"),
    ];
    for (name, value, part) in cases {
        let operator = d.operator(name).unwrap();
        let kernel = gives(value);
        let handle = d.register_with(&operator, K::CPU, kernel, Override::Error).unwrap();
        let error = d.call(name, &[]).unwrap_err();
        says_all(&error, ErrorKind::Return, &[&format!("{name}: the kernel bad"), part]);
        assert!(handle.remove());
    }
    let good = Val::Tuple(vec![Val::Int(1), Val::Int(2)]);
    d.register("two", K::CPU, gives(good.clone())).unwrap();
    assert_eq!(d.call("two", &[]).unwrap(), good);
    d.register("none", K::CPU, Kernel::boxed(|_, _| Ok(Val::Nil))).unwrap();
    assert_eq!(d.call("none", &[]).unwrap(), Val::Nil);
    // A typed call of a boxed kernel is checked as well.
    d.register("one", K::CPU, gives(Val::Nil)).unwrap();
    let typed = d.typed::<(), i64>("one").unwrap();
    says_all(&typed.call().unwrap_err(), ErrorKind::Return, &["None", "int"]);
}

#[test]
fn a_kernel_that_fails() {
    let d = demo();
    let operator = d.operator("demo::scale").unwrap();
    let fails = Kernel::boxed(|_: &Context<'_>, _: &[Ref<'_>]| {
        Err(Error::new(ErrorKind::KernelFailed, "no luck"))
    });
    let handle = d.register_with(&operator, K::CPU, fails, Override::Shadow).unwrap();
    let x = Word::new("x", K::CPU);
    let error = operator.call(&[Ref::Word(&x)]).unwrap_err();
    says_all(&error, ErrorKind::KernelFailed, &["no luck"]);
    assert!(handle.remove());
    works_on(&d);
}

#[test]
fn a_fallthrough_where_calls_never_skip() {
    let d = demo();
    for key in ["CUDA", "Sparse", "SparseCPU", "Vmap", "CompositeImplicitAutograd"] {
        let key: RegistrationKey = key.parse().unwrap();
        let error = d.register("demo::scale", key, Kernel::fallthrough()).unwrap_err();
        let parts = ["demo::scale: a fallthrough at", &key.to_string(), "Autograd"];
        says_all(&error, ErrorKind::Registration, &parts);
    }
    let error = d.fallback(K::CPU, Kernel::fallthrough(), Override::Error).unwrap_err();
    says_all(&error, ErrorKind::Registration, &["a fallback: a fallthrough at CPU"]);
    works_on(&d);
}

#[test]
fn a_fallback_at_an_alias_and_a_second_one() {
    let d = demo();
    let alias = RegistrationKey::CompositeExplicitAutograd;
    let error = d.fallback(alias, says("all"), Override::Error).unwrap_err();
    says_all(&error, ErrorKind::UnknownKey, &["CompositeExplicitAutograd is an alias"]);
    d.fallback(K::Tracer, wraps("one"), Override::Error).unwrap();
    let error = d.fallback(K::Tracer, wraps("two"), Override::Error).unwrap_err();
    says_all(&error, ErrorKind::Registration, &["the fallbacks already has a kernel at Tracer"]);
}

#[test]
fn a_default_that_is_no_value() {
    // The tests' value type has no lists of numbers.
    let error = Dispatcher::<Val>::new().define("op(int[] n=[1, 2]) -> int").unwrap_err();
    says_all(&error, ErrorKind::Schema, &["op: the default of argument 'n'", "int[]"]);
}
