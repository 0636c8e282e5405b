//! The shim's file, which the crate contains and the helper's loader finds.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The shared library.
const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libcuda.so.1"));

/// A folder of its own with the shim in it, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct ShimFolder(PathBuf);

impl ShimFolder {
    /// Writes the shim into a new folder among the temporary ones, which only this user can enter.
    pub(super) fn new() -> io::Result<ShimFolder> {
        if BYTES.is_empty() {
            return Err(io::Error::other("there is no shim of libcuda for this system"));
        }
        static MADE: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let name = format!("keyfold-cudnn-{}-{number}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let mut builder = fs::DirBuilder::new();
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            match builder.create(&path) {
                // Left by an earlier process of the same number, or somebody else's.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            }
            let folder = ShimFolder(path);
            fs::write(folder.0.join("libcuda.so.1"), BYTES)?;
            return Ok(folder);
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ShimFolder {
    fn drop(&mut self) {
        // A folder that stays costs 20 KB until the system clears its temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
