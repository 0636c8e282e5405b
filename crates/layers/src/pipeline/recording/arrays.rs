//! Other libraries' arrays that a function reads while it is recorded.
//!
//! A call reads a copy, as in a pipeline: if the function can't be recorded, its calls run on what was there when they
//! were made. A recording reads the arrays themselves, as they are when it is replayed.

use std::sync::PoisonError;

use keyfold_core::Result;
use keyfold_tensor::{Tensor, Value};
use rustc_hash::FxHashMap;

use super::meets;
use crate::pipeline::copies::is_copy_of;
use crate::pipeline::operation::memory_id;
use crate::pipeline::session::Session;

impl Session {
    /// Notes the array that a call reads a copy of: if the program runs, the call reads what was there when it was made.
    pub(in crate::pipeline) fn note_copy(&self, copy: &Tensor, array: &Tensor) -> Result<()> {
        let array = array.completed()?.unwrap_or_else(|| array.clone());
        self.lock_as_is().program.copies.push((copy.clone(), array));
        Ok(())
    }

    /// Returns whether a recorded call is to write to a tensor's memory, by an input that shares it: what is there
    /// isn't what the program reads.
    pub(in crate::pipeline) fn is_to_write(&self, tensor: &Tensor) -> bool {
        if !self.is_recorder() {
            return false;
        }
        let state = self.lock_as_is();
        let mut written = state.program.placeholders.iter().filter(|one| one.writes() > 0);
        written.any(|one| meets(&one.input, tensor))
    }

    /// Returns whether another library's array was written to since a call read it, which a recording can't do.
    ///
    /// # Errors
    /// Those of copies.
    pub fn has_outdated(&self) -> Result<bool> {
        let copies = self.lock_as_is().program.copies.clone();
        for (copy, array) in &copies {
            if !is_copy_of(copy, array)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Has calls read other libraries' arrays instead of the copies: a recording reads what is there when it is replayed.
    pub(in crate::pipeline) fn read_arrays(&self) {
        let copies = std::mem::take(&mut self.lock_as_is().program.copies);
        let arrays: FxHashMap<usize, &Tensor> =
            copies.iter().map(|(copy, array)| (memory_id(copy), array)).collect();
        if arrays.is_empty() {
            return;
        }
        for operation in self.lock().waiting.iter() {
            let mut args = operation.args.lock().unwrap_or_else(PoisonError::into_inner);
            args.iter_mut().for_each(|arg| read_instead(arg, &arrays));
        }
    }
}

/// Replaces the tensors of an argument that are copies by those that they are of.
fn read_instead(arg: &mut Value, arrays: &FxHashMap<usize, &Tensor>) {
    match arg {
        Value::Tensor(tensor) => {
            if let Some(array) = arrays.get(&memory_id(tensor)) {
                *tensor = Tensor::clone(array);
            }
        }
        Value::List(items) => items.iter_mut().for_each(|item| read_instead(item, arrays)),
        _ => {}
    }
}
