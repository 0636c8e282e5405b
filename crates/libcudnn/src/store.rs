//! A folder of plans that processes share: one file for each plan, written whole or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_cudnn::{CanonicalKey, Policy, Signature};
use serde::{Deserialize, Serialize};

use crate::planning::PlanDocument;
use crate::profile::Profile;

/// A folder of plans.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    /// The most that its files may hold, in bytes.
    limit: u64,
}

/// A file of the folder.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    manifest: Manifest,
    /// The plan's text: a string, whose digest the manifest has.
    plan: String,
}

/// The origin of a plan, all of which is compared before libcudnn is given the plan.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    format: u32,
    /// The version of keyfold, whose lowering and rewriting made the plan.
    keyfold: String,
    cudnn: String,
    card: String,
    fingerprint: String,
    policy: Policy,
    /// The graph's canonical bytes, in hexadecimal digits.
    graph: String,
    digest: String,
}

/// Of the file, and of what lowering and rewriting make: each change of theirs raises it.
const FORMAT: u32 = 2;

/// The folder's limit unless it is said otherwise, in bytes.
pub const LIMIT: u64 = 512 << 20;

/// The folder's answer to a look-up.
#[derive(Debug)]
pub enum Found {
    /// A plan.
    Plan(Box<PlanDocument>),
    /// A file that isn't used, with the reason.
    Skipped(String),
    /// Nothing.
    Nothing,
}

/// A plan, and what the folder had to do with it, in words.
pub(crate) struct Kept<T> {
    pub(crate) plan: T,
    pub(crate) steps: Vec<String>,
}

/// The key of a look-up.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The graph.
    pub key: &'a CanonicalKey,
    /// The policy.
    pub policy: &'a Policy,
    /// The card.
    pub profile: &'a Profile,
    /// The version of cuDNN, as [`Version`](crate::Version) prints it.
    pub cudnn: &'a str,
}

impl Asked<'_> {
    fn manifest(&self, digest: String) -> Manifest {
        Manifest {
            format: FORMAT,
            keyfold: env!("CARGO_PKG_VERSION").to_string(),
            cudnn: self.cudnn.to_string(),
            card: self.profile.name.clone(),
            fingerprint: self.profile.fingerprint(),
            policy: self.policy.clone(),
            graph: hexadecimal(self.key.as_bytes()),
            digest,
        }
    }

    /// Returns the name of its file, in which signatures of graph, policy, card and version are: two names are equal
    /// by chance at most, and the manifest tells.
    fn file_name(&self) -> String {
        let rest = format!("{}\n{}\n{:?}", self.cudnn, self.profile.fingerprint(), self.policy);
        let rest = xxhash_rust::xxh3::xxh3_64(rest.as_bytes());
        let graph: Signature = self.key.signature();
        format!("{graph}-{rest:016x}.json")
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the digest of a plan's text and of its card's name, which nothing else is compared with.
fn digest(card: &str, text: &str) -> String {
    let both = format!("{card}\n{text}");
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(both.as_bytes()))
}

impl Store {
    /// Names a folder, which is made when the first plan is kept.
    pub fn new(folder: &Path, limit: u64) -> Store {
        Store { folder: folder.to_path_buf(), limit }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Looks for a plan. Whatever is wrong with a file is a reason to skip it.
    pub fn get(&self, asked: Asked<'_>) -> Found {
        let path = self.folder.join(asked.file_name());
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Nothing,
            Err(error) => {
                return Found::Skipped(format!("{} can't be read: {error}", path.display()));
            }
        };
        match read(&text, asked) {
            Ok(document) => Found::Plan(Box::new(document)),
            Err(reason) => Found::Skipped(format!("{}: {reason}", path.display())),
        }
    }

    /// Keeps a plan: a file beside its place, which is then renamed, so that no reader sees half of one.
    ///
    /// # Errors
    /// [`ErrorKind::Library`] where the folder can't be written, or the plan is larger than the folder may be.
    pub fn put(&self, asked: Asked<'_>, document: &PlanDocument) -> Result<()> {
        let wrong = |what: String| {
            let folder = self.folder.display();
            Error::new(ErrorKind::Library, format!("the folder of plans {folder}: {what}"))
        };
        if document.parts.iter().any(|part| part.json.is_empty()) {
            return Err(wrong("an engine's plan has no text, and can't be kept".to_string()));
        }
        let plan = serde_json::to_string(document).map_err(|error| wrong(error.to_string()))?;
        let manifest = asked.manifest(digest(&asked.profile.name, &plan));
        let text = serde_json::to_string(&Entry { manifest, plan })
            .map_err(|error| wrong(error.to_string()))?;
        if text.len() as u64 > self.limit {
            return Err(wrong(format!(
                "a plan of {} bytes is above its limit of {}",
                text.len(),
                self.limit
            )));
        }
        let written = || -> io::Result<()> {
            fs::create_dir_all(&self.folder)?;
            self.make_room(text.len() as u64)?;
            static WRITTEN: AtomicU64 = AtomicU64::new(0);
            // Processes of two machines that share the folder may have one number: the time tells them apart.
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let number = u128::from(WRITTEN.fetch_add(1, Ordering::Relaxed)) + now.as_nanos();
            let beside = self.folder.join(format!("{}-{number}{PARTIAL}", std::process::id()));
            let result = fs::File::create_new(&beside)
                .and_then(|mut file| {
                    file.write_all(text.as_bytes()).and_then(|()| file.sync_data())
                })
                .and_then(|()| fs::rename(&beside, self.folder.join(asked.file_name())));
            result.inspect_err(|_| {
                let _ = fs::remove_file(&beside);
            })
        };
        written().map_err(|error| wrong(error.to_string()))
    }

    /// Returns how many plans there are, and how many bytes they hold.
    ///
    /// # Errors
    /// [`ErrorKind::Library`] where the folder is there and can't be read.
    pub fn size(&self) -> Result<(usize, u64)> {
        let files = self.files().map_err(|error| {
            Error::new(
                ErrorKind::Library,
                format!("the folder of plans {}: {error}", self.folder.display()),
            )
        })?;
        let plans = files.iter().filter(|file| !file.is_partial);
        Ok(plans.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.bytes)))
    }

    /// Takes a plan from a folder, if there is one, or makes it and keeps it there. Both ways, the steps say what the
    /// folder had to do with it.
    ///
    /// # Errors
    /// Those of `make`, and of `revive` where `is_stopped` says that nobody wants the plan any more. A folder that
    /// can't be read or written is a step.
    pub(crate) fn keep<T>(
        store: Option<&Store>,
        asked: Asked<'_>,
        is_stopped: impl FnOnce() -> bool,
        revive: impl FnOnce(PlanDocument) -> Result<T>,
        make: impl FnOnce() -> Result<T>,
        document: impl FnOnce(&T) -> &PlanDocument,
    ) -> Result<Kept<T>> {
        let Some(store) = store else { return Ok(Kept { plan: make()?, steps: Vec::new() }) };
        let mut steps = Vec::new();
        let unused = |reason: &str| format!("the kept plan isn't used: {reason}");
        match store.get(asked) {
            Found::Plan(document) => match revive(*document) {
                Ok(plan) => {
                    let folder = store.folder.display();
                    return Ok(Kept {
                        plan,
                        steps: vec![format!("read from the plans in {folder}")],
                    });
                }
                Err(error) if is_stopped() => return Err(error),
                Err(error) => {
                    let path = store.folder.join(asked.file_name());
                    steps.push(unused(&format!("{}: {}", path.display(), error.message())));
                }
            },
            Found::Skipped(reason) => steps.push(unused(&reason)),
            Found::Nothing => {}
        }
        let plan = make()?;
        if let Err(error) = store.put(asked, document(&plan)) {
            steps.push(format!("the plan isn't kept: {}", error.message()));
        }
        Ok(Kept { plan, steps })
    }

    fn files(&self) -> io::Result<Vec<File>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            // Other files in the folder are somebody else's.
            let Some(is_partial) = is_partial(&name) else { continue };
            // Another process may have removed it meanwhile.
            let Ok(about) = fs::metadata(&path) else { continue };
            let used = about.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            files.push(File { path, bytes: about.len(), used, is_partial });
        }
        Ok(files)
    }

    /// Removes the oldest files until so many bytes more fit, and what killed processes left half written.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut files = self.files()?;
        files.sort_by_key(|file| file.used);
        let mut held: u64 = files.iter().map(|file| file.bytes).sum();
        for file in &files {
            let is_left =
                file.is_partial && file.used.elapsed().is_ok_and(|age| age.as_secs() > LEFT_AFTER);
            let is_over = !file.is_partial && held.saturating_add(bytes) > self.limit;
            if is_left || is_over {
                // Another process may have removed it, or may read it now: it keeps what it has open.
                let _ = fs::remove_file(&file.path);
                held -= file.bytes;
            }
        }
        Ok(())
    }
}

/// The end of the name of a file that is being written.
const PARTIAL: &str = ".partial";

/// The age in seconds of a half-written file from which on nobody writes it any more.
const LEFT_AFTER: u64 = 600;

/// Returns whether a name is that of a plan's half-written file, or of a plan's; `None` for others.
fn is_partial(name: &str) -> Option<bool> {
    let (stem, is_partial) = match (name.strip_suffix(PARTIAL), name.strip_suffix(".json")) {
        (Some(stem), _) => (stem, true),
        (_, Some(stem)) => (stem, false),
        _ => return None,
    };
    let (first, second) = stem.split_once('-')?;
    let all = |text: &str, radix| !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
    let is_ours = match is_partial {
        true => all(first, 10) && all(second, 10),
        false => first.len() == 32 && second.len() == 16 && all(first, 16) && all(second, 16),
    };
    is_ours.then_some(is_partial)
}

struct File {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
    is_partial: bool,
}

/// Reads a file's text, where it is what was asked for.
fn read(text: &str, asked: Asked<'_>) -> Result<PlanDocument, String> {
    let entry: Entry =
        serde_json::from_str(text).map_err(|error| format!("it is damaged: {error}"))?;
    let wanted = asked.manifest(digest(&entry.manifest.card, &entry.plan));
    let found = &entry.manifest;
    // A card's name is for people: what plans depend on is the fingerprint.
    let same = Manifest { card: found.card.clone(), ..asked.manifest(wanted.digest.clone()) };
    if *found == same {
        return serde_json::from_str(&entry.plan)
            .map_err(|error| format!("it is damaged: {error}"));
    }
    Err(if found.format != wanted.format {
        format!("it has format {}, and this version reads {FORMAT}", found.format)
    } else if found.digest != wanted.digest {
        "it is damaged: the plan's digest is another one".to_string()
    } else if found.keyfold != wanted.keyfold {
        format!("it is of keyfold {}, and this is {}", found.keyfold, wanted.keyfold)
    } else if found.cudnn != wanted.cudnn {
        format!("it is of cuDNN {}, and {} is loaded", found.cudnn, wanted.cudnn)
    } else if found.fingerprint != wanted.fingerprint && found.card == wanted.card {
        format!("it is for a card {} with other properties", found.card)
    } else if found.fingerprint != wanted.fingerprint {
        format!("it is for {}, and not for {}", found.card, wanted.card)
    } else {
        "it is of another graph or policy, whose file has the same name".to_string()
    })
}
