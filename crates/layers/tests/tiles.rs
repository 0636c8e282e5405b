//! Steps of a pipeline that are computed tile by tile, with the results of one by one.

#[path = "support/pipelines.rs"]
mod pipelines;

use std::sync::{Arc, Mutex};

use keyfold::ops::aten;
use keyfold_core::{DType, Device, Result};
use keyfold_dispatch::{DispatchKey, Kernel, Override};
use keyfold_layers::pipeline::{Explanation, Options, Session, Statistics};
use keyfold_tensor::{Tensor, Value, ValueRef};
use proptest::prelude::*;

use pipelines::{bits, numbers};

/// Runs a program in a pipeline; returns its result, what it was to be, and the counters.
fn deferred<R>(program: impl FnOnce() -> Result<R>) -> (Result<R>, Explanation, Statistics) {
    let run = |session: &Arc<Session>| (program(), session.explain());
    let ((result, plan), ended, counted) = pipelines::within(Options::default(), run);
    (ended.and(result), plan, counted)
}

/// Reduces a dimension, which stays with size 1.
fn reduced(name: &str, x: &Tensor, dim: i64) -> Result<Tensor> {
    let args: [ValueRef<'_>; 3] = [x.into(), ValueRef::Ints(&[dim]), true.into()];
    keyfold::dispatcher().call(name, &args)?.into_tensor()
}

fn largest(x: &Tensor, dim: i64) -> Result<Tensor> {
    reduced("aten::amax", x, dim)
}

fn mean(x: &Tensor, dim: i64) -> Result<Tensor> {
    reduced("aten::mean.dim", x, dim)
}

/// Softmax of the last dimension, in primitives.
fn softmax(x: &Tensor) -> Result<Tensor> {
    let powers = aten::exp(&aten::sub(x, &largest(x, -1)?)?)?;
    aten::div(&powers, &aten::sum(&powers, &[-1], true)?)
}

/// Layer norm of the last dimension, in primitives.
fn layer_norm(x: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let centered = aten::sub(x, &mean(x, -1)?)?;
    let variance = mean(&aten::mul(&centered, &centered)?, -1)?;
    let deviation = aten::sqrt(&aten::add_scalar(&variance, 1e-5)?)?;
    aten::mul(&aten::div(&centered, &deviation)?, scale)
}

#[test]
fn rows_are_handed_on_tile_by_tile_with_the_bits_of_one_by_one() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for shape in [&[300, 400][..], &[7, 90, 257], &[2, 3, 70, 300], &[3, 100_000]] {
            let x = numbers(shape, dtype);
            let scale = numbers(&shape[shape.len() - 1..], dtype);
            let (y, plan, counted) = deferred(|| softmax(&x));
            assert!(bits(&y.unwrap()) == bits(&softmax(&x).unwrap()), "{dtype} {shape:?}");
            assert!(plan.groups.len() == 1 && plan.groups[0].tiles, "{plan}");
            assert_eq!((counted.groups, counted.fused, counted.ran), (1, 5, 5));
            let (y, plan, _) = deferred(|| layer_norm(&x, &scale));
            assert!(bits(&y.unwrap()) == bits(&layer_norm(&x, &scale).unwrap()));
            assert!(plan.groups.len() == 1 && plan.groups[0].tiles, "{plan}");
        }
    }
}

#[test]
fn a_reduction_of_other_dimensions_ends_the_tiles() {
    let x = numbers(&[300, 400], DType::F32);
    let program = |dim: i64| {
        let y = aten::tanh(&aten::mul(&x, &x)?)?;
        aten::sqrt(&aten::exp(&aten::sum(&y, &[dim], true)?)?)
    };
    for (dim, tiles) in [(1, true), (0, false)] {
        let (y, plan, _) = deferred(|| program(dim));
        assert_eq!(bits(&y.unwrap()), bits(&program(dim).unwrap()));
        assert_eq!(plan.groups.iter().any(|group| group.tiles), tiles, "{plan}");
    }
}

#[test]
fn what_somebody_holds_or_a_later_step_reads_is_kept_whole() {
    let x = numbers(&[500, 200], DType::F32);
    let program = || {
        let y = aten::exp(&aten::mul(&x, &x)?)?;
        let total = aten::sum(&y, &[1], true)?;
        let quotient = aten::div(&y, &total)?;
        // Of all rows.
        let mean = mean(&quotient, 0)?;
        Ok([total, quotient, mean])
    };
    let (made, plan, _) = deferred(program);
    let tiles: Vec<_> = plan.groups.iter().filter(|group| group.tiles).collect();
    assert_eq!((tiles.len(), &tiles[0].stored[..]), (1, &[2, 3][..]), "{plan}");
    for (own, expected) in made.unwrap().iter().zip(program().unwrap()) {
        assert_eq!(bits(own), bits(&expected));
    }
}

#[test]
fn few_rows_are_one_tile_and_run_step_by_step() {
    let x = numbers(&[4, 5], DType::F64);
    let (y, plan, counted) = deferred(|| softmax(&x));
    assert_eq!(bits(&y.unwrap()), bits(&softmax(&x).unwrap()));
    assert!(plan.groups.len() == 1 && !plan.groups[0].tiles, "{plan}");
    assert_eq!((counted.groups, counted.fused, counted.ran), (1, 2, 5));
}

#[test]
fn other_views_and_fewer_dimensions_are_read_when_they_are_whole() {
    let x = numbers(&[400, 400], DType::F32);
    let programs: [&dyn Fn() -> Result<Tensor>; 3] = [
        // Broadcast along the rows.
        &|| {
            let y = aten::exp(&aten::neg(&x)?)?;
            aten::mul(&aten::sub(&y, &aten::sum(&y, &[1], false)?)?, &y)
        },
        &|| {
            let y = aten::exp(&aten::neg(&x)?)?;
            let turned = aten::permute(&y, &[1, 0])?;
            aten::div(&aten::mul(&turned, &turned)?, &aten::sum(&turned, &[1], true)?)
        },
        // A stage whose input isn't contiguous.
        &|| {
            let turned = aten::permute(&x, &[1, 0])?;
            let y = aten::exp(&aten::sub(&turned, &largest(&turned, 1)?)?)?;
            aten::div(&y, &aten::sum(&y, &[1], true)?)
        },
    ];
    for program in programs {
        let (y, plan, _) = deferred(program);
        assert!(bits(&y.unwrap()) == bits(&program().unwrap()), "{plan}");
    }
}

#[test]
fn a_kernel_of_the_user_s_own_is_called_once_for_all_rows() {
    keyfold::init();
    let x = numbers(&[300, 400], DType::F32);
    let dispatcher = keyfold::dispatcher();
    let rows = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&rows);
    let own = Kernel::boxed(move |_, args: &[ValueRef<'_>]| {
        let shape = args[0].tensor()?.shape().to_vec();
        seen.lock().unwrap().push(shape[0]);
        Ok(Value::Tensor(Tensor::zeros(&[shape[0], 1], DType::F32, Device::CPU)?))
    });
    let operator = dispatcher.operator("aten::amax").unwrap();
    let handle =
        dispatcher.register_with(&operator, DispatchKey::CPU, own, Override::Shadow).unwrap();
    let (y, plan, _) = deferred(|| softmax(&x));
    assert!(handle.remove());
    y.unwrap();
    assert_eq!(*rows.lock().unwrap(), [300], "{plan}");
}

#[test]
fn a_failure_in_a_tile_is_that_of_the_operation() {
    keyfold::init();
    let x = aten::to(&numbers(&[400, 300], DType::F64), DType::I64).unwrap();
    // One row's exponents are negative.
    let rows: Vec<i64> = (0..400).map(|at| 2 - at / 390 * 3).collect();
    let exponent = Tensor::from_slice(&rows, &[400, 1]).unwrap();
    let program = || {
        let total = aten::sum(&aten::mul(&x, &x)?, &[1], true)?;
        aten::sum(&aten::pow(&aten::add(&x, &total)?, &exponent)?, &[1], true)
    };
    let eager = program().unwrap_err();
    let (y, plan, counted) = deferred(program);
    let error = y.unwrap_err();
    assert!(plan.groups.iter().any(|group| group.tiles), "{plan}");
    assert_eq!(error.kind(), eager.kind());
    assert!(error.message().contains("aten::pow"), "{error}");
    assert_eq!(counted.failed, 1);
}

#[test]
fn places_of_elements_are_counted_in_the_whole() {
    keyfold::init();
    let program = || {
        let mut y = aten::arange(100_000, Device::CPU)?;
        // More results than a group may have: several groups.
        let mut all = Vec::new();
        for _ in 0..12 {
            y = aten::add_scalar(&y, 1)?;
            all.push(y.clone());
        }
        Ok(all)
    };
    let (made, plan, _) = deferred(program);
    for (own, expected) in made.unwrap().iter().zip(program().unwrap()) {
        assert!(own.to_vec::<i64>().unwrap() == expected.to_vec::<i64>().unwrap(), "{plan}");
    }
}

#[test]
fn a_recorded_program_computes_tiles_where_rows_allow_it() {
    let x = numbers(&[1000, 200], DType::F32);
    let session = Session::recorder();
    let placeholder = session.placeholder(&x).unwrap();
    let guard = session.enter();
    let y = softmax(&placeholder).unwrap();
    guard.close().unwrap();
    let recording = session.finish(&[placeholder], &[y]).unwrap();
    for replays in 1..3 {
        let y = recording.replay(std::slice::from_ref(&x)).unwrap();
        assert!(bits(&y[0]) == bits(&softmax(&x).unwrap()));
        assert_eq!(recording.tiled(), replays);
    }
    let turned = aten::permute(&numbers(&[200, 1000], DType::F32), &[1, 0]).unwrap();
    let session = Session::recorder();
    let placeholder = session.placeholder(&turned).unwrap();
    let guard = session.enter();
    let y = softmax(&placeholder).unwrap();
    guard.close().unwrap();
    let recording = session.finish(&[placeholder], &[y]).unwrap();
    let y = recording.replay(std::slice::from_ref(&turned)).unwrap();
    assert!(bits(&y[0]) == bits(&softmax(&turned).unwrap()));
    assert_eq!(recording.tiled(), 0);
}

#[test]
fn rows_of_another_layout_are_said_to_run_step_by_step() {
    let x = aten::permute(&numbers(&[400, 400], DType::F32), &[1, 0]).unwrap();
    let (y, plan, counted) = deferred(|| softmax(&x));
    assert!(bits(&y.unwrap()) == bits(&softmax(&x).unwrap()));
    assert!(plan.groups.iter().all(|group| !group.tiles), "{plan}");
    assert_eq!((counted.groups, counted.fused), (1, 2));
}

#[test]
fn long_programs_are_several_runs_of_tiles() {
    let x = numbers(&[400, 200], DType::F32);
    let program = || {
        let mut y = x.clone();
        for _ in 0..30 {
            y = aten::exp(&aten::sub(&y, &largest(&y, -1)?)?)?;
        }
        Ok(y)
    };
    let (y, plan, _) = deferred(program);
    assert!(bits(&y.unwrap()) == bits(&program().unwrap()));
    assert!(plan.groups.len() > 3 && plan.groups.iter().all(|group| group.tiles), "{plan}");
}

/// The operations of random programs.
fn step(at: usize, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match at {
        0 => aten::add(a, b),
        1 => aten::mul(a, b),
        2 => aten::maximum(a, b),
        3 => aten::tanh(a),
        4 => aten::to(&aten::to(a, DType::F16)?, DType::F32),
        5 => aten::to(&aten::lt(a, b)?, DType::F32),
        6 => aten::sum(a, &[-1], true),
        7 => largest(a, 1),
        8 => mean(a, -1),
        9 => aten::sum(a, &[0], true),
        10 => aten::permute(a, &[1, 0]),
        11 => reduced("aten::argmax", a, 1).and_then(|at| aten::to(&at, DType::F32)),
        12 => {
            let args: [ValueRef<'_>; 2] = [a.into(), 1.into()];
            keyfold::dispatcher().call("aten::softmax.int", &args)?.into_tensor()
        }
        _ => aten::exp(&aten::neg(&aten::abs(a)?)?),
    }
}

fn run(steps: &[(usize, usize, usize, bool)]) -> Vec<Result<Tensor>> {
    let shapes = [&[180, 200][..], &[180, 200], &[180, 1], &[200], &[200, 180]];
    let mut made: Vec<_> = shapes.iter().map(|shape| Ok(numbers(shape, DType::F32))).collect();
    for (at, a, b, forget) in steps {
        let count = made.len();
        let (Ok(a), Ok(b)) = (&made[a % count], &made[b % count]) else { continue };
        let result = step(*at, a, b);
        if *forget && count > 5 {
            drop(made.remove(5));
        }
        made.push(result);
    }
    made
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn random_programs_have_the_same_bits(
        steps in prop::collection::vec((0..14_usize, 0..60_usize, 0..60_usize, any::<bool>()), 2..14),
    ) {
        keyfold::init();
        let eager = run(&steps);
        let (made, plan, _) = deferred(|| Ok(run(&steps)));
        for (eager, own) in eager.iter().zip(&made.unwrap()) {
            match (eager, own) {
                (Ok(eager), Ok(own)) => {
                    prop_assert_eq!(eager.shape(), own.shape());
                    prop_assert!(bits(eager) == bits(own), "{plan}");
                }
                (Err(eager), Err(own)) => prop_assert_eq!(eager.kind(), own.kind()),
                _ => prop_assert!(false, "{eager:?} and {own:?}"),
            }
        }
    }
}
