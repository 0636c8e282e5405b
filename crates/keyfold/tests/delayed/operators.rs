//! Every operator, one by one.

use keyfold::ops::{Row, rows};
use keyfold::{DType, Device, ErrorKind, Result, Tensor, Value, dispatcher};
use keyfold_conformance::sample::example;
use keyfold_tensor::device::random::{self, State};

use crate::{Toy, borrowed, moved, seen};

const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::I64, DType::Bool, DType::F16, DType::U8, DType::C64];

/// Returns the tensors of a result, those of a tuple or a list in their order.
fn tensors(result: Value) -> Vec<Tensor> {
    match result {
        Value::Tensor(tensor) => vec![tensor],
        Value::Tuple(items) | Value::List(items) => items.into_iter().flat_map(tensors).collect(),
        _ => Vec::new(),
    }
}

/// Returns a value with a copy of each tensor in it.
fn copied(value: &Value) -> Result<Value> {
    Ok(match value {
        Value::Tensor(tensor) => Value::Tensor(tensor.copy()?),
        Value::List(items) => Value::List(items.iter().map(copied).collect::<Result<_>>()?),
        other => other.clone(),
    })
}

/// Seeds all devices alike.
fn same_random_state(device: Device) {
    for device in [Device::CPU, device] {
        random::set_state(State { device, seed: 5, offset: 3 }).unwrap();
    }
}

/// Calls an operator on the CPU and on a device and returns the results and the arguments, written
/// ones among them, of each.
fn both(name: &str, args: &[Value], device: Device) -> [Result<Vec<Tensor>>; 2] {
    let _alone = crate::random_numbers();
    same_random_state(device);
    [Device::CPU, device].map(|device| {
        let args = args.iter().map(|arg| copied(&moved(arg, device)?));
        let args: Vec<Value> = args.collect::<Result<_>>()?;
        let results = tensors(dispatcher().call(name, &borrowed(&args))?);
        for result in &results {
            assert_eq!(result.device(), device, "a result of {name}");
        }
        Ok(results.into_iter().chain(args.into_iter().flat_map(tensors)).collect())
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

/// The calls of a row with tensors of a dtype, each with the operator's name: the one that makes its
/// results, and the one that writes into tensors of the caller's.
fn calls(row: &Row, dtype: DType) -> Vec<(String, Vec<Value>)> {
    let Some(args) = example(row, dtype, Device::CPU) else { return Vec::new() };
    let args: Vec<Value> = args.iter().map(|arg| arg.to_value().unwrap()).collect();
    let name = row.schema().name.to_string();
    let mut calls = vec![(name.clone(), args.clone())];
    // Some operators draw random numbers.
    let _alone = crate::random_numbers();
    if let Some(schema) = row.out_schema()
        && let Ok(made) = dispatcher().call(&name, &borrowed(&args))
    {
        let zeros = |made: &Tensor| Tensor::zeros(made.shape(), made.dtype(), Device::CPU).unwrap();
        let out = |made: &Value| match made {
            Value::Tensor(made) => Value::Tensor(zeros(made)),
            // A result that isn't wanted.
            other => other.clone(),
        };
        let outs = match &made {
            Value::Tuple(several) => several.iter().map(out).collect(),
            one => vec![out(one)],
        };
        calls.push((schema.name.to_string(), [args, outs].concat()));
    }
    calls
}

#[test]
fn every_operator_gives_on_the_device_what_it_gives_on_the_cpu() {
    let toy = Toy::new();
    let device = toy.device(1);
    let (mut compared, mut refused) = (0, 0);
    for row in rows() {
        let before = compared;
        for (name, args) in DTYPES.into_iter().flat_map(|dtype| calls(row, dtype)) {
            let [cpu, there] = both(&name, &args, device);
            if name.starts_with("aten::empty") {
                compared += 1;
                continue;
            }
            let (expected, found) = (outcome(&cpu), outcome(&there));
            assert_eq!(found, expected, "{name}: {:?} and {:?}", there.err(), cpu.err());
            match expected {
                Ok(_) => compared += 1,
                Err(_) => refused += 1,
            }
            toy.memory.drain().unwrap();
        }
        assert!(compared > before, "{} was never computed", row.schema().name);
    }
    let counts = format!("{compared} calls were compared, {refused} refused by both");
    assert!(compared >= 1800 && refused <= compared / 2, "{counts}");
    assert_eq!(toy.memory.live(), 0);
}
