//! Plans of whole graphs: which engines are tried, and what a plan is as data.

use std::sync::Arc;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_cudnn::{
    Choice, DataType, EngineConfigSpec, GraphSpec, Operation, PlanSpec, Policy, Port, Progress,
    Step, Uid, ValidGraph,
};
use serde::{Deserialize, Serialize};

use crate::engine::{
    self, Candidate, EngineChoice, Finished, NONDETERMINISTIC, REDUCED, Ranked, Ranking, Target,
};
use crate::legal::{self, Alias, Part, Program};
use crate::library::Library;
use crate::lower::{Constant, Lowered, lower};

/// A plan as data, for a file or another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanDocument {
    /// The version of cuDNN that made it.
    pub cudnn: String,
    /// libcudnn's plans, in the order of a run.
    pub parts: Vec<PartDocument>,
    /// The scratch memory of a run in bytes: of the parts, and of what is passed between them.
    pub workspace_bytes: u64,
    /// The tensors between parts, and their places in the scratch memory in bytes.
    pub passed: Vec<(Uid, u64)>,
    /// The steps from the graph to the plans, in words.
    pub steps: Vec<String>,
}

/// One of libcudnn's plans.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartDocument {
    /// The graph that it computes.
    pub graph: GraphSpec,
    /// The tensors of that graph that lie in another tensor's memory.
    pub aliases: Vec<Alias>,
    /// The heuristics that ranked the engine.
    pub mode: Ranked,
    /// The engine.
    pub engine: EngineChoice,
    /// The scratch memory that it needs in bytes.
    pub workspace_bytes: u64,
    /// The numbers by value that a run gives it.
    pub constants: Vec<Constant>,
    /// How long a run took where engines were timed, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microseconds: Option<f64>,
    /// How many engines were timed.
    #[serde(default)]
    pub timed: usize,
    /// libcudnn's own text of the plan; empty where it can't write one.
    pub json: String,
}

/// The alignment of what is passed between parts, and of the parts' scratch memory.
const ALIGNMENT: u64 = 256;

/// Finished plans and what they are as data.
#[derive(Debug)]
pub struct Planned {
    /// libcudnn's plans, one for each part of the document.
    pub finished: Vec<Finished>,
    /// The plan as data.
    pub document: PlanDocument,
}

/// Plans a graph: as it is, or as the legaliser splits it.
///
/// # Errors
/// [`ErrorKind::NotSupported`] where libcudnn has no plan under the policy, with its reasons, and those of `progress`.
pub fn plan(
    library: &Arc<Library>,
    graph: &ValidGraph,
    target: &Target<'_>,
    policy: &Policy,
    progress: Progress<'_>,
) -> Result<Planned> {
    let mut first = None;
    for program in legal::programs(graph, policy)? {
        match plan_program(library, &program, target, policy, progress) {
            Ok(planned) => return Ok(planned),
            // The refusal of the graph as it is tells most.
            Err(Failed::Refused(error)) => {
                first.get_or_insert(error);
            }
            Err(Failed::Stopped(error)) => return Err(error),
        }
    }
    Err(first.unwrap_or_else(|| engine::refused(library, &[])))
}

/// Why a program has no plan: libcudnn refused it, or nobody wants one any more.
enum Failed {
    Refused(Error),
    Stopped(Error),
}

fn plan_program(
    library: &Arc<Library>,
    program: &Program,
    target: &Target<'_>,
    policy: &Policy,
    progress: Progress<'_>,
) -> Result<Planned, Failed> {
    let mut finished = Vec::new();
    let mut parts = Vec::new();
    for part in &program.parts {
        let (plan, document) = plan_part(library, part, target, policy, progress)?;
        finished.push(plan);
        parts.push(document);
    }
    let (passed, workspace_bytes) = program.lay_out(&parts, ALIGNMENT);
    if let Some(limit) = policy.workspace_limit.filter(|&limit| workspace_bytes > limit) {
        let message = format!(
            "the plan needs {workspace_bytes} bytes of scratch memory, and workspace_limit is {limit}"
        );
        return Err(Failed::Refused(Error::new(ErrorKind::NotSupported, message)));
    }
    let mut steps = program.steps.clone();
    let mut described: Vec<(String, usize)> = Vec::new();
    for part in &parts {
        let line = part.describe();
        match described.last_mut().filter(|last| last.0 == line) {
            Some(last) => last.1 += 1,
            None => described.push((line, 1)),
        }
    }
    steps.extend(described.into_iter().map(|(line, times)| match times {
        1 => line,
        times => format!("{times} times {line}"),
    }));
    let cudnn = library.version().to_string();
    let document = PlanDocument { cudnn, parts, workspace_bytes, passed, steps };
    Ok(Planned { finished, document })
}

fn plan_part(
    library: &Arc<Library>,
    part: &Part,
    target: &Target<'_>,
    policy: &Policy,
    progress: Progress<'_>,
) -> Result<(Finished, PartDocument), Failed> {
    let tell =
        |done, what: &str| progress(Step { done, total: done + 1, what }).map_err(Failed::Stopped);
    tell(0, "lower the graph to libcudnn's descriptors")?;
    let Lowered { graph, constants } = lower(library, &part.graph).map_err(Failed::Refused)?;
    tell(1, "ask cuDNN's heuristics")?;
    let mut ranking = Ranking::new(&graph, target);
    let mut refusals: Vec<String> = Vec::new();
    let wanted = if policy.choice == Choice::Autotune { TIMED } else { 1 };
    let mut compiled: Vec<(Candidate, Finished)> = Vec::new();
    let mut tried = 0;
    for candidate in ranking.by_ref() {
        if let Some(reason) = unwanted(&candidate, part.graph.spec(), policy) {
            note(&mut refusals, reason);
            continue;
        }
        tried += 1;
        let index = candidate.engine.index;
        tell(1 + tried, &format!("compile engine {index} ({tried} of the ranking)"))?;
        match candidate.finish(target) {
            Ok(finished) => match policy.workspace_limit {
                Some(limit) if finished.workspace_bytes > limit => {
                    let bytes = finished.workspace_bytes;
                    let limited = format!("above workspace_limit {limit}");
                    note(
                        &mut refusals,
                        format!("engine {index} needs {bytes} bytes of scratch memory, {limited}"),
                    );
                }
                _ => compiled.push((candidate, finished)),
            },
            Err(error) => note(&mut refusals, format!("engine {index}: {error}")),
        }
        if compiled.len() == wanted {
            break;
        }
    }
    if compiled.is_empty() {
        if let (0, Some(error)) = (refusals.len(), ranking.refusal.take()) {
            refusals.push(error.to_string());
        }
        if tried == 0 {
            refusals.extend(engine::reasons(&graph, target));
        }
        return Err(Failed::Refused(engine::refused(library, &refusals)));
    }
    let mut times = Vec::new();
    if let (Choice::Autotune, Target::Card(card, Some(watch))) = (policy.choice, target) {
        for (done, (candidate, finished)) in compiled.iter().enumerate() {
            tell(1 + tried + done, &format!("time engine {}", candidate.engine.index))?;
            let time = watch
                .time(card, part.graph.spec(), finished, &constants)
                .map_err(Failed::Stopped)?;
            times.push(time.as_secs_f64() * 1e6);
        }
    }
    let best = (0..times.len()).min_by(|&a, &b| times[a].total_cmp(&times[b])).unwrap_or(0);
    let microseconds = times.get(best).copied();
    let (candidate, finished) = compiled.swap_remove(best);
    let document = PartDocument {
        graph: part.graph.spec().clone(),
        aliases: part.aliases.clone(),
        mode: candidate.mode,
        workspace_bytes: finished.workspace_bytes,
        engine: candidate.engine,
        constants,
        microseconds,
        timed: times.len(),
        json: finished.to_json().unwrap_or_default(),
    };
    Ok((finished, document))
}

/// How many engines are compiled and timed at most, for each part.
const TIMED: usize = 8;

fn note(refusals: &mut Vec<String>, reason: String) {
    if !refusals.contains(&reason) {
        refusals.push(reason);
    }
}

/// Returns why a policy doesn't want an engine.
fn unwanted(candidate: &Candidate, graph: &GraphSpec, policy: &Policy) -> Option<String> {
    let noted = |note: &str| candidate.engine.notes.iter().any(|other| other == note);
    let index = candidate.engine.index;
    if policy.choice == Choice::Deterministic && noted(NONDETERMINISTIC) {
        return Some(format!("engine {index} isn't deterministic"));
    }
    if !policy.tf32 && REDUCED.into_iter().any(noted) && multiplies_f32(graph) {
        return Some(format!("engine {index} multiplies float32 as TF32, which tf32=True allows"));
    }
    None
}

/// Returns whether a product or a convolution reads float32, which tensor cores round to TF32.
fn multiplies_f32(graph: &GraphSpec) -> bool {
    let is_f32 = |uid: Option<Uid>| {
        uid.and_then(|uid| graph.tensor(uid))
            .is_some_and(|tensor| tensor.dtype == Some(DataType::F32))
    };
    graph.operations.iter().any(|op| match op.operation {
        Operation::ConvFprop(_) => is_f32(op.input(Port::X)),
        Operation::ConvDgrad(_) | Operation::ConvWgrad(_) => is_f32(op.input(Port::Dy)),
        Operation::Matmul => is_f32(op.input(Port::A)) && is_f32(op.input(Port::B)),
        Operation::GroupedMatmul => is_f32(op.input(Port::Token)),
        _ => false,
    })
}

impl PartDocument {
    /// Says what the plan is, in a line.
    fn describe(&self) -> String {
        let operations: Vec<&str> = self.graph.operations.iter().map(|op| op.label()).collect();
        let engine = &self.engine;
        let knobs: Vec<String> =
            engine.knobs.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!(
            "{}: engine {} of heuristics {}{}, {} bytes of scratch memory{}{}",
            operations.join(", "),
            engine.index,
            self.mode.name(),
            if knobs.is_empty() { String::new() } else { format!(" with {}", knobs.join(" ")) },
            self.workspace_bytes,
            if engine.notes.is_empty() {
                String::new()
            } else {
                format!(" ({})", engine.notes.join(", "))
            },
            self.microseconds.map_or(String::new(), |time| {
                format!("; the quickest of {} that were timed, {time:.1} us a run", self.timed)
            }),
        )
    }
}

/// An engine in a ranking.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankedEngine {
    /// The part of the graph that it computes, from 0.
    pub part: usize,
    /// The operations of that part.
    pub operations: Vec<String>,
    /// The heuristics that ranked it.
    pub mode: Ranked,
    /// The engine.
    pub engine: EngineChoice,
    /// The scratch memory of a run in bytes, where it was compiled and did compile.
    pub workspace_bytes: Option<u64>,
    /// Why it has no plan, where it was compiled or the policy doesn't want it.
    pub refusal: Option<String>,
}

impl RankedEngine {
    /// Returns it as JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Ranks the engines of a graph: at most `limit` for each of its parts, and compiles them where that is asked for.
///
/// # Errors
/// [`ErrorKind::NotSupported`] where there is none, and those of `progress`.
pub fn rank(
    library: &Arc<Library>,
    graph: &ValidGraph,
    target: &Target<'_>,
    policy: &Policy,
    (limit, compile): (usize, bool),
    progress: Progress<'_>,
) -> Result<Vec<RankedEngine>> {
    let mut first = None;
    for program in legal::programs(graph, policy)? {
        let mut all = Vec::new();
        for (index, part) in program.parts.iter().enumerate() {
            let lowered = lower(library, &part.graph);
            let found = lowered.and_then(|lowered| {
                let found =
                    rank_part(index, part, &lowered, target, policy, (limit, compile), progress)?;
                match found.iter().any(|engine| engine.refusal.is_none()) {
                    true => Ok(found),
                    false if found.is_empty() => {
                        Err(engine::refused(library, &engine::reasons(&lowered.graph, target)))
                    }
                    false => {
                        let reasons: Vec<String> =
                            found.into_iter().filter_map(|engine| engine.refusal).collect();
                        Err(engine::refused(library, &reasons))
                    }
                }
            });
            match found {
                Ok(found) => all.extend(found),
                Err(error) => {
                    first.get_or_insert(error);
                    all.clear();
                    break;
                }
            }
        }
        if !all.is_empty() {
            return Ok(all);
        }
    }
    Err(first.unwrap_or_else(|| engine::refused(library, &[])))
}

fn rank_part(
    index: usize,
    part: &Part,
    lowered: &Lowered,
    target: &Target<'_>,
    policy: &Policy,
    (limit, compile): (usize, bool),
    progress: Progress<'_>,
) -> Result<Vec<RankedEngine>> {
    let mut found = Vec::new();
    let operations: Vec<String> =
        part.graph.operations().map(|op| op.label().to_string()).collect();
    for candidate in Ranking::new(&lowered.graph, target).take(limit) {
        let what = format!("look at engine {}", candidate.engine.index);
        progress(Step { done: found.len(), total: limit, what: &what })?;
        let mut refusal = unwanted(&candidate, part.graph.spec(), policy);
        let mut workspace_bytes = None;
        if compile && refusal.is_none() {
            match candidate.finish(target) {
                Ok(finished) => workspace_bytes = Some(finished.workspace_bytes),
                Err(error) => refusal = Some(error.to_string()),
            }
        }
        let Candidate { mode, engine, .. } = candidate;
        let operations = operations.clone();
        found.push(RankedEngine {
            part: index,
            operations,
            mode,
            engine,
            workspace_bytes,
            refusal,
        });
    }
    Ok(found)
}

impl PlanDocument {
    /// Returns the plan as JSON, with the caller's number of each tensor in the order of the plan's, from 1.
    pub(crate) fn to_json(&self, given: &[Uid]) -> String {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value["given"] = given.into();
        value.to_string()
    }

    /// Returns the plan as the data that plans of all devices have, with these steps before its own.
    pub(crate) fn spec(&self, profile: &str, policy: &Policy, mut steps: Vec<String>) -> PlanSpec {
        let engines = self.parts.iter().map(|part| format!("cuDNN engine {}", part.engine.index));
        let engine = engines.collect::<Vec<_>>().join(", ");
        steps.extend(self.steps.iter().cloned());
        PlanSpec {
            device: profile.to_string(),
            policy: policy.clone(),
            config: EngineConfigSpec { engine, knobs: Vec::new() },
            workspace_bytes: self.workspace_bytes,
            steps,
        }
    }
}
