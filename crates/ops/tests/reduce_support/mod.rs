//! Helpers of the tests of reductions.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use keyfold_core::{Complex, DType};
use keyfold_kit::isa::{Level, level, set_level};
use keyfold_kit::pool::{num_threads, set_num_threads};
use keyfold_tensor::{Tensor, ValueRef};

use crate::support::call;

/// Locks the process's number of threads and instruction level, and restores them on drop.
pub(crate) struct Alone {
    _lock: MutexGuard<'static, ()>,
    threads: usize,
    level: Level,
}

pub(crate) fn alone() -> Alone {
    static LOCK: Mutex<()> = Mutex::new(());
    let lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    Alone { _lock: lock, threads: num_threads().unwrap(), level: level() }
}

impl Drop for Alone {
    fn drop(&mut self) {
        set_num_threads(self.threads).unwrap();
        set_level(self.level);
    }
}

/// Returns the instruction levels of this processor.
pub(crate) fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_available())
}

/// Makes a tensor of these numbers; complex numbers get other imaginary parts.
pub(crate) fn tensor_of(items: &[f64], shape: &[usize], dtype: DType) -> Tensor {
    let x = match dtype.is_complex() {
        true => {
            let items = items.iter().map(|x| Complex::new(*x, 1.0 - x)).collect();
            Tensor::from_vec::<Complex<f64>>(items, shape).unwrap()
        }
        false => Tensor::from_vec(items.to_vec(), shape).unwrap(),
    };
    call("to", &[ValueRef::Tensor(&x), ValueRef::DType(dtype)]).unwrap()
}

/// Returns the real parts of a contiguous tensor's elements.
pub(crate) fn values_of(x: &Tensor) -> Vec<f64> {
    let wide = [ValueRef::Tensor(x), ValueRef::DType(DType::C128)];
    let items = call("to", &wide).unwrap().to_vec::<Complex<f64>>().unwrap();
    items.iter().map(|c| c.re).collect()
}

/// Returns the bits of a tensor's elements.
pub(crate) fn bits_of(x: &Tensor) -> Vec<(u64, u64)> {
    let wide = [ValueRef::Tensor(x), ValueRef::DType(DType::C128)];
    let items = call("to", &wide).unwrap().to_vec::<Complex<f64>>().unwrap();
    items.iter().map(|c| (c.re.to_bits(), c.im.to_bits())).collect()
}
