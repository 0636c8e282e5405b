//! The Chrome trace: JSON that Perfetto and `chrome://tracing` open.
//!
//! From Google's "Trace Event Format": complete events (`X`, times in microseconds), counters (`C`)
//! for memory, metadata (`M`) for names. Viewers nest the complete events of one track by their
//! times, so events of a track must nest. Calls of one thread do. Ranges of interleaved asyncio
//! tasks may not, and those get an additional track of their thread.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

use super::event::{Event, EventKind, Profile};

/// Returns the trace as text, one event a line.
pub(super) fn chrome(profile: &Profile) -> String {
    let pid = std::process::id();
    let tracks = Tracks::of(profile);
    let mut lines = vec![
        json!({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "keyfold"}}),
    ];
    for (place, (tid, name)) in tracks.names(profile).into_iter().enumerate() {
        let meta = |what: &str, args: Json| json!({"name": what, "ph": "M", "pid": pid, "tid": tid, "args": args});
        lines.push(meta("thread_name", json!({"name": name})));
        lines.push(meta("thread_sort_index", json!({"sort_index": place})));
    }
    let mut timed = Vec::new();
    for (at, event) in profile.events.iter().enumerate() {
        timed.push((event.start, complete(profile, at, pid, tracks.track[at])));
    }
    if profile.options.memory {
        counters(profile, pid, &mut timed);
    }
    // Stable: an event that starts together with its parent stays after it.
    timed.sort_by_key(|(ts, _)| *ts);
    lines.extend(timed.into_iter().map(|(_, line)| line));
    let lines: Vec<String> = lines.iter().map(Json::to_string).collect();
    let what = json!({
        "recorded ms": micros(profile.total.as_nanos() as u64 / 1000),
        "nested": profile.options.nested,
        "still open": profile.is_open,
    });
    format!(
        "{{\n\"displayTimeUnit\": \"ns\",\n\"otherData\": {what},\n\"traceEvents\": [\n{}\n]\n}}\n",
        lines.join(",\n")
    )
}

/// Converts nanoseconds to microseconds, with at most three decimals.
fn micros(nanoseconds: u64) -> Json {
    json!(nanoseconds as f64 / 1e3)
}

fn complete(profile: &Profile, at: usize, pid: u32, tid: u32) -> Json {
    let event = &profile.events[at];
    let mut args = Map::new();
    let cat = match event.kind {
        EventKind::Call => {
            let inputs: Vec<String> = event.args.iter().map(ToString::to_string).collect();
            args.insert("keys".to_owned(), json!(&*event.keys));
            args.insert("inputs".to_owned(), json!(inputs));
            args.insert("bytes in".to_owned(), json!(event.bytes_in));
            args.insert("bytes out".to_owned(), json!(event.bytes_out));
            "operator"
        }
        EventKind::Range => "range",
    };
    if profile.options.memory {
        args.insert("allocated".to_owned(), json!(event.allocated));
    }
    args.insert("self us".to_owned(), micros(event.self_time));
    if let Some(time) = event.device_time {
        args.insert("device us".to_owned(), micros(time));
    }
    args.insert("call path".to_owned(), json!(profile.call_path(at).join(" > ")));
    if event.failed {
        args.insert("failed".to_owned(), json!(true));
    }
    let mut line = json!({
        "name": &*event.name,
        "cat": cat,
        "ph": "X",
        "ts": micros(event.start),
        "dur": micros(event.duration),
        "pid": pid,
        "tid": tid,
        "args": args,
    });
    if event.failed {
        // A named colour of the format, for viewers that support it.
        line["cname"] = json!("terrible");
    }
    line
}

/// Adds a counter at the end of each event with another amount of memory than the previous one.
fn counters(profile: &Profile, pid: u32, timed: &mut Vec<(u64, Json)>) {
    let mut ends: Vec<&Event> = profile.events.iter().collect();
    ends.sort_by_key(|event| event.end());
    let mut last = None;
    let first = profile.events.first().map(|event| (event.start, 0));
    for (ts, live) in first.into_iter().chain(ends.iter().map(|event| (event.end(), event.live))) {
        if last.replace(live) == Some(live) {
            continue;
        }
        let args = json!({"bytes in use": live});
        timed.push((
            ts,
            json!({"name": "memory", "ph": "C", "ts": micros(ts), "pid": pid, "tid": 0, "args": args}),
        ));
    }
}

/// The assignment of events to tracks. A thread's first track has the thread's own number.
struct Tracks {
    track: Vec<u32>,
    /// By track: thread and index among its tracks.
    found: BTreeMap<u32, (u32, usize)>,
}

impl Tracks {
    fn of(profile: &Profile) -> Tracks {
        let mut next = profile.threads.keys().max().map_or(1, |last| last + 1);
        let mut track = vec![0; profile.events.len()];
        let mut found = BTreeMap::new();
        // By thread: its tracks, each with its open events.
        let mut open: BTreeMap<u32, Vec<(u32, Vec<usize>)>> = BTreeMap::new();
        let mut order: Vec<usize> = (0..profile.events.len()).collect();
        // Stable, and the events are in the order of their starts.
        order.sort_by_key(|at| profile.events[*at].start);
        for at in order {
            let event = &profile.events[at];
            let tracks = open.entry(event.thread).or_default();
            for (_, stack) in tracks.iter_mut() {
                while stack.last().is_some_and(|last| profile.events[*last].end() <= event.start) {
                    // An event that started and ended at the same time may still be the parent.
                    if event.parent == stack.last().copied() {
                        break;
                    }
                    stack.pop();
                }
            }
            let fits = |stack: &[usize]| match stack.last() {
                None => true,
                Some(last) => {
                    Some(*last) == event.parent && profile.events[*last].end() >= event.end()
                }
            };
            // On the parent's track, if possible; else on any track without an open event.
            let place = tracks
                .iter()
                .position(|(_, stack)| !stack.is_empty() && fits(stack))
                .or_else(|| tracks.iter().position(|(_, stack)| fits(stack)));
            let place = place.unwrap_or_else(|| {
                let tid = if tracks.is_empty() {
                    event.thread
                } else {
                    next += 1;
                    next - 1
                };
                found.insert(tid, (event.thread, tracks.len()));
                tracks.push((tid, Vec::new()));
                tracks.len() - 1
            });
            let (tid, stack) = &mut tracks[place];
            stack.push(at);
            track[at] = *tid;
        }
        Tracks { track, found }
    }

    /// Returns the tracks with their names, grouped by thread.
    fn names(&self, profile: &Profile) -> Vec<(u32, String)> {
        let mut tracks: Vec<(u32, usize, u32)> =
            self.found.iter().map(|(tid, (thread, place))| (*thread, *place, *tid)).collect();
        tracks.sort_unstable();
        let name = |thread: u32, place: usize| {
            let name = profile.threads.get(&thread).cloned();
            let name = name.unwrap_or_else(|| format!("thread {thread}"));
            if place == 0 { name } else { format!("{name} ({})", place + 1) }
        };
        tracks.into_iter().map(|(thread, place, tid)| (tid, name(thread, place))).collect()
    }
}
