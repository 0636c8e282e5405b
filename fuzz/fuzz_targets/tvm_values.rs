//! Values of TVM FFI's ABI: read as arguments, copied and taken over as results, and passed to
//! exported operators. What comes of them is what a naive model says, errors are raised with kind and
//! message, and every reference is given back.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use keyfold_core::{DType, Device, ErrorKind, Scalar};
use keyfold_dispatch::schema::{Schema, Type};
use keyfold_dispatch::{DispatchKey, Dispatcher, Kernel, Value as _};
use keyfold_ffi::abi::{self, Any, FunctionCell, Header};
use keyfold_ffi::export::Host;
use keyfold_ffi::from_args::{BorrowTracker, from_arg};
use keyfold_ffi::from_result::{copy, from_result};
use keyfold_ffi::{ForeignError, Object, Runtime, export, runtime};
use keyfold_fuzz::tvm::{Expected, World, check, check_value};
use keyfold_tensor::dlpack::Described;
use keyfold_tensor::{Tensor, Value};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

/// Types of an argument; one operator for each takes a tensor and such a value, and gives it back.
const TYPES: [&str; 12] = [
    "Tensor",
    "Tensor?",
    "Tensor[]",
    "Tensor?[]",
    "Scalar",
    "int",
    "float",
    "bool",
    "str",
    "Device",
    "ScalarType",
    "int[]",
];

struct Operators {
    runtime: &'static Runtime,
    live: unsafe extern "C" fn() -> i64,
    types: Vec<Type>,
    exported: Vec<Object>,
    tensor: Tensor,
    /// Objects that stay: the functions, and the constructor of arrays.
    kept: i64,
}

fn operators() -> &'static Operators {
    static OPERATORS: OnceLock<Operators> = OnceLock::new();
    OPERATORS.get_or_init(|| {
        let path = env!("KEYFOLD_FUZZ_STANDIN");
        // SAFETY: the stand-in keeps to the ABI; the symbol has that type.
        let (runtime, live) = unsafe {
            let runtime = runtime::load(Path::new(path)).unwrap();
            let library = libloading::Library::new(path).unwrap();
            (runtime, *library.get(b"standin_live").unwrap())
        };
        let live: unsafe extern "C" fn() -> i64 = live;
        let dispatcher: Dispatcher<Value> = Dispatcher::new();
        let mut types = Vec::new();
        let mut exported = Vec::new();
        for (index, ty) in TYPES.iter().enumerate() {
            let text = format!("f{index}(Tensor t, {ty} x) -> {ty}");
            types.push(Schema::parse(&text).unwrap().arguments[1].ty.clone());
            let operator = dispatcher.define(&text).unwrap().operator().unwrap();
            let kernel = Kernel::boxed(|_, args| Value::from_ref(args[1]));
            dispatcher.register(&format!("f{index}"), DispatchKey::CPU, kernel).unwrap();
            exported.push(export(operator, runtime, Host::NONE).unwrap());
        }
        // The operators live as long as the process.
        Box::leak(Box::new(dispatcher));
        let tensor = Tensor::full(&[2], Scalar::Int(1), DType::F32, Device::CPU).unwrap();
        // SAFETY: as above. The constructor of arrays is found when the first one is made.
        let kept = unsafe { live() } + 1;
        let operators = Operators { runtime, live, types, exported, tensor, kept };
        let list = keyfold_tensor::ValueRef::Refs(&[]);
        drop(keyfold_ffi::to_any::to_any(list, runtime).unwrap());
        operators
    })
}

fuzz_target!(|data: &[u8]| {
    let operators = operators();
    let mut world = World::default();
    // Too short an input is none.
    let _ = run(operators, &mut world, &mut Unstructured::new(data));
    world.end();
    // SAFETY: a function of the stand-in.
    assert_eq!(unsafe { (operators.live)() }, operators.kept, "objects of the library are left");
});

fn run(operators: &Operators, world: &mut World, input: &mut Unstructured<'_>) -> Result<()> {
    let chosen = input.choose_index(TYPES.len())?;
    let count = input.int_in_range(0..=3_u8)?;
    let (any, expected) = world.value(input, 0)?;
    let ty = &operators.types[chosen];
    reads(operators, &any, &expected, ty);
    takes(operators, world, &any, &expected);
    if !world.is_unreadable() {
        calls(operators, chosen, count.into(), any);
    }
    Ok(())
}

/// As an argument, with the library and without it.
fn reads(operators: &Operators, any: &Any, expected: &Expected, ty: &Type) {
    for runtime in [Some(operators.runtime), None] {
        let mut tracker = BorrowTracker::default();
        // SAFETY: the world's values lead where their objects say.
        match (unsafe { from_arg(any, ty, runtime, &mut tracker) }, expected) {
            (Ok(value), expected) => {
                assert!(runtime.is_some() || !any.is_object());
                check(value.value(), expected, ty);
            }
            (Err(error), expected) => {
                assert!(!error.message().is_empty());
                let named = matches!(ty, Type::ScalarType | Type::Device)
                    && matches!(expected, Expected::Text(_));
                let without = runtime.is_none() && any.is_object();
                assert!(named || without || matches!(expected, Expected::Refused), "{error}");
            }
        }
        assert_eq!(tracker.outstanding(), 0);
    }
}

/// As a result: copied, and taken over with its reference.
fn takes(operators: &Operators, world: &World, any: &Any, expected: &Expected) {
    let misplaced = any.is_object() && !any.payload.is_multiple_of(8);
    // Borrowed things are no results.
    if misplaced || matches!(any.type_index, abi::DL_TENSOR | abi::RAW_STR) {
        // SAFETY: without the library, nothing is touched.
        let error = unsafe { from_result(*any, None) }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Return, "{error}");
        return;
    }
    world.retain(any);
    // SAFETY: as above; a reference was made for `take`.
    let results =
        unsafe { [copy(any, operators.runtime), from_result(*any, Some(operators.runtime))] };
    for result in results {
        match (result, expected) {
            (Ok(value), expected) => check_value(&value, expected),
            (Err(error), Expected::Refused) => assert!(!error.message().is_empty()),
            (Err(error), expected) => panic!("{error} where {expected:?} was expected"),
        }
    }
}

/// To an exported operator, after a tensor that is right.
fn calls(operators: &Operators, chosen: usize, count: usize, any: Any) {
    let mut described = Described::new(&operators.tensor).unwrap();
    let tensor = described.dl_tensor();
    let args = [Any::pointer(abi::DL_TENSOR, &tensor), any, any];
    let mut result = Any::NONE;
    let function = operators.exported[chosen].handle();
    // SAFETY: a function object has this cell behind its header; the values are good for the call.
    let code = unsafe {
        let cell = abi::cell::<FunctionCell>(function.cast::<Header>()).read();
        (cell.safe_call.unwrap())(function, args.as_ptr(), count as i32, &raw mut result)
    };
    match code {
        0 => {
            assert_eq!(count, 2);
            // SAFETY: a result of the ABI, ours.
            drop(unsafe { from_result(result, Some(operators.runtime)) }.unwrap());
        }
        -1 => {
            let raised = ForeignError::take(operators.runtime).unwrap();
            assert!(!raised.kind.is_empty() && !raised.message.is_empty());
            assert!(!raised.message.contains("panicked"), "{}", raised.message);
        }
        code => panic!("code {code}"),
    }
}
