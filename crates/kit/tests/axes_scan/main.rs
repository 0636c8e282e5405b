//! Worked example: an inclusive scan over a sparse space of 5 axes, in both styles.

mod array;
mod kernels;
mod styles;

use half::f16;
use keyfold_core::ErrorKind;
use keyfold_kit::axes::{
    AxesMap, Contiguity, Contiguous, Coords, Cpu, Determinism, Device, Dtype, F32, InPlace,
    NotRequired, Origin, Placement, Space,
};
use keyfold_kit::pool::set_num_threads;

use array::{Array, Number};
use kernels::{Axes5, Block128, Outcome, ScanFn};

/// Both tables, with the style's name.
fn tables() -> [(&'static str, keyfold_kit::axes::DispatchTable<Axes5, ScanFn>); 2] {
    [
        ("free functions", styles::free_functions().unwrap()),
        ("one struct", styles::one_struct().unwrap()),
    ]
}

fn sums<T: Number>(items: &[T]) -> Vec<T> {
    let mut sum = T::Wide::default();
    let next = |item: &T| {
        sum = T::plus(sum, item.widen());
        T::narrow(sum)
    };
    items.iter().map(next).collect()
}

/// Checks every CPU point of one dtype on small integers, for which all algorithms agree exactly.
fn check_cpu<T: Number>(items: &[T]) -> usize {
    let expected = sums(items);
    let mut checked = 0;
    for (style, table) in tables() {
        for (point, scan) in table.iter() {
            let (device, dtype, contiguity, placement, _) = point;
            if device != Device::Cpu || dtype != T::DTYPE {
                continue;
            }
            let step = if contiguity == Contiguity::Contiguous { 1 } else { 3 };
            let outcome;
            let mut output;
            if placement == Placement::InPlace {
                output = Array::new(items, step);
                outcome = scan(None, &mut output).unwrap();
            } else {
                output = Array::new(&vec![T::default(); items.len()], step);
                outcome = scan(Some(&Array::new(items, step)), &mut output).unwrap();
            }
            assert_eq!(outcome, Outcome::Scanned);
            assert_eq!(output.items::<T>().unwrap(), expected, "{style} at {point:?}");
            checked += 1;
        }
    }
    checked
}

#[test]
fn the_cpu_scans_every_dtype_at_every_point_in_both_styles() {
    let whole: Vec<i64> = (0..200).map(|i| i % 3).collect();
    let mut checked = check_cpu::<bool>(&whole.iter().map(|&i| i == 2).collect::<Vec<_>>());
    checked += check_cpu::<u8>(&whole.iter().map(|&i| i as u8).collect::<Vec<_>>());
    checked += check_cpu::<u16>(&whole.iter().map(|&i| i as u16).collect::<Vec<_>>());
    checked += check_cpu::<u32>(&whole.iter().map(|&i| i as u32).collect::<Vec<_>>());
    checked += check_cpu::<u64>(&whole.iter().map(|&i| i as u64).collect::<Vec<_>>());
    checked += check_cpu::<i8>(&whole.iter().map(|&i| i as i8).collect::<Vec<_>>());
    checked += check_cpu::<i16>(&whole.iter().map(|&i| i as i16).collect::<Vec<_>>());
    checked += check_cpu::<i32>(&whole.iter().map(|&i| i as i32).collect::<Vec<_>>());
    checked += check_cpu::<i64>(&whole);
    checked += check_cpu::<f32>(&whole.iter().map(|&i| i as f32).collect::<Vec<_>>());
    checked += check_cpu::<f64>(&whole.iter().map(|&i| i as f64).collect::<Vec<_>>());
    let halves: Vec<_> = whole.iter().map(|&i| f16::from_f32(i as f32)).collect();
    checked += check_cpu::<f16>(&halves);
    let halves: Vec<_> = whole.iter().map(|&i| half::bf16::from_f32(i as f32)).collect();
    checked += check_cpu::<half::bf16>(&halves);
    let complex: Vec<_> =
        whole.iter().map(|&i| num_complex::Complex::new(i as f32, -1.0)).collect();
    checked += check_cpu::<num_complex::Complex<f32>>(&complex);
    let complex: Vec<_> =
        whole.iter().map(|&i| num_complex::Complex::new(i as f64, -1.0)).collect();
    checked += check_cpu::<num_complex::Complex<f64>>(&complex);
    assert_eq!(checked, 2 * 15 * 8);
}

#[test]
fn half_types_compute_in_float() {
    // In float16, a sum of ones would stay at 2048, since the next number is 2050.
    let (_, table) = tables().into_iter().next().unwrap();
    for determinism in [Determinism::Required, Determinism::NotRequired] {
        let mut array = Array::new(&[f16::from_f32(1.0); 4096], 1);
        let point = (Device::Cpu, Dtype::F16, Contiguity::Contiguous, Placement::InPlace);
        let point = (point.0, point.1, point.2, point.3, determinism);
        table.select(point).unwrap()(None, &mut array).unwrap();
        assert_eq!(array.items::<f16>().unwrap()[4095].to_f32(), 4096.0);
    }
}

#[test]
fn the_coverage_is_sparse_and_counted() {
    assert_eq!(Space::<Axes5>::COUNT, 240);
    for (style, table) in tables() {
        // The CPU: all points. CUDA: 8 integers at 8 points, 4 floats at 4 and, deterministic, at 2.
        assert_eq!(table.count(), 120 + 64 + 16 + 8, "{style}");
        assert_eq!(table.coverage().count(), table.count());
        assert_eq!(table.iter().count(), table.count());
        for dtype in [Dtype::F16, Dtype::BF16, Dtype::F32, Dtype::F64] {
            for contiguity in [Contiguity::Contiguous, Contiguity::Strided] {
                let point =
                    (Device::Cuda, dtype, contiguity, Placement::InPlace, Determinism::Required);
                assert!(table.try_select(point).is_none(), "{style}");
            }
        }
    }
}

#[test]
fn cuda_deterministic_float_in_place_is_refused_with_the_nearest_points() {
    for (_, table) in tables() {
        let error = table
            .select((
                Determinism::Required,
                Placement::InPlace,
                Contiguity::Strided,
                Dtype::F32,
                Device::Cuda,
            ))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MissingKernel);
        assert_eq!(
            error.message(),
            "inclusive_scan: no kernel at device=cuda, dtype=float32, contiguity=strided, \
             placement=in place, determinism=required; nearest covered, where 1 axis differs: \
             device=cpu; dtype=uint8; dtype=uint16; dtype=uint32; dtype=uint64; dtype=int8; and 5 \
             more"
        );
    }
}

#[test]
fn integers_on_cuda_have_one_body_for_both_determinisms_and_add_their_block_size() {
    let mut nothing = Array::new::<f32>(&[], 1);
    for (style, table) in tables() {
        let mut kernel = |dtype, determinism| {
            let point =
                (dtype, determinism, Device::Cuda, Contiguity::Strided, Placement::OutOfPlace);
            table.select(point).unwrap()(None, &mut nothing).unwrap()
        };
        assert_eq!(
            kernel(Dtype::F32, Determinism::Required),
            Outcome::Kernel(
                "reduce_then_scan<f32, 256>(const f32 *input, f32 *output = other memory)".into(),
                256
            )
        );
        assert!(matches!(kernel(Dtype::I16, Determinism::NotRequired), Outcome::Kernel(_, 512)));
        let names = AxesMap::<(Determinism,), _>::from_fn(|(determinism,)| {
            table
                .body_name((
                    Device::Cuda,
                    Dtype::I32,
                    Contiguity::Contiguous,
                    Placement::InPlace,
                    determinism,
                ))
                .unwrap()
        });
        let expected = if style == "one struct" { "Scan" } else { "on_gpu" };
        assert!(names.iter().all(|(_, name)| *name == expected));
    }
}

#[test]
fn sums_of_floats_on_the_cpu_are_the_same_on_any_number_of_threads() {
    let items: Vec<f32> = (0..100_003).map(|i| (i as f32).sin() * 1e3).collect();
    let point = |determinism| {
        (Device::Cpu, Dtype::F32, Contiguity::Strided, Placement::InPlace, determinism)
    };
    for (style, table) in tables() {
        let sums = |threads, determinism| {
            set_num_threads(threads).unwrap();
            let mut array = Array::new(&items, 2);
            table.select(point(determinism)).unwrap()(None, &mut array).unwrap();
            array.items::<f32>().unwrap()
        };
        let alone = sums(1, Determinism::Required);
        for threads in 2..=8 {
            for determinism in [Determinism::Required, Determinism::NotRequired] {
                assert!(sums(threads, determinism) == alone, "{style}, {threads} threads");
            }
        }
    }
}

#[test]
fn a_point_known_at_compile_time_is_selected_without_values() {
    let coords = Origin.with(NotRequired).with(F32).with(Cpu).with(InPlace).with(Contiguous);
    for (_, table) in tables() {
        // Further coordinates don't matter.
        let scan = table.select_at(coords.with(Block128)).unwrap();
        let mut array = Array::new(&[1.0_f32, 2.0, 3.0], 1);
        scan(None, &mut array).unwrap();
        assert_eq!(array.items::<f32>().unwrap(), [1.0, 3.0, 6.0]);
    }
}
