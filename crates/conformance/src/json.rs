//! Reports and options as JSON.

use keyfold_core::{DType, Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::report::{Finding, Group, Report, Symptom, Timing, VERSION, Verdict};
use crate::suite::{Mode, Options};

/// The value of a report's field `format`.
const FORMAT: &str = "keyfold conformance report";

fn unreadable(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Value, message)
}

fn text(value: &Value, name: &str) -> Result<String> {
    let found = value.get(name).and_then(Value::as_str);
    found.map(str::to_owned).ok_or_else(|| unreadable(format!("a report without a text '{name}'")))
}

fn number(value: &Value, name: &str) -> Result<u64> {
    let found = value.get(name).and_then(Value::as_u64);
    found.ok_or_else(|| unreadable(format!("a report without a number '{name}'")))
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    let found = value.get(name).and_then(Value::as_array);
    found.ok_or_else(|| unreadable(format!("a report without a list '{name}'")))
}

impl Report {
    /// Returns the report as JSON, an object.
    pub fn to_json(&self) -> String {
        let groups = self.groups.iter().map(|group| {
            let [passed, failed, unclaimed, lacking] = group.operations;
            json!({
                "name": group.name,
                "cases": group.cases,
                "passed": passed,
                "failed": failed,
                "unclaimed": unclaimed,
                "lacking": lacking,
                "milliseconds": group.milliseconds,
            })
        });
        let findings = self.findings.iter().map(|finding| {
            json!({
                "verdict": finding.verdict.name(),
                "symptom": finding.symptom.map(Symptom::name),
                "group": finding.group,
                "operator": finding.operator,
                "dtype": finding.dtype,
                "case": finding.case,
                "message": finding.message,
                "reproducer": finding.reproducer,
                "count": finding.count,
            })
        });
        let times = self.times.iter().map(|time| {
            json!({
                "operator": time.operator,
                "dtype": time.dtype,
                "microseconds_of_one": time.small,
                "microseconds_of_many": time.large,
                "copies": time.copies,
            })
        });
        let report = json!({
            "format": FORMAT,
            "version": VERSION,
            "device": self.device,
            "backend": self.backend,
            "mode": self.mode,
            "fraction": self.fraction,
            "seed": self.seed,
            "conforms": self.conforms(),
            "cases": self.cases(),
            "groups": groups.collect::<Vec<_>>(),
            "findings": findings.collect::<Vec<_>>(),
            "times": times.collect::<Vec<_>>(),
        });
        report.to_string()
    }

    /// Reads a report.
    ///
    /// # Errors
    /// [`ErrorKind::Value`] for text that is no report, and for one of another version, with both
    /// versions.
    pub fn from_json(json: &str) -> Result<Report> {
        let value: Value = serde_json::from_str(json)
            .map_err(|error| unreadable(format!("a report of the conformance kit: {error}")))?;
        if value.get("format").and_then(Value::as_str) != Some(FORMAT) {
            return Err(unreadable(format!("JSON that isn't a report: no format '{FORMAT}'")));
        }
        let version = number(&value, "version")?;
        if version != VERSION {
            return Err(unreadable(format!(
                "a report of version {version}; this keyfold reads version {VERSION}"
            )));
        }
        let groups = list(&value, "groups")?.iter().map(|group| {
            let operations = ["passed", "failed", "unclaimed", "lacking"].map(|v| number(group, v));
            let [passed, failed, unclaimed, lacking] = operations;
            Ok(Group {
                name: text(group, "name")?,
                cases: number(group, "cases")?,
                operations: [passed?, failed?, unclaimed?, lacking?],
                milliseconds: number(group, "milliseconds")?,
            })
        });
        let findings = list(&value, "findings")?.iter().map(|finding| {
            let verdict = text(finding, "verdict")?;
            let verdict = Verdict::ALL.into_iter().find(|known| known.name() == verdict);
            let symptom = finding.get("symptom").and_then(Value::as_str);
            Ok(Finding {
                verdict: verdict.ok_or_else(|| unreadable("a finding with an unknown verdict"))?,
                symptom: Symptom::ALL.iter().copied().find(|known| Some(known.name()) == symptom),
                group: text(finding, "group")?,
                operator: text(finding, "operator")?,
                dtype: text(finding, "dtype")?,
                case: text(finding, "case")?,
                message: text(finding, "message")?,
                reproducer: text(finding, "reproducer")?,
                count: number(finding, "count")?,
            })
        });
        let times =
            value.get("times").and_then(Value::as_array).into_iter().flatten().map(|time| {
                let float = |name: &str| time.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
                Ok(Timing {
                    operator: text(time, "operator")?,
                    dtype: text(time, "dtype")?,
                    small: float("microseconds_of_one"),
                    large: float("microseconds_of_many"),
                    copies: float("copies"),
                })
            });
        Ok(Report {
            times: times.collect::<Result<_>>()?,
            device: text(&value, "device")?,
            backend: text(&value, "backend")?,
            mode: text(&value, "mode")?,
            fraction: value.get("fraction").and_then(Value::as_f64).unwrap_or(1.0),
            seed: number(&value, "seed")?,
            groups: groups.collect::<Result<_>>()?,
            findings: findings.collect::<Result<_>>()?,
        })
    }
}

impl Options {
    /// Returns the options as JSON, for a child process.
    pub(crate) fn to_json(&self) -> String {
        json!({
            "mode": self.mode.name(),
            "groups": self.groups,
            "only": self.only,
            "dtype": self.dtype.map(DType::name),
            "case": self.case,
            "fraction": self.fraction,
            "seed": self.seed,
            "shrink": self.shrink,
            "aborted": self.aborted,
        })
        .to_string()
    }

    /// Reads the options of a child process.
    pub(crate) fn from_json(json: &str) -> Result<Options> {
        let value: Value =
            serde_json::from_str(json).map_err(|error| unreadable(error.to_string()))?;
        let strings = |value: &Value| -> Vec<String> {
            let all = value.as_array().into_iter().flatten();
            all.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let aborted = value["aborted"].as_array().into_iter().flatten().filter_map(|pair| {
            let pair = strings(pair);
            Some((pair.first()?.clone(), pair.get(1)?.clone()))
        });
        Ok(Options {
            mode: value["mode"].as_str().unwrap_or("test").parse::<Mode>()?,
            groups: value["groups"].as_array().map(|_| strings(&value["groups"])),
            only: value["only"].as_str().map(str::to_owned),
            dtype: value["dtype"].as_str().map(str::parse).transpose()?,
            case: value["case"].as_u64().map(|case| case as usize),
            fraction: value["fraction"].as_f64().unwrap_or(0.1),
            seed: value["seed"].as_u64().unwrap_or(0),
            shrink: value["shrink"].as_bool().unwrap_or(false),
            aborted: aborted.collect(),
        })
    }
}
