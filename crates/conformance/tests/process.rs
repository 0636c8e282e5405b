//! Groups in child processes: an abort hides nothing.

use std::any::Any;
use std::process::Command;
use std::sync::Arc;

use keyfold_backend::{
    GpuBackend, Groups, Index, Launch, Linalg, Offer, Operation, Pointwise, Random, Reduce,
    ReduceParams, Rows, Scan, register,
};
use keyfold_conformance::{
    Options, Report, Symptom, Verdict, assert_conforms, run_child, run_isolated,
};
use keyfold_core::{DType, DeviceType, Error, ErrorKind, Result};
use keyfold_cpu::HostBackend;
use keyfold_tensor::Tensor;
use keyfold_tensor::device::Memory;

/// The host's backend, whose kernel of `argmin` for float32 ends the process.
#[derive(Debug)]
struct Aborting;

impl GpuBackend for Aborting {
    fn name(&self) -> &str {
        "aborting"
    }

    fn memory(&self) -> Arc<dyn Memory> {
        HostBackend.memory()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn pointwise(&self) -> Option<Pointwise<'_>> {
        Some(Pointwise::Expressions(&HostBackend))
    }

    fn reduce(&self) -> Option<&dyn Reduce> {
        Some(self)
    }

    fn rows(&self) -> Option<&dyn Rows> {
        Some(&HostBackend)
    }

    fn scan(&self) -> Option<&dyn Scan> {
        Some(&HostBackend)
    }

    fn linalg(&self) -> Option<&dyn Linalg> {
        Some(&HostBackend)
    }

    fn index(&self) -> Option<&dyn Index> {
        Some(&HostBackend)
    }

    fn random(&self) -> Option<&dyn Random> {
        Some(&HostBackend)
    }

    fn groups(&self) -> Groups<'_> {
        HostBackend.groups()
    }
}

impl Reduce for Aborting {
    fn reduce(
        &self,
        op: &'static Operation,
        input: DType,
        output: DType,
    ) -> Offer<&dyn Launch<ReduceParams>> {
        match (op.name(), input) {
            ("argmin", DType::F32) => Offer::Native(self),
            _ => Reduce::reduce(&HostBackend, op, input, output),
        }
    }
}

impl Launch<ReduceParams> for Aborting {
    #[expect(clippy::disallowed_methods, reason = "the process is a child that is to end")]
    unsafe fn launch(&self, _: &ReduceParams, _: &[&Tensor], _: &Tensor) -> Result<()> {
        std::process::abort();
    }
}

/// Runs this test alone again, as a child.
fn again(test: &'static str) -> impl Fn() -> Command {
    move || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]);
        command
    }
}

fn of_group(name: &str) -> Options {
    Options { groups: Some(vec![name.to_owned()]), ..Options::default() }
}

#[test]
fn the_cpu_conforms_in_child_processes() {
    keyfold::init();
    let options =
        Options { groups: Some(vec!["linalg".into(), "memory".into()]), ..Options::default() };
    let report = assert_conforms(DeviceType::CPU, &options, "the_cpu_conforms_in_child_processes");
    let names: Vec<&str> = report.groups.iter().map(|group| &*group.name).collect();
    assert_eq!(names, ["linalg", "memory"]);
    assert!(report.cases() > 150, "{report}");
}

#[test]
fn an_abort_is_a_failure_of_its_case_and_hides_no_other() {
    // The CPU's own kernels aren't registered, since `init` finds this backend in their place.
    let backend: Arc<dyn GpuBackend> = Arc::new(Aborting);
    if std::env::var_os(keyfold_conformance::CHILD).is_some() {
        let _ = register(DeviceType::CPU, backend);
        keyfold::init();
        assert!(run_child().unwrap());
        return;
    }
    let command = again("an_abort_is_a_failure_of_its_case_and_hides_no_other");
    let report = run_isolated("cpu", &of_group("reduce"), &command, &mut || Ok(())).unwrap();
    let failed: Vec<_> = report.with(Verdict::Failed).collect();
    assert_eq!(failed.len(), 1, "{report}");
    assert_eq!((failed[0].symptom, &*failed[0].operator), (Some(Symptom::Aborted), "aten::argmin"));
    assert_eq!(failed[0].dtype, "float32");
    assert!(failed[0].message.contains("aborted (signal 6)"), "{report}");
    // All the others ran.
    assert!(report.operations(Verdict::Passed) > 180, "{report}");
    assert!(!report.conforms());
}

#[test]
fn a_child_that_never_begins_is_an_error() {
    let command = || {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'no such backend here' >&2; exit 3"]);
        command
    };
    let error = run_isolated("cpu", &of_group("linalg"), &command, &mut || Ok(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KernelFailed);
    for part in ["group linalg, before the first case", "code 3", "no such backend here"] {
        assert!(error.message().contains(part), "{error}");
    }
    let command = || Command::new("/no/such/program");
    let error = run_isolated("cpu", &of_group("linalg"), &command, &mut || Ok(())).unwrap_err();
    assert!(error.message().contains("can't start '/no/such/program'"), "{error}");
}

#[test]
fn a_run_can_be_interrupted() {
    let command = || {
        let mut command = Command::new("sleep");
        command.arg("60");
        command
    };
    let mut polls = 0;
    let mut poll = || {
        polls += 1;
        if polls < 3 { Ok(()) } else { Err(Error::new(ErrorKind::Value, "interrupted")) }
    };
    let error = run_isolated("cpu", &of_group("linalg"), &command, &mut poll).unwrap_err();
    assert_eq!(error.message(), "interrupted");
}

#[test]
fn a_report_of_another_version_is_refused() {
    let report = Report { device: "npu".into(), ..Report::default() };
    let json = report.to_json();
    assert_eq!(Report::from_json(&json).unwrap(), report);
    let other = json.replace("\"version\":1", "\"version\":7");
    let error = Report::from_json(&other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value);
    assert_eq!(error.message(), "a report of version 7; this keyfold reads version 1");
    for (json, part) in [("{", "EOF"), ("{}", "no format"), ("[1]", "no format")] {
        let error = Report::from_json(json).unwrap_err();
        assert!(error.message().contains(part), "{error}");
    }
}

#[test]
fn wrong_options_say_what_there_is() {
    let error = keyfold_conformance::run(DeviceType::META, &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device);
    keyfold::init();
    let error = keyfold_conformance::run(DeviceType::CPU, &of_group("linear")).unwrap_err();
    assert!(error.message().contains("there is no group 'linear'; the groups are"), "{error}");
    let error = "speed".parse::<keyfold_conformance::Mode>().unwrap_err();
    assert!(
        error.message().contains("there is no mode 'speed'; the modes are test, grad"),
        "{error}"
    );
    let refused = |options: Options, part: &str| {
        let error = keyfold_conformance::run(DeviceType::CPU, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.message().contains(part), "{error}");
    };
    let only = |name: &str| Options { only: Some(name.into()), ..Options::default() };
    refused(
        only("aten::nothing"),
        "there is no operator 'aten::nothing', and no check of that name",
    );
    refused(only("matmul"), "did you mean 'aten::matmul'?");
    refused(only("aten::matmull"), "did you mean 'aten::matmul'");
    let complex = Options { dtype: Some(DType::C64), ..only("aten::argmax") };
    refused(complex, "no case has this group, operator, dtype and number together");
    refused(
        Options { case: Some(16), ..only("aten::exp") },
        "no case 16; each operator has the cases 0 to 15",
    );
    for fraction in [0.0, -1.0, 1.5, f64::NAN] {
        refused(Options { fraction, ..Options::default() }, "above 0 and at most 1");
    }
}
