//! A call of each row, for the tests of all rows.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::any::Any;
use std::sync::Arc;

use keyfold::Tensor;
use keyfold::ops::pointwise::ELEMENTWISE;
use keyfold::ops::{Row, aten, install, register, rows};
use keyfold_backend::{self as backend, GpuBackend, Pointwise};
use keyfold_core::{DType, Device, DeviceType, ErrorKind};
use keyfold_cpu::HostBackend;
use keyfold_dispatch::schema::{Argument, Type};
use keyfold_dispatch::{Dispatcher, Value as _};
use keyfold_tensor::device::Memory;
use keyfold_tensor::{Value, ValueRef};

/// Makes a small tensor of a dtype: zero, one, greater numbers, and negative ones if the dtype is signed.
pub(crate) fn tensor(shape: &[usize], dtype: DType) -> Tensor {
    let count = shape.iter().product::<usize>() as i64;
    let items = Tensor::from_vec((0..count).map(|i| (i * 5) % 7 - 1).collect(), shape).unwrap();
    aten::to(&items, dtype).unwrap()
}

fn positions(items: &[i64], shape: &[usize]) -> Value {
    Value::Tensor(Tensor::from_slice(items, shape).unwrap())
}

/// Returns whether an operator is a sum or a mean, whose result may have another dtype than its argument.
fn sums(operator: &str) -> bool {
    matches!(operator, "aten::sum" | "aten::mean")
}

/// Returns the arguments of a call of an operator with tensors of a dtype.
pub(crate) fn arguments(row: &Row, dtype: DType) -> Vec<Value> {
    let (schema, name) = (row.schema(), row.schema().name.qualified());
    schema.arguments.iter().map(|each| argument(&name, each, dtype)).collect()
}

/// Returns an argument of a call; tensors are 2 by 3 unless the operator needs another shape.
fn argument(operator: &str, argument: &Argument, dtype: DType) -> Value {
    let (name, of) = (&*argument.name, |shape: &[usize]| Value::Tensor(tensor(shape, dtype)));
    match (operator, name) {
        (ELEMENTWISE, "expression") => return Value::Str("a, b; c: a * b + c".into()),
        (_, "condition" | "mask") => return Value::Tensor(tensor(&[2, 3], DType::Bool)),
        ("aten::gather" | "aten::scatter_add", "index") => {
            return positions(&[1, 0, 1, 0], &[2, 2]);
        }
        (_, "index") if argument.ty == Type::Tensor => return positions(&[1, 0], &[2]),
        (_, "indices") => return Value::List(vec![positions(&[1, 0, 1], &[3])]),
        ("aten::index_put" | "aten::index_put_", "values") => return of(&[3, 3]),
        ("aten::scatter_add", "src") => return of(&[2, 2]),
        ("aten::select_scatter", "src") => return of(&[3]),
        // Integers have no negative powers.
        ("aten::pow", "exponent") | ("aten::rpow", "self") if argument.ty == Type::Tensor => {
            return Value::Tensor(aten::to(&tensor(&[2, 3], DType::Bool), dtype).unwrap());
        }
        ("aten::squeeze", "self") => return of(&[1, 3]),
        ("aten::reshape", "shape") => return Value::List(vec![Value::Int(3), Value::Int(2)]),
        ("aten::permute", "dims") => return Value::List(vec![Value::Int(1), Value::Int(0)]),
        ("aten::matmul", "other") => return of(&[3, 2]),
        (_, "fill_value" | "value") => return Value::Bool(true),
        (_, "numbers") => return Value::List(vec![Value::Int(2)]),
        (_, "size") => return Value::List(vec![Value::Int(2), Value::Int(3)]),
        (_, "start") => return Value::Int(0),
        (_, "end") if operator == "aten::arange" => return Value::Int(2),
        (_, "dtype") if !sums(operator) => return Value::DType(dtype),
        (_, "device") if argument.default.is_none() => return Value::Device(Device::CPU),
        _ => {}
    }
    match argument.ty.without_optional() {
        Type::Tensor => of(&[2, 3]),
        Type::List(item, _) if **item == Type::Tensor => Value::List(vec![of(&[2, 3]); 2]),
        Type::Scalar => Value::Int(1),
        Type::Bool => Value::Bool(false),
        Type::Int if argument.default.is_none() => Value::Int(0),
        Type::List(item, _) if **item == Type::Int && argument.default.is_none() => {
            Value::List(vec![Value::Int(1)])
        }
        _ => match &argument.default {
            Some(default) => Value::from_literal(default, &argument.ty).unwrap(),
            None => Value::None,
        },
    }
}

/// Returns the dtypes that an operator supports.
pub(crate) fn dtypes(row: &Row) -> Vec<DType> {
    let takes = |dtype: &DType| called(keyfold::dispatcher(), row, *dtype).is_ok();
    DType::ALL.into_iter().filter(takes).collect()
}

fn called(dispatcher: &Dispatcher<Value>, row: &Row, dtype: DType) -> Result<(), ErrorKind> {
    let args = arguments(row, dtype);
    let args: Vec<ValueRef<'_>> = args.iter().map(Value::as_ref).collect();
    let result = dispatcher.call(&row.schema().name.to_string(), &args);
    result.map(drop).map_err(|error| error.kind())
}

/// The groups of operations of a backend.
pub(crate) const GROUPS: [&str; 6] = ["pointwise", "reduce", "rows", "linalg", "index", "random"];

/// The host's backend without one group.
#[derive(Debug)]
struct Without(&'static str);

impl Without {
    fn offer<G>(&self, group: &str, offered: Option<G>) -> Option<G> {
        offered.filter(|_| self.0 != group)
    }
}

impl GpuBackend for Without {
    fn name(&self) -> &str {
        "without"
    }

    fn memory(&self) -> Arc<dyn Memory> {
        HostBackend.memory()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        self.offer("pointwise", HostBackend.pointwise())
    }

    fn reduce(&self) -> Option<&dyn backend::Reduce> {
        self.offer("reduce", HostBackend.reduce())
    }

    fn rows(&self) -> Option<&dyn backend::Rows> {
        self.offer("rows", HostBackend.rows())
    }

    fn linalg(&self) -> Option<&dyn backend::Linalg> {
        self.offer("linalg", HostBackend.linalg())
    }

    fn index(&self) -> Option<&dyn backend::Index> {
        self.offer("index", HostBackend.index())
    }

    fn random(&self) -> Option<&dyn backend::Random> {
        self.offer("random", HostBackend.random())
    }
}

/// Returns the groups that each row needs from a backend.
pub(crate) fn needed_groups() -> Vec<Vec<&'static str>> {
    let mut needed = vec![Vec::new(); rows().len()];
    for group in GROUPS {
        let dispatcher = Dispatcher::<Value>::new();
        register(&dispatcher).unwrap();
        let backend: Arc<dyn GpuBackend> = Arc::new(Without(group));
        install(&dispatcher, DeviceType::CPU, &backend).unwrap().keep();
        for (row, needed) in rows().iter().zip(&mut needed) {
            let dtype =
                dtypes(row).pop().unwrap_or_else(|| panic!("{} takes no dtype", row.schema()));
            if called(&dispatcher, row, dtype) == Err(ErrorKind::NotSupported) {
                needed.push(group);
            }
        }
    }
    needed
}
