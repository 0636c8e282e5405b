//! Calls whose results were inferred before.
//!
//! A kernel at Deferred keeps what was decided on the calls that it recorded, each under all that
//! inference may read of its arguments. Entries are compared in full and dropped with the kernel.

use std::sync::{Arc, Mutex};

use keyfold_backend::ReduceParams;
use keyfold_core::{Complex, Device};
use keyfold_dispatch::{CallContext, DispatchKeySet};
use keyfold_tensor::{Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::cost::Cost;
use super::decide::{Evaluated, Form};
use super::operation::Structure;

/// The inferred results and effects of a call that can wait; the same for all calls of its form.
#[derive(Debug)]
pub(super) struct CallForm {
    /// All that inference read of the call; empty if it can't be compared.
    pub(super) key: Box<[u64]>,
    /// The results, contiguous and in new memory; `None` for one that the call doesn't want. Empty if
    /// it writes in place.
    pub(super) forms: Vec<Option<Form>>,
    pub(super) structure: Structure,
    /// The arguments that it writes in place.
    pub(super) written: SmallVec<[usize; 1]>,
    /// The device of the results.
    pub(super) device: Device,
    /// The expression that its one result is made of, if it is.
    pub(super) evaluates: Option<Box<Evaluated>>,
    /// Whether it draws random numbers, and so keeps its place among those that do.
    pub(super) is_random: bool,
    /// The time that it takes, in classes.
    pub(super) cost: Cost,
}

impl CallForm {
    /// Returns the leading dimensions along which it computes each index by itself: [`Form::rows`].
    pub(super) fn rows(&self) -> usize {
        self.forms.iter().flatten().map(|form| form.rows).min().unwrap_or(0)
    }

    /// Returns the reduction that its one result is: [`Form::reduces`].
    pub(super) fn reduces(&self) -> Option<ReduceParams> {
        match &self.forms[..] {
            [Some(form)] => form.reduces,
            _ => None,
        }
    }

    /// Returns whether it is left out if nobody holds a result.
    pub(super) fn is_pure(&self) -> bool {
        !self.is_random && self.written.is_empty()
    }
}

/// The number of entries of a kernel. A hash of the key chooses one.
const ENTRIES: usize = 64;

/// The most numbers of a key that is kept, and the most tensors among the arguments.
const WORDS: usize = 64;
const TENSORS: usize = 8;

/// All that inference may read of a call, as numbers: equal keys mean equal results.
pub(super) struct Key {
    words: [u64; WORDS],
    len: usize,
    hash: u64,
}

/// The forms of a kernel's calls, allocated at the first.
#[derive(Default)]
pub(super) struct KnownForms(Mutex<Vec<Option<Arc<CallForm>>>>);

impl KnownForms {
    /// Returns the form of calls with this key. While another thread looks, none is known.
    pub(super) fn find(&self, key: &Key) -> Option<Arc<CallForm>> {
        let entries = self.0.try_lock().ok()?;
        let form = entries.get(key.entry())?.as_ref()?;
        (*form.key == *key.words()).then(|| Arc::clone(form))
    }

    /// Keeps the form of calls with this key, in place of that which had the entry.
    pub(super) fn keep(&self, key: &Key, form: &Arc<CallForm>) {
        let mut entry = Some(Arc::clone(form));
        if let Ok(mut entries) = self.0.try_lock() {
            entries.resize_with(ENTRIES, || None);
            std::mem::swap(&mut entries[key.entry()], &mut entry);
        }
        // The entry that was there is dropped without the lock.
    }
}

impl CallForm {
    /// Returns whether a call has this form, without making its key.
    pub(super) fn is_of(&self, context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> bool {
        let mut rest = Rest { words: self.key.iter(), is_same: true };
        Call::new(&mut rest).read(context, args) && rest.is_same && rest.words.next().is_none()
    }
}

impl Key {
    #[inline]
    pub(super) fn new() -> Key {
        Key { words: [0; WORDS], len: 0, hash: 0 }
    }

    /// Makes it the key of a call. Returns false if the arguments are too many, or can't be compared.
    #[inline]
    pub(super) fn fill(&mut self, context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> bool {
        Call::new(self).read(context, args) && self.goes_on()
    }

    /// Returns the numbers, of a call that can be compared.
    pub(super) fn words(&self) -> &[u64] {
        &self.words[..self.len]
    }

    fn entry(&self) -> usize {
        // The upper bits of the products depend on all words.
        (self.hash >> 32) as usize % ENTRIES
    }
}

/// A receiver of a call's numbers.
trait Words {
    fn push(&mut self, word: u64);

    /// Returns whether more numbers matter.
    fn goes_on(&self) -> bool;
}

impl Words for Key {
    /// Adds a number, or only counts it if there is no room.
    #[inline(always)]
    fn push(&mut self, word: u64) {
        if let Some(place) = self.words.get_mut(self.len) {
            *place = word;
        }
        self.len += 1;
        // As in rustc-hash.
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    #[inline]
    fn goes_on(&self) -> bool {
        self.len <= WORDS
    }
}

/// Compares with the numbers of a known key.
struct Rest<'k> {
    words: std::slice::Iter<'k, u64>,
    is_same: bool,
}

impl Words for Rest<'_> {
    #[inline(always)]
    fn push(&mut self, word: u64) {
        self.is_same &= self.words.next() == Some(&word);
    }

    #[inline]
    fn goes_on(&self) -> bool {
        self.is_same
    }
}

/// A call whose numbers are read.
struct Call<'w, W> {
    words: &'w mut W,
    /// The addresses of the tensors among the arguments: an expression may read one twice.
    tensors: [usize; TENSORS],
    count: usize,
}

impl<'w, W: Words> Call<'w, W> {
    #[inline]
    fn new(words: &'w mut W) -> Self {
        Call { words, tensors: [0; TENSORS], count: 0 }
    }

    /// Hands on all numbers. Returns false if the arguments can't be compared, or if no more numbers matter.
    #[inline]
    fn read(&mut self, context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> bool {
        self.words.push(std::ptr::from_ref(context.operator()).addr() as u64);
        self.words.push((context.keyset() & DispatchKeySet::BACKENDS).bits());
        args.iter().all(|arg| self.words.goes_on() && self.add(*arg))
    }

    /// Adds an argument: its kind, from which follows how many numbers there are of it. Returns false
    /// for one that can't be compared.
    fn add(&mut self, arg: ValueRef<'_>) -> bool {
        match arg {
            ValueRef::Tensor(tensor) => return self.add_tensor(tensor),
            // A registered class may have rules of its own.
            ValueRef::Foreign(object) => {
                return !object.is_of_registered_class()
                    && object.tensor().is_ok_and(|tensor| self.add_tensor(tensor));
            }
            ValueRef::None => self.words.push(0),
            ValueRef::Bool(flag) => self.words.push(1 | u64::from(flag) << 8),
            ValueRef::Int(number) => self.add_int(number),
            ValueRef::UInt(number) => self.add_number(3, number),
            ValueRef::Float(number) => self.add_number(4, number.to_bits()),
            ValueRef::Complex(Complex { re, im }) => {
                self.add_number(5, re.to_bits());
                self.words.push(im.to_bits());
            }
            ValueRef::DType(dtype) => self.words.push(6 | (dtype as u64) << 8),
            ValueRef::Device(device) => self.words.push(7 | number_of(device) << 8),
            ValueRef::Str(text) => {
                self.add_number(8, text.len() as u64);
                text.bytes().for_each(|byte| self.words.push(u64::from(byte)));
            }
            list => {
                self.words.push(9 | (list.list_len().unwrap_or(0) as u64) << 8);
                return list.items().all(|item| self.words.goes_on() && self.add(item));
            }
        }
        true
    }

    #[inline(always)]
    fn add_number(&mut self, kind: u64, number: u64) {
        self.words.push(kind);
        self.words.push(number);
    }

    /// Adds an integer. Most are small: strides and paddings of a convolution would else be half of its key.
    #[inline(always)]
    fn add_int(&mut self, number: i64) {
        match number << 8 >> 8 == number {
            true => self.words.push(2 | (number as u64) << 8),
            false => self.add_number(11, number as u64),
        }
    }

    fn add_tensor(&mut self, tensor: &Tensor) -> bool {
        let address = std::ptr::from_ref(tensor).addr();
        let known = &self.tensors[..self.count];
        let same = known.iter().position(|known| *known == address).unwrap_or(self.count);
        let Some(place) = self.tensors.get_mut(self.count) else { return false };
        *place = address;
        self.count += 1;
        let (dtype, rank) = (tensor.dtype() as u64, tensor.ndim() as u64);
        let device = number_of(tensor.device());
        self.words.push(10 | dtype << 8 | rank << 16 | (same as u64) << 24 | device << 32);
        tensor.shape().iter().for_each(|size| self.words.push(*size as u64));
        tensor.strides().iter().for_each(|stride| self.words.push(*stride as u64));
        true
    }
}

fn number_of(device: Device) -> u64 {
    u64::from(device.kind().index()) << 8 | u64::from(device.index())
}
