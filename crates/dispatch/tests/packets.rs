//! Overloads: which one a call means.

mod support;

use keyfold_core::ErrorKind;
use keyfold_dispatch::DispatchKey as K;
use support::{D, Ref, Val, said, says, word};

/// A dispatcher with a name of three overloads, each of which answers with its name.
fn scale() -> D {
    let d = D::new();
    for (schema, name) in [
        ("scale(Tensor x, float by=2.0) -> Tensor", "scale"),
        ("scale.named(Tensor x, *, str by) -> Tensor", "scale.named"),
        ("scale.out(Tensor x, float by=2.0, *, Tensor(a!) out) -> Tensor(a!)", "scale.out"),
    ] {
        d.define(schema).unwrap();
        d.register(name, K::CPU, says(name)).unwrap();
    }
    d
}

#[test]
fn a_call_runs_the_first_overload_that_takes_it() {
    let (d, x) = (scale(), word("x", K::CPU));
    let packet = d.packet("scale").unwrap();
    let call = |args: &[Ref<'_>], keywords: &[(&str, Ref<'_>)]| {
        packet.call(args, keywords).map(said).map_err(|error| error.message().to_owned())
    };
    assert_eq!(call(&[x.r()], &[]).unwrap(), "scale");
    assert_eq!(call(&[x.r(), Ref::Float(3.0)], &[]).unwrap(), "scale");
    assert_eq!(call(&[], &[("by", Ref::Int(3)), ("x", x.r())]).unwrap(), "scale");
    assert_eq!(call(&[x.r()], &[("by", Ref::Text("twice"))]).unwrap(), "scale.named");
    assert_eq!(call(&[x.r()], &[("out", x.r())]).unwrap(), "scale.out");
    // Without `out` the third isn't among what could have been meant.
    let error = call(&[x.r()], &[("by", Ref::Nil)]).unwrap_err();
    assert!(error.starts_with("scale() has no overload for these arguments:\n"), "{error}");
    assert!(error.contains("argument 'by' must be float") && error.contains("must be str"));
    assert!(!error.contains("out"), "{error}");
    // One reason that they share says all.
    let error = call(&[Ref::Int(1)], &[("by", Ref::Text("twice"))]).unwrap_err();
    assert!(error.starts_with("scale"), "{error}");
    let error = call(&[x.r()], &[("bye", Ref::Int(1))]).unwrap_err();
    assert!(error.contains("unexpected keyword argument 'bye'. Did you mean 'by'?"), "{error}");
}

#[test]
fn the_sole_overload_is_the_default_one_or_the_only_one() {
    let d = scale();
    let packet = d.packet("scale").unwrap();
    assert_eq!(packet.name(), "scale");
    assert_eq!(packet.sole().unwrap().name(), "scale");
    let overloads = packet.overloads().unwrap();
    assert_eq!(overloads.len(), 3);
    assert!(d.packet("scale.named").is_ok(), "a packet of one");

    d.define("only.a(Tensor x) -> Tensor").unwrap();
    d.define("only.a_out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)").unwrap();
    assert_eq!(d.packet("only").unwrap().sole().unwrap().name(), "only.a", "but for `out`");

    d.define("pick.a(Tensor x) -> Tensor").unwrap();
    let b = d.define("pick.b(Tensor x) -> Tensor").unwrap();
    let pick = d.packet("pick").unwrap();
    assert_eq!(pick.sole().unwrap_err().kind(), ErrorKind::UnknownOperator);
    assert!(b.remove());
    assert_eq!(pick.sole().unwrap().name(), "pick.a");
}

#[test]
fn a_packet_follows_definitions_and_removals() {
    let d = D::new();
    assert_eq!(d.packet("op").unwrap_err().kind(), ErrorKind::UnknownOperator);
    let handle = d.define("op(Tensor x) -> Tensor").unwrap();
    let packet = d.packet("op").unwrap();
    d.define("op.more(Tensor x, Tensor y) -> Tensor").unwrap();
    d.register("op.more", K::CPU, says("more")).unwrap();
    let x = word("x", K::CPU);
    assert_eq!(said(packet.call(&[x.r(), x.r()], &[]).unwrap()), "more");
    assert!(handle.remove());
    assert_eq!(packet.overloads().unwrap().len(), 1);
    d.clear();
    let kind = |result: keyfold_core::Result<Val>| result.unwrap_err().kind();
    assert_eq!(kind(packet.call(&[x.r()], &[])), ErrorKind::OperatorRemoved);
}

#[test]
fn an_error_about_an_argument_itself_ends_the_search() {
    let d = scale();
    let packet = d.packet("scale").unwrap();
    let overloads = packet.overloads().unwrap();
    let mut asked = 0;
    let refused = keyfold_dispatch::first_that_takes(
        "scale",
        &overloads,
        |operator| operator.schema(),
        |_| {
            asked += 1;
            Err(keyfold_core::Error::new(ErrorKind::DType, "float8 isn't supported"))
        },
        Vec::new,
    );
    assert_eq!((refused.unwrap_err().kind(), asked), (ErrorKind::DType, 1));
}
