//! Programs that were flushed before, recognised call by call.
//!
//! A flush whose calls an earlier one had, too, keeps them as a [`Sequence`], with the
//! [recording](super::recording) that computes them. The calls of a later program are compared with those of
//! the sequences that begin alike, before anything is made for them: as long as they agree, a [`Matched`]
//! sequence stands for them, and a flush at its end replays the recording. Where a program goes another way, or
//! something else looks at what waits, the calls become operations that wait, as if no sequence were known.
//!
//! Sequences have only pure calls of keyfold's own kernels on memory of the host: what fails is computed once
//! more, as operations, and a thread that looks at what waits during a replay makes it operations, too.

mod follow;
mod learn;
mod replay;
mod table;

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};

use keyfold_core::{Shape, Strides};
use keyfold_dispatch::{DispatchKeySet, Dispatcher, LocalContext, Operator};
use keyfold_tensor::{PendingBuffer, Tensor, Value};
use smallvec::SmallVec;

use super::fusion::Moves;
use super::host::Site;
use super::known::CallForm;
use super::recording::Recording;
use super::session::Statistics;
pub(super) use follow::{Followed, Recorded};
pub(super) use learn::Observed;

/// The calls of an earlier flush.
pub(super) struct Sequence {
    calls: Vec<Call>,
    /// For each result of all calls, the call and the place among its results.
    results: Vec<(usize, usize)>,
    /// For each result, whether somebody could read it after the flush.
    held: Vec<bool>,
    /// Computes the results that are held.
    recording: Recording,
    /// The dispatchers of the operators, with the state of their registrations.
    dispatchers: Vec<(Dispatcher<Value>, u64)>,
    /// Whether it is planned for several threads.
    moves: Moves,
    /// The flush's part in the counters.
    statistics: Statistics,
    /// How often programs have left it since it was replayed last.
    mismatches: AtomicU32,
}

/// A call of a sequence.
struct Call {
    operator: Arc<Operator<Value>>,
    /// The keys below the pipeline.
    keyset: DispatchKeySet,
    context: Arc<LocalContext>,
    form: Arc<CallForm>,
    args: Vec<Argument>,
    /// The tensors of the arguments, in order.
    tensors: SmallVec<[Source; 3]>,
}

/// Where a tensor of an argument is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The input of this number. Inputs are numbered in the order of their first use.
    Input(usize),
    /// The memory of a result, from this element on.
    Result { number: usize, offset: usize },
}

/// An argument of a call.
enum Argument {
    /// The tensor of a source: of a result, all of it or a view.
    Tensor(Source, Option<Box<View>>),
    List(Vec<Argument>),
    /// Anything that isn't a tensor.
    Value(Box<Value>),
}

/// A view of a result.
struct View {
    shape: Shape,
    strides: Strides,
    is_writable: bool,
}

/// A tensor that no call of the sequence has made.
struct Input {
    tensor: Tensor,
    /// The identity of its memory.
    memory: usize,
    version: u32,
}

/// The calls that a program had in common with a sequence so far.
pub(super) struct Matched {
    sequence: Arc<Sequence>,
    /// Sequences that agreed with fewer calls. They aren't dropped under a lock: a kernel's destructor may run
    /// any code.
    replaced: Vec<Arc<Sequence>>,
    /// The index of the first call, among those that the session has recorded.
    first: usize,
    inputs: Vec<Input>,
    /// For each result so far, its memory, as long as somebody holds it.
    results: Vec<Option<Weak<PendingBuffer>>>,
    /// For each call so far, the line that made it.
    sites: Vec<Option<Site>>,
    /// The bytes of copies of other libraries' arrays, for each call that some were made for.
    copied: Vec<(usize, u64)>,
    /// The bytes that wait with the calls.
    bytes: u64,
}

impl Matched {
    /// Returns the number of calls so far.
    pub(super) fn len(&self) -> usize {
        self.sites.len()
    }

    /// Returns the tensors that no call has made.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &Tensor> {
        self.inputs.iter().map(|input| &input.tensor)
    }

    /// Goes on with another sequence, which agrees so far.
    fn change(&mut self, other: Arc<Sequence>) {
        self.replaced.push(std::mem::replace(&mut self.sequence, other));
    }
}
