//! The findings of a run.

use std::fmt;

/// The version of the report's format.
pub const VERSION: u64 = 1;

/// The verdict about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Every case passed.
    Passed,
    /// The backend claims the operation, and a case failed.
    Failed,
    /// The backend doesn't claim the operation, but computes it.
    Unclaimed,
    /// The backend lacks the operation, and says why.
    Lacking,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Verdict; 4] =
        [Verdict::Passed, Verdict::Failed, Verdict::Unclaimed, Verdict::Lacking];

    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "claimed but failed",
            Verdict::Unclaimed => "works but unclaimed",
            Verdict::Lacking => "lacking",
        }
    }
}

macro_rules! symptoms {
    // A macro, since each symptom needs its name and its explanation beside the variant.
    ($($name:ident, $text:literal, $means:literal;)*) => {
        /// The kind of a failure, as the kit diagnoses it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Symptom {
            $(#[doc = $means] $name,)*
        }

        impl Symptom {
            /// All symptoms.
            pub const ALL: &[Symptom] = &[$(Symptom::$name,)*];

            /// Returns its name in reports.
            pub fn name(self) -> &'static str {
                match self { $(Symptom::$name => $text,)* }
            }

            /// Returns a sentence that explains it.
            pub fn means(self) -> &'static str {
                match self { $(Symptom::$name => $means,)* }
            }
        }
    };
}

symptoms! {
    WrongValue, "wrong value", "An element differs from the reference by more than the tolerance.";
    WrongStride, "wrong stride", "The result is right for contiguous tensors and wrong for this layout.";
    WrongTail, "wrong tail", "Only the last elements are wrong, beyond a multiple of a vector's length.";
    Unwritten, "unwritten element", "An element of the output still has the bytes from before the call.";
    OutOfBounds, "out-of-bounds write", "Bytes beside the output's elements changed.";
    InputChanged, "input changed", "Bytes of an input, or around it, changed.";
    Accumulation, "accumulation dtype", "The error fits a sum in the narrow dtype, not in the one that sums need.";
    StaleCache, "stale cache", "A call returns the result of an earlier call with other arguments.";
    NanDropped, "NaN dropped", "The reference is NaN, and the result is a number.";
    Race, "race between streams", "Operations that an event orders ran in another order.";
    OtherStream, "wrong stream", "A call is right on the default stream and wrong on another.";
    Threads, "race between threads", "A call is wrong while other threads make calls.";
    NotRepeatable, "not repeatable", "The same call gave another result when it was repeated.";
    Overlap, "overlapping copy", "A copy between parts of one buffer, which share no bytes, is wrong.";
    WrongForm, "wrong form", "The result has another dtype, shape, device or layout than it should.";
    CallFailed, "claimed but failed", "The backend claims the operation, and the call is an error.";
    Unclaimed, "works but unclaimed", "The backend doesn't claim the operation, and its kernel computes it.";
    LateError, "late error", "An error was lost, told too late, or blamed on another operator.";
    WrongError, "wrong error", "A call that must fail didn't, or failed with another kind of error.";
    WrongBytes, "wrong bytes", "Memory doesn't have the bytes that were written to it.";
    Leak, "leak", "Memory stays in use after all its tensors are gone.";
    Aborted, "aborted", "The process that ran the cases ended.";
}

/// One finding: a failure, an unclaimed operation, or one that is lacking.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The verdict.
    pub verdict: Verdict,
    /// The kind of failure; `None` for what is lacking.
    pub symptom: Option<Symptom>,
    /// The group of cases.
    pub group: String,
    /// The operator, or the part of a device.
    pub operator: String,
    /// The dtype, if the finding is about one.
    pub dtype: String,
    /// The case, for `--only`, and `--case`.
    pub case: String,
    /// The sentence that tells what is wrong, or the backend's reason.
    pub message: String,
    /// A Python program that shows it.
    pub reproducer: String,
    /// The number of cases with the same finding; the others aren't listed.
    pub count: u64,
}

impl Finding {
    /// Returns whether another finding says the same of the same operator.
    fn is_like(&self, other: &Finding) -> bool {
        (self.symptom, &self.operator, &self.group)
            == (other.symptom, &other.operator, &other.group)
            && (self.verdict != Verdict::Lacking || self.message == other.message)
    }
}

/// The cases of one group, counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The name.
    pub name: String,
    /// The number of cases that ran.
    pub cases: u64,
    /// The number of operations, an operator with a dtype, by verdict, in the order of
    /// [`Verdict::ALL`].
    pub operations: [u64; 4],
    /// The time in milliseconds.
    pub milliseconds: u64,
}

/// The time of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// The operator.
    pub operator: String,
    /// The dtype.
    pub dtype: String,
    /// The microseconds of a call with tensors of one element.
    pub small: f64,
    /// The microseconds of a call with tensors of 256 by 1024 elements.
    pub large: f64,
    /// That time as a multiple of the time of a copy of the tensors' bytes on the device.
    pub copies: f64,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The type of device.
    pub device: String,
    /// The backend's name.
    pub backend: String,
    /// The mode: test, grad, perf, support.
    pub mode: String,
    /// The fraction of the cases that ran.
    pub fraction: f64,
    /// The seed of the elements.
    pub seed: u64,
    /// The groups.
    pub groups: Vec<Group>,
    /// The findings, failures first.
    pub findings: Vec<Finding>,
    /// The times, in mode `perf`.
    pub times: Vec<Timing>,
}

impl Report {
    /// Returns the number of cases that ran.
    pub fn cases(&self) -> u64 {
        self.groups.iter().map(|group| group.cases).sum()
    }

    /// Returns the number of operations with a verdict.
    pub fn operations(&self, verdict: Verdict) -> u64 {
        self.groups.iter().map(|group| group.operations[verdict as usize]).sum()
    }

    /// Returns the findings with a verdict.
    pub fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.verdict == verdict)
    }

    /// Returns whether the backend conforms: cases ran, none failed, and the backend claims all that
    /// it computes. It may lack operations.
    pub fn conforms(&self) -> bool {
        self.cases() > 0
            && self.operations(Verdict::Failed) == 0
            && self.findings.iter().all(|finding| finding.verdict == Verdict::Lacking)
    }

    /// Returns whether an equal finding is known.
    pub(crate) fn knows(&self, finding: &Finding) -> bool {
        self.findings.iter().any(|known| known.is_like(finding))
    }

    /// Adds a finding, or counts it if an equal one is known.
    pub(crate) fn add(&mut self, finding: Finding) {
        match self.findings.iter_mut().find(|known| known.is_like(&finding)) {
            Some(known) => {
                known.count += 1;
                if !known.dtype.is_empty() && !known.dtype.split(", ").any(|d| d == finding.dtype) {
                    known.dtype = format!("{}, {}", known.dtype, finding.dtype);
                }
            }
            None => self.findings.push(finding),
        }
    }

    /// Adds the groups and findings of another run. Groups of one name become one.
    pub fn merge(&mut self, other: Report) {
        if self.backend.is_empty() {
            self.backend = other.backend;
        }
        for group in other.groups {
            let Some(known) = self.groups.iter_mut().find(|known| known.name == group.name) else {
                self.groups.push(group);
                continue;
            };
            known.cases += group.cases;
            known.milliseconds += group.milliseconds;
            for (known, more) in known.operations.iter_mut().zip(group.operations) {
                *known += more;
            }
        }
        self.findings.extend(other.findings);
        self.times.extend(other.times);
        self.findings.sort_by_key(|finding| finding.verdict);
    }
}

/// Breaks a text into lines of 80 columns with an indent.
fn wrapped(f: &mut fmt::Formatter<'_>, text: &str, indent: usize) -> fmt::Result {
    for paragraph in text.lines() {
        let mut column = 0;
        for word in paragraph.split(' ') {
            let width = word.chars().count();
            if column > indent && column + 1 + width > 80 {
                writeln!(f)?;
                column = 0;
            }
            match column {
                0 => {
                    write!(f, "{:indent$}{word}", "")?;
                    column = indent + width;
                }
                _ => {
                    write!(f, " {word}")?;
                    column += 1 + width;
                }
            }
        }
        writeln!(f)?;
    }
    Ok(())
}

impl Report {
    /// Formats what is lacking, by reason.
    fn fmt_lacking(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 6;
        let mut reasons: Vec<(&str, &str, Vec<&str>)> = Vec::new();
        for Finding { operator, dtype, message, .. } in self.with(Verdict::Lacking) {
            let alike =
                |(reason, of, _): &&mut (&str, &str, Vec<&str>)| reason == message && of == dtype;
            match reasons.iter_mut().find(alike) {
                Some((_, _, operators)) => operators.push(operator),
                None => reasons.push((message, dtype, vec![operator])),
            }
        }
        for (reason, dtype, operators) in reasons {
            writeln!(f)?;
            wrapped(f, &format!("lacking: {reason}"), 0)?;
            let named = &operators[..operators.len().min(MOST)];
            let more = match operators.len() - named.len() {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            let of = if dtype.is_empty() { String::new() } else { format!(" of {dtype}") };
            wrapped(f, &format!("{}{more}{of}", named.join(", ")), 4)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = match (self.fraction, &*self.mode) {
            (_, "support") => "one case of each operation".to_owned(),
            (_, "perf") => "two sizes".to_owned(),
            (1.0, _) => "all cases".to_owned(),
            (fraction, _) => format!("{:.0}% of the cases", fraction * 100.0),
        };
        let Report { device, backend, mode, seed, .. } = self;
        writeln!(f, "{mode} of {device} (backend '{backend}'): {part}, seed {seed}")?;
        writeln!(
            f,
            "{:<12} {:>7} {:>8} {:>8} {:>10} {:>8} {:>8}",
            "group", "cases", "passed", "failed", "unclaimed", "lacking", "ms"
        )?;
        for Group { name, cases, operations: [passed, failed, unclaimed, lacking], milliseconds } in
            &self.groups
        {
            writeln!(
                f,
                "{name:<12} {cases:>7} {passed:>8} {failed:>8} {unclaimed:>10} {lacking:>8} \
                 {milliseconds:>8}"
            )?;
        }
        let count = |verdict| self.operations(verdict);
        writeln!(
            f,
            "{:<12} {:>7} {:>8} {:>8} {:>10} {:>8}",
            "all",
            self.cases(),
            count(Verdict::Passed),
            count(Verdict::Failed),
            count(Verdict::Unclaimed),
            count(Verdict::Lacking)
        )?;
        for finding in self.findings.iter().filter(|finding| finding.verdict != Verdict::Lacking) {
            let Finding { verdict, symptom, operator, dtype, case, message, count, .. } = finding;
            let title = symptom.map_or(verdict.name(), Symptom::name);
            let times = if *count > 1 { format!(", {count} cases") } else { String::new() };
            writeln!(f)?;
            let of = if dtype.is_empty() { String::new() } else { format!(" {dtype}") };
            wrapped(f, &format!("{title}: {operator}{of}{times}"), 0)?;
            wrapped(f, message, 4)?;
            if !case.is_empty() {
                wrapped(f, &format!("case {case}"), 4)?;
            }
            for line in finding.reproducer.lines() {
                writeln!(f, "    | {line}")?;
            }
        }
        self.fmt_lacking(f)?;
        if !self.times.is_empty() {
            let heads = ["1 element, us", "256x1024, us", "copies"];
            writeln!(f, "\n{:<34} {:>14} {:>14} {:>9}", "operator", heads[0], heads[1], heads[2])?;
        }
        for Timing { operator, small, large, copies, .. } in &self.times {
            writeln!(f, "{operator:<34} {small:>14.2} {large:>14.1} {copies:>9.1}")?;
        }
        let verdict = match (self.conforms(), &**mode) {
            _ if self.cases() == 0 => "Nothing ran: that is no proof.",
            (false, _) => "The backend doesn't conform.",
            (true, "perf") => "Nothing was compared: that is no proof.",
            (true, "support") => "What it offers ran once: that is no proof.",
            (true, _) if count(Verdict::Passed) == 0 => "The backend conforms: it offers nothing.",
            (true, _) => "The backend conforms.",
        };
        writeln!(f, "\n{verdict}")
    }
}
