//! Defects planted in a copy of a backend: the kit finds each, and names it.

mod check;
mod device;
mod groups;
mod host;

use std::sync::{Arc, Mutex, PoisonError};

use keyfold_backend::delayed::{Delayed, DelayedMemory, Mistake};
use keyfold_backend::{GpuBackend, register};
use keyfold_conformance::{Options, Report, Symptom, Verdict, run};
use keyfold_core::DeviceType;
use keyfold_cpu::HostBackend;

use device::{LaunchDefect, Wrapped};
use groups::Fused;
use host::{Defect, Planted};

/// Runs groups of the kit on a backend; one run at a time, since runs set the state of random
/// numbers.
fn found(
    groups: &[&str],
    only: Option<&str>,
    backend: impl FnOnce(DeviceType) -> Arc<dyn GpuBackend>,
) -> Report {
    found_with(Options::default(), groups, only, backend)
}

/// As [`found`], with options.
fn found_with(
    options: Options,
    groups: &[&str],
    only: Option<&str>,
    backend: impl FnOnce(DeviceType) -> Arc<dyn GpuBackend>,
) -> Report {
    with_backend(backend, |kind| {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let only = only.map(str::to_owned);
        run(kind, &Options { groups: Some(groups), only, ..options }).unwrap()
    })
}

/// Calls `f` while the device type has a backend; one call at a time.
fn with_backend<R>(
    backend: impl FnOnce(DeviceType) -> Arc<dyn GpuBackend>,
    f: impl FnOnce(DeviceType) -> R,
) -> R {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    keyfold::init();
    let kind = DeviceType::register("planted").unwrap();
    let registration = register(kind, backend(kind)).unwrap();
    let result = f(kind);
    registration.remove();
    result
}

fn memory(kind: DeviceType) -> DelayedMemory {
    DelayedMemory::new(kind, 1, 3)
}

/// Runs the kit on kernels with a defect, on a device that works late.
fn found_in_kernels(defect: Defect, groups: &[&str], only: Option<&str>) -> Report {
    found(groups, only, |kind| {
        Arc::new(Delayed::over(Arc::new(Planted::new(defect)), memory(kind)))
    })
}

/// Runs all cases of an expression on kernels with a defect.
fn found_in_all_cases(defect: Defect, operator: &str) -> Report {
    let options = Options { fraction: 1.0, ..Options::default() };
    found_with(options, &["pointwise"], Some(operator), |kind| {
        Arc::new(Delayed::over(Arc::new(Planted::new(defect)), memory(kind)))
    })
}

/// Runs the kit on a memory with a mistake.
fn found_in_memory(mistake: Mistake) -> Report {
    found(&["memory", "streams"], None, |kind| {
        let memory = memory(kind);
        memory.plant(mistake);
        Arc::new(Delayed::over(Arc::new(HostBackend), memory))
    })
}

#[track_caller]
fn assert_named(report: &Report, symptom: Symptom, operator: &str) {
    let named = |finding: &&keyfold_conformance::Finding| {
        finding.symptom == Some(symptom) && finding.operator == operator
    };
    let finding = report.findings.iter().find(named);
    assert!(finding.is_some_and(|finding| !finding.message.is_empty()), "{report}");
    assert!(!report.conforms(), "{report}");
    assert!(report.to_string().contains(&format!("{}: {operator}", symptom.name())), "{report}");
}

#[test]
fn a_wrong_stride() {
    let report = found_in_kernels(Defect::WrongStride, &["pointwise"], Some("aten::add"));
    assert_named(&report, Symptom::WrongStride, "aten::add");
}

#[test]
fn a_wrong_tail() {
    let report = found_in_kernels(Defect::WrongTail, &["pointwise"], Some("aten::mul"));
    assert_named(&report, Symptom::WrongTail, "aten::mul");
}

#[test]
fn an_unwritten_element() {
    let report = found_in_kernels(Defect::Unwritten, &["reduce"], Some("aten::sum.dim"));
    assert_named(&report, Symptom::Unwritten, "aten::sum.dim");
}

#[test]
fn a_write_out_of_bounds() {
    let report = found_in_kernels(Defect::OutOfBounds, &["reduce"], Some("aten::amax"));
    assert_named(&report, Symptom::OutOfBounds, "aten::amax");
}

/// Case 0 has a result in new memory.
#[test]
fn a_write_behind_new_memory() {
    let options = Options { case: Some(0), ..Options::default() };
    let report = found_with(options, &["reduce"], Some("aten::amax"), |kind| {
        Arc::new(Delayed::over(Arc::new(Planted::new(Defect::OutOfBounds)), memory(kind)))
    });
    assert_named(&report, Symptom::OutOfBounds, "aten::amax");
}

#[test]
fn a_sum_in_a_narrow_dtype() {
    let report = found_in_kernels(Defect::NarrowSum, &["reduce"], Some("aten::sum"));
    assert_named(&report, Symptom::Accumulation, "aten::sum");
    let finding = report.with(Verdict::Failed).next().unwrap();
    assert_eq!(finding.dtype, "float16", "{report}");
}

#[test]
fn a_stale_cache() {
    let report = found_in_kernels(Defect::StaleCache, &["cache"], Some("aten::sum.dim"));
    assert_named(&report, Symptom::StaleCache, "aten::sum.dim");
}

#[test]
fn a_race_between_streams() {
    let report = found_in_memory(Mistake::WaitsTooLittle);
    assert_named(&report, Symptom::Race, "order by an event");
}

/// Runs the kit on a device that queues its reductions wrongly.
fn found_in_launches(defect: LaunchDefect) -> Report {
    found(&["streams"], None, |kind| {
        let inner = Delayed::over(Arc::new(HostBackend), memory(kind));
        Arc::new(Wrapped { defect: Some(defect), ..Wrapped::new(inner) })
    })
}

#[test]
fn a_kernel_on_another_stream() {
    let report = found_in_launches(LaunchDefect::IgnoresStream);
    assert_named(&report, Symptom::OtherStream, "operators on a stream");
}

#[test]
fn a_buffer_that_threads_share() {
    let report = found_in_launches(LaunchDefect::SharesScratch(Box::default()));
    assert_named(&report, Symptom::Threads, "operators on threads");
}

#[test]
fn an_infinity_that_is_a_number() {
    let report = found_in_all_cases(Defect::FiniteInfinity, "aten::log");
    assert_named(&report, Symptom::WrongValue, "aten::log");
}

#[test]
fn a_sign_of_zero() {
    let report = found_in_all_cases(Defect::ZeroSign, "aten::neg");
    assert_named(&report, Symptom::WrongValue, "aten::neg");
}

#[test]
fn a_second_tile_of_a_product() {
    let report = found_in_kernels(Defect::FirstTile, &["linalg"], None);
    assert_named(&report, Symptom::WrongValue, "aten::matmul");
}

#[test]
fn an_error_that_another_one_hides() {
    let report = found_in_kernels(Defect::OneError, &["errors"], None);
    assert_named(&report, Symptom::LateError, "aten::index_select");
}

#[test]
fn nan_dropped() {
    let report = found_in_kernels(Defect::NanDropped, &["reduce"], Some("aten::max"));
    assert_named(&report, Symptom::NanDropped, "aten::max");
}

#[test]
fn an_overlapping_copy() {
    let report = found(&["memory"], None, |kind| {
        let inner = Delayed::over(Arc::new(HostBackend), memory(kind));
        Arc::new(Wrapped { copies_spans: true, ..Wrapped::new(inner) })
    });
    assert_named(&report, Symptom::Overlap, "copy within a buffer");
}

#[test]
fn a_claim_without_a_kernel() {
    let report = found_in_kernels(Defect::ClaimsTooMuch, &["reduce"], Some("aten::sum"));
    assert_named(&report, Symptom::CallFailed, "aten::sum");
    assert_eq!(report.with(Verdict::Failed).next().unwrap().dtype, "float16", "{report}");
}

#[test]
fn a_kernel_without_a_claim() {
    let report = found(&["reduce"], Some("aten::any"), |kind| {
        let inner = Delayed::over(Arc::new(HostBackend), memory(kind));
        Arc::new(Wrapped { hides_any: true, ..Wrapped::new(inner) })
    });
    assert_named(&report, Symptom::Unclaimed, "aten::any");
    let finding = report.with(Verdict::Unclaimed).next().unwrap();
    assert!(finding.message.contains("it never heard of any"), "{report}");
}

#[test]
fn a_late_error() {
    let report = found_in_kernels(Defect::LateError, &["errors"], None);
    assert_named(&report, Symptom::LateError, "aten::index_select");
}

/// Runs the kit on an operator whose kernel, of a group with several outputs, makes a mistake.
#[track_caller]
fn assert_found(operation: &'static str, mistake: groups::Mistake, family: &str, operator: &str) {
    let report = found_in_group(operation, mistake, family, operator);
    assert_named(&report, Symptom::WrongValue, operator);
}

fn found_in_group(
    operation: &'static str,
    mistake: groups::Mistake,
    family: &str,
    operator: &str,
) -> Report {
    found(&[family], Some(operator), |kind| {
        let fused = Arc::new(Fused { operation, mistake });
        Arc::new(Delayed::over(fused, memory(kind)))
    })
}

#[test]
fn a_moment_that_is_not_written() {
    let mistake = groups::Mistake::Unwritten(2);
    assert_found("adam", mistake, "optim", "keyfold::adam_step_");
}

#[test]
fn parameters_whose_last_one_is_left_out() {
    let mistake = groups::Mistake::LastIsFirst(0);
    assert_found("sgd", mistake, "optim", "keyfold::sgd_step_");
}

#[test]
fn a_workspace_of_other_gates() {
    let mistake = groups::Mistake::Shifted(1);
    assert_found("gru_cell", mistake, "recurrent", "aten::_thnn_fused_gru_cell");
}

#[test]
fn gates_that_are_exchanged() {
    let mistake = groups::Mistake::ReadsOther(1);
    let operator = "aten::_thnn_fused_lstm_cell";
    let report = found_in_group("lstm_cell", mistake, "recurrent", operator);
    // Numbers between 0 and 1 that are wrong by little look like an inexact sum.
    assert_named(&report, Symptom::Accumulation, operator);
}

#[test]
fn a_window_that_begins_too_late() {
    let mistake = groups::Mistake::Shifted(0);
    assert_found("convolution", mistake, "convolution", "aten::convolution");
}

#[test]
fn logarithms_of_other_queries() {
    let mistake = groups::Mistake::Shifted(1);
    assert_found("forward", mistake, "attention", "keyfold::attention");
}

#[test]
fn a_product_without_its_last_element() {
    let mistake = groups::Mistake::LastIsFirst(0);
    assert_found("matmul", mistake, "linalg", "aten::addmm");
}

#[test]
fn a_mask_of_other_elements() {
    let mistake = groups::Mistake::Shifted(1);
    assert_found("dropout", mistake, "random", "keyfold::dropout_threshold");
}

/// Each operation of these groups is found with each mistake, by its own operator.
#[test]
fn norms_pools_and_decompositions() {
    use groups::Mistake::{LastIsFirst, ReadsOther, Shifted, Unwritten};
    let all = [
        // Statistics of other lanes, and a gradient that nobody computed.
        ("layer_norm", Shifted(1), "norm", "aten::native_layer_norm"),
        ("layer_norm_backward", Unwritten(0), "norm", "aten::native_layer_norm_backward"),
        ("rms_norm", LastIsFirst(0), "norm", "aten::_fused_rms_norm"),
        ("rms_norm_backward", Shifted(1), "norm", "aten::_fused_rms_norm_backward"),
        ("group_norm", Unwritten(2), "norm", "aten::native_group_norm"),
        ("group_norm_backward", LastIsFirst(0), "norm", "aten::native_group_norm_backward"),
        ("batch_norm", Shifted(0), "norm", "aten::_native_batch_norm_legit.no_stats"),
        // The running variance.
        ("batch_norm", Unwritten(4), "norm", "aten::_native_batch_norm_legit_functional"),
        // The mean for the variance.
        (
            "batch_norm_inference",
            ReadsOther(2),
            "norm",
            "aten::_native_batch_norm_legit_no_training",
        ),
        ("batch_norm_backward", Shifted(0), "norm", "aten::native_batch_norm_backward"),
        ("softmax_backward", LastIsFirst(0), "norm", "aten::_softmax_backward_data"),
        // Places of other windows.
        ("max", Shifted(1), "pool", "aten::max_pool2d_with_indices"),
        ("max_backward", LastIsFirst(0), "pool", "aten::max_pool2d_with_indices_backward"),
        ("average", Shifted(0), "pool", "aten::avg_pool2d"),
        ("average_backward", Unwritten(0), "pool", "aten::avg_pool2d_backward"),
        ("adaptive_average", LastIsFirst(0), "pool", "aten::adaptive_avg_pool2d"),
        ("adaptive_average_backward", Shifted(0), "pool", "aten::_adaptive_avg_pool2d_backward"),
        // Singular values in another order.
        ("svd", Shifted(1), "decomposition", "aten::linalg_svd"),
        ("eigh", LastIsFirst(0), "decomposition", "aten::linalg_eigvalsh"),
        ("qr", Unwritten(1), "decomposition", "aten::linalg_qr"),
        ("cholesky", Unwritten(1), "decomposition", "aten::linalg_cholesky_ex"),
        ("solve", Shifted(0), "decomposition", "aten::linalg_solve"),
        ("solve_triangular", LastIsFirst(0), "decomposition", "aten::linalg_solve_triangular"),
        ("det", Unwritten(0), "decomposition", "aten::linalg_det"),
        ("slogdet", Unwritten(1), "decomposition", "aten::linalg_slogdet"),
    ];
    for (operation, mistake, family, operator) in all {
        let report = found_in_group(operation, mistake, family, operator);
        let named = report.with(Verdict::Failed).any(|finding| finding.operator == operator);
        assert!(named && !report.conforms(), "{operation} {mistake:?}: {report}");
    }
}

#[test]
fn bad_matrices_that_are_not_refused() {
    for (operation, operator) in
        [("cholesky", "aten::linalg_cholesky"), ("solve", "aten::linalg_solve")]
    {
        let report = found_in_group(operation, groups::Mistake::Unrefused, "errors", operator);
        assert_named(&report, Symptom::LateError, operator);
        assert!(report.to_string().contains("is no error"), "{report}");
    }
}

#[test]
fn operations_that_are_offered_and_refused() {
    for (operation, family, operator) in [
        ("layer_norm", "norm", "aten::native_layer_norm"),
        ("max", "pool", "aten::max_pool2d_with_indices"),
        ("qr", "decomposition", "aten::linalg_qr"),
    ] {
        let report = found_in_group(operation, groups::Mistake::Refuses, family, operator);
        assert_named(&report, Symptom::CallFailed, operator);
    }
}

#[test]
fn groups_of_several_outputs_that_are_lacking() {
    use keyfold_backend::Group;
    for (group, operator) in [
        (Group::Norm, "aten::native_group_norm"),
        (Group::Pool, "aten::avg_pool3d"),
        (Group::Decomposition, "aten::linalg_eigh"),
    ] {
        let report = found(&[group.name()], Some(operator), |kind| {
            let toy = Delayed::over(Arc::new(HostBackend), memory(kind));
            Arc::new(toy.without(group))
        });
        assert!(report.conforms(), "{report}");
        let reason = &report.with(Verdict::Lacking).next().expect("a lacking operation").message;
        let wanted = format!("it doesn't have the operations of group {}", group.name());
        assert_eq!(*reason, wanted);
    }
}

#[test]
fn mistakes_of_a_memory() {
    for (mistake, symptom, operator) in [
        (Mistake::ReadsEarly, Symptom::WrongBytes, "upload and download"),
        (Mistake::FreesEarly, Symptom::Race, "memory of queued work"),
        (Mistake::GivesHostMemory, Symptom::WrongForm, "allocate"),
        (Mistake::GivesTooLittle, Symptom::WrongForm, "allocate"),
    ] {
        assert_named(&found_in_memory(mistake), symptom, operator);
    }
}

/// An operation that is lacking is no failure; the report has the backend's reason.
#[test]
fn a_group_that_is_lacking() {
    let report = found(&["linalg"], Some("aten::matmul"), |kind| {
        let toy = Delayed::over(Arc::new(HostBackend), memory(kind));
        Arc::new(toy.without(keyfold_backend::Group::Linalg))
    });
    assert!(report.conforms(), "{report}");
    assert!(report.to_string().contains("The backend conforms: it offers nothing."), "{report}");
    assert_eq!(report.operations(Verdict::Lacking), 15, "{report}");
    let reason = &report.with(Verdict::Lacking).next().unwrap().message;
    assert_eq!(reason, "it doesn't have the operations of group linalg");
}

/// A failing case becomes a small one, as a program that one can paste.
#[test]
fn a_failing_case_is_shrunk_to_a_program() {
    let options = Options { shrink: true, ..Options::default() };
    let report = found_with(options, &["reduce"], Some("aten::sum.dim"), |kind| {
        let planted = Arc::new(Planted::new(Defect::Unwritten));
        Arc::new(Delayed::over(planted, memory(kind)))
    });
    let program = &report.with(Verdict::Failed).next().unwrap().reproducer;
    let lines: Vec<&str> = program.lines().collect();
    assert_eq!(lines[0], "import keyfold as kf", "{program}");
    assert!(lines[2].starts_with("x0 = kf.asarray(["), "{program}");
    assert!(lines[2].matches(',').count() < 12, "{program}");
    assert!(lines.iter().any(|line| line.contains("kf.get_op(\"aten::sum.dim")), "{program}");
    assert!(lines.last().unwrap().starts_with("# ["), "{program}");
}
