//! Comparing calls with those of a sequence.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use keyfold_core::Result;
use keyfold_dispatch::{CallContext, DispatchKeySet};
use keyfold_tensor::{PendingBuffer, Tensor, Value, ValueRef};

use super::{Call, Input, Matched, Sequence, Source, table};
use crate::pipeline::copies::{bytes_of, copy_of};
use crate::pipeline::host::Site;
use crate::pipeline::known::CallForm;
use crate::pipeline::operation::{for_each_tensor, is_one, memory_id};
use crate::pipeline::record::Results;
use crate::pipeline::session::{Options, Session, State};

/// A copy of another library's array.
pub(in crate::pipeline) struct Copy {
    /// The array's place among the tensors of the arguments.
    place: usize,
    tensor: Tensor,
    /// Whether it was made now.
    is_new: bool,
}

/// A call that is recorded.
#[derive(Clone, Copy)]
pub(in crate::pipeline) struct Recorded<'c> {
    pub(in crate::pipeline) context: &'c CallContext<'c, Value>,
    pub(in crate::pipeline) args: &'c [ValueRef<'c>],
    /// The arguments whose tensors are read: copies where those of `args` were copied before.
    pub(in crate::pipeline) read: &'c [ValueRef<'c>],
    /// The keys below the pipeline.
    pub(in crate::pipeline) keyset: DispatchKeySet,
    /// The layers that would run around it at Deferred, and don't here.
    pub(in crate::pipeline) layers: DispatchKeySet,
}

impl Recorded<'_> {
    /// Returns whether it is of the form, and in the context, of a call of a sequence.
    fn is(self, call: &Call) -> bool {
        call.form.is_of(self.context, self.args)
            && self.keyset == call.keyset
            && call.context.is_current_without::<Session>(self.layers)
    }
}

/// Why a call isn't the next one of a sequence.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pipeline) enum Mismatch {
    Call,
    /// It may be, where the other library's memory that it reads is copied.
    NeedsCopies,
}

/// A call that was compared: whether what waits with it may be as much as the options allow, so that it has to run.
pub(in crate::pipeline) type Followed = Result<bool, Mismatch>;

impl Session {
    /// Begins to compare calls, if nothing waits and a sequence begins with a call of this form.
    pub(in crate::pipeline) fn begin_sequence(&self, state: &mut State, form: &CallForm) -> bool {
        self.begin(state, || table::beginning_with(form))
    }

    /// Begins to compare calls with those of a sequence, if nothing waits.
    fn begin(&self, state: &mut State, find: impl FnOnce() -> Option<Arc<Sequence>>) -> bool {
        if !state.is_idle() || self.is_recorder() || self.options.check.is_some() {
            return false;
        }
        let Some(sequence) = find() else { return false };
        let first = state.waiting.next();
        state.matched = Some(Matched::new(sequence, first));
        self.matches.store(true, Ordering::Relaxed);
        true
    }

    /// Returns whether the program may be in a sequence.
    #[inline]
    pub(in crate::pipeline) fn may_follow(&self) -> bool {
        self.matches.load(Ordering::Relaxed)
    }

    /// Records a call as the next one of a sequence; `None` if the program isn't in one, or leaves it. `copied` is
    /// the number of bytes of copies that were made of arguments before.
    pub(in crate::pipeline) fn follow_sequence(
        &self,
        call: Recorded<'_>,
        copied: u64,
        site: &mut Option<Site>,
    ) -> Option<Result<Value>> {
        if !self.may_follow() {
            return None;
        }
        let mut value = Ok(Value::None);
        let followed = self.follow_call(call, (&[], copied), site, &mut value);
        self.follow_further(followed, call, copied, site, value)
    }

    /// Goes on with a call that [`Session::follow_call`] has compared: copies arrays, or runs what waits.
    pub(in crate::pipeline) fn follow_further(
        &self,
        mut followed: Followed,
        call: Recorded<'_>,
        copied: u64,
        site: &mut Option<Site>,
        mut value: Result<Value>,
    ) -> Option<Result<Value>> {
        if followed == Err(Mismatch::NeedsCopies) {
            let copies = copies_of(self, call.read)?;
            let new = copies.iter().filter(|copy| copy.is_new);
            let copied = copied + new.map(|copy| bytes_of(&copy.tensor)).sum::<u64>();
            followed = self.follow_call(call, (&copies, copied), site, &mut value);
            if followed.is_err() {
                // The operation that is recorded instead copies again, and counts its copies.
                let is_new = |_: &_, known: &mut Tensor| {
                    let is_it = |copy: &Copy| known.buffer().shares_with(copy.tensor.buffer());
                    copies.iter().any(|copy| copy.is_new && is_it(copy))
                };
                let old: Vec<_> = self.lock_as_is().copies.extract_if(is_new).collect();
                drop(old);
            }
        }
        if followed.ok()?
            && self.is_full()
            && let Err(error) = self.run_all()
        {
            return Some(Err(error));
        }
        Some(value)
    }

    /// Returns whether what waits is as much as the options allow. The bytes that count are those of operations.
    fn is_full(&self) -> bool {
        self.pending_count() >= self.options.max_ops || self.lock().has_bytes_of(&self.options)
    }

    /// Records a call as the next one of a sequence, if it is: takes the line, and stores what it returns in
    /// `value`, since values are large. No kernel runs, and no other library's code. `copies` are those of arguments
    /// that are other libraries'
    /// memory, with the number of bytes that were copied.
    pub(in crate::pipeline) fn follow_call(
        &self,
        call: Recorded<'_>,
        (copies, copied): (&[Copy], u64),
        site: &mut Option<Site>,
        value: &mut Result<Value>,
    ) -> Followed {
        let mut state = self.lock_as_is();
        if !self.is_open() {
            return Err(Mismatch::Call);
        }
        if state.matched.is_none() {
            // Loops begin alike each time: the first call needn't become an operation to find its sequence.
            self.begin(&mut state, || table::beginning_as_last(|first| call.is(first)));
        }
        let matched = state.matched.as_mut().ok_or(Mismatch::Call)?;
        if let Err(mismatch) = matched.follow(call, copies, copied) {
            if matched.len() == 0 && mismatch == Mismatch::Call {
                state.forget_matched();
            }
            return Err(mismatch);
        }
        let (at, index) = (matched.len(), matched.first + matched.len());
        let Matched { sequence, results, copied, .. } = matched;
        if at == 0 {
            results.reserve(sequence.results.len());
            matched.sites.reserve(sequence.calls.len());
        }
        let form = &sequence.calls[at].form;
        let keep = |memory| results.push(memory);
        let bytes = copied.last().filter(|(call, _)| *call == at).map_or(0, |(_, bytes)| *bytes);
        let mut results = Results { session: self, index, device: form.device, keep, bytes };
        *value = results.value(form);
        if value.is_err() {
            return Ok(false);
        }
        let bytes = results.bytes;
        matched.sites.push(site.take());
        matched.bytes += bytes;
        let len = matched.len();
        state.pending_bytes += bytes;
        state.statistics.recorded += 1;
        self.start_clock(&mut state);
        let Options { max_ops, max_pending_bytes, .. } = self.options;
        Ok(len >= max_ops || state.pending_bytes >= max_pending_bytes)
    }
}

/// Copies other libraries' arrays among the arguments; `None` if one can't be copied.
fn copies_of(session: &Session, args: &[ValueRef<'_>]) -> Option<Vec<Copy>> {
    let (mut place, mut copies) = (0, Some(Vec::new()));
    for arg in args {
        for_each_tensor(*arg, &mut |tensor| {
            if tensor.buffer().is_lent() {
                match (copy_of(session, tensor), &mut copies) {
                    (Ok((tensor, is_new)), Some(copies)) => {
                        copies.push(Copy { place, tensor, is_new });
                    }
                    _ => copies = None,
                }
            }
            place += 1;
        });
    }
    copies
}

impl Matched {
    fn new(sequence: Arc<Sequence>, first: usize) -> Matched {
        Matched {
            replaced: Vec::new(),
            first,
            inputs: Vec::new(),
            results: Vec::new(),
            sites: Vec::new(),
            copied: Vec::new(),
            bytes: 0,
            sequence,
        }
    }

    /// Adds the inputs of a call, if it is the next one of the sequence, or of another one that agrees so far,
    /// which takes its place. `copied` is the number of bytes of copies that were made for it.
    fn follow(
        &mut self,
        recorded: Recorded<'_>,
        copies: &[Copy],
        copied: u64,
    ) -> Result<(), Mismatch> {
        let at = self.len();
        if !self.sequence.is_current() {
            return Err(Mismatch::Call);
        }
        let is_it =
            |sequence: &Sequence| sequence.calls.get(at).is_some_and(|call| recorded.is(call));
        let Matched { inputs, results, .. } = self;
        let mut tensors = Tensors { inputs, results, copies, have_lent: false };
        if !is_it(&self.sequence) || !tensors.are_of(&self.sequence.calls[at], recorded.read) {
            let reads = |sequence: &Sequence| tensors.are_of(&sequence.calls[at], recorded.read);
            let Some(other) = table::instead_of((&self.sequence, at), is_it, reads) else {
                return Err(if tensors.have_lent { Mismatch::NeedsCopies } else { Mismatch::Call });
            };
            self.change(other);
        }
        if copied > 0 {
            self.copied.push((at, copied));
        }
        Ok(())
    }

    /// Returns whether somebody can read the results that a sequence says.
    pub(super) fn are_held(&self, held: &[bool]) -> bool {
        let is_held = |memory: &Option<Weak<PendingBuffer>>| {
            memory.as_ref().is_some_and(|memory| memory.strong_count() > 0)
        };
        self.results.len() == held.len()
            && self.results.iter().zip(held).all(|(memory, held)| is_held(memory) == *held)
    }
}

impl Input {
    /// Returns whether a tensor of its memory begins where it begins, and the memory wasn't written since.
    fn is_version_of(&self, tensor: &Tensor) -> bool {
        self.tensor.offset() == tensor.offset() && self.version == tensor.version()
    }
}

/// The inputs and results that the tensors of a call's arguments are compared with.
struct Tensors<'m> {
    inputs: &'m mut Vec<Input>,
    results: &'m [Option<Weak<PendingBuffer>>],
    copies: &'m [Copy],
    /// Whether one is another library's memory, of which there is no copy yet.
    have_lent: bool,
}

impl Tensors<'_> {
    /// Returns whether they are those of a call of a sequence; adds inputs that are new.
    fn are_of(&mut self, call: &Call, args: &[ValueRef<'_>]) -> bool {
        let known = self.inputs.len();
        let (mut place, mut all) = (0, true);
        for arg in args {
            for_each_tensor(*arg, &mut |tensor| {
                all = all
                    && call.tensors.get(place).is_some_and(|source| match *source {
                        Source::Result { number, offset } => self.is_result(number, offset, tensor),
                        Source::Input(number) => self.is_input(number, tensor, place),
                    });
                place += 1;
            });
        }
        let all = all && place == call.tensors.len();
        if !all {
            self.inputs.truncate(known);
        }
        all
    }

    fn is_result(&self, number: usize, offset: usize, tensor: &Tensor) -> bool {
        let Some(Some(memory)) = self.results.get(number) else { return false };
        let pending = tensor.pending_buffer();
        pending.is_some_and(|pending| std::ptr::eq(memory.as_ptr(), pending))
            && tensor.offset() == offset
    }

    /// Returns whether a tensor, or the copy that is read instead, is an input; adds one that is new.
    fn is_input(&mut self, number: usize, tensor: &Tensor, place: usize) -> bool {
        if tensor.pending_buffer().is_some_and(|pending| pending.filled().is_none()) {
            return false;
        }
        let known = self.inputs.get(number);
        if let Some(known) = known
            && known.tensor.buffer().shares_with(tensor.buffer())
        {
            // It wasn't lent to another library since: what waits to read a memory runs before that.
            return known.is_version_of(tensor);
        }
        let copy = match tensor.buffer().is_lent() {
            true => match self.copies.iter().find(|copy| copy.place == place) {
                Some(copy) => Some(copy),
                None => {
                    self.have_lent = true;
                    return false;
                }
            },
            false => None,
        };
        let tensor = copy.map_or(tensor, |copy| &copy.tensor);
        if let Some(known) = known {
            return known.memory == memory_id(tensor) && known.is_version_of(tensor);
        }
        let own = match tensor.completed() {
            Ok(Some(done)) => done,
            Ok(None) => tensor.clone(),
            Err(_) => return false,
        };
        let (memory, version) = (memory_id(&own), own.version());
        // Equal calls are merged, so one tensor in the place of two makes another program.
        let is_known = |known: &Input| known.memory == memory && is_one(&known.tensor, &own);
        if self.inputs.iter().any(is_known) {
            return false;
        }
        self.inputs.push(Input { tensor: own, memory, version });
        number + 1 == self.inputs.len()
    }
}
