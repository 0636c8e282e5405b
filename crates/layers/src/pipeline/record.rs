//! Recording of calls, at the key Deferred.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, Weak};

use keyfold_core::{Device, Error, ErrorKind, Result, layout};
use keyfold_dispatch::{
    CallContext, DispatchKey, DispatchKeySet, LocalContext, Value as _, local_data, outside_layers,
    with_local_data,
};
use keyfold_tensor::device::current_stream;
use keyfold_tensor::{PendingBuffer, Tensor, Value, ValueRef};
use smallvec::SmallVec;

use super::compute::compute;
use super::copies::{are_too_large, bytes_of, copy_of};
use super::decide::{Decision, Form, Inference, decide};
use super::host::{self, Site};
use super::known::{CallForm, Key};
use super::operation::{Operation, Slot, Structure, for_each_tensor};
use super::sequence::{Followed, Recorded};
use super::session::{Options, Session, State};

/// The calls at the key Pipeline that a thread is in, for the calls at Deferred inside of them.
struct Outer {
    /// The calls at the key Pipeline that this thread is in.
    depth: Cell<u32>,
    /// The line of the outermost of them.
    site: RefCell<Option<Site>>,
    /// The operator of the innermost, if it was compared with a sequence's: by its address.
    compared: Cell<usize>,
}

/// No layers.
const NONE: DispatchKeySet = DispatchKeySet::EMPTY;

thread_local! {
    static OUTER: Outer = const {
        Outer { depth: Cell::new(0), site: RefCell::new(None), compared: Cell::new(0) }
    };
}

/// Runs a call at the key Pipeline: notes the line for the calls that are recorded below. Where no other layer is
/// between, it is compared with a sequence's call without the dispatch to Deferred.
pub(super) fn at_pipeline(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
) -> Result<Value> {
    let keyset = context.keyset() - Session::keys();
    let is_below_all = (keyset - DispatchKeySet::BACKENDS).is_empty();
    let call = Recorded { context, args, read: args, keyset, layers: DispatchKey::Deferred.into() };
    let (mut site, mut value) = (site(), Ok(Value::None));
    // The session is looked at where it is, since counting references to it takes time.
    let follow = |session: &Session| {
        let is_compared = is_below_all && session.is_open() && session.may_follow();
        is_compared.then(|| session.follow_call(call, (&[], 0), &mut site, &mut value))
    };
    let followed = with_local_data(follow);
    if followed != Some(Some(Ok(false))) {
        let none = std::mem::replace(&mut value, Ok(Value::None));
        value = at_pipeline_further(call, site, followed.flatten(), none);
    }
    value
}

/// Goes on with a call at the key Pipeline that isn't recorded yet, or after which all has to run. `value` is what
/// it returns then.
fn at_pipeline_further(
    call: Recorded<'_>,
    mut site: Option<Site>,
    followed: Option<Followed>,
    value: Result<Value>,
) -> Result<Value> {
    struct Leave<'o>(&'o Outer);
    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            let depth = self.0.depth.get() - 1;
            self.0.depth.set(depth);
            if depth == 0 {
                let old = self.0.site.borrow_mut().take();
                drop(old);
            }
        }
    }
    let Recorded { context, args, .. } = call;
    let Some(session) = local_data::<Session>() else {
        return Err(Error::new(
            ErrorKind::Pipeline,
            format!(
                "{}: the key Pipeline is included, but no pipeline is open here; use `with \
                 keyfold.pipeline():`",
                context.operator().name()
            ),
        ));
    };
    if !session.is_open() {
        return context.call_below(args);
    }
    let mut compared = 0;
    if let Some(followed) = followed {
        if let Some(value) = session.follow_further(followed, call, 0, &mut site, value) {
            return value;
        }
        compared = std::ptr::from_ref(context.operator()).addr();
    }
    drop(session);
    // A thread that ends has no data of its own any more: the call has no line then, and runs at once.
    let run = |outer: &Outer| {
        let depth = outer.depth.get();
        if depth == 0 {
            *outer.site.borrow_mut() = site;
        }
        outer.depth.set(depth + 1);
        let _leave = Leave(outer);
        outer.compared.set(compared);
        context.call_below(args)
    };
    OUTER.try_with(run).unwrap_or_else(|_| context.call_below(args))
}

/// Runs a call at the key Deferred. `inference` is the operator's own, if it has one.
pub(super) fn at_deferred(
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    inference: Option<&Inference>,
) -> Result<Value> {
    let session = local_data::<Session>().filter(|session| session.is_open());
    let Some(session) = session else { return compute(context, args, None) };
    let outer = OUTER.try_with(|outer| (outer.depth.get(), outer.compared.get()));
    let (depth, compared) = outer.unwrap_or_default();
    if depth == 0 || session.is_run_here() {
        return compute(context, args, Some(&session));
    }
    if has_examples(args) {
        // A kernel that calls operators, since Vmap has no rule for it: those are recorded.
        return outside_layers(Session::keys(), || context.call_below(args));
    }
    if session.runs_at_once() {
        return compute(context, args, Some(&session));
    }
    if session.may_follow() && compared != std::ptr::from_ref(context.operator()).addr() {
        let keyset = keyset_below(context);
        let call = Recorded { context, args, read: args, keyset, layers: NONE };
        if let Some(value) = session.follow_sequence(call, 0, &mut site()) {
            return value;
        }
    }
    // Filled in place, since it is large.
    let mut key = Key::new();
    let fits = inference.is_some() && key.fill(context, args);
    wait_for_others(&session, args)?;
    let decision = decide(context, args, inference, fits.then_some(&key))?;
    if session.only_records() {
        session.note_dispatcher(context.operator());
    }
    let decision = match decision {
        Decision::Record(_) if session.only_records() && are_too_large(args) => {
            Decision::AtOnce("it reads more than 1 GiB of another library's memory")
        }
        other => other,
    };
    match decision {
        Decision::AtOnce(reason) => {
            if session.only_records() {
                let name = context.operator().name();
                session.run_instead(&format!("{name} can't be recorded: {reason}"))?;
            }
            session.note_at_once(context.operator(), reason);
            compute(context, args, Some(&session))
        }
        Decision::Below => compute(context, args, Some(&session)),
        Decision::View => view(context, args),
        Decision::Record(form) => record(&session, context, args, form),
    }
}

/// Returns whether there are examples of a batch among the arguments.
fn has_examples(args: &[ValueRef<'_>]) -> bool {
    let mut found = false;
    for arg in args {
        for_each_tensor(*arg, &mut |tensor| found |= tensor.keys().contains(DispatchKey::Vmap));
    }
    found
}

/// Runs what arguments wait for in other pipelines, those of other threads.
fn wait_for_others(session: &Session, args: &[ValueRef<'_>]) -> Result<()> {
    let mut failed = None;
    for arg in args {
        for_each_tensor(*arg, &mut |tensor| {
            if let Some(pending) = tensor.pending_buffer()
                && !pending.is_of(session)
                && pending.is_pending()
                && let Err(error) = pending.wait()
            {
                failed.get_or_insert(error);
            }
        });
    }
    failed.map_or(Ok(()), Err)
}

/// Makes views of pending tensors, which are pending tensors of the same memory.
fn view(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let mut waits = false;
    args.iter().for_each(|arg| for_each_tensor(*arg, &mut |tensor| waits |= tensor.is_pending()));
    if !waits {
        return compute(context, args, None);
    }
    let result = context.call_below(args)?;
    mark(&result)?;
    Ok(result)
}

/// Adds the key to results over pending memory.
fn mark(value: &Value) -> Result<()> {
    match value {
        Value::Tensor(tensor) if tensor.pending_buffer().is_some() => {
            tensor.insert_key(DispatchKey::Deferred)
        }
        Value::List(items) | Value::Tuple(items) => items.iter().try_for_each(mark),
        _ => Ok(()),
    }
}

/// The arguments of a call as its operation keeps them.
struct Kept<'s> {
    session: &'s Session,
    args: Vec<Value>,
    /// The write counts of tensors that aren't pending.
    versions: SmallVec<[u32; 4]>,
    /// The bytes of copies: arrays of other libraries are copied, since their writes can't be seen.
    copied: u64,
}

impl Kept<'_> {
    fn push(&mut self, arg: ValueRef<'_>) -> Result<()> {
        match arg {
            ValueRef::Tensor(tensor) => self.push_tensor(tensor),
            ValueRef::Foreign(object) => self.push_tensor(object.tensor()?),
            list if list.list_len().is_some() => {
                let around = std::mem::take(&mut self.args);
                let pushed = list.items().try_for_each(|item| self.push(item));
                let items = std::mem::replace(&mut self.args, around);
                self.args.push(Value::List(items));
                pushed
            }
            other => {
                self.args.push(Value::from_ref(other)?);
                Ok(())
            }
        }
    }

    fn push_tensor(&mut self, tensor: &Tensor) -> Result<()> {
        let pending = tensor.pending_buffer();
        if pending.is_some_and(PendingBuffer::is_pending) {
            let backend = DispatchKey::from_device_type(tensor.device().kind());
            let layers = tensor.keys() - DispatchKeySet::from([backend, DispatchKey::Deferred]);
            let has_graph = layers == DispatchKey::Autograd.into();
            let kept = match has_graph && self.session.only_records() {
                // A graph has references to memory, by which the recorder tells what escapes.
                true => {
                    let detached = tensor.detach();
                    detached.insert_key(DispatchKey::Deferred)?;
                    detached
                }
                false => tensor.clone(),
            };
            self.args.push(Value::Tensor(kept));
            return Ok(());
        }
        if tensor.buffer().is_lent() && !self.session.is_to_write(tensor) {
            let (copy, is_new) = copy_of(self.session, tensor)?;
            self.copied += if is_new { bytes_of(&copy) } else { 0 };
            match self.session.is_recorder() {
                true if is_new => self.session.note_copy(&copy, tensor)?,
                true => {}
                false => self.versions.push(copy.version()),
            }
            self.args.push(Value::Tensor(copy));
        } else {
            // A recording reads what is there, and what runs in place of one runs in order.
            if !self.session.is_recorder() {
                self.versions.push(tensor.version());
            }
            let done = if pending.is_some() { tensor.completed()? } else { None };
            self.args.push(Value::Tensor(done.unwrap_or_else(|| tensor.clone())));
        }
        Ok(())
    }
}

/// The results of a call, which the operation of this index will fill.
pub(super) struct Results<'s, F> {
    pub(super) session: &'s Session,
    pub(super) index: usize,
    pub(super) device: Device,
    /// Keeps the memory of each result, `None` for one that the call doesn't want.
    pub(super) keep: F,
    pub(super) bytes: u64,
}

impl<F: FnMut(Option<Weak<PendingBuffer>>)> Results<'_, F> {
    /// Returns the tensor of a result.
    #[inline]
    fn tensor(&mut self, form: &Form) -> Result<Tensor> {
        let Form { shape, strides, dtype, .. } = form;
        let bytes = layout::numel(shape, dtype.size())? * dtype.size();
        let memory = PendingBuffer::new(self.device, bytes, self.session.as_source());
        memory.set_writer(self.index);
        let memory = Arc::new(memory);
        (self.keep)(Some(Arc::downgrade(&memory)));
        self.bytes += bytes as u64;
        Tensor::pending(memory, shape, strides, *dtype)
    }

    fn tensors(&mut self, forms: &[Option<Form>]) -> Result<Vec<Value>> {
        let value = |form: &Option<Form>| match form {
            Some(form) => self.tensor(form).map(Value::Tensor),
            None => {
                (self.keep)(None);
                Ok(Value::None)
            }
        };
        forms.iter().map(value).collect()
    }

    /// Returns what the call returns.
    #[inline]
    pub(super) fn value(&mut self, form: &CallForm) -> Result<Value> {
        match (form.structure, &form.forms[..]) {
            (Structure::One, [Some(form)]) => self.tensor(form).map(Value::Tensor),
            (Structure::One, _) => self.tensors(&form.forms).map(|_| Value::None),
            (Structure::List, forms) => self.tensors(forms).map(Value::List),
            (Structure::Tuple, forms) => self.tensors(forms).map(Value::Tuple),
            (Structure::Written(at), _) => Ok(Value::Argument(at)),
        }
    }
}

fn record(
    session: &Session,
    context: &CallContext<'_, Value>,
    args: &[ValueRef<'_>],
    form: Arc<CallForm>,
) -> Result<Value> {
    let (args_kept, versions) = (Vec::with_capacity(args.len()), SmallVec::new());
    let mut kept = Kept { session, args: args_kept, versions, copied: 0 };
    args.iter().try_for_each(|arg| kept.push(*arg))?;
    let Kept { args: kept, versions, copied, .. } = kept;
    let (device, written) = (form.device, !form.written.is_empty());

    let mut state = session.lock();
    if session.begin_sequence(&mut state, &form) {
        drop(state);
        let read: SmallVec<[ValueRef<'_>; 8]> = kept.iter().map(Value::as_ref).collect();
        let keyset = keyset_below(context);
        let call = Recorded { context, args, read: &read, keyset, layers: NONE };
        if let Some(value) = session.follow_sequence(call, copied, &mut site()) {
            return value;
        }
        state = session.lock();
    }
    // Since it was decided that the call waits, another thread may have computed what it writes, or ended the block.
    let mut is_computed = !session.is_open();
    for at in &form.written {
        for_each_tensor(kept[*at].as_ref(), &mut |tensor| is_computed |= !tensor.is_pending());
    }
    if is_computed {
        drop(state);
        return compute(context, args, Some(&session.share()));
    }
    let index = state.waiting.next();
    let (mut slots, mut forms) = (SmallVec::new(), form.forms.iter());
    let keep = |memory: Option<Weak<PendingBuffer>>| {
        let form = forms.next().and_then(Option::as_ref);
        slots.push(memory.zip(form).map(|(memory, form)| Slot::new(memory, form)));
    };
    let mut results = Results { session, index, device, keep, bytes: copied };
    let value = results.value(&form);
    // Looked at in place, since values are large.
    let Ok(_) = &value else { return value };
    let bytes = results.bytes;
    let after = state.order(session, index, &form, &kept);
    let operation = Operation {
        index,
        operator: context.operator().share(),
        keyset: keyset_below(context),
        context: state.local_context(),
        site: site(),
        stream: (!device.kind().is_host()).then(|| (device, current_stream(device))),
        form,
        args: Mutex::new(kept),
        versions,
        results: slots,
        after,
        bytes,
    };
    state.waiting.push(Arc::new(operation));
    state.program.has_written |= written;
    session.start_clock(&mut state);
    state.pending_bytes += bytes;
    state.statistics.recorded += 1;
    let is_full =
        state.waiting.len() >= session.options.max_ops || state.has_bytes_of(&session.options);
    drop(state);

    if written {
        for (argument, arg) in context.operator().schema().arguments.iter().zip(args) {
            if argument.alias.as_ref().is_some_and(|alias| alias.write) {
                for_each_tensor(*arg, &mut |tensor| tensor.note_write());
            }
        }
    }
    if is_full {
        session.run_all()?;
    }
    value
}

/// Returns the keys below the pipeline.
fn keyset_below(context: &CallContext<'_, Value>) -> DispatchKeySet {
    context.keyset().remove(DispatchKey::Deferred)
}

/// Returns the line of the call that this thread is in: that of the outermost call at Pipeline, or the host
/// language's, where there is none yet.
fn site() -> Option<Site> {
    let known = |outer: &Outer| match outer.depth.get() {
        0 => host::site(),
        _ => outer.site.borrow().clone(),
    };
    OUTER.try_with(known).ok().flatten()
}

impl State {
    /// Returns whether what waits has as many bytes as the options allow.
    pub(super) fn has_bytes_of(&mut self, options: &Options) -> bool {
        let limit = options.max_pending_bytes;
        if self.pending_bytes - self.spared_bytes < limit {
            return false;
        }
        // Counting looks at all that waits: not again after a few calls.
        let waiting = self.waiting.len();
        if waiting < self.counted + (self.counted / 8).max(1) {
            return true;
        }
        self.counted = waiting;
        self.spared_bytes = self.waiting.spared_bytes().min(self.pending_bytes);
        self.pending_bytes - self.spared_bytes > limit / 2
    }

    /// Returns the context of an operation, shared with the one before if they are equal.
    fn local_context(&mut self) -> Arc<LocalContext> {
        if let Some(last) = &self.context
            && last.is_current_without::<Session>(NONE)
        {
            return Arc::clone(last);
        }
        let new = Arc::new(LocalContext::current().without::<Session>());
        self.set_context(Some(Arc::clone(&new)));
        new
    }

    /// Sets the context of the last operation.
    pub(super) fn set_context(&mut self, context: Option<Arc<LocalContext>>) {
        if let Some(old) = std::mem::replace(&mut self.context, context)
            && old.has_objects()
        {
            self.outdated.push(old);
        }
    }

    /// Notes what an operation writes in place; returns what it has to run after.
    pub(super) fn order(
        &mut self,
        session: &Session,
        index: usize,
        form: &CallForm,
        args: &[Value],
    ) -> SmallVec<[usize; 4]> {
        let mut after = SmallVec::new();
        if !form.written.is_empty() {
            self.note_readers();
            // Those of a replay aren't noted. They wait again if it fails.
            after.extend(self.replayed.iter().flat_map(|matched| matched.indices()));
        }
        for (at, arg) in args.iter().enumerate() {
            let writes = form.written.contains(&at);
            for_each_tensor(arg.as_ref(), &mut |tensor| {
                let Some(memory) = tensor.pending_buffer() else { return };
                after.extend(session.writer(memory));
                if writes {
                    after.extend(self.take_readers(tensor));
                    memory.set_writer(index);
                }
            });
        }
        if form.is_random {
            after.extend(self.last_random.replace(index));
        }
        after.sort_unstable();
        after.dedup();
        let replayed = self.replayed.as_ref().map_or(0..0, |matched| matched.indices());
        let runs_yet =
            |before: &usize| self.waiting.get(*before).is_some() || replayed.contains(before);
        after.retain(|before| *before != index && runs_yet(before));
        after
    }
}
