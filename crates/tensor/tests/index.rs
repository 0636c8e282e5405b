//! `x[...]`: plans of views and picks, compared with a naive model.

use keyfold_core::{DType, Device, ErrorKind, Scalar};
use keyfold_tensor::Tensor;
use keyfold_tensor::index::{Entry, Pick, Plan, Step, plan};

type E = Entry<Tensor>;

fn positions(items: &[i64]) -> E {
    Entry::from_tensor(&Tensor::from_slice(items, &[items.len()]).unwrap()).unwrap()
}

fn slice(start: Option<i64>, stop: Option<i64>, step: i64) -> E {
    Entry::Slice { start, stop, step }
}

/// 0, 1, 2, ... in a shape.
fn counted(shape: &[usize]) -> Tensor {
    Tensor::from_vec((0..shape.iter().product::<usize>() as i64).collect(), shape).unwrap()
}

/// The positions that an entry takes of a dimension of this size, one by one, in Python's words.
fn taken(entry: &E, size: i64) -> Vec<i64> {
    let from_end = |at: i64| if at < 0 { at + size } else { at };
    match *entry {
        Entry::At(at) => vec![from_end(at)],
        Entry::Slice { start, stop, step } => {
            let mut all: Vec<i64> = (0..size).collect();
            if step < 0 {
                all.reverse();
            }
            let begins = |at: &i64| match start {
                Some(start) if step > 0 => *at >= from_end(start),
                Some(start) => *at <= from_end(start),
                None => true,
            };
            let ends = |at: &i64| match stop {
                Some(stop) if step > 0 => *at < from_end(stop),
                Some(stop) => *at > from_end(stop),
                None => true,
            };
            let all = all.into_iter().filter(|at| begins(at) && ends(at));
            all.step_by(step.unsigned_abs() as usize).collect()
        }
        _ => unreachable!("not in this model"),
    }
}

#[test]
fn views_have_the_elements_of_the_naive_model() {
    let x = counted(&[3, 4]);
    let entries = [
        Entry::At(0),
        Entry::At(-1),
        Entry::from(..),
        Entry::from(1..),
        Entry::from(..-1),
        Entry::from(-2..9),
        slice(None, None, -1),
        slice(Some(-1), Some(0), -2),
        slice(Some(5), None, 2),
    ];
    for rows in &entries {
        for columns in &entries {
            let planned = plan(x.shape(), vec![rows.clone(), columns.clone()]).unwrap();
            assert!(planned.picks.is_none() && !planned.copies && planned.masks.is_empty());
            let columns = taken(columns, 4);
            let rows = taken(rows, 3).into_iter();
            let expected: Vec<i64> =
                rows.flat_map(|row| columns.iter().map(move |column| row * 4 + column)).collect();
            assert_eq!(planned.view(&x).unwrap().to_vec::<i64>().unwrap(), expected);
        }
    }
}

#[test]
fn new_axes_flags_and_the_ellipsis_make_dimensions() {
    let x = counted(&[2, 3, 4]);
    let shape =
        |entries: Vec<E>| plan(x.shape(), entries).unwrap().view(&x).unwrap().shape().to_vec();
    assert_eq!(shape(vec![]), [2, 3, 4]);
    assert_eq!(shape(vec![Entry::Ellipsis]), [2, 3, 4]);
    assert_eq!(shape(vec![Entry::Ellipsis, Entry::At(0)]), [2, 3]);
    assert_eq!(shape(vec![Entry::At(1), Entry::Ellipsis, Entry::NewAxis]), [3, 4, 1]);
    assert_eq!(shape(vec![Entry::NewAxis, Entry::from(..1)]), [1, 1, 3, 4]);
    assert_eq!(shape(vec![Entry::Flag(true)]), [1, 2, 3, 4]);
    assert_eq!(shape(vec![Entry::Flag(false), Entry::At(0)]), [0, 3, 4]);
    let all = vec![Entry::At(0), Entry::At(0), Entry::Ellipsis, Entry::At(0)];
    assert_eq!(shape(all), [] as [usize; 0]);
}

/// Prints the picks of a plan: `:` for all, a position, `[]` for none, `n` for an array of n dimensions.
fn picked<A>(planned: &Plan<A>) -> Option<String> {
    let picks = planned.picks.as_ref()?.iter().map(|pick| match pick {
        Pick::All => ":".to_owned(),
        Pick::At(at) => at.to_string(),
        Pick::Nothing => "[]".to_owned(),
        Pick::Array(_, dims) => format!("{dims}d"),
    });
    Some(picks.collect::<Vec<_>>().join(" "))
}

#[test]
fn arrays_pick_and_those_that_stand_apart_come_first() {
    let mask = Tensor::full(&[3, 4], Scalar::Bool(true), DType::Bool, Device::CPU).unwrap();
    let mask = Entry::from_tensor(&mask).unwrap();
    let empty = Tensor::zeros(&[0, 4], DType::Bool, Device::CPU).unwrap();
    let empty = Entry::from_tensor(&empty).unwrap();
    let of = |entries: Vec<E>| {
        let planned = plan(&[2, 3, 4, 5], entries).unwrap();
        (picked(&planned).unwrap(), planned.steps)
    };
    let all = || Entry::from(..);
    assert_eq!(of(vec![positions(&[0])]), ("1d".to_owned(), vec![]));
    assert_eq!(of(vec![all(), positions(&[0]), Entry::At(1)]), (": 1d 1".to_owned(), vec![]));
    assert_eq!(of(vec![all(), mask.clone()]), (": 2d".to_owned(), vec![]));
    assert_eq!(of(vec![all(), empty]), (": [] []".to_owned(), vec![]));
    let sliced = vec![Step::Slice(0, Some(1), None, 1)];
    assert_eq!(of(vec![Entry::from(1..), positions(&[0])]), (": 1d".to_owned(), sliced));
    let apart = of(vec![positions(&[0]), all(), positions(&[1])]);
    assert_eq!(apart, ("1d 1d".to_owned(), vec![Step::Permute(vec![0, 2, 1, 3])]));
    let apart = of(vec![Entry::At(1), Entry::NewAxis, mask]);
    let steps = vec![Step::Unsqueeze(1), Step::Permute(vec![0, 2, 3, 1, 4])];
    assert_eq!(apart, ("1 2d".to_owned(), steps));
}

#[test]
fn arrays_without_dimensions_are_read_if_they_may_be() {
    let scalar = |value| Tensor::from_scalar(value, DType::I64).unwrap();
    let flag = Tensor::from_scalar(Scalar::Bool(true), DType::Bool).unwrap();
    let one = Entry::from_tensor(&scalar(Scalar::Int(1))).unwrap();
    assert!(matches!(one, Entry::AtCopied(1)));
    assert!(plan(&[2], vec![one]).unwrap().copies);
    assert!(matches!(Entry::from_tensor(&flag).unwrap(), Entry::Flag(true)));
    let refuse = || Err(keyfold_core::Error::new(ErrorKind::Trace, "not now"));
    let unread = Entry::array((), &flag, refuse).unwrap();
    assert!(matches!(unread, Entry::UnreadFlag(())));
    assert_eq!(plan(&[2], vec![unread]).unwrap().masks.len(), 1);
    let refused = Entry::array((), &scalar(Scalar::Int(0)), refuse).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Trace);
    let large = Tensor::from_scalar(Scalar::UInt(u64::MAX), DType::U64).unwrap();
    let error = Entry::from_tensor(&large).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Index, "index 18446744073709551615 is out of range")
    );
}

#[test]
fn what_is_no_index_is_an_error() {
    let error = |entries: Vec<E>| {
        let error = plan(&[2, 3], entries).unwrap_err();
        (error.kind(), error.message().to_owned())
    };
    let (kind, message) = error(vec![Entry::At(0), Entry::At(0), Entry::At(0)]);
    assert_eq!(kind, ErrorKind::Index);
    assert_eq!(message, "3 indices are too many for shape [2, 3], which has 2 dimensions");
    let (_, message) = error(vec![Entry::Ellipsis, Entry::Ellipsis]);
    assert_eq!(message, "an index can have one ... only");
    let (_, message) = error(vec![positions(&[0]), Entry::Flag(true)]);
    assert_eq!(message, "True and False can't stand beside arrays in an index");
    assert_eq!(error(vec![slice(None, None, 0)]).0, ErrorKind::Value);
    let floats = Tensor::from_slice(&[0.5], &[1]).unwrap();
    assert_eq!(Entry::from_tensor(&floats).unwrap_err().kind(), ErrorKind::DType);
    let x = counted(&[2, 3]);
    let outside = plan::<Tensor>(x.shape(), vec![Entry::At(2)]).unwrap().view(&x).unwrap_err();
    assert_eq!(outside.kind(), ErrorKind::Index);
}
