//! Every operator of namespace `aten`, one by one.

use keyfold::dispatch::schema::{Argument, Type};
use keyfold::{DType, Device, ErrorKind, Result, Tensor, Value, dispatcher};
use keyfold_tensor::device::random::{self, State};

use crate::{Toy, borrowed, data, moved, positions, seen};

const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::I64, DType::Bool, DType::F16, DType::U8, DType::C64];

fn sizes(sizes: &[i64]) -> Value {
    Value::List(sizes.iter().map(|size| Value::Int(*size)).collect())
}

/// Returns a value for an argument of an operator, where the tensors are 3 by 3 and of that dtype.
fn value(op: &str, argument: &Argument, dtype: DType) -> Value {
    let tensor = |shape: &[usize], seed| Value::Tensor(data(shape, dtype, seed));
    match (op, argument.name.as_str()) {
        ("aten::where", "condition") | ("aten::masked_select", "mask") => {
            Value::Tensor(data(&[3, 3], DType::Bool, 1))
        }
        ("aten::select_scatter", "src") => tensor(&[3], 2),
        ("aten::slice_scatter", "src") => tensor(&[2, 3], 2),
        ("aten::index_select" | "aten::index_add", "index") => Value::Tensor(positions(&[3])),
        ("aten::gather" | "aten::scatter_add", "index") => Value::Tensor(positions(&[3, 3])),
        (_, "indices") => Value::List(vec![Value::None, Value::Tensor(positions(&[3]))]),
        ("aten::permute", "dims") => sizes(&[1, 0]),
        ("aten::arange", "start") => Value::Int(-2),
        ("aten::arange", "end") => Value::Float(3.0),
        (_, "tensors") => Value::List(vec![tensor(&[3, 3], 0), tensor(&[3, 3], 1)]),
        (_, "size") => sizes(&[2, 3, 3]),
        (_, "shape") => sizes(&[-1]),
        (_, "step") => Value::Int(2),
        (_, "start" | "index" | "dim" | "dim1") if matches!(argument.ty, Type::Int) => {
            Value::Int(1)
        }
        (_, "p") => Value::Float(0.25),
        (_, "device") => Value::Device(Device::CPU),
        (_, "dtype") if op == "aten::to" => Value::DType(DType::F32),
        (_, name) => match argument.ty.without_optional() {
            Type::Tensor => tensor(&[3, 3], name.len()),
            Type::Scalar if dtype.is_floating() => Value::Float(1.5),
            Type::Scalar => Value::Int(2),
            Type::Int if name == "dim0" => Value::Int(0),
            Type::Int if argument.default.is_none() || name == "dim" => Value::Int(1),
            Type::Int | Type::ScalarType => Value::None,
            Type::Bool => Value::Bool(true),
            Type::List(..) => sizes(&[1]),
            other => panic!("say what argument '{name}' of {op} is, of type {other:?}"),
        },
    }
}

/// Seeds all devices alike.
fn same_random_state(device: Device) {
    for device in [Device::CPU, device] {
        random::set_state(State { device, seed: 5, offset: 3 }).unwrap();
    }
}

/// Calls an operator on the CPU and on a device and returns the results and the written arguments
/// of each.
fn both(name: &str, args: &[Value], device: Device) -> [Result<Vec<Tensor>>; 2] {
    let _alone = crate::random_numbers();
    same_random_state(device);
    [Device::CPU, device].map(|device| {
        // Written arguments are copies.
        let args: Vec<Value> = args.iter().map(|arg| moved(arg, device)).collect::<Result<_>>()?;
        let args: Vec<Value> = args
            .into_iter()
            .map(|arg| match arg {
                Value::Tensor(tensor) => tensor.copy().map(Value::Tensor),
                other => Ok(other),
            })
            .collect::<Result<_>>()?;
        let result = dispatcher().call(name, &borrowed(&args))?.into_tensor()?;
        assert_eq!(result.device(), device, "the result of {name}");
        let written = args.into_iter().filter_map(|arg| match arg {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        });
        Ok(std::iter::once(result).chain(written).collect())
    })
}

/// The content of a tensor: dtype, shape and bytes.
type Content = (DType, Vec<usize>, Vec<u8>);

/// Returns a call's outcome: the content of its results and of what it wrote, or the kind of its
/// error.
fn outcome(result: &Result<Vec<Tensor>>) -> Result<Vec<Content>, ErrorKind> {
    let tensors = result.as_ref().map_err(|error| error.kind())?;
    // An asynchronous operation may report its error only when its result is read.
    tensors.iter().map(seen).collect::<Result<_>>().map_err(|error| error.kind())
}

#[test]
fn every_operator_gives_on_the_device_what_it_gives_on_the_cpu() {
    let toy = Toy::new();
    let device = toy.device(1);
    let (mut compared, mut refused) = (0, 0);
    for operator in dispatcher().operators() {
        let schema = operator.schema();
        if schema.name.namespace != "aten" {
            continue;
        }
        let full = schema.name.to_string();
        let op = format!("aten::{}", schema.name.name);
        for dtype in DTYPES {
            let arguments = schema.arguments.iter();
            let mut args: Vec<Value> =
                arguments.map(|argument| value(&op, argument, dtype)).collect();
            if schema.arguments.last().is_some_and(|last| last.name == "out") {
                // The overload without `out` makes the result's shape.
                let fresh = full.replace(".out", "").replace("_out", "");
                args.pop();
                let Ok(made) = dispatcher().call(&fresh, &borrowed(&args)) else { continue };
                let made = made.into_tensor().unwrap();
                let out = Tensor::zeros(made.shape(), made.dtype(), Device::CPU).unwrap();
                args.push(Value::Tensor(out));
            }
            let [cpu, there] = both(&full, &args, device);
            if full == "aten::empty" {
                assert_eq!(there.unwrap()[0].shape(), cpu.unwrap()[0].shape());
                continue;
            }
            let expected = outcome(&cpu);
            let found = outcome(&there);
            assert_eq!(found, expected, "{full} of {dtype}: {:?} and {:?}", there.err(), cpu.err());
            match expected {
                Ok(_) => compared += 1,
                Err(_) => refused += 1,
            }
            toy.memory.drain().unwrap();
        }
    }
    let counts = format!("{compared} calls were compared, {refused} refused by both");
    assert!(compared >= 1393 && refused <= compared / 10, "{counts}");
    assert_eq!(toy.memory.live(), 0);
}
