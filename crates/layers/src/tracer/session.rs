//! Recording of calls.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_dispatch::schema::Type;
use keyfold_dispatch::{
    CallContext, DispatchKey, DispatchKeySet, LocalGuard, LocalKeys, Operator, Tags, Value as _,
    call_path, include_keys_with, inside_layers, local_data, outside_layers,
};
use keyfold_tensor::{Tensor, Value, ValueRef};

use crate::autograd::have_tangents;

use super::errors::{hidden_object, hidden_value, hidden_view, unseen_result};
use super::ir::{Arg, Argument, Constant, Graph, Info, Input, Node, ValueId, WRAP_NODE};
use super::memory_refs::MemoryRefs;
use super::value_map::{Across, BatchAt, Inspected, ValueMap};

/// The number of recording sessions in the process; if 0, nothing else is checked.
static RECORDING: AtomicUsize = AtomicUsize::new(0);

/// A recording, from [`Session::begin`] to [`Session::finish`]: the local data of the key Tracer.
///
/// A session that began while another was recording passes calls on to it, so that both record.
#[derive(Debug)]
pub struct Session {
    state: Mutex<RecordingState>,
    outer: Option<Arc<Session>>,
}

#[derive(Debug)]
struct RecordingState {
    open: bool,
    graph: Graph,
    values: ValueMap,
    /// By value: whether it depends on the inputs or on random numbers.
    varies: Vec<bool>,
}

/// An argument tree whose tensors were inspected.
enum InspectedArg {
    Tensor(Box<Inspected>),
    List(Vec<InspectedArg>),
    Literal(Box<Value>),
}

impl InspectedArg {
    fn at(value: ValueRef<'_>) -> Result<InspectedArg> {
        if let Some(seen) = Inspected::look(value)? {
            return Ok(InspectedArg::Tensor(Box::new(seen)));
        }
        if value.list_len().is_some() {
            return Ok(InspectedArg::List(
                value.items().map(InspectedArg::at).collect::<Result<_>>()?,
            ));
        }
        Ok(InspectedArg::Literal(Box::new(Value::from_ref(value)?)))
    }
}

/// A call that hasn't returned yet.
pub(super) struct PendingCall {
    node: Node,
    varies: bool,
    /// The number of results that the schema declares.
    returns: usize,
}

impl Session {
    /// Starts a recording, inside the open one, if there is one here.
    pub fn begin() -> Arc<Session> {
        let outer = active();
        RECORDING.fetch_add(1, Ordering::Relaxed);
        let (graph, values, varies) = (Graph::default(), ValueMap::default(), Vec::new());
        let state = RecordingState { open: true, graph, values, varies };
        Arc::new(Session { state: Mutex::new(state), outer })
    }

    /// Returns the key that enables a recording, for a host language's own guard with the session
    /// as its data.
    pub fn keys() -> DispatchKeySet {
        DispatchKey::Tracer.into()
    }

    /// Records the calls on this thread while the guard lives.
    pub fn enter(self: &Arc<Self>) -> LocalGuard {
        let session: Arc<Session> = Arc::clone(self);
        include_keys_with(Session::keys(), session)
    }

    /// Makes a tensor the next input. Returns the tensor to call the function with: this one, or a
    /// copy if the same data is an input already, since the two would be indistinguishable.
    ///
    /// # Errors
    /// If the copy can't be made.
    pub fn input(&self, tensor: &Tensor, name: &str) -> Result<Tensor> {
        let mut tensor = tensor.clone();
        let mut seen = Inspected::own(&tensor);
        let is_known = self.lock().values.find(&seen).is_some();
        if is_known {
            let copy = tensor.copy()?;
            copy.set_requires_grad(tensor.requires_grad())?;
            (tensor, seen) = (copy.clone(), Inspected::own(&copy));
        }
        let mut state = self.lock();
        let id = state.value(seen.info.clone(), true);
        state.values.mark_dependent(&seen);
        state.values.insert(seen, id);
        state.graph.inputs.push(Input { id, name: name.to_owned() });
        Ok(tensor)
    }

    /// Makes an object of the host language's own class the next input.
    ///
    /// # Errors
    /// [`ErrorKind::Trace`] for an object that is an input already, since the two would be
    /// indistinguishable.
    pub fn input_object(&self, object: Value, name: &str) -> Result<()> {
        let Some(seen) = Inspected::look(object.as_ref())? else { return Ok(()) };
        let mut state = self.lock();
        if state.values.find(&seen).is_some() {
            drop(state);
            let message = format!(
                "{name}: the object is an argument already, and nothing would tell the two apart: \
                 give a copy ({})",
                Value::describe(object.as_ref())
            );
            return Err(Error::new(ErrorKind::Trace, message));
        }
        let id = state.value(seen.info.clone(), true);
        state.values.mark_dependent(&seen);
        state.values.insert(seen, id);
        state.graph.inputs.push(Input { id, name: name.to_owned() });
        Ok(())
    }

    /// Ends the recording with the function's results.
    ///
    /// # Errors
    /// [`ErrorKind::Trace`] for a view of a traced tensor that no operator made.
    pub fn finish(&self, outputs: &[ValueRef<'_>]) -> Result<Graph> {
        let looked =
            outputs.iter().map(|value| InspectedArg::at(*value)).collect::<Result<Vec<_>>>()?;
        let mut done = Vec::new();
        let (mut graph, kept, outputs) = {
            let mut state = self.lock();
            let mut args = Vec::with_capacity(looked.len());
            let mut failed = None;
            for value in looked {
                match state.arg(value, &mut done) {
                    Ok(arg) => args.push(arg.0),
                    Err(error) => failed = Some(error.at("the function's result")),
                }
            }
            state.close();
            let graph = std::mem::take(&mut state.graph);
            (graph, state.values.take(), failed.map_or(Ok(args), Err))
        };
        // Without the lock: a kept value may be the last reference to an object of the host
        // language.
        drop(kept);
        graph.outputs = outputs?;
        Ok(graph.numbered())
    }

    /// Ends the recording without a graph, after the function failed.
    pub fn abandon(&self) {
        let left = {
            let mut state = self.lock();
            state.close();
            (std::mem::take(&mut state.graph), state.values.take())
        };
        drop(left);
    }

    /// Returns whether a tensor is a value of the graph, other than a constant, or shares memory
    /// with one.
    fn varies(&self, seen: &Inspected) -> bool {
        let state = self.lock();
        if !state.open {
            return false;
        }
        let found = state.values.find(seen).is_some_and(|id| state.varies[id.index()]);
        found || state.values.depends_on_inputs(seen)
    }

    /// Records a call's arguments before it runs, since it may change them.
    fn before(
        &self,
        operator: &Operator<Value>,
        args: &[ValueRef<'_>],
    ) -> Result<Option<PendingCall>> {
        let looked =
            args.iter().map(|value| InspectedArg::at(*value)).collect::<Result<Vec<_>>>()?;
        let schema = operator.schema();
        // Declared before the lock, so that it is dropped after its release.
        let mut done = Vec::new();
        let mut state = self.lock();
        if !state.open {
            return Ok(None);
        }
        let mut varies = false;
        let mut arguments = Vec::with_capacity(args.len());
        for (at, (value, declared)) in looked.into_iter().zip(&schema.arguments).enumerate() {
            let given = state.arg(value, &mut done).map_err(|error| {
                error.at(&format!("{}: argument '{}'", operator.name(), declared.name))
            })?;
            varies |= given.1;
            arguments.push(Argument {
                name: declared.name.clone(),
                is_default: operator.default_value(at).is_some_and(|d| same(&given.0, d.as_ref())),
                arg: given.0,
                written: declared.alias.as_ref().is_some_and(|alias| alias.write),
            });
        }
        let random = operator.tags().contains(Tags::NONDETERMINISTIC_SEEDED)
            || schema.arguments.iter().any(|argument| *argument.ty.base() == Type::Generator);
        let writes = arguments.iter().any(|argument| argument.written);
        let node = Node {
            operator: operator.name().to_owned(),
            args: arguments,
            results: Vec::new(),
            effects: random || writes || schema.returns.is_empty(),
        };
        Ok(Some(PendingCall { node, varies: varies || random, returns: schema.returns.len() }))
    }

    /// Adds a call that has returned.
    fn after(&self, pending: PendingCall, args: &[ValueRef<'_>], result: &Value) -> Result<()> {
        let PendingCall { mut node, varies, returns } = pending;
        let results = match result {
            Value::Tuple(items) => items
                .iter()
                .map(|item| InspectedArg::at(item.as_ref()))
                .collect::<Result<Vec<_>>>()?,
            _ if returns == 0 => Vec::new(),
            one => vec![InspectedArg::at(one.as_ref())?],
        };
        let mut written = Vec::new();
        for (_, value) in node.args.iter().zip(args).filter(|(argument, _)| argument.written) {
            written.extend(Inspected::look(*value)?);
        }
        let mut state = self.lock();
        if !state.open {
            return Ok(());
        }
        for seen in &written {
            // A write to a constant affects the next replay.
            if varies || state.values.overlaps_constant(seen) {
                state.values.mark_dependent(seen);
            }
        }
        node.results = results.into_iter().map(|value| state.result(value, varies)).collect();
        state.graph.nodes.push(node);
        Ok(())
    }

    /// Records that a tensor was wrapped in an object of the host language's class, like another
    /// one.
    fn wrapped(&self, tensor: &Inspected, like: &Inspected, made: Inspected) {
        let mut state = self.lock();
        let (Some(x), Some(like)) = (state.values.find(tensor), state.values.find(like)) else {
            return;
        };
        let varies = state.varies[x.index()] || state.varies[like.index()];
        let argument = |name: &str, id| Argument {
            name: name.to_owned(),
            arg: Arg::Value(id),
            is_default: false,
            written: false,
        };
        let args = vec![argument("x", x), argument("like", like)];
        let results = vec![state.result(InspectedArg::Tensor(Box::new(made)), varies)];
        let operator = WRAP_NODE.to_owned();
        state.graph.nodes.push(Node { operator, args, results, effects: false });
    }

    /// Marks a tensor that the gradient graph keeps.
    fn hide(&self, seen: &Inspected) {
        let mut state = self.lock();
        if state.open {
            state.values.hide(seen);
        }
    }

    /// Adds the references that it keeps.
    fn add_shares(&self, shares: &mut MemoryRefs<'_>) {
        let state = self.lock();
        state.values.kept_of(shares.of).for_each(|kept| shares.add(kept));
    }

    /// Returns an error for a result that no recorded call has made.
    fn check_known(&self, operator: &Operator<Value>, result: &Value) -> Result<()> {
        match result {
            Value::Tuple(items) | Value::List(items) => {
                return items.iter().try_for_each(|item| self.check_known(operator, item));
            }
            _ => {}
        }
        let Some(seen) = Inspected::look(result.as_ref())? else { return Ok(()) };
        let is_known = {
            let state = self.lock();
            !state.open
                || state.values.find(&seen).or(state.values.across(&seen).map(|a| a.from)).is_some()
        };
        if is_known { Ok(()) } else { Err(unseen_result(operator.name(), &seen.info)) }
    }

    fn lock(&self) -> MutexGuard<'_, RecordingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns this session and those that it began in, innermost first.
    fn chain(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Session>> {
        std::iter::successors(Some(self), |session| session.outer.as_ref())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).close();
    }
}

impl RecordingState {
    fn close(&mut self) {
        if std::mem::replace(&mut self.open, false) {
            RECORDING.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn value(&mut self, info: Info, varies: bool) -> ValueId {
        let id = ValueId(self.graph.values.len() as u32);
        self.graph.values.push(info);
        self.varies.push(varies);
        id
    }

    /// Returns an argument of the graph, and whether it depends on the inputs. An unknown tensor
    /// becomes a constant. Values that aren't kept are moved to `done`, since dropping them may
    /// need the host language's lock.
    fn arg(&mut self, value: InspectedArg, done: &mut Vec<Inspected>) -> Result<(Arg, bool)> {
        Ok(match value {
            InspectedArg::Literal(value) => (Arg::Literal(value), false),
            InspectedArg::List(items) => {
                let items: Vec<_> =
                    items.into_iter().map(|item| self.arg(item, done)).collect::<Result<_>>()?;
                let varies = items.iter().any(|item| item.1);
                (Arg::List(items.into_iter().map(|item| item.0).collect()), varies)
            }
            InspectedArg::Tensor(seen) => {
                if let Some(id) = self.values.find(&seen) {
                    let varies = self.varies[id.index()] || self.values.depends_on_inputs(&seen);
                    done.push(*seen);
                    return Ok((Arg::Value(id), varies));
                }
                if let Some(across) = self.values.across(&seen) {
                    let id = self.across_batches(across)?;
                    let varies = self.varies[id.index()];
                    self.values.insert(*seen, id);
                    return Ok((Arg::Value(id), varies));
                }
                if self.values.depends_on_inputs(&seen) {
                    let error = match seen.registered() {
                        Some(object) => hidden_object(&object),
                        None => hidden_view(&seen.info),
                    };
                    done.push(*seen);
                    return Err(error);
                }
                if self.values.overlaps_hidden(&seen) {
                    let error = hidden_value(&seen.info);
                    done.push(*seen);
                    return Err(error);
                }
                let id = self.value(seen.info.clone(), false);
                self.graph.constants.push(Constant { id, value: seen.keep.clone() });
                self.values.mark_constant(&seen);
                self.values.insert(*seen, id);
                (Arg::Value(id), false)
            }
        })
    }

    /// Adds calls that enter or leave batches. Layers below Vmap compute with whole batches, which
    /// the graph may know by their examples, and make examples of batches that it knows.
    fn across_batches(&mut self, across: Across) -> Result<ValueId> {
        let number = |name: &str, number: usize| Argument {
            name: name.to_owned(),
            arg: Arg::literal(Value::Int(number as i64)),
            is_default: false,
            written: false,
        };
        let mut last = across.from;
        for BatchAt { level, dim, size } in across.steps {
            let x = Argument {
                name: "x".to_owned(),
                arg: Arg::Value(last),
                is_default: false,
                written: false,
            };
            let mut info = self.graph.info(last).clone();
            let (level, at) = (number("level", level), number("dim", dim));
            let (operator, args, place) = if across.enters {
                info.shape.remove(dim);
                ("keyfold::_vmap_enter", vec![x, at, level], self.graph.nodes.len())
            } else {
                info.shape.insert(dim, size)?;
                // Right after its definition, since the vmap may have ended since.
                let maker = self.graph.nodes.iter().rposition(|node| node.makes().contains(&last));
                let args = vec![x, level, at, number("size", size)];
                ("keyfold::_vmap_exit", args, maker.map_or(0, |at| at + 1))
            };
            last = self.value(info, self.varies[last.index()]);
            let results = vec![Arg::Value(last)];
            let node = Node { operator: operator.to_owned(), args, results, effects: false };
            self.graph.nodes.insert(place, node);
        }
        Ok(last)
    }

    /// Returns a result in the graph: its tensors become new values.
    fn result(&mut self, value: InspectedArg, varies: bool) -> Arg {
        match value {
            InspectedArg::Literal(value) => Arg::Literal(value),
            InspectedArg::List(items) => {
                Arg::List(items.into_iter().map(|item| self.result(item, varies)).collect())
            }
            InspectedArg::Tensor(seen) => {
                let id = self.value(seen.info.clone(), varies);
                if varies {
                    self.values.mark_dependent(&seen);
                }
                self.values.insert(*seen, id);
                Arg::Value(id)
            }
        }
    }
}

/// Returns whether an argument equals this default.
pub(super) fn same(arg: &Arg, default: ValueRef<'_>) -> bool {
    match arg {
        Arg::Value(_) => false,
        Arg::Literal(value) => format!("{:?}", (**value).as_ref()) == format!("{default:?}"),
        Arg::List(items) => {
            default.list_len() == Some(items.len())
                && items.iter().zip(default.items()).all(|(item, default)| same(item, default))
        }
    }
}

/// Returns the session that records calls on this thread; `None` inside a kernel, or if the key is
/// excluded.
fn active() -> Option<Arc<Session>> {
    if RECORDING.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let keys = LocalKeys::current();
    let on = (keys.included() - keys.excluded()).contains(DispatchKey::Tracer);
    if on { local_data() } else { None }
}

/// Returns whether the inner calls are recorded instead of this one, since gradients flow back
/// through them: calls on whole batches, the calls of a composite, or those that compute tangents.
fn is_recorded_inside(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> bool {
    let keys = context.keyset();
    let tags = args.iter().map(|arg| Value::tag(*arg).keys());
    let brought = tags.fold(DispatchKeySet::EMPTY, DispatchKeySet::union);
    if !(keys & brought).contains(DispatchKey::Autograd) {
        return false;
    }
    (keys & brought).contains(DispatchKey::Vmap)
        || have_tangents(args)
        || context.operator().is_composite_at(DispatchKey::Autograd, keys)
}

/// Runs a call for the layer and records it in the open session and those around it.
pub(super) fn record(context: &CallContext<'_, Value>, args: &[ValueRef<'_>]) -> Result<Value> {
    let call = || context.call_below(args);
    if RECORDING.load(Ordering::Relaxed) == 0 {
        return call();
    }
    let Some(session) = local_data::<Session>() else { return call() };
    let operator = context.operator();
    if is_recorded_inside(context, args) {
        let result = outside_layers(DispatchKey::Tracer.into(), call)?;
        session.chain().try_for_each(|session| session.check_known(operator, &result))?;
        return Ok(result);
    }
    let mut pending = Vec::new();
    for session in session.chain() {
        if let Some(seen) = session.before(operator, args)? {
            pending.push((session, seen));
        }
    }
    let result = call()?;
    for (session, seen) in pending {
        session.after(seen, args, &result)?;
    }
    Ok(result)
}

/// Marks a tensor that the gradient graph keeps. If no recorded call has made it, a later use is an
/// error instead of a constant.
pub(crate) fn note_saved(tensor: &Tensor) {
    if is_recording()
        && let Some(session) = local_data::<Session>()
    {
        let seen = || Inspected::own(tensor);
        session.chain().for_each(|session| session.hide(&seen()));
    }
}

/// Returns the number of references to a tensor's memory that the recordings on this thread keep.
/// They only prevent the reuse of its address; nothing accesses the memory through them.
pub(crate) fn shares_held_by_traces(tensor: &Tensor) -> usize {
    if !is_recording() {
        return 0;
    }
    let Some(session) = local_data::<Session>() else { return 0 };
    let mut shares = MemoryRefs::of(tensor);
    session.chain().for_each(|session| session.add_shares(&mut shares));
    shares.count()
}

/// Records that a binding wrapped a tensor in the object `made`, of the class of `like`, so that a
/// replay does so, too.
///
/// # Errors
/// If an object can't be kept.
pub fn note_wrapped(tensor: &Tensor, like: &Value, made: &Value) -> Result<()> {
    // A binding wraps a result while the traced call still runs, with the tracer's key excluded.
    let at_tracer = call_path().last().is_some_and(|(_, key)| *key == DispatchKey::Tracer);
    let keys = if at_tracer { DispatchKey::Tracer.into() } else { DispatchKeySet::EMPTY };
    let Some(session) = outside_layers(keys, active) else { return Ok(()) };
    for session in session.chain() {
        // Inspecting an object may run code of its class, which may read traced tensors.
        let look = |value: &Value| {
            inside_layers(DispatchKey::Tracer.into(), || Inspected::look(value.as_ref()))
        };
        let (Some(like), Some(made)) = (look(like)?, look(made)?) else { return Ok(()) };
        session.wrapped(&Inspected::own(tensor), &like, made);
    }
    Ok(())
}

/// Returns whether any session records in the process. Without one, reads need no check.
///
/// As [`is_recording_here`], but for all threads, at the cost of one load.
#[inline]
pub fn is_recording() -> bool {
    RECORDING.load(Ordering::Relaxed) != 0
}

/// Returns whether calls on this thread are recorded now.
pub fn is_recording_here() -> bool {
    active().is_some()
}

/// Refuses to let a host language read a tensor that depends on the inputs of a trace recorded
/// here, since the graph can't record the use of the numbers. `what` names the operation, such as
/// `bool()`. Reading is allowed inside an operator's kernel, and if the key Tracer is excluded.
///
/// # Errors
/// [`ErrorKind::Trace`], with a correction.
pub fn check_readable(tensor: &Tensor, what: &str) -> Result<()> {
    let Some(session) = active() else { return Ok(()) };
    let seen = Inspected::tensor(tensor, Value::None);
    if !session.chain().any(|session| session.varies(&seen)) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Trace,
        format!(
            "{what}: the tensor ({}) follows from the inputs of the trace that is being recorded, \
             and what the function does with its numbers would stay as it is now for all later \
             inputs; choose element by element with keyfold.where, or trace each branch as a \
             function of its own and choose outside",
            seen.info
        ),
    ))
}
