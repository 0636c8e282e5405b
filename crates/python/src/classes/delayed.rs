//! `keyfold.testing`'s device that works late.

use std::ops::RangeInclusive;
use std::sync::Arc;

use keyfold::backend::Group;
use keyfold::backend::delayed::{Call, Delayed, DelayedMemory, Mistake};
use keyfold::backend::{Registration, register};
use keyfold::cpu::HostBackend;
use keyfold_core::{DeviceType, Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::marshal::dtype::PyDevice;
use crate::marshal::errors::{IntoPyResult, error};

/// A registered device for tests.
#[pyclass(name = "_DelayedDevice", module = "keyfold._core", frozen)]
pub(crate) struct PyDelayedDevice {
    memory: DelayedMemory,
    registration: Registration,
}

/// The one of these values that a name stands for.
fn named<T: Copy>(what: &str, all: &[T], name: &str, name_of: impl Fn(T) -> String) -> Result<T> {
    all.iter().copied().find(|one| name_of(*one) == name).ok_or_else(|| {
        let known: Vec<String> = all.iter().map(|one| name_of(*one)).collect();
        let message = format!("'{name}' isn't {what}; known are {}", known.join(", "));
        Error::new(ErrorKind::Value, message)
    })
}

/// A whole number in a range.
fn number(given: &Bound<'_, PyAny>, place: &str, range: RangeInclusive<usize>) -> PyResult<usize> {
    match given.extract::<usize>() {
        Ok(number) if range.contains(&number) => Ok(number),
        result => {
            let (from, to) = (range.start(), range.end());
            let kind = match result.is_err() && !given.is_instance_of::<PyInt>() {
                true => ErrorKind::Binding,
                false => ErrorKind::Value,
            };
            let message = format!("{place} is an int from {from} to {to}, not {}", given.repr()?);
            Err(error(given.py(), kind, message))
        }
    }
}

fn call(name: Option<&str>) -> Result<Option<Call>> {
    name.map(|name| named("a call", &Call::ALL, name, |call| call.name().to_owned())).transpose()
}

#[pymethods]
impl PyDelayedDevice {
    #[new]
    fn new(
        py: Python<'_>,
        name: &str,
        devices: &Bound<'_, PyAny>,
        streams: &Bound<'_, PyAny>,
        without: Vec<String>,
    ) -> PyResult<Self> {
        let devices = number(devices, "delayed_device() argument 'devices'", 1..=256)?;
        let streams = number(streams, "delayed_device() argument 'streams'", 1..=256)?;
        let make = || {
            let withheld = without
                .iter()
                .map(|name| named("a group", &Group::ALL, name, |group| group.name().to_owned()));
            let withheld = withheld.collect::<Result<Vec<Group>>>()?;
            keyfold::init();
            let kind = DeviceType::register(name)?;
            let memory = DelayedMemory::new(kind, devices, streams);
            let all = Delayed::over(Arc::new(HostBackend), memory.clone());
            let backend = withheld.into_iter().fold(all, Delayed::without);
            Ok(PyDelayedDevice { memory, registration: register(kind, Arc::new(backend))? })
        };
        make().py(py)
    }

    /// Its devices.
    fn devices(&self) -> Vec<PyDevice> {
        use keyfold_tensor::device::Memory;
        let count = self.memory.device_count();
        (0..=u8::MAX).take(count).map(|index| PyDevice(self.memory.device(index))).collect()
    }

    /// Takes it out of the registry; whether it was there.
    fn remove(&self) -> bool {
        self.registration.remove().is_some()
    }

    /// How many blocks of its memory are in use.
    fn live(&self) -> usize {
        self.memory.live()
    }

    /// How often a call was made.
    fn count(&self, py: Python<'_>, name: &str) -> PyResult<usize> {
        let which = call(Some(name)).py(py)?;
        Ok(which.map_or(0, |which| self.memory.counts().of(which)))
    }

    /// Makes the nth call from now on fail.
    fn fail_at(&self, nth: &Bound<'_, PyAny>, name: Option<&str>) -> PyResult<()> {
        let py = nth.py();
        let nth = number(nth, "fail_at() argument 'nth'", 0..=usize::MAX)?;
        self.memory.fail_at(call(name).py(py)?, nth);
        Ok(())
    }

    /// Has it make a mistake.
    fn plant(&self, py: Python<'_>, mistake: Option<&str>) -> PyResult<()> {
        let known = |mistake: Mistake| mistake.name().to_owned();
        let mistake = match mistake {
            Some(name) => named("a mistake", &Mistake::ALL, name, known).py(py)?,
            None => Mistake::None,
        };
        self.memory.plant(mistake);
        Ok(())
    }
}
