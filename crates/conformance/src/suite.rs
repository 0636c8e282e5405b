//! Runs the groups of cases.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Instant;

use keyfold_core::{DType, Device, DeviceType, Error, ErrorKind, Result, did_you_mean};
use keyfold_ops::{Row, families};

use crate::array::Arg;
use crate::case::{CASES, Case, Change, LONG_SUM, hash};
use crate::checks::Checks;
use crate::diagnose::diagnose;
use crate::report::{Finding, Group, Report, Symptom, Verdict};
use crate::run::{Outcome, Target, described, run as run_case};
use crate::sample::adds_up;
use crate::shrink::reproducer;
use crate::{concurrent, errors, forced, grad, memory, perf, stale, streams};

/// The kind of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Every operator against the reference, and the device's memory.
    #[default]
    Test,
    /// The gradients of every operator, against central differences of the reference.
    Grad,
    /// The time of every operator, beside a copy on the device.
    Perf,
    /// Every operator once with each dtype: what the backend offers, and why not the rest.
    Support,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 4] = [Mode::Test, Mode::Grad, Mode::Perf, Mode::Support];

    /// Returns the name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Test => "test",
            Mode::Grad => "grad",
            Mode::Perf => "perf",
            Mode::Support => "support",
        }
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Mode> {
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| {
            let known = Mode::ALL.map(Mode::name).join(", ");
            Error::new(
                ErrorKind::Value,
                format!("there is no mode '{text}'; the modes are {known}"),
            )
        })
    }
}

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kind of the run.
    pub mode: Mode,
    /// The groups; `None` for all of [`groups`].
    pub groups: Option<Vec<String>>,
    /// The only operator, with or without its overload.
    pub only: Option<String>,
    /// The only dtype.
    pub dtype: Option<DType>,
    /// The only case, by its number.
    pub case: Option<usize>,
    /// The fraction of the cases: each operator has at least one with each dtype.
    pub fraction: f64,
    /// The seed of the elements.
    pub seed: u64,
    /// Whether a failing case is reduced to a small one, with a Python program that shows it.
    pub shrink: bool,
    /// The cases that aborted an earlier process, and how: they count as failed and aren't run.
    pub aborted: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mode: Mode::Test,
            groups: None,
            only: None,
            dtype: None,
            case: None,
            fraction: 0.1,
            seed: 0,
            shrink: false,
            aborted: Vec::new(),
        }
    }
}

impl Options {
    /// Refuses numbers out of range.
    fn check(&self) -> Result<()> {
        let message = match self.case {
            _ if !(self.fraction > 0.0 && self.fraction <= 1.0) => {
                format!("a fraction is above 0 and at most 1, not {}", self.fraction)
            }
            Some(case) if case >= CASES => {
                format!("there is no case {case}; each operator has the cases 0 to {}", CASES - 1)
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Value, message))
    }
}

/// Returns the names of the groups of a mode.
pub fn groups(mode: Mode) -> Vec<&'static str> {
    let families = families().into_iter().map(|(name, _)| name);
    match mode {
        Mode::Test => families.chain(["cache", "memory", "streams", "errors"]).collect(),
        Mode::Grad | Mode::Perf | Mode::Support => families.collect(),
    }
}

/// Returns whether an operator, with or without its overload, is the only one asked for.
fn is_only(row: &Row, only: &str) -> bool {
    row.schema().name.to_string() == only || row.schema().name.qualified() == only
}

/// Returns the groups that options select: without a list all, or the family of the only operator.
pub(crate) fn selected(options: &Options) -> Vec<String> {
    let family = options.only.as_ref().and_then(|only| {
        let has = |(_, rows): &(_, &[Row])| rows.iter().any(|row| is_only(row, only));
        families().into_iter().find(has)
    });
    match (&options.groups, family) {
        (Some(groups), _) => groups.clone(),
        (None, Some((family, _))) => vec![family.to_owned()],
        (None, None) => groups(options.mode).into_iter().map(str::to_owned).collect(),
    }
}

/// Refuses a report without a case, since it proves nothing.
pub(crate) fn check_ran(report: &Report, options: &Options) -> Result<()> {
    if report.cases() > 0 {
        return Ok(());
    }
    let names = families().into_iter().flat_map(|(_, rows)| rows);
    let names: Vec<String> = names.map(|row| row.schema().name.to_string()).collect();
    let message = match &options.only {
        Some(only) if !names.iter().any(|name| name == only) => {
            // The name without its namespace.
            let full = format!("aten::{only}");
            let hint = match names.contains(&full) {
                true => format!("; did you mean '{full}'?"),
                false => did_you_mean(only, names.iter().map(String::as_str)),
            };
            format!("there is no operator '{only}', and no check of that name{hint}")
        }
        _ => "no case has this group, operator, dtype and number together".to_owned(),
    };
    Err(Error::new(ErrorKind::Value, message))
}

/// Runs the cases on the first device of a type.
///
/// # Errors
/// [`ErrorKind::Device`] for a type without a device or a backend, [`ErrorKind::Value`] for options
/// that choose no case.
pub fn run(kind: DeviceType, options: &Options) -> Result<Report> {
    let report = run_with(kind, options, &mut |_| ())?;
    check_ran(&report, options)?;
    Ok(report)
}

/// As [`run`], and calls a function with the name of each case before it runs.
///
/// # Errors
/// As [`run`], but a report may be empty.
pub fn run_with(
    kind: DeviceType,
    options: &Options,
    before: &mut dyn FnMut(&str),
) -> Result<Report> {
    options.check()?;
    let target = Target::new(Device::new(kind, 0))?;
    let mut report = Report {
        device: kind.name(),
        backend: target.backend.name().to_owned(),
        mode: options.mode.name().to_owned(),
        fraction: options.fraction,
        seed: options.seed,
        ..Report::default()
    };
    let known = groups(options.mode);
    let wanted = selected(options);
    if let Some(unknown) = wanted.iter().find(|group| !known.contains(&&***group)) {
        let message = format!("there is no group '{unknown}'; the groups are {}", known.join(", "));
        return Err(Error::new(ErrorKind::Value, message));
    }
    for name in wanted {
        let start = Instant::now();
        let mut tally = Tally::new(&name);
        let only = options.only.as_deref().filter(|_| options.mode == Mode::Test);
        let mut checks = Checks {
            target: &target,
            forced: OnceCell::new(),
            tally: &mut tally,
            report: &mut report,
            before,
            only,
            options,
        };
        match &*name {
            _ if options.mode == Mode::Grad => grad::check(&mut checks, &rows_of(options, &name)),
            _ if options.mode == Mode::Perf => perf::check(&mut checks, &rows_of(options, &name)),
            "cache" => stale::check(&mut checks, options.seed),
            "memory" => memory::check(&mut checks),
            "streams" => {
                streams::check(&mut checks);
                concurrent::check(&mut checks);
            }
            "errors" => errors::check(&mut checks),
            _ => operators(&mut checks, options)?,
        }
        let mut group = tally.group();
        group.milliseconds = start.elapsed().as_millis() as u64;
        if group.cases > 0 {
            report.groups.push(group);
        }
    }
    report.findings.sort_by_key(|finding| finding.verdict);
    Ok(report)
}

/// The verdicts of a group's operations so far.
pub(crate) struct Tally {
    pub(crate) name: String,
    pub(crate) cases: u64,
    verdicts: BTreeMap<String, Verdict>,
}

impl Tally {
    fn new(name: &str) -> Tally {
        Tally { name: name.to_owned(), cases: 0, verdicts: BTreeMap::new() }
    }

    /// Notes the verdict of a case; a failure of one is the operation's.
    pub(crate) fn note(&mut self, operation: &str, verdict: Verdict) {
        self.cases += 1;
        let known = self.verdicts.entry(operation.to_owned()).or_insert(verdict);
        let severity = |verdict: Verdict| match verdict {
            Verdict::Passed => 0,
            Verdict::Lacking => 1,
            Verdict::Unclaimed => 2,
            Verdict::Failed => 3,
        };
        if severity(verdict) > severity(*known) {
            *known = verdict;
        }
    }

    fn group(&self) -> Group {
        let mut group = Group { name: self.name.clone(), cases: self.cases, ..Group::default() };
        for verdict in self.verdicts.values() {
            group.operations[*verdict as usize] += 1;
        }
        group
    }
}

/// Returns the numbers of the cases of an operation that run: spread over all operations so that
/// each variant has its share. Sums have a long one among them.
fn chosen(options: &Options, case: &Case, operation: &str) -> Vec<usize> {
    if let Some(case) = options.case {
        return vec![case];
    }
    if options.mode == Mode::Support {
        return vec![0];
    }
    let count = ((CASES as f64 * options.fraction).round() as usize).clamp(1, CASES);
    let first = hash(&format!("{operation}{}", options.seed)) as usize;
    // An odd step visits all variants.
    let mut numbers: Vec<usize> = (0..count).map(|i| (first + i * 7) % CASES).collect();
    let is_inexact = case.dtype.is_floating() || case.dtype.is_complex();
    if is_inexact && adds_up(case.row) && !numbers.contains(&LONG_SUM) {
        numbers.push(LONG_SUM);
    }
    numbers
}

/// Returns the rows of a family that were asked for: all, or those of one operator.
fn rows_of(options: &Options, family: &str) -> Vec<&'static Row> {
    let family = families().into_iter().find(|(name, _)| *name == family);
    let rows = family.map(|(_, rows)| rows).unwrap_or_default().iter();
    let is_wanted = |row: &&Row| options.only.as_ref().is_none_or(|only| is_only(row, only));
    rows.filter(is_wanted).collect()
}

/// Runs the cases of one family of operators.
fn operators(checks: &mut Checks<'_>, options: &Options) -> Result<()> {
    for row in rows_of(options, &checks.tally.name) {
        for dtype in DType::ALL {
            let case = Case { row, dtype, number: 0, seed: options.seed };
            if options.dtype.is_none_or(|only| only == dtype) && case.is_taken() {
                operation(checks, &case)?;
            }
        }
    }
    Ok(())
}

/// Runs the chosen cases of an operator with a dtype; where none of them exists, one that does.
fn operation(checks: &mut Checks<'_>, case: &Case) -> Result<()> {
    let options = checks.options;
    let operation = format!("{}/{}", case.row.schema().name, case.dtype);
    let numbers = chosen(options, case, &operation);
    let others = (0..CASES).filter(|at| options.case.is_none() && !numbers.contains(at));
    let mut ran = false;
    for (at, number) in numbers.iter().copied().chain(others).enumerate() {
        if at >= numbers.len() && ran {
            break;
        }
        let case = Case { number, ..*case };
        let Some(plan) = case.plan(checks.target.device, &Change::default())? else { continue };
        ran = true;
        let outcome = match checks.abort_of(&case.id()) {
            Some(fault) => Outcome::Failed(fault),
            None => {
                (checks.before)(&case.id());
                run_case(checks.target, case.row, &plan)
            }
        };
        let (verdict, symptom, message) = match outcome {
            Outcome::NothingRan => continue,
            Outcome::Passed => {
                checks.tally.note(&operation, Verdict::Passed);
                continue;
            }
            Outcome::Lacking(reason) => match works(checks, &case)? {
                true => {
                    let message = format!("The backend says: {reason}. {}", described(&plan));
                    (Verdict::Unclaimed, Some(Symptom::Unclaimed), message)
                }
                false => (Verdict::Lacking, None, reason),
            },
            Outcome::Failed(fault) => {
                // A case that ended a process isn't run again.
                let fault = match fault.symptom {
                    Symptom::Aborted => fault,
                    _ => diagnose(checks.target, &case, fault),
                };
                let message = format!("{}. {}", described(&plan), fault.message);
                (Verdict::Failed, Some(fault.symptom), message)
            }
        };
        checks.tally.note(&operation, verdict);
        let mut finding = finding_of(checks, &case, verdict, symptom, message);
        if options.shrink
            && verdict == Verdict::Failed
            && symptom != Some(Symptom::Aborted)
            && !checks.report.knows(&finding)
            && let Some(program) =
                symptom.and_then(|symptom| reproducer(checks.target, &case, symptom))
        {
            finding.reproducer = program;
        }
        checks.report.add(finding);
    }
    Ok(())
}

/// The end of the note about a case that runs although the backend doesn't claim it.
pub(crate) const UNCLAIMED: &str = "/unclaimed";

/// Returns whether a kernel of the group computes a case that the backend doesn't claim. It must be
/// right for two sets of elements, so that no result is right by chance. A backend that may abort
/// where it was told not to ask isn't asked again.
fn works(checks: &mut Checks<'_>, case: &Case) -> Result<bool> {
    if checks.options.aborted.iter().any(|(noted, _)| noted.ends_with(UNCLAIMED)) {
        return Ok(false);
    }
    (checks.before)(&format!("{}{UNCLAIMED}", case.id()));
    let device = checks.target.device;
    let forced = match checks.forced.get() {
        Some(forced) => forced,
        None => {
            let mut forced = Target::new(device)?;
            forced.dispatcher = Some(forced::dispatcher(checks.target)?);
            checks.forced.get_or_init(|| forced)
        }
    };
    for more in [0, 1] {
        let case = Case { seed: case.seed.wrapping_add(more), ..*case };
        let Some(plan) = case.plan(device, &Change::default())? else { return Ok(false) };
        // A result without elements is right whatever ran, and that of no elements is always one.
        let mut operands = plan.args.iter().flat_map(Arg::operands).peekable();
        let is_of_none =
            operands.peek().is_some() && operands.all(|operand| operand.array.items.is_empty());
        if is_of_none
            || plan.expected.iter().all(|expected| expected.array.items.is_empty())
            || !matches!(run_case(forced, case.row, &plan), Outcome::Passed)
        {
            return Ok(false);
        }
    }
    Ok(true)
}

fn finding_of(
    checks: &Checks<'_>,
    case: &Case,
    verdict: Verdict,
    symptom: Option<Symptom>,
    message: String,
) -> Finding {
    let operator = case.row.schema().name.to_string();
    let reproducer = match verdict {
        Verdict::Lacking => String::new(),
        _ => format!(
            "python -m keyfold conformance {} --only {operator} --dtype {} --case {} --shrink",
            checks.target.device.kind(),
            case.dtype,
            case.number
        ),
    };
    Finding {
        verdict,
        symptom,
        group: checks.tally.name.clone(),
        operator,
        dtype: case.dtype.to_string(),
        case: case.id(),
        message,
        reproducer,
        count: 1,
    }
}
