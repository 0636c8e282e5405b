//! Tensors that are dropped while a flush is planned: by a backend that the plan asks, as other threads may at
//! any time.

use std::any::Any;
use std::sync::{Arc, Mutex};

use keyfold::ops::aten;
use keyfold_backend::{self as backend, GpuBackend, Groups, Pointwise};
use keyfold_core::DeviceType;
use keyfold_cpu::HostBackend;
use keyfold_layers::pipeline::{Ending, Options, Session};
use keyfold_tensor::Tensor;
use keyfold_tensor::device::Memory;

/// A result that somebody holds until a plan asks the backend for its pointwise group.
static DROPPED: Mutex<Option<Tensor>> = Mutex::new(None);

/// The host's backend, which drops a tensor.
#[derive(Debug)]
struct Dropping;

impl GpuBackend for Dropping {
    fn name(&self) -> &str {
        "dropping"
    }

    fn memory(&self) -> Arc<dyn Memory> {
        HostBackend.memory()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        drop(DROPPED.lock().unwrap().take());
        HostBackend.pointwise()
    }

    fn reduce(&self) -> Option<&dyn backend::Reduce> {
        HostBackend.reduce()
    }

    fn rows(&self) -> Option<&dyn backend::Rows> {
        HostBackend.rows()
    }

    fn scan(&self) -> Option<&dyn backend::Scan> {
        HostBackend.scan()
    }

    fn linalg(&self) -> Option<&dyn backend::Linalg> {
        HostBackend.linalg()
    }

    fn index(&self) -> Option<&dyn backend::Index> {
        HostBackend.index()
    }

    fn random(&self) -> Option<&dyn backend::Random> {
        HostBackend.random()
    }

    fn groups(&self) -> Groups<'_> {
        HostBackend.groups()
    }
}

/// Returns what a chain of operations without a pipeline returns.
fn chain(x: &Tensor) -> [Tensor; 2] {
    let second = aten::neg(&aten::exp(x).unwrap()).unwrap();
    let third = aten::mul(&second, x).unwrap();
    [second, third]
}

/// Returns the last result of the chain in a pipeline, and the second one, unless it is dropped meanwhile.
fn run(x: &Tensor, is_dropped: bool) -> (Option<Tensor>, Tensor) {
    let session = Session::new(Options::default()).unwrap();
    session.open();
    let guard = session.enter();
    let [second, third] = chain(x);
    let second = match is_dropped {
        true => {
            *DROPPED.lock().unwrap() = Some(second);
            None
        }
        false => Some(second),
    };
    let ended = session.flush();
    guard.close().unwrap();
    session.close(Ending::Run).unwrap();
    ended.unwrap();
    (second, third)
}

#[test]
fn a_plan_stores_what_was_held_when_the_flush_began() {
    // Before the host's own.
    backend::register(DeviceType::CPU, Arc::new(Dropping)).unwrap();
    keyfold::init();
    let x = Tensor::from_slice(&[1.0_f64, 2.0, 3.0], &[3]).unwrap();
    let numbers = |tensor: &Tensor| tensor.to_vec::<f64>().unwrap();
    let eager = chain(&x);
    // Later flushes of calls of these forms find the plan of the first ones.
    for round in 0..6 {
        let is_dropped = round < 2;
        let (second, third) = run(&x, is_dropped);
        assert!(DROPPED.lock().unwrap().is_none());
        assert_eq!(numbers(&third), numbers(&eager[1]), "round {round}");
        if let Some(second) = second {
            assert_eq!(numbers(&second), numbers(&eager[0]), "round {round}");
        }
    }
}
