//! Where to run and how to share the work, from a body's coordinates.

use std::any::TypeId;

use keyfold_core::Device;

use crate::axes::{self, Axis, AxisValue, Coords, Scheduling, Uniform};
use crate::pool::Schedule;

/// What `for_each` wants to know of its coordinates.
pub trait Coordinates {
    /// Where to run.
    fn device(&self) -> Device;

    /// How the indices are shared out among threads.
    fn schedule(&self) -> Schedule;
}

/// The coordinates of a table's body: the CPU unless they say another device, adaptively unless they
/// say otherwise. All this is known at compile time.
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

/// The label of the value of axis `A`, if there is one; the latest counts.
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
