//! Plans for a card that is here: made and run in this process.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use keyfold_core::{DType, Device, Error, ErrorKind, Result};
use keyfold_cudnn::{
    DataType, GraphSpec, Number, Plan, PlanRunner, Planner, Policy, Progress, TensorSpec, Uid,
    ValidGraph, VariantPack,
};
use keyfold_tensor::Tensor;

use crate::cuda::{Context, driver};
use crate::descriptor::{Draft, Finalized};
use crate::engine::{Card, Finished, Target, Times, reload};
use crate::library::{CudnnError, Library};
use crate::lower::Constant;
use crate::names as n;
use crate::numbered::Numbered;
use crate::planning::{PartDocument, PlanDocument, Planned, plan};
use crate::profile::Profile;
use crate::store::{Asked, Kept, Store};

/// Plans graphs for a card of this machine.
#[derive(Debug)]
pub struct CardPlanner {
    inner: Arc<Inner>,
    profile: String,
    store: Option<Store>,
}

/// The card, and handles on it that no run uses now; all plans share them.
#[derive(Debug)]
struct Inner {
    library: Arc<Library>,
    context: Context,
    /// The card's properties, as captured.
    properties: Profile,
    cards: Mutex<Vec<Card>>,
}

impl Inner {
    /// Calls a function with a handle of its own and the card's context current.
    fn with_card<T>(&self, call: impl FnOnce(&mut Card) -> Result<T>) -> Result<T> {
        self.context.enter(|| {
            let kept = self.cards.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut card = match kept {
                Some(card) => card,
                None => Card::new(&self.library, self.context.device().index().into())?,
            };
            let result = call(&mut card)?;
            self.cards.lock().unwrap_or_else(PoisonError::into_inner).push(card);
            Ok(result)
        })
    }
}

impl CardPlanner {
    /// Makes a planner for the card with this number. `library` is asked for libcudnn where there is such a card: no
    /// process without one loads it. `store` keeps plans for other processes.
    ///
    /// # Errors
    /// [`ErrorKind::Device`] where there is no driver or no such card; [`ErrorKind::Library`] where libcudnn
    /// isn't there or can't work with it.
    pub fn new(
        library: impl FnOnce() -> Result<Arc<Library>>,
        ordinal: u8,
        store: Option<Store>,
    ) -> Result<CardPlanner> {
        let context = driver()?.context(ordinal)?;
        let library = &library()?;
        let name = context.name()?;
        let (card, document) = context.enter(|| {
            let card = Card::new(library, ordinal.into())?;
            let document = card.properties_json()?;
            Ok((card, document))
        })?;
        let source = format!("read off {name} by cuDNN {}", library.version());
        let properties = Profile::captured(&name, &source, &document)?;
        let profile = format!(
            "cuDNN {}, {name} {}, cuda:{ordinal}",
            library.version(),
            properties.fingerprint()
        );
        let cards = Mutex::new(vec![card]);
        let inner = Inner { library: library.clone(), context, properties, cards };
        Ok(CardPlanner { inner: Arc::new(inner), profile, store })
    }

    /// Returns the card's properties.
    pub fn properties(&self) -> &Profile {
        &self.inner.properties
    }

    /// Waits until the card has done what plans queued.
    ///
    /// # Errors
    /// Those of the work itself.
    pub fn synchronize(&self) -> Result<()> {
        self.inner.context.synchronize()
    }
}

impl Planner for CardPlanner {
    fn profile(&self) -> &str {
        &self.profile
    }

    fn plan(
        &self,
        graph: Arc<ValidGraph>,
        policy: &Policy,
        progress: Progress<'_>,
    ) -> Result<Plan> {
        check_booleans(&graph)?;
        let inner = &self.inner;
        let numbered = Numbered::of(&graph)?;
        let version = inner.library.version().to_string();
        let asked =
            Asked { key: &numbered.key, policy, profile: &inner.properties, cudnn: &version };
        let Kept { plan: planned, steps } = Store::keep(
            self.store.as_ref(),
            asked,
            || false,
            |document| self.reload(document),
            || {
                inner.with_card(|card| {
                    let times = Stopwatch { context: &inner.context, library: &inner.library };
                    let target = Target::Card(card, Some(&times));
                    plan(&inner.library, &numbered.graph, &target, policy, progress)
                })
            },
            |planned: &Planned| &planned.document,
        )?;
        let Planned { finished, document } = planned;
        let spec = document.spec(&self.profile, policy, steps);
        let bytes = document.parts.iter().map(|part| part.json.len() as u64).sum();
        let device = inner.context.device();
        let parts = parts(finished, &document, &numbered);
        let inner = inner.clone();
        let runner = Runner { inner, parts, document, given: numbered.given };
        Ok(Plan { graph, spec, device, alignment: 16, bytes, runner: Box::new(runner) })
    }
}

impl CardPlanner {
    /// Makes libcudnn's plans of their texts.
    fn reload(&self, document: PlanDocument) -> Result<Planned> {
        let inner = &self.inner;
        let finished = inner.with_card(|card| {
            let target = Target::Card(card, None);
            let plans =
                document.parts.iter().map(|part| reload(&inner.library, &part.json, &target));
            plans.collect::<Result<Vec<_>>>()
        })?;
        let needs =
            |(plan, part): (&Finished, &PartDocument)| plan.workspace_bytes > part.workspace_bytes;
        if finished.iter().zip(&document.parts).any(needs) {
            let message = "it needs more scratch memory than it says";
            return Err(Error::new(ErrorKind::Library, message));
        }
        Ok(Planned { finished, document })
    }
}

/// Refuses booleans with memory: libcudnn holds eight in a byte, and arrays have one.
fn check_booleans(graph: &ValidGraph) -> Result<()> {
    let held = |tensor: &&TensorSpec| !tensor.is_virtual && tensor.dtype == Some(DataType::Bool);
    let Some(tensor) = graph.spec().tensors.iter().find(held) else { return Ok(()) };
    let message = format!(
        "tensor {} is bool and has memory: libcudnn holds 8 booleans in a byte, and arrays one; make it virtual, or int8 \
         by an identity or a selection",
        tensor.label()
    );
    Err(Error::new(ErrorKind::NotSupported, message))
}

/// A part of a plan that runs.
#[derive(Debug)]
struct RunPart {
    finished: Finished,
    /// Each tensor with memory: its number for libcudnn, and where its memory is.
    tensors: Vec<(Uid, Source)>,
}

/// Where the memory of a part's tensor is.
#[derive(Debug)]
enum Source {
    /// So many bytes into a tensor of the caller's.
    Given(Uid, u64),
    /// So many bytes into the scratch memory.
    Scratch(u64),
    /// A number of the plan's own.
    Constant(Box<[u8; 8]>),
}

/// Finds the memory of each part's tensors.
fn parts(finished: Vec<Finished>, document: &PlanDocument, numbered: &Numbered) -> Vec<RunPart> {
    let of_part = |(finished, part): (Finished, &PartDocument)| {
        let constant = |uid: Uid| part.constants.iter().find(|constant| constant.uid == uid);
        let named = |uid: Uid| {
            part.graph
                .operations
                .iter()
                .any(|op| op.inputs.iter().chain(&op.outputs).any(|port| port.1 == uid))
        };
        let held =
            part.graph.tensors.iter().filter(|tensor| !tensor.is_virtual && named(tensor.uid));
        let held = held.filter(|tensor| constant(tensor.uid).is_none());
        let tensors = held.map(|tensor| {
            let alias = part.aliases.iter().find(|alias| alias.uid == tensor.uid);
            let (uid, behind) = alias.map_or((tensor.uid, 0), |alias| (alias.of, alias.offset));
            match document.passed.iter().find(|passed| passed.0 == uid) {
                Some((_, offset)) => (tensor.uid, Source::Scratch(*offset + behind)),
                None => (tensor.uid, Source::Given(numbered.given(uid).unwrap_or(uid), behind)),
            }
        });
        let constants =
            part.constants.iter().map(|constant| (constant.uid, Source::Constant(bytes(constant))));
        let tensors = tensors.chain(constants).collect();
        RunPart { finished, tensors }
    };
    finished.into_iter().zip(&document.parts).map(of_part).collect()
}

/// Returns a number's bytes in its dtype.
fn bytes(constant: &Constant) -> Box<[u8; 8]> {
    use DataType as D;
    let mut bytes = Box::new([0; 8]);
    let (x, i) = match constant.value {
        Number::Float(x) => (x, x as i64),
        Number::Int(i) => (i as f64, i),
    };
    let mut put = |value: &[u8]| bytes[..value.len()].copy_from_slice(value);
    match constant.dtype {
        D::F32 => put(&(x as f32).to_ne_bytes()),
        D::F64 => put(&x.to_ne_bytes()),
        D::F16 => put(&keyfold_core::f16::from_f64(x).to_ne_bytes()),
        D::BF16 => put(&keyfold_core::bf16::from_f64(x).to_ne_bytes()),
        D::I32 => put(&(i as i32).to_ne_bytes()),
        D::I64 => put(&i.to_ne_bytes()),
        D::I8 => put(&(i as i8).to_ne_bytes()),
        D::U8 => put(&(i as u8).to_ne_bytes()),
        D::Bool => put(&[u8::from(x != 0.0)]),
        // Their numbers by value are refused by libcudnn.
        D::E4M3 | D::E5M2 => put(&[0]),
    }
    bytes
}

/// Makes the descriptor of a run's memory.
fn variant_pack(
    library: &Arc<Library>,
    uids: &[Uid],
    pointers: &[*mut c_void],
    scratch: *mut u8,
) -> Result<Finalized<n::VariantPack>, CudnnError> {
    Draft::new(library, n::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
        .ints(n::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids)?
        .addresses(n::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers)?
        .addresses(n::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[scratch.cast()])?
        .finalize()
}

/// Times plans on a card, on memory of zeros.
struct Stopwatch<'a> {
    context: &'a Context,
    library: &'a Arc<Library>,
}

/// How often a plan is run to be timed, after one run that isn't counted.
const TIMED: u32 = 5;

impl Times for Stopwatch<'_> {
    fn time(
        &self,
        card: &Card,
        graph: &GraphSpec,
        finished: &Finished,
        constants: &[Constant],
    ) -> Result<Duration> {
        let named = |uid: Uid| {
            graph
                .operations
                .iter()
                .any(|op| op.inputs.iter().chain(&op.outputs).any(|port| port.1 == uid))
        };
        let held = graph.tensors.iter().filter(|tensor| !tensor.is_virtual && named(tensor.uid));
        let held: Vec<&TensorSpec> = held
            .filter(|tensor| constants.iter().all(|constant| constant.uid != tensor.uid))
            .collect();
        let mut memory = Vec::new();
        // A number by value is in the host's memory: 1 in its dtype.
        let mut numbers = Vec::new();
        let (mut uids, mut pointers): (Vec<Uid>, Vec<*mut c_void>) = (Vec::new(), Vec::new());
        for tensor in held {
            uids.push(tensor.uid);
            let dtype = tensor.dtype.unwrap_or(DataType::F32);
            if tensor.by_value {
                let value = Number::Float(1.0);
                numbers.push(bytes(&Constant { uid: tensor.uid, dtype, value }));
                pointers.push(numbers[numbers.len() - 1].as_ptr().cast_mut().cast());
                continue;
            }
            let extent: i64 = tensor
                .dims
                .iter()
                .zip(&tensor.strides)
                .map(|(size, stride)| (size - 1).max(0) * stride)
                .sum();
            let elements = usize::try_from(extent + 1).unwrap_or(0);
            memory.push(self.context.zeros(elements, dtype.storage())?);
            pointers.push(memory[memory.len() - 1].raw_data_ptr()?.cast());
        }
        for constant in constants {
            uids.push(constant.uid);
            numbers.push(bytes(constant));
            pointers.push(numbers[numbers.len() - 1].as_ptr().cast_mut().cast());
        }
        let scratch = self.context.zeros(finished.workspace_bytes as usize, DType::U8)?;
        let pack = variant_pack(self.library, &uids, &pointers, scratch.raw_data_ptr()?)?;
        let mut begun = Instant::now();
        for run in 0..=TIMED {
            if run == 1 {
                self.context.synchronize()?;
                begun = Instant::now();
            }
            // SAFETY: the pack has memory for each tensor of the plan, which lives until the card has done the work;
            // the stream is the default.
            unsafe { card.handle.execute(std::ptr::null_mut(), finished.plan.raw(), pack.raw())? };
        }
        self.context.synchronize()?;
        Ok(begun.elapsed() / TIMED)
    }
}

/// Runs a plan on its card's default stream.
#[derive(Debug)]
struct Runner {
    inner: Arc<Inner>,
    parts: Vec<RunPart>,
    document: PlanDocument,
    /// The caller's numbers of tensors.
    given: Vec<Uid>,
}

impl PlanRunner for Runner {
    fn run(&self, pack: &VariantPack<'_>) -> Result<()> {
        let scratch = match pack.workspace {
            Some(memory) => memory.buffer().locate()?,
            None => std::ptr::null_mut(),
        };
        let mut given = Vec::with_capacity(pack.tensors.len());
        for (uid, tensor) in pack.tensors {
            given.push((*uid, tensor.raw_data_ptr()?));
        }
        self.inner.with_card(|card| {
            for part in &self.parts {
                let mut uids = Vec::with_capacity(part.tensors.len());
                let mut pointers: Vec<*mut c_void> = Vec::with_capacity(part.tensors.len());
                for (uid, source) in &part.tensors {
                    uids.push(*uid);
                    pointers.push(match source {
                        Source::Given(uid, behind) => {
                            let found = given.iter().find(|entry| entry.0 == *uid);
                            found.map_or(std::ptr::null_mut(), |entry| {
                                entry.1.wrapping_add(*behind as usize).cast()
                            })
                        }
                        Source::Scratch(offset) => scratch.wrapping_add(*offset as usize).cast(),
                        Source::Constant(bytes) => bytes.as_ptr().cast_mut().cast(),
                    });
                }
                let packed = variant_pack(&self.inner.library, &uids, &pointers, scratch)?;
                // SAFETY: the pack has the memory of each tensor: the caller's, which `PlanRunner::run` says were
                // checked, the scratch memory, which is as large as the plan says, and the plan's own numbers. All
                // of it is freed behind the stream's work, or by its owner after that. The stream is the default.
                unsafe {
                    card.handle.execute(
                        std::ptr::null_mut(),
                        part.finished.plan.raw(),
                        packed.raw(),
                    )?;
                }
            }
            Ok(())
        })
    }

    fn document(&self) -> Option<String> {
        Some(self.document.to_json(&self.given))
    }

    fn allocate(&self, elements: usize, dtype: DType, _device: Device) -> Result<Tensor> {
        self.inner.context.allocate(elements, dtype)
    }
}
