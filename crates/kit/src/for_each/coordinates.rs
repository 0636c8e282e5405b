//! The device and the schedule that a call takes from its coordinates.

use std::any::TypeId;

use keyfold_core::Device;

use crate::axes::{self, Axis, AxisValue, Coords, Scheduling, Uniform};
use crate::pool::Schedule;

/// Coordinates that tell `for_each` the device and the schedule.
pub trait Coordinates {
    /// The device to run on.
    fn device(&self) -> Device;

    /// How the indices are divided among threads.
    fn schedule(&self) -> Schedule;
}

/// The coordinates of a table's body: the CPU and the adaptive schedule, unless they have other values.
/// All of them are known at compile time.
impl<C: Coords> Coordinates for C {
    fn device(&self) -> Device {
        match label::<C, axes::Device>() {
            Some(name) if name == axes::Device::Cuda.label() => Device::cuda(0),
            _ => Device::CPU,
        }
    }

    fn schedule(&self) -> Schedule {
        match label::<C, Scheduling>() {
            Some(name) if name == Uniform::VALUE.label() => Schedule::Uniform,
            _ => Schedule::Adaptive,
        }
    }
}

/// The label of the value of axis `A`, or `None`; the latest value applies.
fn label<C: Coords, A: Axis>() -> Option<&'static str> {
    let mut found = None;
    C::visit(&mut |axis, _, label| {
        if axis == TypeId::of::<A>() && found.is_none() {
            found = Some(label);
        }
    });
    found
}

/// No coordinates: the CPU, adaptively.
impl Coordinates for () {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn schedule(&self) -> Schedule {
        Schedule::Adaptive
    }
}

/// The CPU.
impl Coordinates for Schedule {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn schedule(&self) -> Schedule {
        *self
    }
}

/// That device, adaptively.
impl Coordinates for Device {
    fn device(&self) -> Device {
        *self
    }

    fn schedule(&self) -> Schedule {
        Schedule::Adaptive
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axes::{Adaptive, Contiguous, Cpu, Cuda, F32, Origin};

    #[test]
    fn the_latest_value_of_an_axis_counts_and_none_means_the_cpu_adaptively() {
        let coords = Origin.with(Contiguous).with(F32);
        assert_eq!((coords.device(), coords.schedule()), (Device::CPU, Schedule::Adaptive));
        let coords = coords.with(Cuda).with(Uniform);
        assert_eq!((coords.device(), coords.schedule()), (Device::cuda(0), Schedule::Uniform));
        let coords = coords.with(Cpu).with(Adaptive);
        assert_eq!((coords.device(), coords.schedule()), (Device::CPU, Schedule::Adaptive));
        let coords = coords.without::<axes::Device>().with(Uniform);
        assert_eq!((coords.device(), coords.schedule()), (Device::CPU, Schedule::Uniform));
    }
}
