//! Fusion in pipelines: operations that are computed in one pass, with the results of one by one.

#[path = "support/pipelines.rs"]
mod pipelines;

use std::sync::Arc;

use keyfold::ops::aten;
use keyfold_core::{DType, ErrorKind, Result, Scalar};
use keyfold_dispatch::{DispatchKey, Kernel, Override};
use keyfold_layers::pipeline::{Options, Session, Statistics};
use keyfold_tensor::{Tensor, Value};
use proptest::prelude::*;

use pipelines::bits;

/// Runs a block in a pipeline; returns its result, the outcome and the counters.
fn within<R>(f: impl FnOnce(&Arc<Session>) -> R) -> (R, Result<()>, Statistics) {
    pipelines::within(Options::default(), f)
}

/// Makes float64 numbers from 0.5 to 3.5.
fn numbers(shape: &[usize]) -> Tensor {
    let numbers = pipelines::numbers(shape, DType::F64);
    aten::add_scalar(&aten::abs(&numbers).unwrap(), 0.5).unwrap()
}

/// Five pointwise operations.
fn chain(x: &Tensor) -> Result<Tensor> {
    let y = aten::exp(&aten::mul(x, x)?)?;
    aten::sqrt(&aten::add(&y, &aten::tanh(x)?)?)
}

#[test]
fn a_chain_is_one_group_and_has_the_same_bits() {
    let x = numbers(&[4, 5]);
    let expected = chain(&x).unwrap();
    let (y, ended, counted) = within(|session| {
        let y = chain(&x).unwrap();
        let explained = session.explain();
        assert_eq!(explained.groups.len(), 1);
        assert_eq!(explained.groups[0].operations, [0, 1, 2, 3, 4]);
        assert_eq!(explained.groups[0].stored, [4]);
        assert_eq!(explained.groups[0].saved_bytes, 4 * 160);
        let line = "in one pass: %0, %1, %2, %3, %4; stored: %4; 640 bytes aren't written";
        assert!(explained.to_string().contains(line), "{explained}");
        y
    });
    ended.unwrap();
    assert_eq!(bits(&y), bits(&expected));
    assert_eq!((counted.groups, counted.fused, counted.ran), (1, 5, 5));
}

#[test]
fn the_same_program_is_planned_once() {
    let run = |x: &Tensor| {
        let (_, ended, counted) = within(|_| chain(&aten::log(x).unwrap()).unwrap());
        ended.unwrap();
        assert_eq!(counted.groups, 1);
        counted.planned
    };
    run(&numbers(&[3]));
    // Also for other sizes and memory.
    assert_eq!((run(&numbers(&[3])), run(&numbers(&[7]))), (0, 0));
    assert_eq!(run(&aten::to(&numbers(&[3]), DType::F32).unwrap()), 1);
}

/// Two operations of equal forms, which differ in the tensors that they share, in their numbers, or in
/// what is held afterwards.
type TwoInputs = fn(&Tensor, &Tensor) -> Result<Vec<Tensor>>;

const ALIKE: [TwoInputs; 9] = [
    |x, y| Ok(vec![aten::add(&aten::mul(x, y)?, x)?]),
    |x, _| Ok(vec![aten::add(&aten::mul(x, x)?, x)?]),
    |x, y| Ok(vec![aten::add(&aten::mul(x, x)?, y)?]),
    |x, y| Ok(vec![aten::add(&aten::mul(x, y)?, y)?]),
    |x, y| Ok(vec![aten::add(x, &aten::mul(x, y)?)?]),
    |x, y| {
        let product = aten::mul(x, y)?;
        Ok(vec![aten::add(&product, &product)?])
    },
    |x, y| {
        let product = aten::mul(x, y)?;
        Ok(vec![aten::add(&product, x)?, product])
    },
    |x, y| Ok(vec![aten::add(&aten::mul_scalar(x, 2.0)?, y)?]),
    |x, y| Ok(vec![aten::add(&aten::mul_scalar(x, 3.0)?, y)?]),
];

#[test]
fn calls_of_equal_forms_are_told_apart() {
    let all = numbers(&[8]);
    let part = |start| all.slice(0, Some(start), Some(start + 3), 1).unwrap();
    // Views of one memory, too: also of the same elements, by two objects.
    for (x, y) in [(numbers(&[3]), part(4)), (part(0), part(2)), (part(1), part(1))] {
        for program in ALIKE.iter().cycle().take(3 * ALIKE.len()) {
            let expected = program(&x, &y).unwrap();
            let (results, ended, _) = within(|_| program(&x, &y).unwrap());
            ended.unwrap();
            let bits_of = |all: &[Tensor]| all.iter().map(bits).collect::<Vec<_>>();
            assert_eq!(bits_of(&results), bits_of(&expected));
        }
    }
}

#[test]
fn results_that_somebody_holds_are_stored() {
    let x = numbers(&[6]);
    let ((first, last), ended, counted) = within(|_| {
        let first = aten::mul(&x, &x).unwrap();
        let last = aten::exp(&aten::neg(&first).unwrap()).unwrap();
        (first, last)
    });
    ended.unwrap();
    assert_eq!((counted.groups, counted.fused), (1, 3));
    let first_alone = aten::mul(&x, &x).unwrap();
    assert_eq!(bits(&first), bits(&first_alone));
    assert_eq!(bits(&last), bits(&aten::exp(&aten::neg(&first_alone).unwrap()).unwrap()));
}

#[test]
fn a_view_of_an_intermediate_result_is_read_after_it_is_stored() {
    let x = numbers(&[3, 4]);
    let program = |x: &Tensor| {
        let y = aten::exp(&aten::neg(x)?)?;
        let turned = aten::permute(&y, &[1, 0])?;
        aten::add(&aten::mul(&turned, &turned)?, &turned)
    };
    let (y, ended, counted) = within(|_| program(&x).unwrap());
    ended.unwrap();
    assert_eq!(counted.groups, 2);
    assert_eq!(bits(&y), bits(&program(&x).unwrap()));
}

#[test]
fn halves_are_rounded_after_each_operation() {
    let x = aten::to(&numbers(&[50]), DType::F16).unwrap();
    let (y, ended, counted) = within(|_| chain(&x).unwrap());
    ended.unwrap();
    assert_eq!((counted.groups, y.dtype()), (1, DType::F16));
    assert_eq!(bits(&y), bits(&chain(&x).unwrap()));
}

#[test]
fn inputs_broadcast_and_numbers_are_parameters() {
    let (x, row) = (numbers(&[3, 4]), numbers(&[4]));
    let program = |number: f64| {
        let scaled = aten::mul_scalar(&aten::add(&x, &row)?, number)?;
        aten::to(&aten::sub(&scaled, &row)?, DType::F32)
    };
    for number in [0.5, 3.0] {
        let (y, ended, counted) = within(|_| program(number).unwrap());
        ended.unwrap();
        assert_eq!((counted.groups, counted.fused), (1, 4));
        assert_eq!(bits(&y), bits(&program(number).unwrap()));
    }
}

#[test]
fn what_isn_t_pointwise_separates_groups_and_keeps_the_order_of_writes() {
    let x = numbers(&[2, 2]);
    let program = || {
        let y = aten::exp(&aten::neg(&x)?)?;
        let product = aten::matmul(&y, &y)?;
        let z = aten::add(&aten::tanh(&product)?, &y)?;
        aten::fill_(&z, Scalar::from(2.0))?;
        aten::mul(&aten::neg(&z)?, &z)
    };
    let (z, ended, counted) = within(|_| program().unwrap());
    ended.unwrap();
    assert_eq!((counted.groups, counted.ran), (3, 8));
    assert_eq!(bits(&z), bits(&program().unwrap()));
}

#[test]
fn an_element_at_fault_in_a_group_is_the_error_of_its_operation() {
    let base = aten::to(&numbers(&[3]), DType::I64).unwrap();
    let exponent = Tensor::from_slice(&[1_i64, -1, 2], &[3]).unwrap();
    let ((before, bad, after), ended, counted) = within(|session| {
        let before = aten::add(&base, &base).unwrap();
        let bad = aten::pow(&before, &exponent).unwrap();
        let after = aten::neg(&bad).unwrap();
        assert_eq!(session.explain().groups.len(), 1);
        (before, bad, after)
    });
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.message().contains("aten::pow") && error.message().contains("-1"), "{error}");
    assert_eq!(
        before.to_vec::<i64>().unwrap(),
        aten::add(&base, &base).unwrap().to_vec::<i64>().unwrap()
    );
    for poisoned in [bad, after] {
        assert_eq!(poisoned.to_vec::<i64>().unwrap_err().message(), error.message());
    }
    assert_eq!((counted.failed, counted.skipped, counted.groups), (1, 1, 0));
}

#[test]
fn a_user_s_kernel_for_an_operator_is_called() {
    let x = numbers(&[3]);
    let dispatcher = keyfold::dispatcher();
    let sine = |x: &Tensor| dispatcher.call("aten::sin", &[x.into()])?.into_tensor();
    let program = || aten::neg(&sine(&aten::abs(&x)?)?);
    let (_, _, counted) = within(|_| program().unwrap());
    assert_eq!((counted.groups, counted.fused), (1, 3));
    let operator = dispatcher.operator("aten::sin").unwrap();
    let own = Kernel::typed(|x: &Tensor| aten::mul_scalar(x, 100.0));
    let handle =
        dispatcher.register_with(&operator, DispatchKey::CPU, own, Override::Shadow).unwrap();
    let (y, ended, counted) = within(|_| program().unwrap());
    ended.unwrap();
    assert_eq!(counted.groups, 0);
    let hundred = aten::neg(&aten::mul_scalar(&aten::abs(&x).unwrap(), 100.0).unwrap()).unwrap();
    assert_eq!(bits(&y), bits(&hundred));
    // Between recording and flush, too.
    let (y, ended, counted) = within(|_| {
        let y = program().unwrap();
        assert!(handle.remove());
        y
    });
    ended.unwrap();
    assert_eq!(counted.groups, 1);
    assert_eq!(bits(&y), bits(&program().unwrap()));
}

#[test]
fn more_operations_than_a_group_may_have_are_several_groups() {
    let x = numbers(&[5]);
    let program = || {
        let mut y = aten::neg(&x)?;
        for _ in 0..600 {
            y = aten::tanh(&aten::add(&y, &x)?)?;
        }
        Ok::<_, keyfold_core::Error>(y)
    };
    let (y, ended, counted) = within(|_| program().unwrap());
    ended.unwrap();
    assert!(counted.groups > 1 && counted.fused > 1000, "{counted:?}");
    assert_eq!(bits(&y), bits(&program().unwrap()));
}

/// The operations of random programs.
fn step(at: usize, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match at {
        0 => aten::add(a, b),
        1 => aten::mul(a, b),
        2 => aten::maximum(a, b),
        3 => aten::tanh(a),
        4 => aten::to(&aten::to(a, DType::F32)?, DType::F64),
        5 => aten::to(&aten::lt(a, b)?, DType::F64),
        6 => aten::where_(&aten::gt(a, b)?, a, b),
        7 => aten::pow_scalar(a, Scalar::from(2)),
        8 => aten::sum(a, &[-1], true),
        9 => aten::permute(a, &[1, 0]),
        10 => aten::matmul(a, b),
        11 => aten::exp(&aten::neg(&aten::abs(a)?)?),
        _ => {
            aten::copy_(a, b)?;
            Ok(a.clone())
        }
    }
}

fn run(steps: &[(usize, usize, usize, bool)]) -> Vec<Result<Tensor>> {
    let mut made: Vec<Result<Tensor>> =
        [[4, 4], [4, 4], [1, 4]].iter().map(|shape| aten::clone(&numbers(shape))).collect();
    for (at, a, b, forget) in steps {
        let count = made.len();
        let (Ok(a), Ok(b)) = (&made[a % count], &made[b % count]) else { continue };
        let result = step(*at, a, b);
        if *forget && count > 3 {
            drop(made.remove(3));
        }
        made.push(result);
    }
    made
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_programs_have_the_same_bits(
        steps in prop::collection::vec((0..13_usize, 0..60_usize, 0..60_usize, any::<bool>()), 1..50),
    ) {
        keyfold::init();
        let eager = run(&steps);
        let (deferred, ended, _) = within(|_| run(&steps));
        prop_assert!(ended.is_ok(), "{ended:?}");
        prop_assert_eq!(eager.len(), deferred.len());
        for (eager, deferred) in eager.iter().zip(&deferred) {
            match (eager, deferred) {
                (Ok(eager), Ok(deferred)) => {
                    prop_assert!(!deferred.is_pending());
                    prop_assert_eq!(eager.shape(), deferred.shape());
                    prop_assert_eq!(bits(eager), bits(deferred));
                }
                (Err(eager), Err(deferred)) => prop_assert_eq!(eager.kind(), deferred.kind()),
                _ => prop_assert!(false, "{eager:?} and {deferred:?}"),
            }
        }
    }
}

#[test]
fn values_of_the_host_language_are_kept_out() {
    // An operator of the user's own between pointwise ones.
    keyfold::init();
    let dispatcher = keyfold::dispatcher();
    dispatcher.define("fusiontest::double(Tensor x) -> Tensor").unwrap();
    let like = |x: &Tensor| Tensor::meta(x.shape(), x.dtype());
    dispatcher.register("fusiontest::double", DispatchKey::Meta, Kernel::typed(like)).unwrap();
    let double = |x: &Tensor| aten::add(x, x);
    dispatcher.register("fusiontest::double", DispatchKey::CPU, Kernel::typed(double)).unwrap();
    let x = numbers(&[3]);
    let (y, ended, counted) = within(|_| {
        let y = aten::exp(&aten::neg(&x).unwrap()).unwrap();
        let y = dispatcher.call("fusiontest::double", &[(&y).into()]).unwrap();
        let Value::Tensor(y) = y else { unreachable!("it returns a tensor") };
        aten::abs(&aten::neg(&y).unwrap()).unwrap()
    });
    ended.unwrap();
    assert_eq!((counted.groups, counted.fused), (2, 4));
    let e = aten::exp(&aten::neg(&x).unwrap()).unwrap();
    assert_eq!(bits(&y), bits(&aten::add(&e, &e).unwrap()));
}
