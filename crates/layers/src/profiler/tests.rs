use super::*;

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
