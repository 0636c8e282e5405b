//! Groups that end in reductions of everything, or of long rows: computed part by part, with the results of
//! one by one.

#[path = "support/pipelines.rs"]
mod pipelines;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keyfold::kit::pool::{num_threads, set_num_threads};
use keyfold::ops::aten;
use keyfold_backend::{Operation, ReduceParams, join_parts, tiles_of};
use keyfold_core::{DType, Device, ErrorKind, Result, Shape};
use keyfold_cpu::HostBackend;
use keyfold_layers::pipeline::{Check, Explanation, Options, Session, Statistics};
use keyfold_tensor::{Tensor, ValueRef};

use pipelines::{bits, numbers, within};

/// The number of elements of a part.
fn part() -> usize {
    let tiles = tiles_of(&HostBackend).unwrap();
    let sum = tiles.reduce_parts(&const { Operation::new("sum") }, DType::F32, DType::F32);
    sum.unwrap().part()
}

/// Sets the number of threads until it is dropped; other tests wait.
struct Threads(usize, #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Threads {
    fn set(count: usize) -> Threads {
        static ONE: Mutex<()> = Mutex::new(());
        let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let before = num_threads().unwrap();
        set_num_threads(count).unwrap();
        Threads(before, guard)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        set_num_threads(self.0).unwrap();
    }
}

fn call(name: &str, args: &[ValueRef<'_>]) -> Result<Tensor> {
    keyfold::dispatcher().call(name, args)?.into_tensor()
}

/// Reduces the dimensions behind the first `lead` ones, or everything.
fn reduced(name: &str, x: &Tensor, lead: usize) -> Result<Tensor> {
    let dims: Vec<i64> = (lead as i64..x.ndim() as i64).collect();
    let along = format!("aten::{name}{}", if matches!(name, "sum" | "mean") { ".dim" } else { "" });
    call(&along, &[x.into(), ValueRef::Ints(&dims), (lead > 0).into()])
}

/// Runs a program in a pipeline with these options; returns its results and what it was to be.
fn run(
    options: Options,
    program: &dyn Fn() -> Result<Vec<Tensor>>,
) -> (Vec<Tensor>, Explanation, Statistics) {
    let run = |session: &Arc<Session>| (program().unwrap(), session.explain());
    let ((made, plan), ended, counted) = within(options, run);
    ended.unwrap();
    (made, plan, counted)
}

/// Compares a program's results in a pipeline with the eager ones, bit for bit. Returns the plan.
#[track_caller]
fn same(program: &dyn Fn() -> Result<Vec<Tensor>>) -> Explanation {
    keyfold::init();
    let expected = program().unwrap();
    let (made, plan, _) = run(Options::default(), program);
    assert_eq!(made.len(), expected.len());
    for (own, expected) in made.iter().zip(&expected) {
        assert_eq!((own.shape(), own.dtype()), (expected.shape(), expected.dtype()));
        assert!(bits(own) == bits(expected), "{:?}: {plan}", expected.shape());
    }
    plan
}

/// As [`same`], of a program that is one run of tiles.
#[track_caller]
fn same_in_parts(program: &dyn Fn() -> Result<Vec<Tensor>>) -> Explanation {
    let plan = same(program);
    assert!(plan.groups.len() == 1 && plan.groups[0].tiles, "{plan}");
    assert_eq!(plan.groups[0].operations.len(), plan.operations.len(), "{plan}");
    plan
}

#[test]
fn totals_of_every_dtype_have_the_bits_of_one_by_one() {
    use DType::{BF16, Bool, C64, C128, F16, F32, F64, I8, I32, I64, U8};
    let all = &["sum", "mean", "amax", "amin", "any", "all"][..];
    let cases = [(F16, all), (BF16, all), (F32, all), (F64, all), (I8, all), (U8, all)];
    let cases = cases.into_iter().chain([(I32, all), (I64, all), (Bool, all)]);
    let count = 2 * part() + 1001;
    for (dtype, names) in cases.chain([C64, C128].map(|dtype| (dtype, &["sum", "mean", "any"][..])))
    {
        let (x, y) = (numbers(&[count], dtype), numbers(&[1], dtype));
        for name in names {
            same_in_parts(&|| {
                let z = match dtype {
                    Bool => aten::ne(&x, &y)?,
                    _ => aten::mul(&aten::sub(&x, &y)?, &x)?,
                };
                Ok(vec![reduced(name, &z, 0)?])
            });
        }
    }
}

#[test]
fn infinity_and_nan_are_found_in_the_last_part() {
    for dtype in [DType::F16, DType::F32, DType::C64, DType::I32] {
        let mut items = vec![1.0; part() + 2];
        for last in [1.0, f64::INFINITY, f64::NAN] {
            items[part() + 1] = last;
            let x = aten::to(&Tensor::from_slice(&items, &[part() + 2]).unwrap(), dtype).unwrap();
            same_in_parts(&|| {
                Ok(vec![call("keyfold::has_inf_nan", &[(&aten::mul(&x, &x)?).into()])?])
            });
        }
    }
}

#[test]
fn a_kernel_refuses_what_are_no_parts() {
    let sum = &const { Operation::new("sum") };
    let tiles = tiles_of(&HostBackend).unwrap();
    let kernel = tiles.reduce_parts(sum, DType::F32, DType::F32).unwrap();
    let params = ReduceParams { op: sum, keepdim: 0, dims: 1 };
    let turned = aten::permute(&numbers(&[2, 3], DType::F32), &[1, 0]).unwrap();
    for wrong in [numbers(&[0], DType::F32), numbers(&[part() + 1], DType::F32), turned] {
        let error = kernel.reduce(&params, &wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(error.message().contains(&format!("from 1 to {}", part())), "{error}");
    }
    assert_eq!(
        kernel.reduce(&params, &numbers(&[3], DType::F64)).unwrap_err().kind(),
        ErrorKind::DType
    );
    let partial = kernel.reduce(&params, &numbers(&[3], DType::F32)).unwrap();
    let form = (Device::CPU, &Shape::empty(), DType::F32);
    for (len, count) in [(0, 0), (part(), 2), (part() + 1, 1), (part() + 1, 3)] {
        let partials = vec![partial; count];
        let error = join_parts(tiles, (&params, DType::F32), (len, &partials), form).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape);
        assert!(error.message().starts_with(&format!("{count} partial results")), "{error}");
    }
    let error = join_parts(tiles, (&params, DType::C64), (3, &[partial]), form).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    let argmax = &const { Operation::new("argmax") };
    assert!(tiles.reduce_parts(argmax, DType::F32, DType::I64).is_none());
    assert!(tiles.reduce_parts(sum, DType::C64, DType::F32).is_none());
}

#[test]
fn lanes_of_all_sizes_around_a_part_on_any_number_of_threads() {
    let part = part();
    for threads in [1, 2, 8] {
        let _threads = Threads::set(threads);
        for count in [0, 1, part - 1, part, part + 1, 2 * part, 3 * part - 1, 4 * part + 77] {
            for dtype in [DType::F32, DType::F16] {
                let x = numbers(&[count], dtype);
                let plan = same(&|| {
                    let y = aten::add(&aten::mul(&x, &x)?, &x)?;
                    Ok(vec![aten::sum_all(&y)?, call("aten::mean", &[(&y).into()])?])
                });
                let tiles = plan.groups.iter().any(|group| group.tiles);
                assert_eq!(tiles, count > part, "{count}: {plan}");
            }
        }
    }
}

#[test]
fn few_long_rows_are_parts_of_each() {
    let part = part();
    for (shape, lead) in [
        (&[3, part + 5][..], 1),
        (&[2, 3, 2 * part / 3, 4], 2),
        (&[2, 1, part + 1], 2),
        (&[3, 7, part / 2], 1),
        (&[1, 5, part], 1),
        (&[5, part], 0),
    ] {
        let x = numbers(shape, DType::F32);
        for name in ["sum", "mean", "amax"] {
            same_in_parts(&|| Ok(vec![reduced(name, &aten::exp(&aten::neg(&x)?)?, lead)?]));
        }
    }
}

#[test]
fn strided_and_broadcast_inputs_are_read_as_blocks() {
    let part = part();
    let (rows, columns) = (part / 100, 301);
    let x = numbers(&[rows, columns], DType::F32);
    let turned = aten::permute(&numbers(&[columns, rows], DType::F32), &[1, 0]).unwrap();
    let backwards = x.flip(&[0, 1]).unwrap();
    let others = [
        numbers(&[columns], DType::F32),
        numbers(&[rows, 1], DType::F32),
        numbers(&[], DType::F32),
        numbers(&[1, 1], DType::F64),
        turned.clone(),
        backwards,
    ];
    for other in &others {
        for name in ["sum", "amax"] {
            same_in_parts(&|| {
                Ok(vec![reduced(name, &aten::mul(&aten::add(&x, other)?, other)?, 0)?])
            });
            same_in_parts(&|| Ok(vec![reduced(name, &aten::sub(other, &turned)?, 0)?]));
        }
    }
    let (cube, line) = (numbers(&[7, 129, 230], DType::F64), numbers(&[129, 1], DType::F64));
    same_in_parts(&|| Ok(vec![reduced("mean", &aten::mul(&cube, &line)?, 0)?]));
    let turned = aten::permute(&cube, &[2, 0, 1]).unwrap();
    same_in_parts(&|| Ok(vec![reduced("mean", &aten::mul(&turned, &turned)?, 0)?]));
}

#[test]
fn results_of_groups_that_somebody_holds_are_kept_whole() {
    let x = numbers(&[3, part()], DType::F32);
    let row = numbers(&[part()], DType::F32);
    let plan = same_in_parts(&|| {
        let y = aten::mul(&x, &row)?;
        let z = aten::tanh(&y)?;
        let total = aten::sum_all(&z)?;
        Ok(vec![y, total])
    });
    assert_eq!(plan.groups[0].stored, [0, 2], "{plan}");
}

#[test]
fn several_reductions_of_several_groups_are_one_run() {
    let x = numbers(&[2 * part() + 9], DType::F32);
    let y = numbers(&[2 * part() + 9], DType::F32);
    same_in_parts(&|| {
        let squares = aten::mul(&x, &x)?;
        let total = aten::sum_all(&squares)?;
        let greatest = reduced("amax", &squares, 0)?;
        let products = aten::mul(&squares, &y)?;
        // Also of an input.
        let inputs = reduced("mean", &y, 0)?;
        let mean = reduced("mean", &products, 0)?;
        Ok(vec![total, greatest, inputs, mean])
    });
}

#[test]
fn what_reads_a_total_or_reduces_other_dimensions_ends_the_run() {
    let x = numbers(&[3, 2 * part()], DType::F32);
    let plan = same(&|| {
        let y = aten::exp(&aten::neg(&x)?)?;
        let total = aten::sum_all(&y)?;
        let shares = aten::div(&y, &total)?;
        Ok(vec![reduced("sum", &shares, 1)?, reduced("amax", &shares, 0)?])
    });
    assert_eq!(plan.groups.iter().filter(|group| group.tiles).count(), 2, "{plan}");
}

#[test]
fn rows_that_are_longer_than_a_tile_are_parts_between_their_steps() {
    let x = numbers(&[2, 20 * part()], DType::F32);
    let plan = same(&|| {
        let powers = aten::exp(&aten::neg(&x)?)?;
        Ok(vec![aten::div(&powers, &reduced("sum", &powers, 1)?)?])
    });
    let groups: Vec<_> = plan.groups.iter().map(|one| (&one.operations[..], one.tiles)).collect();
    assert_eq!(groups, [(&[0, 1, 2][..], true)], "{plan}");
}

#[test]
fn positions_and_columns_are_reduced_when_they_are_whole() {
    let x = numbers(&[part(), 3], DType::F32);
    for program in [
        &(|| {
            let y = aten::mul(&x, &x)?;
            Ok(vec![call("aten::argmax", &[(&y).into()])?])
        }) as &dyn Fn() -> Result<Vec<Tensor>>,
        &|| {
            let y = aten::mul(&x, &x)?;
            Ok(vec![aten::sum(&y, &[0], true)?])
        },
        // In the order of memory, which isn't that of the indices.
        &|| {
            let turned = aten::permute(&x, &[1, 0])?;
            let y = aten::mul(&turned, &turned)?;
            Ok(vec![aten::sum_all(&turned)?, aten::sum_all(&y)?])
        },
        // Elements that depend on their place.
        &|| aten::arange(200_000, Device::CPU).and_then(|y| Ok(vec![aten::sum_all(&y)?])),
    ] {
        let plan = same(program);
        assert!(plan.groups.iter().all(|group| !group.tiles), "{plan}");
    }
}

#[test]
fn a_check_compares_parts_with_eager_calls() {
    let x = numbers(&[3 * part() + 1], DType::F16);
    let program = || {
        let y = aten::mul(&aten::exp(&x)?, &x)?;
        Ok(vec![aten::sum_all(&y)?, reduced("amax", &y, 0)?])
    };
    let options = Options { check: Some(Check::Eager), ..Options::default() };
    let (made, plan, counted) = run(options, &program);
    assert!(plan.groups.len() == 1 && plan.groups[0].tiles, "{plan}");
    assert_eq!((counted.failed, counted.checked), (0, 2));
    for (own, expected) in made.iter().zip(program().unwrap()) {
        assert_eq!(bits(own), bits(&expected));
    }
}

#[test]
fn a_failure_in_a_part_is_that_of_the_operation() {
    let count = 2 * part() + 10;
    let base = aten::to(&numbers(&[count], DType::F64), DType::I64).unwrap();
    let mut exponents = vec![2_i64; count];
    exponents[count - 3] = -1;
    let exponent = Tensor::from_vec(exponents, &[count]).unwrap();
    let program = || {
        let powers = aten::pow(&aten::add(&base, &base)?, &exponent)?;
        aten::sum_all(&powers)
    };
    let eager = program().unwrap_err();
    let ((total, plan), ended, counted) =
        within(Options::default(), |session| (program().unwrap(), session.explain()));
    let error = ended.unwrap_err();
    assert!(plan.groups.len() == 1 && plan.groups[0].tiles, "{plan}");
    assert_eq!(error.kind(), eager.kind());
    assert!(error.message().contains("aten::pow"), "{error}");
    assert_eq!((counted.failed, counted.skipped), (1, 1));
    assert!(total.to_vec::<i64>().is_err());
}

#[test]
fn a_recorded_program_computes_parts() {
    for shape in [&[3 * part() + 5][..], &[2, 20 * part()]] {
        let x = numbers(shape, DType::F32);
        let program = |x: &Tensor| -> Result<Vec<Tensor>> {
            let y = aten::mul(&aten::tanh(x)?, x)?;
            let row = reduced("sum", &y, 1.min(x.ndim() - 1))?;
            let rest = aten::neg(&aten::add(&row, &row)?)?;
            Ok(vec![row, rest])
        };
        let session = Session::recorder();
        let placeholder = session.placeholder(&x).unwrap();
        let guard = session.enter();
        let made = program(&placeholder).unwrap();
        guard.close().unwrap();
        let recording = session.finish(&[placeholder], &made).unwrap();
        drop(made);
        for replays in 1..3 {
            let made = recording.replay(std::slice::from_ref(&x)).unwrap();
            for (own, expected) in made.iter().zip(program(&x).unwrap()) {
                assert!(bits(own) == bits(&expected), "{shape:?}");
            }
            assert_eq!(recording.tiled(), replays);
        }
    }
}
