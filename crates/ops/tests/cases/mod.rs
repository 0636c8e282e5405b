//! A call of each row, for the tests of all rows.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::any::Any;
use std::sync::Arc;

use keyfold::Tensor;
use keyfold::ops::{Row, aten, install, register, rows};
use keyfold_backend::{self as backend, GpuBackend, Group, Groups, Pointwise};
use keyfold_conformance::sample::example;
use keyfold_core::{DType, Device, DeviceType, ErrorKind};
use keyfold_cpu::HostBackend;
use keyfold_dispatch::{Dispatcher, Value as _};
use keyfold_tensor::device::Memory;
use keyfold_tensor::{Value, ValueRef};

/// Makes a small tensor of a dtype: zero, one, greater numbers, and negative ones if the dtype is signed.
pub(crate) fn tensor(shape: &[usize], dtype: DType) -> Tensor {
    let count = shape.iter().product::<usize>() as i64;
    let items = Tensor::from_vec((0..count).map(|i| (i * 5) % 7 - 1).collect(), shape).unwrap();
    aten::to(&items, dtype).unwrap()
}

/// Returns the arguments of a call of an operator with tensors of a dtype, from the table of the
/// conformance kit.
pub(crate) fn arguments(row: &Row, dtype: DType) -> Vec<Value> {
    let args = example(row, dtype, Device::CPU).expect("an example of each row");
    args.iter().map(|arg| arg.to_value().unwrap()).collect()
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

/// The host's backend without one group.
#[derive(Debug)]
struct Without(Group);

impl Without {
    fn offer<G>(&self, group: Group, offered: Option<G>) -> Option<G> {
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
        self.offer(Group::Pointwise, HostBackend.pointwise())
    }

    fn reduce(&self) -> Option<&dyn backend::Reduce> {
        self.offer(Group::Reduce, HostBackend.reduce())
    }

    fn rows(&self) -> Option<&dyn backend::Rows> {
        self.offer(Group::Rows, HostBackend.rows())
    }

    fn scan(&self) -> Option<&dyn backend::Scan> {
        self.offer(Group::Scan, HostBackend.scan())
    }

    fn linalg(&self) -> Option<&dyn backend::Linalg> {
        self.offer(Group::Linalg, HostBackend.linalg())
    }

    fn index(&self) -> Option<&dyn backend::Index> {
        self.offer(Group::Index, HostBackend.index())
    }

    fn random(&self) -> Option<&dyn backend::Random> {
        self.offer(Group::Random, HostBackend.random())
    }

    fn groups(&self) -> Groups<'_> {
        HostBackend.groups().filtered(|group| group != self.0)
    }
}

/// Returns the groups that each row needs from a backend.
pub(crate) fn needed_groups() -> Vec<Vec<&'static str>> {
    let mut needed = vec![Vec::new(); rows().len()];
    for group in Group::ALL {
        let dispatcher = Dispatcher::<Value>::new();
        register(&dispatcher).unwrap();
        let backend: Arc<dyn GpuBackend> = Arc::new(Without(group));
        install(&dispatcher, DeviceType::CPU, &backend).unwrap().keep();
        for (row, needed) in rows().iter().zip(&mut needed) {
            let dtype =
                dtypes(row).pop().unwrap_or_else(|| panic!("{} takes no dtype", row.schema()));
            if called(&dispatcher, row, dtype) == Err(ErrorKind::NotSupported) {
                needed.push(group.name());
            }
        }
    }
    needed
}
