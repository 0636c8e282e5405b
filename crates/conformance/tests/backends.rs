//! The kit on the backends that are here: none fails, none lacks anything.

use std::sync::{Arc, Mutex, PoisonError};

use keyfold_backend::delayed::{Delayed, DelayedMemory};
use keyfold_backend::{GpuBackend, register};
use keyfold_conformance::{Mode, Options, Report, Verdict, groups, run};
use keyfold_core::DeviceType;
use keyfold_cpu::HostBackend;

/// Runs of the kit set the state of random numbers, so one runs at a time.
static ONE: Mutex<()> = Mutex::new(());

/// The fewest cases of each group with the default options.
const FEWEST: [(&str, u64); 14] = [
    ("factories", 100),
    ("pointwise", 1500),
    ("linalg", 25),
    ("reduce", 250),
    ("scan", 30),
    ("shape", 250),
    ("index", 150),
    ("in_place", 50),
    ("random", 8),
    ("device", 25),
    ("cache", 250),
    ("memory", 150),
    ("streams", 50),
    ("errors", 20),
];

/// The default options; KEYFOLD_CONFORMANCE_FRACTION has another fraction of the cases.
fn options() -> Options {
    let fraction = std::env::var("KEYFOLD_CONFORMANCE_FRACTION");
    let fraction = fraction.ok().and_then(|text| text.parse().ok()).unwrap_or(0.1);
    Options { fraction, ..Options::default() }
}

fn assert_complete(report: &Report) {
    let names: Vec<&str> = report.groups.iter().map(|group| &*group.name).collect();
    assert!(report.conforms(), "{report}");
    assert_eq!(names, groups(Default::default()));
    assert_eq!(report.operations(Verdict::Lacking), 0, "{report}");
    for (group, fewest) in FEWEST {
        let found = report.groups.iter().find(|found| found.name == group);
        assert!(found.is_some_and(|found| found.cases >= fewest), "{report}");
    }
}

#[test]
fn the_cpu_conforms_and_lacks_nothing() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    keyfold::init();
    assert_complete(&run(DeviceType::CPU, &options()).unwrap());
}

#[test]
fn the_cpus_gradients_are_right_and_all_is_supported() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    keyfold::init();
    for (mode, fewest) in [(Mode::Grad, 200), (Mode::Support, 1800)] {
        let report = run(DeviceType::CPU, &Options { mode, ..options() }).unwrap();
        assert!(report.conforms() && report.cases() >= fewest, "{report}");
        assert_eq!(report.operations(Verdict::Lacking), 0, "{report}");
    }
}

#[test]
fn every_operator_of_a_family_is_timed() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    keyfold::init();
    let groups = Some(vec!["linalg".to_owned()]);
    let options = Options { mode: Mode::Perf, groups, ..Options::default() };
    let report = run(DeviceType::CPU, &options).unwrap();
    let names: Vec<&str> = report.times.iter().map(|time| &*time.operator).collect();
    assert!(names.contains(&"aten::matmul") && names.contains(&"aten::linear"), "{report}");
    for time in &report.times {
        assert_eq!(&*time.dtype, "float32");
        assert!(time.small > 0.0 && time.large > 0.0 && time.copies > 0.0, "{report}");
    }
    assert!(report.to_string().contains("256x1024, us"), "{report}");
    assert_eq!(Report::from_json(&report.to_json()).unwrap().times.len(), names.len());
}

#[test]
fn a_device_that_works_late_conforms_and_lacks_nothing() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    keyfold::init();
    let kind = DeviceType::register("late").unwrap();
    let toy = Delayed::over(Arc::new(HostBackend), DelayedMemory::new(kind, 2, 3));
    let registration = register(kind, Arc::new(toy) as Arc<dyn GpuBackend>).unwrap();
    let report = run(kind, &options()).unwrap();
    registration.remove();
    assert_complete(&report);
}
