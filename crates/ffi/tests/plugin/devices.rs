//! Devices of plugins: one in C that works (`device.c`), and the same with one mistake each.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_backend::primitives::{Primitive, PrimitiveParams};
use keyfold_backend::{
    Activation, GpuBackend, Group, Launch, LinearFactor, LinearParams, Offer, Operation, Pointwise,
    PointwiseKernel, Reason, ReduceParams, RowParams, backend, backends, prepare,
};
use keyfold_core::{DType, DTypeKind, Device, DeviceType, Error, ErrorKind, Shape};
use keyfold_dispatch::{DispatchKey, DispatchKeySet, Dispatcher};
use keyfold_expr::{Expr, Lowered, Names};
use keyfold_ffi::plugin::{self, Plugin};
use keyfold_tensor::device::{StreamId, memory_of};
use keyfold_tensor::{Tensor, Value};

use crate::c_plugins::{compiled, compiled_as, example, refused, says};

const MATMUL: &Operation = &Operation::new("matmul");
const SUM: &Operation = &Operation::new("sum");
const SOFTMAX: &Operation = &Operation::new("softmax");
const LOG_SOFTMAX: &Operation = &Operation::new("log_softmax");

/// Devices are the process's: one test at a time has them.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device_in_c(case: &str) -> PathBuf {
    compiled("device.c", case)
}

/// A loaded plugin, closed at the end of the test.
struct Loaded {
    plugin: Plugin,
    dispatcher: Dispatcher<Value>,
    _alone: MutexGuard<'static, ()>,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.plugin.close();
    }
}

fn loaded(case: &str) -> Loaded {
    let (alone, dispatcher) = (alone(), Dispatcher::new());
    let plugin = plugin::load(&device_in_c(case), &dispatcher).unwrap();
    Loaded { plugin, dispatcher, _alone: alone }
}

fn board(index: u8) -> Device {
    Device::new("board".parse::<DeviceType>().unwrap(), index)
}

fn on(device: Device, items: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(items, shape).unwrap().to_device(device).unwrap()
}

fn empty(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::empty(shape, dtype, board(1)).unwrap()
}

fn launch<P>(
    offer: Offer<&dyn Launch<P>>,
    params: &P,
    inputs: &[&Tensor],
    out: &Tensor,
) -> Result<(), Error> {
    // SAFETY: nothing else accesses the output.
    unsafe { offer.kernel().unwrap().launch(params, inputs, out) }
}

fn pointwise(primitive: Primitive, inputs: &[&Tensor], out: &Tensor) -> Result<(), Error> {
    let backend = backend(board(0)).unwrap();
    let Some(Pointwise::Primitives(primitives)) = backend.pointwise() else { panic!() };
    let dtypes: Vec<DType> = inputs.iter().map(|input| input.dtype()).collect();
    let offer = primitives.primitive(primitive, &dtypes, out.dtype());
    launch(offer, &PrimitiveParams { primitive, fault: 2 }, inputs, out)
}

#[test]
fn tensors_go_to_the_device_and_back() {
    let loaded = loaded("GOOD");
    let x = on(board(1), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let turned = x.permute(&[1, 0]).unwrap();
    assert_eq!(turned.to_vec::<f32>().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(turned.to_device(board(0)).unwrap().to_vec::<f32>().unwrap()[1], 4.0);
    let ones = Tensor::zeros(&[3], DType::F32, board(0)).unwrap();
    assert_eq!(ones.to_vec::<f32>().unwrap(), [0.0; 3]);
    let error = Tensor::zeros(&[1], DType::F32, board(2)).unwrap_err();
    says(&error, ErrorKind::Device, &["board has 2 devices: board:0, board:1"]);
    assert_eq!(loaded.plugin.device_types(), [board(0).kind()]);
    assert_eq!(loaded.plugin.abi_version(), (1, 2));
    let shown = format!("{:?}", loaded.plugin);
    assert_eq!(shown, "Plugin(board-in-c 2.1: 2 operators, 2 kernels, device board)");
}

#[test]
fn operations_are_identified_by_name() {
    let _loaded = loaded("GOOD");
    let (kind, found) = backends().pop().unwrap();
    assert_eq!((kind, found.name()), (board(0).kind(), "board-in-c 2.1"));
    assert!(found.linalg().is_none() && found.random().is_none());
    let x = on(board(1), &[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let out = empty(&[2, 2], DType::F32);
    pointwise(Primitive::Add, &[&x, &x.permute(&[1, 0]).unwrap()], &out).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [2.0, 5.0, 5.0, 8.0]);
    let sums = empty(&[2], DType::F32);
    let params = ReduceParams { op: SUM, keepdim: 0, dims: 0b10 };
    let offer = |dtype| found.reduce().unwrap().reduce(SUM, dtype, dtype);
    launch(offer(DType::F32), &params, &[&x], &sums).unwrap();
    assert_eq!(sums.to_vec::<f32>().unwrap(), [3.0, 7.0]);
    let Offer::No(Reason(reason)) = offer(DType::I64) else { panic!("it sums int64") };
    assert_eq!(reason, "the board adds and multiplies float32");
    let mask = Tensor::from_slice(&[true, false, true], &[3]).unwrap();
    let mask = mask.to_device(board(1)).unwrap();
    let positions = found.index().unwrap().positions().kernel().unwrap();
    let positions = positions.positions(&mask).unwrap();
    assert_eq!(positions.len(), 1);
    assert_eq!(positions[0].to_vec::<i64>().unwrap(), [0, 2]);
    let checked = empty(&[3], DType::Bool);
    let error = pointwise(Primitive::Check, &[&mask], &checked).unwrap_err();
    says(&error, ErrorKind::Index, &["out of range", "device board", "execute of check"]);
}

#[test]
fn parameters_of_the_groups_of_1_2_are_fields() {
    let _loaded = loaded("GOOD");
    let found = backend(board(0)).unwrap();
    let groups = found.groups();
    assert!(groups.has(Group::Linear) && !groups.has(Group::Norm));
    let linear = groups.linear.unwrap();
    let x = on(board(1), &[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let addend = on(board(1), &[10.0, 20.0, 30.0, 40.0], &[2, 2]);
    let out = empty(&[2, 2], DType::F32);
    let factor = |re: f64| LinearFactor { re, ..LinearFactor::ONE };
    let plain = LinearParams {
        op: MATMUL,
        has_addend: true,
        activation: Activation::None,
        alpha: factor(0.5),
        beta: factor(2.0),
    };
    let dtypes = [DType::F32; 3];
    let kernel = |inputs: usize| linear.kernel(MATMUL, &dtypes[..inputs], &dtypes[..1]);
    let run = |params: LinearParams, inputs: &[&Tensor]| {
        let kernel = kernel(inputs.len()).kernel().unwrap();
        // SAFETY: nothing else accesses the output.
        unsafe { kernel.execute(&params, inputs, &[&out]) }
    };
    run(plain, &[&x, &x, &addend]).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [23.5, 45.0, 67.5, 91.0]);
    run(LinearParams { has_addend: false, ..plain }, &[&x, &x]).unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [3.5, 5.0, 7.5, 11.0]);
    let error = run(LinearParams { activation: Activation::Relu, ..plain }, &[&x, &x, &addend]);
    says(&error.unwrap_err(), ErrorKind::NotSupported, &["no activations", "claims this"]);
    let offer = linear.kernel(MATMUL, &dtypes[..2], &dtypes[..2]);
    let Offer::No(Reason(reason)) = offer else { panic!("its products are two tensors") };
    assert_eq!(reason, "the board's products are one float32 tensor");
}

#[test]
fn the_devices_kernels_get_its_handles() {
    let loaded = loaded("GOOD");
    let x = on(board(1), &[1.0, 2.0, 3.0], &[3]);
    let parts = (x.buffer().clone(), Shape::new(&[2]).unwrap(), x.strides().clone());
    let view = Tensor::from_parts(parts.0, parts.1, parts.2, 1).unwrap();
    let result = loaded.dispatcher.call("board::block", &[(&view).into()]).unwrap();
    assert!(matches!(result, Value::Int(12_004)), "{result:?}");
}

#[test]
fn a_device_without_events_has_the_hosts() {
    let _loaded = loaded("GOOD");
    let memory = memory_of(board(0)).unwrap();
    assert!(!memory.is_asynchronous() && !memory.pins_uploads());
    let start = memory.record(board(0), StreamId::DEFAULT).unwrap();
    let end = memory.record(board(1), StreamId::DEFAULT).unwrap();
    memory.wait(board(1), StreamId::DEFAULT, &start).unwrap();
    assert!(memory.is_done(&start).unwrap() && memory.elapsed(&start, &end).unwrap() >= 0);
    let x = on(board(0), &[1.0; 4], &[4]);
    let known = memory.statistics(board(0)).unwrap();
    assert_eq!((known.in_use, known.peak, known.allocations), (16, 16, 1));
    drop(x);
    assert_eq!(memory.statistics(board(0)).unwrap().in_use, 0);
    // It keeps no free memory, so it is within every limit.
    memory.set_limit(board(0), Some(5)).unwrap();
    assert_eq!(memory.statistics(board(0)).unwrap().limit, 5);
}

#[test]
fn closing_takes_the_device_back_and_its_tensors_stay() {
    let loaded = loaded("GOOD");
    // SAFETY: a library of the test's own.
    let library = unsafe { libloading::Library::new(loaded.plugin.path()) }.unwrap();
    // SAFETY: its counters are ints, which no thread writes now.
    let count = |name: &[u8]| unsafe { **library.get::<*const i32>(name).unwrap() };
    let x = on(board(1), &[1.0, 2.0], &[2]);
    assert_eq!(count(b"handles\0"), 1);
    assert!(loaded.plugin.close() && !loaded.plugin.is_open() && !loaded.plugin.close());
    assert!(backend(board(1)).is_none());
    let error = Tensor::zeros(&[1], DType::F32, board(1)).unwrap_err();
    says(&error, ErrorKind::Device, &["the backend of board was removed"]);
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!((count(b"handles\0"), count(b"dropped\0")), (1, 0));
    drop(x);
    assert_eq!((count(b"handles\0"), count(b"dropped\0")), (0, 1));
    // The place is free again, and an earlier device's tensors aren't the new one's.
    let again = plugin::load(loaded.plugin.path(), &Dispatcher::new()).unwrap();
    assert!(backend(board(1)).is_some() && again.close());
}

#[test]
fn a_device_is_registered_with_everything_else_or_not_at_all() {
    let _alone = alone();
    let parts = ["board::block", "already has a kernel at BOARD"];
    says(&refused(&device_in_c("KERNEL_TWICE")), ErrorKind::Library, &parts);
    assert!(backends().iter().all(|(_, backend)| !backend.name().contains("board")));
    let parts = ["board has backend 'board-in-c 2.1' already"];
    says(&refused(&device_in_c("TWICE")), ErrorKind::Registration, &parts);
    assert!(backend(board(0)).is_none() && memory_of(board(0)).is_err());
}

#[test]
fn a_refused_plugin_takes_no_name_of_a_device() {
    let _alone = alone();
    let path =
        compiled_as("device.c", "KERNEL_TWICE", &["-DNAME=\"refused\"", "-DKEY=\"REFUSED\""]);
    says(
        &refused(&path),
        ErrorKind::Library,
        &["board::block already has a kernel at REFUSED", "block_bytes"],
    );
    let error = "refused".parse::<DeviceType>().unwrap_err();
    says(&error, ErrorKind::Device, &["unknown device type"]);
    // A spec that is too short was read as far as its data, which is dropped.
    let path = device_in_c("SHORT_SPEC");
    // SAFETY: a library of the test's own.
    let library = unsafe { libloading::Library::new(&path) }.unwrap();
    refused(&path);
    // SAFETY: its counter is an int, which no thread writes now.
    assert_eq!(unsafe { **library.get::<*const i32>(b"dropped\0").unwrap() }, 1);
}

#[test]
fn a_spec_with_a_mistake_is_refused_with_what_would_be_right() {
    let _alone = alone();
    for (case, parts) in [
        ("NULL_SPEC", &["spec is null"][..]),
        ("SHORT_SPEC", &["bytes and must have at least"]),
        ("NULL_NAME", &["name is at fault: it is null"]),
        ("NOT_UTF8", &["name is at fault: it isn't UTF-8"]),
        ("CPU_NAME", &["\"cpu\"", "choose another name"]),
        ("BAD_NAME", &["\"a board\"", "identifier"]),
        ("NO_DEVICES", &["0 devices; right are 1 to 256"]),
        ("NO_STREAMS", &["0 streams; right is 1 or more"]),
        ("FLAGS", &["flags 0x40000000"]),
        ("GROUPS", &["groups 0x1000000000000000"]),
        ("NO_FILL", &["the slots release, fill are null; every device needs them"]),
        ("NO_EXECUTE", &["the slots execute are null; devices with groups"]),
        (
            "NO_EVENTS",
            &["record, event_release, wait, is_done, elapsed are null; devices that are"],
        ),
        ("HALF_EVENTS", &["event_release, wait, is_done, elapsed are null"]),
        ("NO_LAUNCH", &["the slots launch are null; devices that compile expressions need them"]),
        ("NO_POINTWISE", &["lacks the group pointwise"]),
        ("FEATURE", &["features", "0x10000000000", "has: devices"]),
        ("RANGE", &["keyfold_plugin_requirements are at fault: 8 bytes", "24 bytes"]),
        ("TOO_NEW", &["version 1.5 of the plugin ABI", "has 1.2", "newer keyfold"]),
    ] {
        let error = refused(&device_in_c(case));
        says(&error, ErrorKind::Library, parts);
        says(&error, ErrorKind::Library, &["libdevice_"]);
    }
    assert!(backends().iter().all(|(_, backend)| !backend.name().contains("board")));
}

#[test]
fn a_spec_of_a_later_version_is_read_as_far_as_this_one_goes() {
    let loaded = loaded("LONG_SPEC");
    assert_eq!(loaded.plugin.abi_version(), (1, 2));
    assert_eq!(on(board(0), &[5.0], &[1]).to_vec::<f32>().unwrap(), [5.0]);
}

#[test]
fn failures_of_slots_name_plugin_and_slot() {
    let of = "device board of the plugin board-in-c 2.1";
    {
        let _loaded = loaded("NULL_HANDLE");
        let error = Tensor::zeros(&[1], DType::F32, board(0)).unwrap_err();
        says(
            &error,
            ErrorKind::KernelFailed,
            &[of, "allocate", "the handle, a pointer that isn't"],
        );
    }
    {
        let _loaded = loaded("OUT_OF_MEMORY");
        let _first = Tensor::zeros(&[1], DType::F32, board(0)).unwrap();
        let error = Tensor::zeros(&[5], DType::F32, board(0)).unwrap_err();
        says(&error, ErrorKind::Memory, &["the board is full", of, "allocate of 20 bytes"]);
    }
    {
        let _loaded = loaded("LOST");
        let x = on(board(0), &[1.0], &[1]);
        let gone = Tensor::from_slice(&[1.0_f32], &[1]).unwrap().to_device(board(0));
        says(&gone.unwrap_err(), ErrorKind::Device, &["the cable was pulled", of, "upload of 4"]);
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0]);
    }
    {
        let _loaded = loaded("LATE");
        let error = on(board(0), &[1.0], &[1]).to_vec::<f32>().unwrap_err().at("aten::to");
        says(&error, ErrorKind::KernelFailed, &[of, "download of 4 bytes"]);
        assert!(error.message().starts_with("aten::exp: the board overheated"), "{error}");
    }
}

#[test]
fn a_claim_that_doesnt_hold_is_an_error_that_names_the_claim() {
    let _loaded = loaded("LIES");
    let found = backend(board(1)).unwrap();
    let x = on(board(1), &[1.0, 2.0], &[2]);
    let offer = found.rows().unwrap().rows(SOFTMAX, DType::F32, DType::F32);
    let params = RowParams { op: SOFTMAX, axis: 0 };
    let error = launch(offer, &params, &[&x], &empty(&[2], DType::F32)).unwrap_err();
    let parts = ["no such unit", "execute of softmax", "its slot support claims this operation"];
    says(&error, ErrorKind::NotSupported, &parts);
}

#[test]
fn a_slot_that_may_be_null_is_named_where_it_is_needed() {
    let _loaded = loaded("NO_COUNT");
    let mask = Tensor::from_slice(&[true], &[1]).unwrap().to_device(board(1)).unwrap();
    let found = backend(board(1)).unwrap();
    let error = found.index().unwrap().positions().kernel().unwrap().positions(&mask).unwrap_err();
    let parts = ["device board of the plugin board-in-c 2.1", "count_true", "left that slot null"];
    says(&error, ErrorKind::NotSupported, &parts);
}

#[test]
fn a_wrong_count_writes_nowhere() {
    let _loaded = loaded("COUNTS_TOO_MUCH");
    let mask = Tensor::from_slice(&[true], &[1]).unwrap().to_device(board(1)).unwrap();
    let found = backend(board(1)).unwrap();
    let error = found.index().unwrap().positions().kernel().unwrap().positions(&mask).unwrap_err();
    says(&error, ErrorKind::KernelFailed, &["count_true", "more elements than the mask's 1"]);
}

#[test]
fn tensors_of_another_memory_are_refused() {
    let loaded = loaded("GOOD");
    let x = on(board(1), &[1.0], &[1]);
    loaded.plugin.close();
    let again = plugin::load(&device_in_c("GOOD"), &loaded.dispatcher).unwrap();
    let error = pointwise(Primitive::Add, &[&x, &x], &empty(&[1], DType::F32)).unwrap_err();
    // The kernels of the plugin that is there now don't get the other's handle.
    let handle = loaded.dispatcher.call("board::block", &[(&x).into()]);
    again.close();
    says(&error, ErrorKind::Device, &["board", "can't reach", "board:1"]);
    let parts = ["board::block() argument 'x'", "of a backend of board:1 that was removed"];
    says(&handle.unwrap_err(), ErrorKind::Device, &parts);
}

#[test]
fn kernels_of_a_device_get_no_other_devices_tensors() {
    let loaded = loaded("GOOD");
    let probe = plugin::load(&example("probe_device"), &Dispatcher::new()).unwrap();
    let other = on(Device::new(probe.device_types()[0], 0), &[1.0], &[1]);
    let x = on(board(0), &[1.0], &[1]);
    let key = DispatchKeySet::EMPTY.insert(DispatchKey::from_device_type(board(0).kind()));
    let args = [(&x).into(), (&other).into()];
    let error = loaded.dispatcher.redispatch("board::blocks", key, &args).unwrap_err();
    drop(other);
    probe.close();
    says(&error, ErrorKind::Device, &["'y'", "it is on probe:0", "handles of board only"]);
}

#[test]
fn panics_of_a_backend_are_errors_that_name_plugin_and_slot() {
    let (_alone, dispatcher) = (alone(), Dispatcher::new());
    let plugin = plugin::load(&example("probe_device"), &dispatcher).unwrap();
    let device = Device::new(plugin.device_types()[0], 0);
    let of = "device probe of the plugin keyfold-ffi";
    let error = Tensor::zeros(&[13], DType::U8, device).unwrap_err();
    says(&error, ErrorKind::KernelPanic, &[of, "allocate of 13 bytes panicked: unlucky"]);
    let x = on(device, &[1.0], &[1]);
    let found = backend(device).unwrap();
    let offer = |op| found.rows().unwrap().rows(op, DType::F32, DType::F32);
    let params = RowParams { op: LOG_SOFTMAX, axis: 0 };
    let out = Tensor::zeros(&[1], DType::F32, device).unwrap();
    // A question that panics is no refusal: the operation fails, and never runs elsewhere.
    let error = launch(offer(LOG_SOFTMAX), &params, &[&x], &out).unwrap_err();
    says(&error, ErrorKind::KernelPanic, &[of, "support of log_softmax panicked: asked"]);
    let params = RowParams { op: SOFTMAX, axis: 0 };
    let error = launch(offer(SOFTMAX), &params, &[&x], &out).unwrap_err();
    says(&error, ErrorKind::KernelPanic, &[of, "execute of softmax panicked: called"]);
    // The buffers' drop panics, too, which nothing can report.
    drop((x, out));
    assert!(plugin.close());
}

/// A loaded device that compiles expressions, and the backend.
fn compiling(case: &str) -> (Loaded, Arc<dyn GpuBackend>) {
    let loaded = loaded(case);
    let backend = backend(board(1)).unwrap();
    (loaded, backend)
}

fn prepared(
    backend: &Arc<dyn GpuBackend>,
    text: &str,
    (inputs, params): (&[(&str, DType)], &[&str]),
) -> Offer<Arc<dyn PointwiseKernel>> {
    let names = inputs.iter().fold(Names::new(), |names, (name, _)| names.input(*name));
    let names = params.iter().fold(names, |names, name| names.param(*name));
    let expr = Expr::parse_with(text, &names).unwrap();
    let kinds = vec![DTypeKind::Float; params.len()];
    let dtypes: Vec<DType> = inputs.iter().map(|(_, dtype)| *dtype).collect();
    prepare(backend, &Lowered::new(&expr, &dtypes, &kinds, None).unwrap())
}

#[test]
fn a_device_may_compile_whole_expressions() {
    let (loaded, backend) = compiling("COMPILES");
    // SAFETY: a library of the test's own.
    let library = unsafe { libloading::Library::new(loaded.plugin.path()) }.unwrap();
    let types = (&[("x", DType::F32), ("y", DType::F32)][..], &["beta"][..]);
    let kernel = prepared(&backend, "x * y + beta", types).kernel().unwrap();
    let x = on(board(1), &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    let y = on(board(1), &[1.0, 10.0, 100.0], &[3]);
    let out = empty(&[2, 3], DType::F32);
    let all = x.copy().unwrap();
    // SAFETY: nothing else accesses the output.
    unsafe { kernel.run(&[&x, &all], &[0.5.into()], &out) }.unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [1.5, 4.5, 9.5, 16.5, 25.5, 36.5]);
    // Broadcast, by strides, and into the memory of the first input.
    // SAFETY: as above.
    unsafe { kernel.run(&[&x, &y], &[0.5.into()], &x) }.unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.5, 20.5, 300.5, 4.5, 50.5, 600.5]);
    let Offer::No(reason) = prepared(&backend, "exp(x)", (&[("x", DType::F64)], &[])) else {
        panic!()
    };
    assert_eq!(reason.to_string(), "the board has float32 and integers");

    let power = prepared(&backend, "i ** j", (&[("i", DType::I64), ("j", DType::I64)], &[]))
        .kernel()
        .unwrap();
    let whole = |items: &[i64]| {
        Tensor::from_slice(items, &[items.len()]).unwrap().to_device(board(1)).unwrap()
    };
    let (i, powers) = (whole(&[2, 3]), empty(&[2], DType::I64));
    // SAFETY: as above.
    unsafe { power.run(&[&i, &whole(&[3, 4])], &[], &powers) }.unwrap();
    assert_eq!(powers.to_vec::<i64>().unwrap(), [8, 81]);
    // SAFETY: as above.
    let error = unsafe { power.run(&[&i, &whole(&[3, -1])], &[], &powers) }.unwrap_err();
    says(&error, ErrorKind::Value, &["negative power"]);
    drop((kernel, power, x, y, out, all, i, powers));
    // Programs and buffers are released.
    // SAFETY: its counter is an int, which no thread writes now.
    assert_eq!(unsafe { **library.get::<*const i32>(b"handles\0").unwrap() }, 0);
}

#[test]
fn what_no_strided_kernel_takes_is_copied() {
    let (_loaded, backend) = compiling("COMPILES");
    let numbers: Vec<f32> = (0..512).map(|number| number as f32).collect();
    // More dimensions than a strided kernel has, which don't join.
    let x = on(board(1), &numbers, &[2; 9]).permute(&[8, 7, 6, 5, 4, 3, 2, 1, 0]).unwrap();
    let double = prepared(&backend, "x + x", (&[("x", DType::F32)], &[])).kernel().unwrap();
    let out = empty(&[2; 9], DType::F32);
    // SAFETY: nothing else accesses the output.
    unsafe { double.run(&[&x], &[], &out) }.unwrap();
    let expected: Vec<f32> = x.to_vec::<f32>().unwrap().iter().map(|x| x + x).collect();
    assert_eq!(out.to_vec::<f32>().unwrap(), expected);
    // More inputs than have room for strides, and an output that isn't contiguous.
    let names = ["a", "b", "c", "d", "f", "g", "h", "k", "m", "n"];
    let text = names.join(" + ");
    let inputs = names.map(|name| (name, DType::F32));
    let sum = prepared(&backend, &text, (&inputs, &[])).kernel().unwrap();
    let x = on(board(1), &[1.0, 2.0, 3.0, 4.0], &[2, 2]);
    let (turned, out) = (x.permute(&[1, 0]).unwrap(), empty(&[2, 2], DType::F32));
    // SAFETY: as above.
    unsafe { sum.run(&[&turned; 10], &[], &out.permute(&[1, 0]).unwrap()) }.unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap(), [10.0, 20.0, 30.0, 40.0]);
}

#[test]
fn a_text_that_doesnt_compile_is_shown_with_its_line() {
    let (_loaded, backend) = compiling("DOESNT_COMPILE");
    let kernel = prepared(&backend, "x + 1", (&[("x", DType::F32)], &[])).kernel().unwrap();
    let (x, out) = (on(board(1), &[1.0], &[1]), empty(&[1], DType::F32));
    // SAFETY: nothing else accesses the output.
    let error = unsafe { kernel.run(&[&x], &[], &out) }.unwrap_err();
    let parts =
        ["kernel.cc:", "error: ", "no such unit", "device board", "compile of an expression"];
    says(&error, ErrorKind::KernelFailed, &parts);
}

#[test]
fn opencl_gets_buffers_with_their_offsets_beside_them() {
    let (_loaded, backend) = compiling("COMPILES_OPENCL");
    let kernel = prepared(&backend, "x + 0.5", (&[("x", DType::F32)], &[])).kernel().unwrap();
    let (x, out) = (on(board(1), &[1.0, 2.0, 3.0], &[3]), empty(&[4], DType::F32));
    let tail = |tensor: &Tensor, from| {
        let strides = tensor.strides().clone();
        Tensor::from_parts(tensor.buffer().clone(), Shape::new(&[2]).unwrap(), strides, from)
    };
    // SAFETY: nothing else accesses the output.
    unsafe { kernel.run(&[&tail(&x, 1).unwrap()], &[], &tail(&out, 2).unwrap()) }.unwrap();
    assert_eq!(out.to_vec::<f32>().unwrap()[2..], [2.5, 3.5]);
}
