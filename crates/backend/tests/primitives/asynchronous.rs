//! Steps on an asynchronous device, with memory that is hidden from the host and poisoned when
//! free.

use std::sync::{Arc, Mutex, PoisonError};

use keyfold_backend::delayed::{Call, Delayed, DelayedMemory, Mistake};
use keyfold_backend::{GpuBackend, PointwiseKernel, Registration, prepare, register};
use keyfold_core::{DType, Device, DeviceType, ErrorKind, Result, Scalar};
use keyfold_expr::{Expr, Lowered, Names};
use keyfold_tensor::Tensor;

use crate::compare::worst;
use crate::device::Host;
use crate::{by_primitives, kernel, lowered, output, samples};

/// Locked by each test, since there is one device of this type.
static ONE: Mutex<()> = Mutex::new(());

/// The device, while it is registered.
struct RegisteredDevice {
    memory: DelayedMemory,
    backend: Arc<dyn GpuBackend>,
    registration: Registration,
}

impl RegisteredDevice {
    fn new() -> RegisteredDevice {
        let kind = DeviceType::register("late").unwrap();
        let memory = DelayedMemory::new(kind, 1, 2);
        let delayed = Delayed::over(Arc::new(Host::complete()), memory.clone());
        let backend: Arc<dyn GpuBackend> = Arc::new(delayed);
        let registration = register(kind, Arc::clone(&backend)).unwrap();
        RegisteredDevice { memory, backend, registration }
    }

    fn device(&self) -> Device {
        self.memory.device(0)
    }

    /// Returns the result of a kernel, on the device.
    fn run(
        &self,
        kernel: &dyn PointwiseKernel,
        lowered: &Lowered,
        inputs: &[&Tensor],
        params: &[Scalar],
    ) -> Result<Tensor> {
        let there = inputs.iter().map(|input| input.to_device(self.device()));
        let there = there.collect::<Result<Vec<_>>>()?;
        let shape = output(lowered, inputs)?.shape().clone();
        let out = Tensor::empty(&shape, lowered.result(), self.device())?;
        // SAFETY: the output isn't shared.
        unsafe { kernel.run(&there.iter().collect::<Vec<_>>(), params, &out)? };
        // The inputs and all temporaries are dropped before the operations need to run.
        Ok(out)
    }
}

impl Drop for RegisteredDevice {
    fn drop(&mut self) {
        self.registration.remove();
    }
}

/// Expressions with a temporary, constants, numbers of the call, positions, a table.
fn programs() -> Vec<(Lowered, Vec<Tensor>, Vec<Scalar>)> {
    let plain = [
        ("gelu(x)", vec![DType::F32]),
        ("x % y + index(1)", vec![DType::F64, DType::F64]),
        ("tanh(x) * y", vec![DType::C64, DType::F16]),
        ("x ** y", vec![DType::U8, DType::U8]),
        ("x", vec![DType::I16]),
    ];
    let mut all: Vec<_> = plain
        .into_iter()
        .map(|(text, dtypes)| {
            let first = samples::random(dtypes[0], 24, 3).reshape(&[4, 6]).unwrap();
            let mut inputs = vec![first];
            inputs.extend(dtypes[1..].iter().map(|dtype| samples::random(*dtype, 6, 4)));
            (lowered(text, &dtypes).unwrap(), inputs, vec![])
        })
        .collect();
    let names = Names::new().ranked("t", 2).input("i").param("a");
    let expr = Expr::parse_with("t[i, -i] * a", &names).unwrap();
    let kinds = [keyfold_core::DTypeKind::Float];
    let lowered = Lowered::new(&expr, &[DType::F32, DType::I64], &kinds, None).unwrap();
    let table = samples::random(DType::F32, 12, 5).reshape(&[3, 4]).unwrap();
    let places = Tensor::from_slice(&[0_i64, 2, 1, -1, 2], &[5]).unwrap();
    all.push((lowered, vec![table, places], vec![Scalar::Float(1.5)]));
    all
}

#[test]
fn results_equal_the_hosts_and_nothing_is_copied_to_the_host() {
    let _held = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let late = RegisteredDevice::new();
    let mut read = 0;
    for (lowered, inputs, params) in programs() {
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let wanted = by_primitives(&lowered, &inputs, &params).unwrap();
        let kernel = kernel(&late.backend, &lowered);
        for _ in 0..3 {
            let out = late.run(&*kernel, &lowered, &inputs, &params).unwrap();
            assert_eq!(late.memory.counts().of(Call::Download), read);
            read += 1;
            assert_eq!(worst(&out.to_device(Device::CPU).unwrap(), &wanted).0, 0.0);
            drop(out);
        }
        drop(kernel);
        late.memory.drain().unwrap();
        assert_eq!(late.memory.live(), 0);
    }
}

#[test]
fn faults_of_elements_are_reported_at_the_latest_by_the_read() {
    let _held = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let late = RegisteredDevice::new();
    let power = lowered("x ** y", &[DType::I64, DType::I64]).unwrap();
    let x = Tensor::from_slice(&[2_i64, 3], &[2]).unwrap();
    let y = Tensor::from_slice(&[1_i64, -1], &[2]).unwrap();
    let expr = Expr::parse_with("t[i]", &Names::new().ranked("t", 1).input("i")).unwrap();
    let read = Lowered::new(&expr, &[DType::I64, DType::I64], &[], None).unwrap();
    for (lowered, kind) in [(power, ErrorKind::Value), (read, ErrorKind::Index)] {
        // Index 3 is out of range for both.
        let inputs = if kind == ErrorKind::Value { [&x, &y] } else { [&y, &x] };
        let out = late.run(&*kernel(&late.backend, &lowered), &lowered, &inputs, &[]);
        let error = out.and_then(|out| out.to_device(Device::CPU)).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let _ = late.memory.drain();
        assert_eq!(late.memory.live(), 0);
    }
}

#[test]
fn any_call_of_the_device_may_fail() {
    let _held = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let late = RegisteredDevice::new();
    let mut failed = 0;
    for (lowered, inputs, params) in programs() {
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let wanted = by_primitives(&lowered, &inputs, &params).unwrap();
        for call in [None, Some(Call::Run)] {
            for nth in (1..).step_by(3) {
                let kernel = prepare(&late.backend, &lowered).kernel().unwrap();
                late.memory.fail_at(call, nth);
                let run = || {
                    let out = late.run(&*kernel, &lowered, &inputs, &params)?;
                    out.to_device(Device::CPU)
                };
                let first = run();
                late.memory.fail_at(None, 0);
                let _ = late.memory.drain();
                // The same kernel works afterwards.
                assert_eq!(worst(&run().unwrap(), &wanted).0, 0.0);
                drop(kernel);
                late.memory.drain().unwrap();
                assert_eq!(late.memory.live(), 0);
                match first {
                    Ok(out) => {
                        assert_eq!(worst(&out, &wanted).0, 0.0);
                        break;
                    }
                    Err(error) => assert!(error.message().contains("injected"), "{error}"),
                }
                failed += 1;
            }
        }
    }
    assert!(failed > 100, "{failed}");
}

#[test]
fn the_tests_detect_memory_that_is_freed_early() {
    let _held = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let late = RegisteredDevice::new();
    late.memory.plant(Mistake::FreesEarly);
    let wrong = programs().into_iter().filter(|(lowered, inputs, params)| {
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let wanted = by_primitives(lowered, &inputs, params).unwrap();
        let out = late.run(&*kernel(&late.backend, lowered), lowered, &inputs, params);
        let out = out.and_then(|out| out.to_device(Device::CPU));
        out.map_or(true, |out| worst(&out, &wanted).0 > 0.0)
    });
    assert!(wrong.count() > 0);
}
