//! Plugins: one built with the SDK (`examples/probe_plugin.rs`), and several in C with one mistake
//! each.

use std::path::{Path, PathBuf};

use keyfold_core::{Complex, DType, Device, Error, ErrorKind};
use keyfold_dispatch::{DispatchKey, Dispatcher, Kernel, Override, exclude_keys};
use keyfold_ffi::plugin::{self, Plugin};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::c_plugins::{compiled, example, refused, says};

fn loaded() -> (Dispatcher<Value>, Plugin) {
    let dispatcher = Dispatcher::new();
    let plugin = plugin::load(&example("probe_plugin"), &dispatcher).unwrap();
    (dispatcher, plugin)
}

fn tensor(items: &[f64]) -> Tensor {
    Tensor::from_slice(items, &[items.len()]).unwrap()
}

fn items(value: Value) -> Vec<f64> {
    value.into_tensor().unwrap().to_vec().unwrap()
}

/// Compiles `plugin.c`, a plugin of ABI 1.0, with one mistake.
fn in_c(case: &str) -> PathBuf {
    compiled("plugin.c", case)
}

#[test]
fn kernels_fill_outputs_over_any_strides() {
    let (dispatcher, plugin) = loaded();
    let x = Tensor::from_slice(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], &[2, 3]).unwrap();
    let x = x.permute(&[1, 0]).unwrap();
    let result = dispatcher.call("probe::double", &[(&x).into()]).unwrap().into_tensor().unwrap();
    assert_eq!(result.shape()[..], [3, 2]);
    assert_eq!(result.to_vec::<f64>().unwrap(), [0.0, 6.0, 2.0, 8.0, 4.0, 10.0]);
    assert_eq!(plugin.name(), "keyfold-ffi");
    let kernel = dispatcher.operator("probe::double").unwrap().kernels();
    let origin = kernel[0].1.provenance().to_string();
    assert!(origin.contains("double (Rust, ") && origin.contains("probe_plugin"), "{origin}");
}

#[test]
fn written_arguments_are_the_callers_memory() {
    let (dispatcher, _plugin) = loaded();
    let x = tensor(&[1.0, 2.0]);
    let result = dispatcher.call("probe::double_", &[(&x).into()]).unwrap().into_tensor().unwrap();
    assert_eq!(x.to_vec::<f64>().unwrap(), [2.0, 4.0]);
    assert_eq!(result.raw_data_ptr().unwrap(), x.raw_data_ptr().unwrap());
    let out = tensor(&[0.0, 0.0]);
    let result = dispatcher.call("probe::double_out", &[(&x).into(), (&out).into()]).unwrap();
    assert_eq!(out.to_vec::<f64>().unwrap(), [4.0, 8.0]);
    assert_eq!(result.into_tensor().unwrap().raw_data_ptr().unwrap(), out.raw_data_ptr().unwrap());
    assert_eq!(items(dispatcher.call("probe::double_out", &[(&x).into()]).unwrap()), [4.0, 8.0]);
}

#[test]
fn arguments_of_every_kind_arrive() {
    let (dispatcher, _plugin) = loaded();
    let x = tensor(&[0.25, 0.25]);
    let n = [10_i64, 20];
    let mut args: Vec<ValueRef<'_>> =
        vec![1_i64.into(), 0.5.into(), true.into(), "four".into(), (&n[..]).into()];
    let sum = |args: &[ValueRef<'_>]| dispatcher.call("probe::sum_of", args).unwrap();
    assert!(matches!(sum(&args), Value::Float(v) if v == 36.5));
    args.push((&x).into());
    assert!(matches!(sum(&args), Value::Float(v) if v == 37.0));
}

#[test]
fn errors_keep_kind_and_message_and_name_the_operator() {
    let (dispatcher, _plugin) = loaded();
    for (name, kind) in [
        ("value", ErrorKind::Value),
        ("shape", ErrorKind::Shape),
        ("index", ErrorKind::Index),
        ("memory", ErrorKind::Memory),
        ("other", ErrorKind::KernelFailed),
    ] {
        let error = dispatcher.call("probe::fail", &[name.into()]).unwrap_err();
        assert_eq!((error.kind(), error.message()), (kind, "probe::fail: as asked"));
    }
    let short = Tensor::from_slice(&[1.0_f32], &[1]).unwrap();
    let error = dispatcher.call("probe::double", &[(&short).into()]);
    says(&error.unwrap_err(), ErrorKind::DType, &["probe::double", "float32", "float64"]);
}

#[test]
fn panics_are_errors_that_name_the_kernel() {
    let (dispatcher, _plugin) = loaded();
    let error = dispatcher.call("probe::panics", &[7_i64.into()]).unwrap_err();
    let parts = ["probe::panics", "(Rust, ", "panicked: index out of bounds"];
    says(&error, ErrorKind::KernelPanic, &parts);
    assert!(matches!(dispatcher.call("probe::panics", &[1_i64.into()]), Ok(Value::Int(2))));
}

#[test]
fn calls_go_through_the_dispatcher_of_the_call() {
    let (dispatcher, _plugin) = loaded();
    let (another, _same_library) = loaded();
    let x = tensor(&[3.0]);
    for (dispatcher, factor) in [(&dispatcher, 10.0), (&another, 100.0)] {
        dispatcher.define("elsewhere::op(Tensor x) -> Tensor").unwrap();
        let kernel = Kernel::boxed(move |_, args: &[ValueRef<'_>]| {
            let x: Vec<f64> = args[0].tensor()?.to_vec()?;
            Ok(Value::Tensor(tensor(&x.iter().map(|v| v * factor).collect::<Vec<_>>())))
        });
        // Registered after the plugin was loaded.
        dispatcher.implement("elsewhere::op", DispatchKey::CPU, kernel, Override::Error).unwrap();
    }
    assert_eq!(items(dispatcher.call("probe::other", &[(&x).into()]).unwrap()), [30.0]);
    assert_eq!(items(another.call("probe::other", &[(&x).into()]).unwrap()), [300.0]);
}

#[test]
fn local_keys_around_a_call_are_seen_by_its_calls() {
    let (dispatcher, _plugin) = loaded();
    dispatcher.define("elsewhere::op(Tensor x) -> Tensor").unwrap();
    let kernel = |factor: f64| {
        Kernel::boxed(move |_, args: &[ValueRef<'_>]| {
            let x: Vec<f64> = args[0].tensor()?.to_vec()?;
            Ok(Value::Tensor(tensor(&[x[0] * factor])))
        })
    };
    for (key, factor) in [(DispatchKey::CPU, 10.0), (DispatchKey::Pipeline, 1000.0)] {
        dispatcher.implement("elsewhere::op", key, kernel(factor), Override::Error).unwrap();
    }
    let x = tensor(&[1.0]);
    let call = || items(dispatcher.call("probe::other", &[(&x).into()]).unwrap());
    let pipeline = DispatchKey::Pipeline.into();
    {
        let _included = keyfold_dispatch::include_keys(pipeline);
        assert_eq!(call(), [1000.0]);
        let _excluded = exclude_keys(pipeline);
        assert_eq!(call(), [10.0]);
    }
}

#[test]
fn errors_and_panics_of_other_kernels_pass_through() {
    let (dispatcher, _plugin) = loaded();
    let x = tensor(&[3.0]);
    let error = dispatcher.call("probe::other", &[(&x).into()]).unwrap_err();
    says(&error, ErrorKind::UnknownOperator, &["elsewhere::op"]);
    dispatcher.define("elsewhere::op(Tensor x) -> Tensor").unwrap();
    let raised = Kernel::boxed(|_, _: &[ValueRef<'_>]| Err(Error::foreign(std::fmt::Error)));
    let handle =
        dispatcher.implement("elsewhere::op", DispatchKey::CPU, raised, Override::Error).unwrap();
    let error = dispatcher.call("probe::other", &[(&x).into()]).unwrap_err();
    assert!(error.into_source().unwrap().downcast::<std::fmt::Error>().is_ok());
    handle.remove();
    let panics = Kernel::boxed(|_, _: &[ValueRef<'_>]| panic!("in the host"));
    dispatcher.implement("elsewhere::op", DispatchKey::CPU, panics, Override::Error).unwrap();
    let error = dispatcher.call("probe::other", &[(&x).into()]).unwrap_err();
    says(&error, ErrorKind::KernelPanic, &["panicked: in the host"]);
}

#[test]
fn a_layer_passes_on_what_it_cant_read() {
    let (dispatcher, _plugin) = loaded();
    let kernel = Kernel::boxed(|context, args: &[ValueRef<'_>]| {
        assert!(!context.keyset().contains(DispatchKey::Pipeline));
        let ValueRef::Complex(z) = args[2] else { panic!("{:?}", args[2]) };
        let first = args[0].item(0).unwrap().tensor()?.to_vec::<f64>()?;
        Ok(Value::Tensor(tensor(&[first[0], z.im, args[0].list_len().unwrap() as f64])))
    });
    dispatcher.implement("probe::layered", DispatchKey::CPU, kernel, Override::Error).unwrap();
    let xs = [tensor(&[7.0]), tensor(&[8.0])];
    let _included = keyfold_dispatch::include_keys(DispatchKey::Pipeline.into());
    for how in ["own", "one by one"] {
        let z = Complex::new(0.0, 5.0);
        let result = dispatcher.call("probe::layered", &[(&xs[..]).into(), how.into(), z.into()]);
        assert_eq!(items(result.unwrap()), [7.0, 5.0, 2.0]);
    }
}

#[test]
fn tensors_are_made_by_the_host() {
    let (dispatcher, _plugin) = loaded();
    let make = |n: i64, dtype: DType, device: Device| {
        dispatcher.call("probe::made", &[n.into(), dtype.into(), device.into()])
    };
    let direct = |n: i64, dtype: DType, device: Device| {
        let args: [ValueRef<'_>; 3] = [n.into(), dtype.into(), device.into()];
        dispatcher.call_direct("probe::made", DispatchKey::CPU, &args, None)
    };
    let made = make(3, DType::F32, Device::CPU).unwrap().into_tensor().unwrap();
    assert_eq!(made.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0]);
    let meta = direct(5, DType::BF16, Device::META).unwrap().into_tensor().unwrap();
    assert_eq!((meta.shape()[0], meta.dtype(), meta.device()), (5, DType::BF16, Device::META));
    says(&make(-1, DType::F32, Device::CPU).unwrap_err(), ErrorKind::Shape, &["[-1]"]);
    make(i64::MAX, DType::F64, Device::CPU).unwrap_err();
}

#[test]
fn several_results_are_taken_apart_and_put_together() {
    let (dispatcher, _plugin) = loaded();
    dispatcher.define("elsewhere::pair(Tensor x) -> (Tensor, Tensor)").unwrap();
    let kernel = Kernel::boxed(|_, _: &[ValueRef<'_>]| {
        Ok(Value::Tuple(vec![Value::Tensor(tensor(&[1.0])), Value::Tensor(tensor(&[2.0]))]))
    });
    dispatcher.implement("elsewhere::pair", DispatchKey::CPU, kernel, Override::Error).unwrap();
    let Value::Tuple(both) =
        dispatcher.call("probe::swapped", &[(&tensor(&[0.0])).into()]).unwrap()
    else {
        panic!("not a tuple")
    };
    assert_eq!(both.into_iter().map(items).collect::<Vec<_>>(), [[2.0], [1.0]]);
}

#[test]
fn a_fallthrough_is_passed_by() {
    let (dispatcher, _plugin) = loaded();
    let _included = keyfold_dispatch::include_keys(DispatchKey::Pipeline.into());
    let result = dispatcher.call("probe::quiet", &[(&tensor(&[1.0, 2.0])).into()]);
    assert!(matches!(result, Ok(Value::Int(2))));
}

#[test]
fn a_plugin_loaded_twice_is_refused_and_closing_makes_room() {
    let (dispatcher, plugin) = loaded();
    let (operators, kernels) = (plugin.operators().len(), plugin.kernels().len());
    assert_eq!((dispatcher.operators().len(), dispatcher.kernel_count()), (operators, kernels));
    let error = plugin::load(&example("probe_plugin"), &dispatcher).unwrap_err();
    let parts = ["probe::double", "already has a kernel at CPU", "probe_plugin", "the plugin "];
    says(&error, ErrorKind::Registration, &parts);
    assert_eq!(dispatcher.kernel_count(), kernels);
    assert!(plugin.is_open() && plugin.close() && !plugin.is_open() && !plugin.close());
    assert_eq!((dispatcher.operators().len(), dispatcher.kernel_count()), (0, 0));
    drop(plugin);
    let again = plugin::load(&example("probe_plugin"), &dispatcher).unwrap();
    assert_eq!(again.kernels().len(), kernels);
    // Dropping it changes nothing.
    drop(again);
    assert_eq!(dispatcher.kernel_count(), kernels);
}

#[test]
fn a_plugin_in_c_is_as_good() {
    let dispatcher = Dispatcher::new();
    let path = in_c("GOOD");
    let plugin = plugin::load(&path, &dispatcher).unwrap();
    assert_eq!((plugin.name(), plugin.version()), ("in-c", "0.3.0"));
    assert_eq!(plugin.abi_version(), (1, 0));
    assert_eq!(plugin.path(), path.canonicalize().unwrap());
    assert!(matches!(dispatcher.call("in_c::answer", &[]), Ok(Value::Int(42))));
    // Loaded again, to read its counter. SAFETY: a library of the test's own; `dropped` is an int
    // that is no longer written.
    let library = unsafe { libloading::Library::new(&path) }.unwrap();
    // SAFETY: as above.
    let dropped = || unsafe { **library.get::<*const i32>(b"dropped\0").unwrap() };
    assert_eq!(dropped(), 0);
    assert!(plugin.close());
    assert_eq!(dropped(), 1);
}

#[test]
fn another_version_of_the_abi_is_refused_before_anything_runs() {
    for (case, version) in [("MAJOR", "7.0"), ("MINOR", "1.900")] {
        let path = in_c(case);
        // SAFETY: a library of the test's own.
        let library = unsafe { libloading::Library::new(&path) }.unwrap();
        let error = refused(&path);
        says(&error, ErrorKind::Library, &[version, "1.2", path.to_str().unwrap()]);
        // SAFETY: as above.
        assert_eq!(unsafe { **library.get::<*const i32>(b"entered\0").unwrap() }, 0);
    }
}

#[test]
fn what_is_no_plugin_is_refused() {
    let not_a_plugin = "is not a keyfold plugin";
    says(&refused(&in_c("MAGIC")), ErrorKind::Library, &[not_a_plugin, "something else"]);
    says(&refused(&in_c("NOT_A_PLUGIN")), ErrorKind::Library, &[not_a_plugin, "keyfold_plugin"]);
    let missing = refused(Path::new("no/such/libplugin.so"));
    says(&missing, ErrorKind::Library, &["no/such/libplugin.so", "No such file"]);
    let text = refused(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plugin.c"));
    says(&text, ErrorKind::Library, &["tests/plugin.c"]);
}

#[test]
fn a_failing_registration_leaves_nothing_behind() {
    let error = refused(&in_c("FAILS"));
    says(&error, ErrorKind::Library, &["register function failed: no licence for this machine"]);
    says(&refused(&in_c("KEY")), ErrorKind::Library, &["NoSuchKey"]);
    says(&refused(&in_c("NO_CODE")), ErrorKind::Library, &["99"]);
    says(&refused(&in_c("SHORT")), ErrorKind::Library, &["bytes and must have"]);
    let parts = ["in_c::answer: the kernel answer: a kernel's function is null"];
    says(&refused(&in_c("NO_FUNCTION")), ErrorKind::Library, &parts);
    says(&refused(&in_c("NO_SPEC")), ErrorKind::Library, &["a kernel's description is null"]);
    let parts = ["the register function in its descriptor is null"];
    says(&refused(&in_c("NO_REGISTER")), ErrorKind::Library, &parts);
    let parts = ["in_c::text", "the kernel answer", "returns a float", "-> str"];
    says(&refused(&in_c("RETURNS")), ErrorKind::Registration, &parts);
}

#[test]
fn text_of_a_plugin_is_checked() {
    let parts = ["register function failed: no caf\u{fffd}"];
    says(&refused(&in_c("CUT_TEXT")), ErrorKind::Library, &parts);
    let parts = ["a kernel's name is at fault: it is null and has 6 bytes"];
    says(&refused(&in_c("NULL_TEXT")), ErrorKind::Library, &parts);
    let parts = ["the name in its descriptor is at fault: it isn't UTF-8 from byte 3 on"];
    says(&refused(&in_c("CUT_NAME")), ErrorKind::Library, &parts);
}

#[test]
fn a_code_without_an_error_is_an_error() {
    let dispatcher = Dispatcher::new();
    let _plugin = plugin::load(&in_c("SILENT"), &dispatcher).unwrap();
    let error = dispatcher.call("in_c::answer", &[]).unwrap_err();
    says(&error, ErrorKind::KernelFailed, &["in_c::answer", "answer (Rust", "code 7"]);
}
