//! A defect in a group of operations of a pipeline, found by `check`.

use std::sync::Arc;

use keyfold::ops::aten;
use keyfold_backend::delayed::Delayed;
use keyfold_core::{Device, ErrorKind};
use keyfold_layers::pipeline::{Check, Ending, Options, Session, Statistics};
use keyfold_tensor::Tensor;

use crate::host::{Defect, Planted};
use crate::{memory, with_backend};

/// Computes two results in one pass, on a device whose groups have a defect; returns the error and
/// the counters.
fn found(defect: Defect, check: Option<Check>) -> (Option<keyfold_core::Error>, Statistics) {
    let backend =
        |kind| Arc::new(Delayed::over(Arc::new(Planted::new(defect)), memory(kind))) as Arc<_>;
    with_backend(backend, |kind| {
        let x = Tensor::from_slice(&[0.5_f32, 1.0, 2.0, 4.0, 8.0, 16.0], &[2, 3]).unwrap();
        let x = x.to_device(Device::new(kind, 0)).unwrap();
        let session = Session::new(Options { check, ..Options::default() }).unwrap();
        session.open();
        let guard = session.enter();
        let y = aten::mul(&x, &x).unwrap();
        let z = aten::sub(&aten::sqrt(&y).unwrap(), &y).unwrap();
        let after = aten::add(&z, &x).unwrap();
        guard.close().unwrap();
        let error = session.close(Ending::Run).err();
        let stays = aten::sum_all(&y).unwrap().item().unwrap();
        assert_eq!(stays.as_f64(), 341.25);
        if let Some(error) = &error {
            let read = after.to_vec::<f32>().unwrap_err();
            assert_eq!(read.message(), error.message());
        }
        (error, session.statistics())
    })
}

#[test]
fn an_element_of_a_group_that_differs() {
    let (error, counted) = found(Defect::GroupTail, Some(Check::Eager));
    let error = error.unwrap();
    assert_eq!(error.kind(), ErrorKind::Pipeline);
    // The results that somebody holds are stored: of the operations 0, 2 and 3.
    for part in [
        "aten::add: element [1, 2] is ",
        " when the call runs eagerly; the pipeline computed it in one pass over %0, %1, %2, %3",
        "operation 3 of a pipeline, aten::add",
    ] {
        assert!(error.message().contains(part), "{error}");
    }
    assert_eq!((counted.groups, counted.failed), (1, 1));
}

#[test]
fn without_the_check_nobody_notices() {
    let (error, counted) = found(Defect::GroupTail, None);
    assert!(error.is_none(), "{error:?}");
    assert_eq!((counted.groups, counted.checked), (1, 0));
}

#[test]
fn a_group_without_a_defect_passes() {
    let (error, counted) = found(Defect::OneError, Some(Check::Eager));
    assert!(error.is_none(), "{error:?}");
    assert_eq!((counted.groups, counted.checked), (1, 3));
}
