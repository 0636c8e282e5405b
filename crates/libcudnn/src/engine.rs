//! From an operation graph to plans: the heuristics' ranking, engines with their knobs, execution plans.

use std::sync::Arc;
use std::time::Duration;

use cudarc::cudnn::sys::cudnnBackendHeurMode_t as H;
use keyfold_core::{Error, ErrorKind, Result};
use keyfold_cudnn::GraphSpec;
use serde::{Deserialize, Serialize};

use crate::descriptor::{Draft, Finalized};
use crate::known;
use crate::library::{CudnnError, Handle, Library};
use crate::lower::Constant;
use crate::names::{
    self as n, DeviceProperties, EngineConfig, ExecutionPlan, Heuristics, OperationGraph,
};

/// The card that is planned for.
pub enum Target<'a> {
    /// A card that needn't be here, by its properties.
    Profile(&'a Finalized<DeviceProperties>),
    /// The card of a handle, and how plans are timed on it.
    Card(&'a Card, Option<&'a dyn Times>),
}

/// Times plans.
pub trait Times {
    /// Returns how long a run of a plan takes on the card.
    ///
    /// # Errors
    /// Those of the run.
    fn time(
        &self,
        card: &Card,
        graph: &GraphSpec,
        finished: &Finished,
        constants: &[Constant],
    ) -> Result<Duration>;
}

/// The card of this process's CUDA context.
#[derive(Debug)]
pub struct Card {
    pub(crate) handle: Handle,
    pub(crate) properties: Finalized<DeviceProperties>,
}

impl Card {
    /// Makes a handle on the current context of the card with this number.
    ///
    /// # Errors
    /// Those of libcudnn, where there is no card or no current context.
    pub fn new(library: &Arc<Library>, ordinal: i32) -> Result<Card> {
        let handle = Handle::new(library)?;
        let properties = Draft::new(library, n::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?
            .int32(n::CUDNN_ATTR_DEVICEPROP_DEVICE_ID, ordinal)?
            .finalize()?;
        Ok(Card { handle, properties })
    }

    /// Returns the card's properties as JSON, which [`properties`] reads.
    ///
    /// # Errors
    /// Those of libcudnn.
    pub fn properties_json(&self) -> Result<String> {
        Ok(self.properties.read_text(n::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION)?)
    }
}

impl Target<'_> {
    fn properties(&self) -> &Finalized<DeviceProperties> {
        match self {
            Target::Profile(properties) => properties,
            Target::Card(card, _) => &card.properties,
        }
    }
}

/// Makes the properties of a card from their JSON.
///
/// # Errors
/// [`ErrorKind::Value`] where libcudnn finds a key missing or isn't given JSON.
pub fn properties(library: &Arc<Library>, json: &str) -> Result<Finalized<DeviceProperties>> {
    Ok(Draft::new(library, n::CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR)?
        .text(n::CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, json)?
        .finalize()?)
}

/// The heuristics that are asked, in this order: those for speed, then those that take what others don't.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ranked {
    /// By mode A.
    A,
    /// By mode FALLBACK.
    Fallback,
}

impl Ranked {
    const ALL: [Ranked; 2] = [Ranked::A, Ranked::Fallback];

    /// Returns cuDNN's name.
    pub fn name(self) -> &'static str {
        match self {
            Ranked::A => "A",
            Ranked::Fallback => "FALLBACK",
        }
    }
}

/// An engine of a graph as it was ranked.
#[derive(Debug)]
pub struct Candidate {
    config: Finalized<EngineConfig>,
    /// The heuristics that ranked it.
    pub mode: Ranked,
    /// The engine, its knobs and notes.
    pub engine: EngineChoice,
}

/// An engine with its knobs, and what cuDNN notes of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineChoice {
    /// cuDNN's number of the engine, among those of the graph's kind.
    pub index: i64,
    /// The knobs by cuDNN's names, with values.
    pub knobs: Vec<(String, i64)>,
    /// Notes on numbers (`TENSOR_CORE`, `NONDETERMINISTIC`) and on behaviour (`RUNTIME_COMPILATION`).
    pub notes: Vec<String>,
}

/// Notes by which policies choose.
pub(crate) const NONDETERMINISTIC: &str = "NONDETERMINISTIC";
pub(crate) const REDUCED: [&str; 3] =
    ["TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION"];

fn heuristics(
    graph: &Finalized<OperationGraph>,
    mode: Ranked,
    target: &Target<'_>,
) -> Result<Finalized<Heuristics>, CudnnError> {
    let mode = match mode {
        Ranked::A => H::CUDNN_HEUR_MODE_A,
        Ranked::Fallback => H::CUDNN_HEUR_MODE_FALLBACK,
    };
    Draft::new(graph.library(), n::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
        .descriptor(n::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)?
        .choice(n::CUDNN_ATTR_ENGINEHEUR_MODE, mode as i32)?
        .descriptor(n::CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.properties())?
        .finalize()
}

/// Engines in the order of the heuristics, asked for as far as they are looked at: one costs less than all.
pub(crate) struct Ranking<'a> {
    graph: &'a Finalized<OperationGraph>,
    target: &'a Target<'a>,
    /// The heuristics of each mode, where they were asked.
    modes: std::slice::Iter<'static, Ranked>,
    present: Option<(Ranked, Finalized<Heuristics>)>,
    /// How many of the present mode's were returned.
    returned: usize,
    waiting: std::vec::IntoIter<Finalized<EngineConfig>>,
    /// Why heuristics gave nothing.
    pub(crate) refusal: Option<CudnnError>,
}

impl<'a> Ranking<'a> {
    pub(crate) fn new(graph: &'a Finalized<OperationGraph>, target: &'a Target<'a>) -> Ranking<'a> {
        Ranking {
            graph,
            target,
            modes: Ranked::ALL.iter(),
            present: None,
            returned: 0,
            waiting: Vec::new().into_iter(),
            refusal: None,
        }
    }

    /// Fills `waiting` with the first engine of the present mode, then with the others; nothing behind those.
    fn refill(&mut self) -> Result<bool, CudnnError> {
        let Some((_, heuristics)) = &self.present else { return Ok(false) };
        let limit = (self.returned == 0).then_some(1);
        let kind = n::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
        let all = heuristics.read_descriptors(n::CUDNN_ATTR_ENGINEHEUR_RESULTS, kind, limit)?;
        let new: Vec<_> = all.into_iter().skip(self.returned).collect();
        self.returned += new.len();
        self.waiting = new.into_iter();
        Ok(self.waiting.len() > 0)
    }
}

impl Iterator for Ranking<'_> {
    type Item = Candidate;

    fn next(&mut self) -> Option<Candidate> {
        loop {
            if let (Some(config), Some((mode, _))) = (self.waiting.next(), &self.present) {
                match describe(&config) {
                    Ok(engine) => return Some(Candidate { config, mode: *mode, engine }),
                    // Policies choose by the notes: one without any isn't chosen.
                    Err(error) => {
                        self.refusal = Some(error);
                        continue;
                    }
                }
            }
            match self.refill() {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => self.refusal = Some(error),
            }
            let mode = *self.modes.next()?;
            self.returned = 0;
            self.present = match heuristics(self.graph, mode, self.target) {
                Ok(found) => Some((mode, found)),
                Err(error) => {
                    self.refusal = Some(error);
                    None
                }
            };
        }
    }
}

/// Reads the engine, the knobs and the notes of a configuration.
fn describe(config: &Finalized<EngineConfig>) -> Result<EngineChoice, CudnnError> {
    let engine = config.read_descriptors(
        n::CUDNN_ATTR_ENGINECFG_ENGINE,
        n::CUDNN_BACKEND_ENGINE_DESCRIPTOR,
        Some(1),
    )?;
    let mut choice = EngineChoice::default();
    if let Some(engine) = engine.first() {
        choice.index = engine.read_int(n::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?;
        let numerical = engine.read_choices(n::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, 32)?;
        choice.notes.extend(numerical.into_iter().map(known::numerical_note));
        let behaviour = engine.read_choices(n::CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, 32)?;
        choice.notes.extend(behaviour.into_iter().map(known::behavior_note));
    }
    let knobs = config.read_descriptors(
        n::CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
        n::CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
        Some(64),
    )?;
    for knob in &knobs {
        let codes = knob.read_choices(n::CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, 1)?;
        let value = knob.read_int(n::CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE)?;
        choice.knobs.push((known::knob(codes.first().copied().unwrap_or(-1)), value));
    }
    Ok(choice)
}

/// A plan that was finalized.
#[derive(Debug)]
pub struct Finished {
    pub(crate) plan: Finalized<ExecutionPlan>,
    /// The scratch memory of a run, in bytes.
    pub workspace_bytes: u64,
}

impl Finished {
    fn of(plan: Finalized<ExecutionPlan>) -> Result<Finished, CudnnError> {
        let bytes = plan.read_int(n::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?;
        Ok(Finished { plan, workspace_bytes: u64::try_from(bytes).unwrap_or(0) })
    }

    /// Returns the plan as JSON, which [`reload`] reads.
    ///
    /// # Errors
    /// Those of libcudnn: not every engine's plan can be written.
    pub fn to_json(&self) -> Result<String> {
        Ok(self.plan.read_text(n::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)?)
    }
}

/// Begins a plan for a target, which libcudnn reads before all else.
fn draft(library: &Arc<Library>, target: &Target<'_>) -> Result<Draft<ExecutionPlan>, CudnnError> {
    let draft = Draft::new(library, n::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?;
    match target {
        Target::Profile(properties) => {
            draft.descriptor(n::CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, properties)
        }
        Target::Card(card, _) => draft.handle(n::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &card.handle),
    }
}

impl Candidate {
    /// Compiles its plan, which takes from 20 ms to 15 s the first time.
    ///
    /// # Errors
    /// Those of libcudnn: heuristics rank engines whose kernels don't compile.
    pub fn finish(&self, target: &Target<'_>) -> Result<Finished, CudnnError> {
        let plan = draft(self.config.library(), target)?
            .descriptor(n::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &self.config)?
            .finalize()?;
        Finished::of(plan)
    }
}

/// Makes a plan of its JSON, for the target that it was written for.
///
/// # Errors
/// Those of libcudnn: [`ErrorKind::NotSupported`] for another card's, [`ErrorKind::Value`] for a damaged text.
pub fn reload(library: &Arc<Library>, json: &str, target: &Target<'_>) -> Result<Finished> {
    let plan = draft(library, target)?
        .text(n::CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, json)?
        .finalize()?;
    Ok(Finished::of(plan)?)
}

/// Returns why no engine takes a graph: what each engine says when it is asked by its number.
pub(crate) fn reasons(graph: &Finalized<OperationGraph>, target: &Target<'_>) -> Vec<String> {
    let count = graph.read_int(n::CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT).unwrap_or(0);
    let mut all: Vec<String> = Vec::new();
    for index in 0..count.min(64) {
        let asked = || -> Result<(), CudnnError> {
            Draft::new(graph.library(), n::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?
                .descriptor(n::CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph)?
                .int(n::CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index)?
                .descriptor(n::CUDNN_ATTR_ENGINE_DEVICEPROP, target.properties())?
                .finalize()
                .map(drop)
        };
        let Err(error) = asked() else { continue };
        for reason in error.reasons() {
            if !all.contains(&reason) && all.len() < 8 {
                all.push(reason);
            }
        }
    }
    all
}

/// Makes the error of a graph that no engine takes.
pub(crate) fn refused(library: &Library, reasons: &[String]) -> Error {
    let why = match reasons {
        [] => "no engine takes it, and none says why".to_string(),
        reasons => reasons.join("; "),
    };
    let message = format!("cuDNN {} has no plan for the graph: {why}", library.version());
    Error::new(ErrorKind::NotSupported, message)
}
