//! Plans for a card that isn't here, made by the helper: they can be looked at, kept and carried, and not run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfold_core::{DType, Device, Error, ErrorKind, Result};
use keyfold_cudnn::{
    Choice, Plan, PlanRunner, Planner, Policy, Progress, Step, Uid, ValidGraph, VariantPack,
};
use keyfold_tensor::Tensor;

use crate::helper::client::Helpers;
use crate::numbered::Numbered;
use crate::planning::PlanDocument;
use crate::profile::Profile;
use crate::store::{Asked, Kept, Store};

/// Plans graphs for the card of a profile.
#[derive(Debug)]
pub struct RemotePlanner {
    helpers: Arc<Helpers>,
    card: Profile,
    version: String,
    profile: String,
    store: Option<Store>,
}

impl RemotePlanner {
    /// Makes a planner. It asks the helper for the version of cuDNN, which starts the first one.
    ///
    /// # Errors
    /// [`ErrorKind::Library`] where the helper can't be started, or libcudnn can't be loaded in it.
    pub fn new(
        helpers: Arc<Helpers>,
        card: Profile,
        store: Option<Store>,
        progress: Progress<'_>,
    ) -> Result<RemotePlanner> {
        let version = helpers.version(progress)?;
        let profile = format!("cuDNN {version}, {} {}", card.name, card.fingerprint());
        Ok(RemotePlanner { helpers, card, version, profile, store })
    }
}

impl Planner for RemotePlanner {
    fn profile(&self) -> &str {
        &self.profile
    }

    fn plan(
        &self,
        graph: Arc<ValidGraph>,
        policy: &Policy,
        progress: Progress<'_>,
    ) -> Result<Plan> {
        if policy.choice == Choice::Autotune {
            let message = format!(
                "policy \"autotune\" times plans on the card, and {} isn't in this machine: policy \"first\" or \
                 \"deterministic\" takes the heuristics' order",
                self.card.name
            );
            return Err(Error::new(ErrorKind::NotSupported, message));
        }
        let numbered = Numbered::of(&graph)?;
        let asked = Asked { key: &numbered.key, policy, profile: &self.card, cudnn: &self.version };
        // A kept plan that libcudnn doesn't take is made again, but not for somebody who has cancelled.
        let stopped = AtomicBool::new(false);
        let progress =
            |step: Step<'_>| progress(step).inspect_err(|_| stopped.store(true, Ordering::Relaxed));
        let progress: Progress<'_> = &progress;
        let Kept { plan: document, steps } = Store::keep(
            self.store.as_ref(),
            asked,
            || stopped.load(Ordering::Relaxed),
            |document| {
                self.helpers.reload(&document, &self.card, progress)?;
                Ok(document)
            },
            || self.helpers.plan(numbered.graph.spec(), &self.card, policy, progress),
            |document: &PlanDocument| document,
        )?;
        let bytes = document.parts.iter().map(|part| part.json.len() as u64).sum();
        let spec = document.spec(&self.profile, policy, steps);
        let runner = Absent { card: self.card.name.clone(), document, given: numbered.given };
        // Where its tensors would be. No run gets as far.
        let device = Device::cuda(0);
        Ok(Plan { graph, spec, device, alignment: 16, bytes, runner: Box::new(runner) })
    }
}

/// Refuses to run.
#[derive(Debug)]
struct Absent {
    card: String,
    document: PlanDocument,
    /// The caller's numbers of tensors.
    given: Vec<Uid>,
}

impl PlanRunner for Absent {
    fn run(&self, _pack: &VariantPack<'_>) -> Result<()> {
        self.available()
    }

    fn available(&self) -> Result<()> {
        let parts = self.document.parts.len();
        let message = format!(
            "the plan is for the card {}, of which this machine was given the profile alone: it can be looked at and \
             kept ({parts} of libcudnn's plans), and runs where build(device=\"cuda\") finds such a card",
            self.card
        );
        Err(Error::new(ErrorKind::NotSupported, message))
    }

    fn document(&self) -> Option<String> {
        Some(self.document.to_json(&self.given))
    }

    fn allocate(&self, _elements: usize, _dtype: DType, _device: Device) -> Result<Tensor> {
        self.available()?;
        Err(Error::new(ErrorKind::NotSupported, format!("{} isn't in this machine", self.card)))
    }
}
