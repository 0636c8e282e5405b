//! Compiled programs on disk.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs, process};

/// The environment variable with the folder; empty for none.
const VARIABLE: &str = "KEYFOLD_OPENCL_CACHE";

/// What a file begins with, before its identity.
const MAGIC: &[u8] = b"keyfold-opencl 1\n";

/// A folder of binaries. A file is named by a hash of the device, its driver, the options and the
/// source, and begins with all of these but the source's text, of which it has another hash.
pub struct Cache {
    folder: Option<PathBuf>,
    identity: String,
}

fn folder() -> Option<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE) {
        return Some(PathBuf::from(named)).filter(|path| !path.as_os_str().is_empty());
    }
    let base = env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let base = base.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")));
    Some(base?.join("keyfold").join("opencl"))
}

/// 64 bits of FNV-1a, the same in every version of Rust.
fn hash(parts: [&[u8]; 2], start: u64) -> u64 {
    let bytes = parts.into_iter().flatten();
    bytes.fold(start ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Cache {
    pub fn new(identity: &str) -> Cache {
        Cache { folder: folder(), identity: identity.to_owned() }
    }

    fn path(&self, source: &str) -> Option<PathBuf> {
        let name = hash([self.identity.as_bytes(), source.as_bytes()], 0);
        Some(self.folder.as_ref()?.join(format!("{name:016x}.bin")))
    }

    /// Returns what a file has before the binary and its hash.
    fn head(&self, source: &str) -> Vec<u8> {
        let source_hash = hash([source.as_bytes(), &[]], 1);
        let identity = self.identity.replace('\n', " ");
        [MAGIC, format!("{identity}\n{source_hash:016x}\n").as_bytes()].concat()
    }

    /// Returns the binary of a source. A file of something else, or broken, is none.
    pub fn read(&self, source: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(self.path(source)?).ok()?;
        let rest = bytes.strip_prefix(self.head(source).as_slice())?;
        let (sum, binary) = rest.split_at_checked(8)?;
        let intact = sum == hash([binary, &[]], 0).to_le_bytes();
        intact.then(|| binary.to_vec())
    }

    /// Keeps a binary. A folder that can't be written only costs the next process its time.
    pub fn write(&self, source: &str, binary: &[u8]) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Some(path) = self.path(source) else { return };
        let sum = hash([binary, &[]], 0).to_le_bytes();
        let content = [self.head(source).as_slice(), &sum, binary].concat();
        let unique = format!("{}-{}.tmp", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let temporary = path.with_extension(unique);
        let written = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&temporary, content))
            .and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
    }
}
