//! A planner without a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfold_core::{Device, Result};
use keyfold_cudnn::{
    EngineConfigSpec, GraphSpec, Plan, PlanRunner, PlanSpec, Planner, Policy, Progress, Step, Uid,
    ValidGraph, VariantPack,
};

/// What a planner does before it returns a plan.
type Work = dyn Fn(&GraphSpec, Progress<'_>) -> Result<()> + Send + Sync;

/// Makes plans that compute nothing, and counts them.
pub(crate) struct Fake {
    profile: String,
    pub(crate) builds: AtomicUsize,
    work: Box<Work>,
    pub(crate) workspace_bytes: u64,
    pub(crate) bytes: u64,
}

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.profile)
    }
}

impl Fake {
    pub(crate) fn new(profile: &str) -> Fake {
        Fake::with_work(profile, |_, _| Ok(()))
    }

    pub(crate) fn with_work(
        profile: &str,
        work: impl Fn(&GraphSpec, Progress<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Fake {
        Fake {
            profile: profile.to_string(),
            builds: AtomicUsize::new(0),
            work: Box::new(work),
            workspace_bytes: 0,
            bytes: 100,
        }
    }

    pub(crate) fn builds(&self) -> usize {
        self.builds.load(Ordering::SeqCst)
    }
}

impl Planner for Fake {
    fn profile(&self) -> &str {
        &self.profile
    }

    fn plan(
        &self,
        graph: Arc<ValidGraph>,
        policy: &Policy,
        progress: Progress<'_>,
    ) -> Result<Plan> {
        self.builds.fetch_add(1, Ordering::SeqCst);
        progress(Step { done: 0, total: 1, what: "plan" })?;
        (self.work)(graph.spec(), progress)?;
        Ok(Plan {
            graph,
            spec: PlanSpec {
                device: self.profile.clone(),
                policy: policy.clone(),
                config: EngineConfigSpec { engine: "fake".to_string(), knobs: Vec::new() },
                workspace_bytes: self.workspace_bytes,
                steps: Vec::new(),
            },
            device: Device::CPU,
            alignment: 16,
            bytes: self.bytes,
            runner: Box::new(Nothing { workspace_bytes: self.workspace_bytes }),
        })
    }
}

/// Checks that a run has its scratch memory, and computes nothing.
#[derive(Debug)]
struct Nothing {
    workspace_bytes: u64,
}

impl PlanRunner for Nothing {
    fn run(&self, pack: &VariantPack<'_>) -> Result<()> {
        let given = pack.workspace.map_or(0, |memory| memory.nbytes() as u64);
        assert_eq!(given, self.workspace_bytes);
        let uids: Vec<Uid> = pack.tensors.iter().map(|entry| entry.0).collect();
        assert!(uids.iter().all(|&uid| pack.get(uid).is_some()));
        Ok(())
    }
}
