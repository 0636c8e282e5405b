//! Foreign functions as kernels, without TVM FFI's library: arguments, results and errors. The
//! functions are written here in Rust, those that throw in C++.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use keyfold_core::{Device, ErrorKind, Result};
use keyfold_dispatch::{DefineOptions, DispatchKey, Dispatcher, Override, Provenance};
use keyfold_ffi::{Any, NativeFunction, SafeCall, abi};
use keyfold_tensor::dlpack::DLTensor;
use keyfold_tensor::{Tensor, Value, ValueRef};

fn provenance(name: &str) -> Provenance {
    let file = "tests/kernels.rs".to_owned();
    let name = name.to_owned();
    Provenance { language: "C", name, module: None, file, line: 0, named: true, instance: None }
}

fn native(function: SafeCall, name: &str) -> NativeFunction {
    // SAFETY: the functions of this file keep to the ABI, or break it as their tests intend.
    unsafe { NativeFunction::new(function, provenance(name)) }
}

/// Calls an operator of that schema with the function as CPU kernel.
fn call(schema: &str, function: SafeCall, args: &[ValueRef<'_>]) -> Result<Value> {
    let dispatcher = Dispatcher::new();
    let schema = keyfold_dispatch::schema::Schema::parse(schema)?;
    let name = schema.name.to_string();
    let defined = dispatcher.define_with(schema, DefineOptions::default())?;
    let kernel = native(function, "kernel").kernel();
    let handle = dispatcher.implement(&name, DispatchKey::CPU, kernel, Override::Error)?;
    let result = dispatcher.operator(&name)?.call(args);
    drop((handle, defined));
    result
}

fn vector() -> Tensor {
    Tensor::from_slice(&[1.0_f64, 2.0, 3.0], &[3]).unwrap()
}

unsafe fn arguments<'a>(args: *const Any, count: i32) -> &'a [Any] {
    // SAFETY: the ABI's contract, in every function below.
    unsafe { std::slice::from_raw_parts(args, count as usize) }
}

unsafe extern "C" fn sum(_: *mut c_void, args: *const Any, n: i32, result: *mut Any) -> c_int {
    // SAFETY: called with one float64 vector.
    unsafe {
        let dl = &*arguments(args, n)[0].address::<DLTensor>();
        assert_eq!((dl.ndim, dl.dtype.bits, dl.device.device_type), (1, 64, 1));
        let data = dl.data.cast::<f64>();
        let (size, stride) = (*dl.shape, *dl.strides);
        result.write(Any::float((0..size).map(|i| *data.offset((i * stride) as isize)).sum()));
    }
    0
}

#[test]
fn a_tensor_is_passed_where_it_lies() {
    let x = vector();
    let total = call("f(Tensor x) -> float", sum, &[ValueRef::Tensor(&x)]).unwrap();
    assert!(matches!(total, Value::Float(6.0)), "{total:?}");
    let back = x.flip(&[0]).unwrap().slice(0, Some(0), Some(2), 1).unwrap();
    let total = call("f(Tensor x) -> float", sum, &[ValueRef::Tensor(&back)]).unwrap();
    assert!(matches!(total, Value::Float(5.0)), "{total:?}");
}

unsafe extern "C" fn kinds(_: *mut c_void, args: *const Any, n: i32, result: *mut Any) -> c_int {
    // SAFETY: every value is as long as its type index says.
    unsafe {
        let args = arguments(args, n);
        assert!(args.iter().all(|any| any.small_len == 0));
        let code = args.iter().fold(0, |code, any| code * 10 + i64::from(any.type_index));
        for any in args.iter().filter(|any| any.type_index == abi::RAW_STR) {
            assert!(CStr::from_ptr(any.address::<c_char>()).to_str().unwrap().contains("text"));
        }
        for any in args.iter().filter(|any| any.type_index == abi::DL_TENSOR) {
            assert_eq!(*(*any.address::<DLTensor>()).shape, 3);
        }
        result.write(Any::int(code));
    }
    0
}

#[test]
fn more_arguments_than_lie_in_the_frame() {
    let x = vector();
    let tensors: Vec<String> = (0..9).map(|i| format!("Tensor x{i}, str s{i}")).collect();
    let schema = format!("f({}, bool b, float k) -> int", tensors.join(", "));
    let mut args = Vec::new();
    let texts: Vec<String> = (0..9).map(|i| format!("{}text {i}", "a".repeat(i * 10))).collect();
    for text in &texts {
        args.extend([ValueRef::Tensor(&x), ValueRef::Str(text)]);
    }
    args.extend([ValueRef::Bool(true), ValueRef::Int(2)]);
    // Twenty digits don't fit in an i64, so only the last eight arguments count.
    let code = call(&schema, kinds_of_last, &args).unwrap();
    assert!(matches!(code, Value::Int(78_787_823)), "{code:?}");
}

unsafe extern "C" fn kinds_of_last(
    handle: *mut c_void,
    args: *const Any,
    n: i32,
    result: *mut Any,
) -> c_int {
    // SAFETY: as for `kinds`, which sees the values of the end.
    unsafe { kinds(handle, args.add(n as usize - 8), 8, result) }
}

unsafe extern "C" fn hands_back(
    _: *mut c_void,
    args: *const Any,
    n: i32,
    result: *mut Any,
) -> c_int {
    // SAFETY: the last value isn't an object.
    unsafe { result.write(arguments(args, n)[n as usize - 1]) };
    0
}

#[test]
fn values_go_there_and_back() {
    let x = vector();
    let cases = [
        ("int", ValueRef::Int(-5)),
        ("float", ValueRef::Float(2.5)),
        ("bool", ValueRef::Bool(true)),
        ("Scalar", ValueRef::Int(7)),
        ("ScalarType", ValueRef::DType(keyfold_core::DType::BF16)),
        ("Device", ValueRef::Device(Device::CPU)),
    ];
    for (ty, value) in cases {
        let schema = format!("f(Tensor x, {ty} v) -> {ty}");
        let result = call(&schema, hands_back, &[ValueRef::Tensor(&x), value]).unwrap();
        let result = keyfold_dispatch::Value::as_ref(&result);
        assert_eq!(format!("{result:?}"), format!("{value:?}"));
    }
}

unsafe extern "C" fn gives(_: *mut c_void, args: *const Any, n: i32, result: *mut Any) -> c_int {
    // SAFETY: the last value is the type index to return.
    unsafe { result.write(Any::new(arguments(args, n)[1].payload as i32, 0xdead_beef)) };
    0
}

#[test]
fn results_that_are_no_values_are_refused_untouched() {
    let x = vector();
    for index in [4, 7, 8, 9, 10, 12, 13, 64, 65, 70, 71, 128, 4711, -1] {
        let args = [ValueRef::Tensor(&x), ValueRef::Int(index)];
        let error = call("f(Tensor x, int i) -> int", gives, &args).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Return, "{error}");
        assert!(error.message().contains(&format!("type index {index}")), "{error}");
    }
    let small = call(
        "f(Tensor x, int i) -> int",
        gives,
        &[ValueRef::Tensor(&x), ValueRef::Int(i64::from(abi::SMALL_STR))],
    );
    assert!(small.unwrap_err().message().contains("str ''"));
}

unsafe extern "C" fn fails(_: *mut c_void, args: *const Any, n: i32, _: *mut Any) -> c_int {
    // SAFETY: the last value is the code.
    unsafe { arguments(args, n)[1].payload as c_int }
}

#[test]
fn a_code_without_an_error_is_told_as_it_is() {
    let x = vector();
    for code in [-1, 1, 7, i64::from(i32::MIN)] {
        let args = [ValueRef::Tensor(&x), ValueRef::Int(code)];
        let error = call("f(Tensor x, int code) -> int", fails, &args).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::KernelFailed);
        assert!(error.message().ends_with(&format!("failed with code {code}")), "{error}");
    }
}

/// Compiles the C++ kernels into a shared library.
fn throwing() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("libthrowing-{}.so", std::process::id()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/throwing.cc");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let mut words = compiler.split_whitespace();
    let done = Command::new(words.next().unwrap())
        .args(words)
        .args(["-std=c++17", "-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    library
}

#[test]
fn a_cxx_exception_is_an_error_with_its_text() {
    let path = throwing();
    // SAFETY: compiled here; it has no initialisers.
    let library = Arc::new(unsafe { libloading::Library::new(&path) }.unwrap());
    std::fs::remove_file(&path).unwrap();
    let x = vector();
    for (symbol, text) in
        [("throws_error", "no luck"), ("throws_number", "an exception that is no std::exception")]
    {
        // SAFETY: a function of the library with this type.
        let function = unsafe { *library.get::<SafeCall>(symbol).unwrap() };
        for _ in 0..3 {
            let result = call("f(Tensor x) -> int", function, &[ValueRef::Tensor(&x)]);
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::KernelFailed);
            assert!(error.message().contains("C++ exception"), "{error}");
            assert!(error.message().ends_with(text), "{error}");
        }
    }
}

#[test]
fn what_cant_be_passed_is_refused_by_name_at_registration() {
    let cases = [
        ("f(Tensor x, int[] sizes) -> int", "'sizes' is int[]", "import tvm_ffi"),
        ("f(Tensor x, Tensor?[]? xs) -> int", "'xs' is Tensor?[]?", "objects=True"),
        ("f(Tensor x, Generator? g) -> int", "'g' is Generator?", "can't pass"),
        ("f(Tensor x, complex z) -> int", "'z' is complex", "can't pass"),
        ("f(Tensor x) -> str", "str", "handed over"),
        ("f(Tensor x) -> (Tensor, int)", "not both", "f"),
    ];
    for (schema, first, second) in cases {
        let error = call(schema, sum, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Registration, "{schema}");
        assert!(error.message().contains(first) && error.message().contains(second), "{error}");
    }
}

#[test]
fn the_owner_lives_as_long_as_the_kernel() {
    let owner = Arc::new(5_u8);
    let kernel = native(sum, "sum").with_owner(Arc::clone(&owner) as _).kernel();
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(kernel);
    assert_eq!(Arc::strong_count(&owner), 1);
}

unsafe extern "C" fn tells_handle(
    handle: *mut c_void,
    _: *const Any,
    _: i32,
    result: *mut Any,
) -> c_int {
    // SAFETY: `result` is writable.
    unsafe { result.write(Any::int(handle.addr() as i64)) };
    0
}

#[test]
fn the_handle_is_the_functions_first_argument() {
    let dispatcher = Dispatcher::new();
    let schema = keyfold_dispatch::schema::Schema::parse("f(Tensor x) -> int").unwrap();
    let _defined = dispatcher.define_with(schema, DefineOptions::default()).unwrap();
    let handle = std::ptr::without_provenance_mut(0x1230);
    // SAFETY: the function only returns its handle.
    let kernel = unsafe { native(tells_handle, "tells").with_handle(handle) }.kernel();
    let _kernel = dispatcher.implement("f", DispatchKey::CPU, kernel, Override::Error).unwrap();
    let result = dispatcher.operator("f").unwrap().call(&[ValueRef::Tensor(&vector())]).unwrap();
    assert!(matches!(result, Value::Int(0x1230)), "{result:?}");
}
