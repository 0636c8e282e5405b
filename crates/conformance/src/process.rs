//! Each group in a child process, so that an abort hides nothing.
//!
//! The parent writes the options to a directory and starts a command with the directory's name in
//! the environment variable [`CHILD`]; the child runs the group, notes each case before it runs, and
//! writes its report. Where a child ends without one, the case that it noted is a failure, and the
//! group is run again without it.

use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use keyfold_core::{DeviceType, Error, ErrorKind, Result};

use crate::report::{Finding, Group, Report, Symptom, Verdict};
use crate::suite::{Options, UNCLAIMED, check_ran, run_with, selected};

/// The environment variable with the directory of a child's options and report.
pub const CHILD: &str = "KEYFOLD_CONFORMANCE_CHILD";

/// The most cases of a group that may abort before the group is given up.
const MOST_ABORTS: usize = 16;
/// The time after which a case counts as one that never ends.
const LONGEST_CASE: Duration = Duration::from_secs(120);
const LONGEST_MESSAGE: usize = 400;

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Value, format!("{what} {}: {error}", path.display()))
}

/// A directory that is removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Directory> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("keyfold-conformance-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        // A directory of a process of the same number that was killed.
        if let Err(error) = fs::remove_dir_all(&path)
            && error.kind() != IoErrorKind::NotFound
        {
            return Err(failed("can't empty", &path, &error));
        }
        fs::create_dir(&path).map_err(|error| failed("can't make", &path, &error))?;
        Ok(Directory(path))
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|error| failed("can't write", &path, &error))
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.0.join(name)).ok()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs each group in a process of its own.
///
/// `command` makes the command of a child, which calls [`run_child`] when it has registered the
/// backend. `poll` is called now and then; its error ends the run.
///
/// # Errors
/// [`ErrorKind::Value`] for an unknown group, for options that choose no case, and where a child
/// can't be started; the child's error if it refuses its options, as [`crate::run`];
/// [`ErrorKind::KernelFailed`] for a child that ends before its first case; and those of `poll`.
pub fn run_isolated(
    device: &str,
    options: &Options,
    command: &dyn Fn() -> Command,
    poll: &mut dyn FnMut() -> Result<()>,
) -> Result<Report> {
    let mut report: Option<Report> = None;
    for group in selected(options) {
        let options = Options { groups: Some(vec![group]), ..options.clone() };
        let found = run_group(device, options, command, poll)?;
        match &mut report {
            Some(report) => report.merge(found),
            None => report = Some(found),
        }
    }
    let report =
        report.ok_or_else(|| Error::new(ErrorKind::Value, "no group of cases was asked for"))?;
    check_ran(&report, options)?;
    Ok(report)
}

/// Runs one group, again after each abort.
fn run_group(
    device: &str,
    mut options: Options,
    command: &dyn Fn() -> Command,
    poll: &mut dyn FnMut() -> Result<()>,
) -> Result<Report> {
    loop {
        let directory = Directory::new()?;
        directory.write("options", &format!("{device}\n{}", options.to_json()))?;
        let stderr = directory.0.join("stderr");
        let log =
            fs::File::create(&stderr).map_err(|error| failed("can't write", &stderr, &error))?;
        let mut command = command();
        command.env(CHILD, &directory.0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(|error| {
            let program = command.get_program().to_string_lossy();
            Error::new(ErrorKind::Value, format!("can't start '{program}': {error}"))
        })?;
        let ended = wait(child, &directory, poll)?;
        if let Some(json) = directory.read("report") {
            let mut report = Report::from_json(&json)?;
            if let Some(ended) = ended {
                let words = last_words(&directory.read("stderr").unwrap_or_default());
                let message = format!("after the last case {ended}{words}");
                let case = (String::new(), message);
                report.merge(aborts(device, &options, &[case]));
            }
            return Ok(report);
        }
        if let Some(message) = directory.read("error") {
            return Err(Error::new(ErrorKind::Value, message));
        }
        let words = directory.read("stderr").unwrap_or_default();
        let case = directory.read("case").unwrap_or_default();
        let ended = ended.unwrap_or_else(|| "the process ended".to_owned());
        let message = format!("{ended}{}", last_words(&words));
        if case.is_empty() {
            let group = options.groups.unwrap_or_default().join(", ");
            let message = format!("group {group}, before the first case: {message}");
            return Err(Error::new(ErrorKind::KernelFailed, message));
        }
        options.aborted.push((case, message));
        if options.aborted.len() > MOST_ABORTS {
            options.aborted.retain(|(case, _)| !case.ends_with(UNCLAIMED));
            let mut report = aborts(device, &options, &options.aborted);
            if let Some(last) = report.findings.last_mut() {
                last.message += "; the group was given up after it, its other cases haven't run";
            }
            return Ok(report);
        }
    }
}

/// Reports the cases of a group that ended their process, each with how it did.
fn aborts(device: &str, options: &Options, cases: &[(String, String)]) -> Report {
    let group = options.groups.iter().flatten().next().cloned().unwrap_or_default();
    let findings = cases.iter().map(|(case, message)| {
        let mut parts = case.split('/');
        let mut part = || parts.next().unwrap_or_default().to_owned();
        let (operator, second) = (part(), part());
        Finding {
            verdict: Verdict::Failed,
            symptom: Some(Symptom::Aborted),
            group: group.clone(),
            operator: if operator.is_empty() { group.clone() } else { operator },
            dtype: if parts.next().is_some() { second } else { String::new() },
            case: case.clone(),
            message: message.clone(),
            reproducer: String::new(),
            count: 1,
        }
    });
    let count = cases.len() as u64;
    Report {
        device: device.to_owned(),
        mode: options.mode.name().to_owned(),
        fraction: options.fraction,
        seed: options.seed,
        findings: findings.collect(),
        groups: vec![Group {
            name: group.clone(),
            cases: count,
            operations: [0, count, 0, 0],
            milliseconds: 0,
        }],
        ..Report::default()
    }
}

/// Waits for a child; returns how it ended, unless it ended well.
fn wait(
    mut child: Child,
    directory: &Directory,
    poll: &mut dyn FnMut() -> Result<()>,
) -> Result<Option<String>> {
    let mut last = (Instant::now(), String::new());
    let mut nap = Duration::from_millis(1);
    loop {
        let status = child.try_wait().map_err(|error| {
            Error::new(ErrorKind::KernelFailed, format!("can't wait for a child: {error}"))
        })?;
        if let Some(status) = status {
            return Ok((!status.success()).then(|| described(status)));
        }
        if let Err(error) = poll() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        let case = directory.read("case").unwrap_or_default();
        if case != last.1 {
            last = (Instant::now(), case);
        } else if last.0.elapsed() > LONGEST_CASE {
            let _ = child.kill();
            let _ = child.wait();
            let message = format!("the case didn't end within {} s", LONGEST_CASE.as_secs());
            return Ok(Some(message));
        }
        std::thread::sleep(nap);
        nap = (nap * 2).min(Duration::from_millis(20));
    }
}

fn described(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.signal(), status.code()) {
        (Some(6), _) => "the process was aborted (signal 6)".to_owned(),
        (Some(11), _) => "the process touched memory that isn't its own (signal 11)".to_owned(),
        (Some(signal), _) => format!("the process was ended by signal {signal}"),
        (None, code) => format!("the process ended with code {}", code.unwrap_or_default()),
    }
}

/// Returns the end of what a process wrote.
fn last_words(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    let end = lines[lines.len().saturating_sub(3)..].join(" ");
    let from = end.char_indices().rev().nth(LONGEST_MESSAGE).map_or(0, |(at, _)| at);
    match end.is_empty() {
        true => String::new(),
        false => format!("; it wrote: {}", &end[from..]),
    }
}

/// Runs the group that the parent asked for, if this process is a child; returns whether it is.
///
/// # Errors
/// If the options can't be read, or the report can't be written. The errors of a run are passed to
/// the parent.
pub fn run_child() -> Result<bool> {
    let Some(path) = std::env::var_os(CHILD) else { return Ok(false) };
    // Not dropped: the directory is the parent's.
    let directory = std::mem::ManuallyDrop::new(Directory(path.into()));
    let Some(given) = directory.read("options") else {
        return Err(Error::new(ErrorKind::Value, format!("{CHILD} names no directory of a run")));
    };
    let (device, options) = given.split_once('\n').unwrap_or((&given, "{}"));
    let options = Options::from_json(options)?;
    let mut note = |case: &str| {
        // Without the note an abort is blamed on the case before.
        let _ = directory.write("case", case);
    };
    let ran = device.parse::<DeviceType>().and_then(|kind| run_with(kind, &options, &mut note));
    match ran {
        Ok(report) => directory.write("report", &report.to_json())?,
        Err(error) => directory.write("error", error.message())?,
    }
    Ok(true)
}

/// Runs the kit on a backend from one of its own tests, each group in a process of its own: the
/// test's executable, run again with this test alone. `test` is the test's full name, as
/// `module::name`; register the backend before. Panics, with the report, unless the backend
/// conforms. A child ends in here; what follows in the test runs once.
///
/// # Panics
/// If a case fails, if an operation works but isn't claimed, and if nothing ran.
///
/// # Examples
/// ```no_run
/// #[test]
/// fn my_backend_conforms() {
///     keyfold::init();
///     let kind = keyfold::DeviceType::register("npu").unwrap();
///     // keyfold::backend::register(kind, Arc::new(Npu::new())).unwrap();
///     let options = keyfold_conformance::Options::default();
///     keyfold_conformance::assert_conforms(kind, &options, "my_backend_conforms");
/// }
/// ```
#[expect(clippy::disallowed_methods, reason = "a child has done all that it is for")]
pub fn assert_conforms(kind: DeviceType, options: &Options, test: &str) -> Report {
    if run_child().expect("the parent wrote the options") {
        exit(0);
    }
    let program = std::env::current_exe().expect("a test has an executable");
    let command = || {
        let mut command = Command::new(&program);
        command.args([test, "--exact", "--nocapture"]);
        command
    };
    let report = run_isolated(&kind.name(), options, &command, &mut || Ok(()));
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    assert!(report.conforms(), "{report}");
    report
}
