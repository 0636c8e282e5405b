//! Recordings of sessions, refusals, tables and traces.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use keyfold_core::{ErrorKind, Result};
use keyfold_dispatch::{
    CallContext, DispatchKey as K, Dispatcher, Kernel, Override, exclude_keys, include_keys,
};
use keyfold_tensor::{Tensor, Value, ValueRef};
use serde_json::Value as Json;

use super::{EventKind, OpenRange, Options, Profile, Session, SortBy, TableOptions, range};

fn tensor(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, keyfold_core::DType::F32, keyfold_core::Device::CPU).unwrap()
}

fn nested() -> Options {
    Options { nested: true, memory: true }
}

/// Returns a dispatcher with the profiler and the operators `t::id`, which returns its argument,
/// `t::twice`, which calls it twice, `t::new`, which makes a tensor, and `t::fail` and `t::panic`.
fn dispatcher() -> Dispatcher<Value> {
    let d = Dispatcher::new();
    super::register(&d).unwrap();
    for name in ["id", "twice", "new", "fail", "panic", "down"] {
        d.define(&format!("t::{name}(Tensor x, int n=0) -> Tensor")).unwrap();
    }
    d.define("t::sum(Tensor[] xs) -> Tensor").unwrap();
    let boxed = |name: &str, f: fn(&CallContext<'_, Value>, &[ValueRef<'_>]) -> Result<Value>| {
        d.register(name, K::CPU, Kernel::boxed(f)).unwrap();
    };
    boxed("t::id", |_, _| Ok(Value::Argument(0)));
    boxed("t::twice", |context, args| {
        let id = context.dispatcher()?.operator("t::id")?;
        id.call(&args[..1])?;
        id.call(&args[..1])
    });
    boxed("t::new", |_, args| Ok(Value::Tensor(tensor(args[0].tensor()?.shape()))));
    boxed("t::fail", |_, _| Err(keyfold_core::Error::new(ErrorKind::Value, "no")));
    boxed("t::panic", |_, _| panic!("as asked for"));
    boxed("t::down", |context, args| match args[1] {
        ValueRef::Int(n) if n > 0 => context.operator().call(&[args[0], ValueRef::Int(n - 1)]),
        _ => Ok(Value::Argument(0)),
    });
    boxed("t::sum", |_, args| {
        Ok(Value::Tensor(args[0].item(0).expect("one at least").tensor()?.clone()))
    });
    d
}

fn call(d: &Dispatcher<Value>, name: &str, x: &Tensor) -> Result<Value> {
    d.operator(name)?.call(&[x.into()])
}

fn recorded(options: Options, work: impl FnOnce()) -> Profile {
    let session = Session::new(options);
    let recording = session.start().unwrap();
    work();
    recording.stop().unwrap();
    session.profile()
}

fn names(profile: &Profile) -> Vec<&str> {
    profile.events.iter().map(|event| &*event.name).collect()
}

#[test]
fn a_call_is_one_event_with_its_arguments() {
    let (d, x) = (dispatcher(), tensor(&[2, 3]));
    let list = [tensor(&[4]), tensor(&[])];
    let profile = recorded(Options::default(), || {
        call(&d, "t::twice", &x).unwrap();
        d.operator("t::sum").unwrap().call(&[ValueRef::Tensors(&list)]).unwrap();
    });
    assert_eq!(names(&profile), ["t::twice", "t::sum"]);
    let [twice, sum] = &profile.events[..] else { unreachable!("two events") };
    assert_eq!((twice.kind, &*twice.keys, twice.depth), (EventKind::Call, "CPU", 0));
    assert_eq!((twice.bytes_in, twice.bytes_out), (24, 24));
    let shown: Vec<String> = sum.args.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["float32[4]", "float32[]"]);
    assert!(twice.end() <= sum.start, "calls follow each other");
    assert!(profile.total >= Duration::from_nanos(sum.end() - twice.start));
}

#[test]
fn the_key_path_has_the_layers_that_have_a_kernel() {
    let (d, x) = (dispatcher(), tensor(&[1]));
    let layer = Kernel::boxed(|context: &CallContext<'_, Value>, args: &[ValueRef<'_>]| {
        context.call_below(args)
    });
    d.fallback(K::Autograd, layer, Override::Error).unwrap();
    let profile = recorded(Options::default(), || {
        let _keys = include_keys([K::Autograd, K::Autocast].into());
        call(&d, "t::id", &x).unwrap();
    });
    assert_eq!(&*profile.events[0].keys, "Autograd > CPU");
}

#[test]
fn inner_calls_are_children_where_nested_ones_are_asked_for() {
    let (d, x) = (dispatcher(), tensor(&[2]));
    let profile = recorded(nested(), || {
        call(&d, "t::twice", &x).unwrap();
    });
    assert_eq!(names(&profile), ["t::twice", "t::id", "t::id"]);
    let [outer, first, second] = &profile.events[..] else { unreachable!("three events") };
    assert_eq!((first.parent, second.parent, second.depth), (Some(0), Some(0), 1));
    assert!(outer.start <= first.start && second.end() <= outer.end());
    assert_eq!(outer.self_time, outer.duration - first.duration - second.duration);
    assert_eq!(profile.call_path(2), ["t::twice", "t::id"]);
}

#[test]
fn failures_and_panics_are_events_and_leave_no_trace_in_the_next() {
    let (d, x) = (dispatcher(), tensor(&[2]));
    let profile = recorded(nested(), || {
        assert_eq!(call(&d, "t::fail", &x).unwrap_err().message(), "no");
        assert!(catch_unwind(AssertUnwindSafe(|| call(&d, "t::panic", &x))).is_err());
        call(&d, "t::id", &x).unwrap();
    });
    let failed: Vec<bool> = profile.events.iter().map(|event| event.failed).collect();
    assert_eq!(failed, [true, true, false]);
    assert!(profile.events.iter().all(|event| event.depth == 0 && event.parent.is_none()));
    assert_eq!((profile.events[0].bytes_in, profile.events[0].bytes_out), (8, 0));
    let text = profile.table(&TableOptions::default()).to_string();
    assert!(text.contains("1 (1 failed)"), "{text}");
}

#[test]
fn allocated_memory_is_counted_for_the_call_that_allocates() {
    let (d, x) = (dispatcher(), tensor(&[1000]));
    let profile = recorded(Options::default(), || {
        let _range = range("step");
        call(&d, "t::id", &x).unwrap();
        call(&d, "t::new", &x).unwrap();
    });
    let [step, id, new] = &profile.events[..] else { unreachable!("three events") };
    assert_eq!((id.allocated, new.allocated), (0, 4000));
    assert_eq!((step.allocated, step.self_allocated), (4000, 0));
}

#[test]
fn ranges_nest_with_calls_and_do_nothing_without_a_profile() {
    let (d, x) = (dispatcher(), tensor(&[1]));
    assert!(range("nobody listens").is_none());
    let profile = recorded(Options::default(), || {
        let _outer = range("outer");
        {
            let _inner = range("inner");
            call(&d, "t::id", &x).unwrap();
        }
        call(&d, "t::id", &x).unwrap();
    });
    assert_eq!(names(&profile), ["outer", "inner", "t::id", "t::id"]);
    let parents: Vec<Option<usize>> = profile.events.iter().map(|event| event.parent).collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(0)]);
    assert_eq!(profile.events[2].depth, 2);
}

#[test]
fn the_innermost_open_session_records() {
    let (d, x) = (dispatcher(), tensor(&[1]));
    let (outer, inner) = (Session::new(nested()), Session::new(nested()));
    let recording = outer.start().unwrap();
    call(&d, "t::id", &x).unwrap();
    let within = inner.start().unwrap();
    call(&d, "t::new", &x).unwrap();
    // A range of a session that doesn't record here has no children.
    drop(outer.range("alone").unwrap());
    within.stop().unwrap();
    call(&d, "t::twice", &x).unwrap();
    recording.stop().unwrap();
    assert_eq!(names(&inner.profile()), ["t::new"]);
    assert_eq!(names(&outer.profile()), ["t::id", "alone", "t::twice", "t::id", "t::id"]);
}

#[test]
fn a_guard_that_outlives_its_session_leaves_calls_to_the_one_around() {
    let (d, x) = (dispatcher(), tensor(&[1]));
    let (outer, inner) = (Session::new(nested()), Session::new(nested()));
    let recording = outer.start().unwrap();
    let within = inner.start().unwrap();
    let attached = inner.attach().unwrap();
    assert_eq!(within.stop().unwrap_err().kind(), ErrorKind::Guard, "closed out of order");
    call(&d, "t::id", &x).unwrap();
    drop(attached);
    recording.stop().unwrap();
    assert_eq!((outer.profile().events.len(), inner.profile().events.len()), (1, 0));
    call(&d, "t::id", &x).unwrap();
    assert_eq!(outer.profile().events.len(), 1, "nothing is recorded after the end");
}

#[test]
fn what_a_closed_session_is_asked_to_do_is_a_guard_error() {
    let session = Session::new(Options::default());
    for error in [session.attach().err(), session.range("r").err()] {
        let error = error.expect("the session isn't open");
        assert_eq!(error.kind(), ErrorKind::Guard);
        assert!(error.message().contains("isn't open"), "{error}");
    }
    let recording = session.start().unwrap();
    let twice = session.start().err().expect("it is open");
    assert!(twice.kind() == ErrorKind::Guard && twice.message().contains("attach"), "{twice}");
    recording.stop().unwrap();
}

#[test]
fn a_session_can_go_on_and_be_read_meanwhile() {
    let (d, x) = (dispatcher(), tensor(&[1]));
    let session = Session::new(Options::default());
    for round in 1..=2 {
        let recording = session.start().unwrap();
        call(&d, "t::id", &x).unwrap();
        let so_far = session.profile();
        assert_eq!((so_far.events.len(), so_far.is_open), (round, true));
        assert_eq!(session.event_count(), round);
        recording.stop().unwrap();
        call(&d, "t::id", &x).unwrap();
    }
    let profile = session.profile();
    assert!(!profile.is_open && profile.total == session.total());
    assert_eq!(profile.events.len(), 2);
}

#[test]
fn a_session_that_no_call_can_reach_says_why_it_is_empty() {
    let (d, x) = (dispatcher(), tensor(&[1]));
    let guard = exclude_keys(K::Profiler.into());
    let profile = recorded(Options::default(), || {
        call(&d, "t::id", &x).unwrap();
    });
    drop(guard);
    let text = profile.table(&TableOptions::default()).to_string();
    assert!(profile.events.is_empty() && text.contains("is excluded"), "{text}");
    let text = recorded(Options::default(), || {}).table(&TableOptions::default()).to_string();
    assert!(!text.contains("excluded"), "{text}");
}

#[test]
fn the_key_without_a_session_changes_nothing() {
    let (d, x) = (dispatcher(), tensor(&[2]));
    let _keys = include_keys(K::Profiler.into());
    let result = call(&d, "t::id", &x).unwrap().into_tensor().unwrap();
    assert_eq!(result.raw_data_ptr().unwrap(), x.raw_data_ptr().unwrap());
}

#[test]
fn operators_are_let_go_when_the_session_closes() {
    let (d, x) = (dispatcher(), tensor(&[1]));
    let operator = d.operator("t::id").unwrap();
    let before = Arc::strong_count(&operator);
    let session = Session::new(Options::default());
    let recording = session.start().unwrap();
    operator.call(&[(&x).into()]).unwrap();
    assert!(Arc::strong_count(&operator) > before, "its address stays its own meanwhile");
    recording.stop().unwrap();
    assert_eq!(Arc::strong_count(&operator), before);
}

#[test]
fn threads_that_attach_are_recorded_with_their_names() {
    const EACH: usize = 200;
    let (d, x) = (dispatcher(), tensor(&[1]));
    let session = Session::new(nested());
    let recording = session.start().unwrap();
    session.name_thread("the first");
    call(&d, "t::id", &x).unwrap();
    std::thread::scope(|scope| {
        let work = || {
            let _attached = session.attach().unwrap();
            for _ in 0..EACH {
                call(&d, "t::twice", &x).unwrap();
            }
        };
        for number in 0..4 {
            let builder = std::thread::Builder::new().name(format!("worker {number}"));
            builder.spawn_scoped(scope, work).unwrap();
        }
        // This thread doesn't attach.
        scope.spawn(|| call(&d, "t::id", &x).unwrap());
    });
    recording.stop().unwrap();
    let profile = session.profile();
    assert_eq!(profile.events.len(), 1 + 4 * 3 * EACH);
    let names: Vec<&str> = profile.threads.values().map(String::as_str).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["the first", "worker 0", "worker 1", "worker 2", "worker 3"]);
    for event in &profile.events {
        let Some(parent) = event.parent.map(|at| &profile.events[at]) else { continue };
        assert_eq!((parent.thread, &*parent.name), (event.thread, "t::twice"));
        assert!(parent.start <= event.start && event.end() <= parent.end());
    }
    check_trace(&profile);
}

#[test]
fn the_table_sums_up_and_counts_recursion_once() {
    let (d, x) = (dispatcher(), tensor(&[1]));
    let profile = recorded(nested(), || {
        let down = d.operator("t::down").unwrap();
        down.call(&[(&x).into(), ValueRef::Int(3)]).unwrap();
        call(&d, "t::twice", &x).unwrap();
    });
    let table = profile.table(&TableOptions { sort: SortBy::Name, limit: None });
    let rows: Vec<(&str, u64)> = table.rows.iter().map(|row| (&*row.name, row.calls)).collect();
    assert_eq!(rows, [("t::down", 4), ("t::id", 2), ("t::twice", 1)]);
    let down = &table.rows[0];
    assert_eq!((down.total, down.self_time), (profile.events[0].duration, down.total));
    assert_eq!(table.self_total, table.rows.iter().map(|row| row.self_time).sum::<u64>());
    let share: f64 = table.rows.iter().map(|row| row.share).sum();
    assert!((share - 1.0).abs() < 1e-9);
    let one = profile.table(&TableOptions { sort: SortBy::Calls, limit: Some(1) });
    assert_eq!((&*one.rows[0].name, one.left_out, one.events), ("t::down", 2, 7));
    assert!(one.to_string().contains("... and 2 more rows"), "{one}");
    let error = "speed".parse::<SortBy>().unwrap_err();
    assert!(error.message().contains("\"speed\"") && error.message().contains("\"total\""));
}

#[test]
fn a_table_prints_in_columns() {
    let (d, x) = (dispatcher(), tensor(&[8]));
    let profile = recorded(Options::default(), || {
        let _range = range("step");
        call(&d, "t::new", &x).unwrap();
    });
    let text = profile.table(&TableOptions { sort: SortBy::Total, limit: None }).to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("operator  keys     calls"), "{text}");
    assert!(lines[2].starts_with("step      (range)      1"), "{text}");
    assert!(lines[3].starts_with("t::new    CPU          1"), "{text}");
    assert!(lines[3].ends_with("64 B       32 B"), "{text}");
    assert!(lines[4].starts_with("2 events, "), "{text}");
    let none = recorded(Options::default(), || {}).table(&TableOptions::default()).to_string();
    assert!(none.starts_with("0 events"), "{none}");
}

/// Ranges of two asyncio tasks on one thread overlap in any way.
#[test]
fn ranges_that_overlap_get_tracks_of_their_own() {
    let (d, x) = (dispatcher(), tensor(&[1]));
    let profile = recorded(Options::default(), || {
        let first = range("first");
        // The second task starts outside of the first one's range.
        let second = keyfold_dispatch::LocalContext::default().replace(|| range("no profile"));
        assert!(second.is_none());
        let session = super::session::Scope::current().unwrap().session.clone();
        let other = super::OpenRange::of(&session, "second").unwrap();
        drop(first);
        call(&d, "t::id", &x).unwrap();
        drop(other);
    });
    assert_eq!(names(&profile), ["first", "second", "t::id"]);
    let trace = check_trace(&profile);
    let tid = |name: &str| {
        let event = trace.iter().find(|event| event["name"] == name).expect("an event");
        event["tid"].as_u64()
    };
    assert_ne!(tid("first"), tid("second"));
}

#[test]
fn the_trace_is_what_its_format_asks_for() {
    let (d, x) = (dispatcher(), tensor(&[2, 3]));
    let profile = recorded(nested(), || {
        let _range = range("a \"step\"\n");
        call(&d, "t::twice", &x).unwrap();
        call(&d, "t::new", &x).unwrap();
        call(&d, "t::fail", &x).unwrap_err();
    });
    let trace = check_trace(&profile);
    let find = |name: &str| trace.iter().find(|event| event["name"] == name).expect("an event");
    let new = &find("t::new")["args"];
    assert_eq!(new["inputs"], serde_json::json!(["float32[2, 3]"]));
    assert_eq!((&new["bytes out"], &new["keys"]), (&24.into(), &"CPU".into()));
    assert_eq!(new["call path"], "a \"step\"\n > t::new");
    assert_eq!(find("t::fail")["args"]["failed"], true);
    assert!(trace.iter().any(|event| event["ph"] == "C" && event["name"] == "memory"));
    assert!(check_trace(&recorded(nested(), || {})).iter().all(|event| event["ph"] == "M"));
}

/// Checks a trace against the rules of the format, and returns its events.
fn check_trace(profile: &Profile) -> Vec<Json> {
    let trace: Json = serde_json::from_str(&profile.chrome_trace()).expect("valid JSON");
    assert!(matches!(trace["displayTimeUnit"].as_str(), Some("ns" | "ms")));
    let events = trace["traceEvents"].as_array().expect("a list").clone();
    let of = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    assert_eq!(of("M").count() + of("X").count() + of("C").count(), events.len());
    assert_eq!(of("X").count(), profile.events.len());
    let mut named = Vec::new();
    for event in of("M").filter(|event| event["name"] == "thread_name") {
        assert!(event["args"]["name"].is_string());
        named.push(event["tid"].as_u64().expect("a number"));
    }
    // In nanoseconds, since integers compare exactly.
    let ns = |value: &Json| (value.as_f64().expect("a number") * 1e3).round() as u64;
    let mut last = 0;
    let mut open: std::collections::HashMap<u64, Vec<u64>> = std::collections::HashMap::new();
    for event in events.iter().filter(|event| event["ph"] != "M") {
        assert_eq!(event["pid"].as_u64(), Some(u64::from(std::process::id())));
        let start = ns(&event["ts"]);
        assert!(start >= last, "events come in the order of their times");
        last = start;
        if event["ph"] == "C" {
            assert!(event["args"].as_object().expect("series").values().all(Json::is_number));
            continue;
        }
        let (tid, end) = (event["tid"].as_u64().expect("a number"), start + ns(&event["dur"]));
        assert!(named.contains(&tid), "every track has a name");
        let stack = open.entry(tid).or_default();
        while stack.last().is_some_and(|until| *until <= start) {
            stack.pop();
        }
        assert!(stack.iter().all(|until| end <= *until), "events of a track nest");
        stack.push(end);
    }
    events
}

#[test]
fn a_range_that_an_error_leaves_has_failed() {
    let session = Session::new(Options::default());
    let recording = session.start().unwrap();
    let outer = range("outer").unwrap();
    range("inner").unwrap().fail();
    OpenRange::of(&session, "alone").unwrap().fail();
    drop(outer);
    recording.stop().unwrap();
    let events = session.profile().events;
    let seen: Vec<_> = events.iter().map(|event| (&*event.name, event.failed)).collect();
    assert_eq!(seen, [("outer", false), ("inner", true), ("alone", true)]);
}
