//! Where libcudnn is: in pip's packages of NVIDIA, in the system's folders, or where the user says.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use keyfold_core::{Error, ErrorKind, Result};

/// The environment's variable that names libcudnn's file, before all other places.
pub const VARIABLE: &str = "KEYFOLD_CUDNN_LIBRARY";

const FILE: &str = "libcudnn.so.9";

/// Folders of the system's that are looked into beside those of the loader's path.
const FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/cuda/lib64",
    "/usr/local/lib",
];

/// A libcudnn that was found, or a place without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The file.
    pub path: PathBuf,
    /// The package or place that it is of, in words.
    pub origin: &'static str,
    /// Why it isn't used; `None` where it may be.
    pub refusal: Option<String>,
    /// Folders in which the loader finds what it uses.
    pub folders: Vec<PathBuf>,
}

/// Returns the libraries that there are, the one that is used first. `packages` are the folders that Python's packages
/// are in.
///
/// No file is loaded.
pub fn candidates(packages: &[PathBuf]) -> Vec<Candidate> {
    let folders = library_folders(packages);
    let mut found = Vec::new();
    if let Some(path) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        let refusal = match path.is_file() {
            true => lacks_part(&path, &folders),
            false => Some(format!("{VARIABLE} names it, and there is no such file")),
        };
        // Only that one: another in its place would be a surprise.
        return vec![Candidate {
            path,
            origin: "named by KEYFOLD_CUDNN_LIBRARY",
            refusal,
            folders,
        }];
    }
    for package in packages {
        for (name, origin) in [
            ("cudnn", "the package nvidia-cudnn-cu"),
            ("cudnn_jit", "the package nvidia-cudnn-jit-cu"),
        ] {
            let path = package.join("nvidia").join(name).join("lib").join(FILE);
            if path.is_file() {
                found.push((path, origin));
            }
        }
    }
    let given = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let system = env::split_paths(&given).chain(FOLDERS.iter().map(PathBuf::from));
    for folder in system.filter(|folder| !folder.as_os_str().is_empty()) {
        let path = folder.join(FILE);
        if path.is_file() && found.iter().all(|entry| !same_file(&entry.0, &path)) {
            found.push((path, "the system"));
        }
    }
    let mut all: Vec<Candidate> = found
        .into_iter()
        .map(|(path, origin)| {
            let refusal = lacks(&path, &folders);
            Candidate { path, origin, refusal, folders: folders.clone() }
        })
        .collect();
    // Stable: those that may be used first, in the order of the places.
    all.sort_by_key(|candidate| candidate.refusal.is_some());
    all
}

/// Returns the library that is used.
///
/// # Errors
/// [`ErrorKind::Library`] where there is none, with the places that were looked into.
pub fn library(packages: &[PathBuf]) -> Result<Candidate> {
    let all = candidates(packages);
    match all.into_iter().next() {
        Some(Candidate { refusal: None, path, origin, folders }) => {
            Ok(Candidate { path, origin, refusal: None, folders })
        }
        Some(Candidate { path, refusal: Some(reason), .. }) => Err(Error::new(
            ErrorKind::Library,
            format!("cuDNN's library {}: {reason}", path.display()),
        )),
        None => Err(Error::new(
            ErrorKind::Library,
            format!(
                "no cuDNN was found: {VARIABLE} isn't set, no package nvidia-cudnn-cu13, nvidia-cudnn-cu12 or \
                 nvidia-cudnn-jit-cu13 is installed (pip install nvidia-cudnn-jit-cu13 needs no GPU), and no {FILE} is in \
                 LD_LIBRARY_PATH or the system's folders"
            ),
        )),
    }
}

/// Returns the libraries that have to be loaded before a libcudnn in this process, since no loader's path leads to them.
pub(crate) fn companions(folders: &[PathBuf]) -> Vec<PathBuf> {
    let wanted = ["libnvrtc.so.", "libcublasLt.so.", "libcublas.so."];
    let mut found = Vec::new();
    for start in wanted {
        let file =
            folders.iter().flat_map(|folder| files(folder)).find(|path| starts_with(path, start));
        found.extend(file);
    }
    found
}

fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Returns the folders of all of NVIDIA's packages.
fn library_folders(packages: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for package in packages {
        let Ok(entries) = fs::read_dir(package.join("nvidia")) else { continue };
        let mut found: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path().join("lib"))
            .filter(|path| path.is_dir())
            .collect();
        found.sort();
        folders.extend(found);
    }
    folders
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    all.sort();
    all
}

fn starts_with(path: &Path, start: &str) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(start))
}

/// Returns what a libcudnn lacks of its parts. The full library ends the process where it plans a product without
/// cuBLAS, so it isn't loaded then.
fn lacks(path: &Path, folders: &[PathBuf]) -> Option<String> {
    let beside = files(path.parent()?);
    let has = |start: &str| beside.iter().any(|file| starts_with(file, start));
    if !has("libcudnn_graph.so.9") {
        return Some("libcudnn_graph.so.9 isn't beside it".to_string());
    }
    // The one that compiles its kernels alone needs no cuBLAS.
    if !has("libcudnn_engines_precompiled.so.9") {
        return None;
    }
    let given = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let system = env::split_paths(&given).chain(FOLDERS.iter().map(PathBuf::from));
    let mut places = folders.iter().cloned().chain(system);
    let is_there =
        places.any(|folder| files(&folder).iter().any(|file| starts_with(file, "libcublasLt.so.")));
    (!is_there).then(|| {
        "it needs cuBLAS (the package nvidia-cublas), without which it ends the process; libcublasLt wasn't found".to_string()
    })
}

/// Returns what a library that the user names lacks of its parts, wherever the loader may find them: without one,
/// libcudnn ends the process that asks it anything.
fn lacks_part(path: &Path, folders: &[PathBuf]) -> Option<String> {
    // libcudnn.so.9 itself is small, and has the names of its parts. What others are is seen when they are loaded.
    let is_small = fs::metadata(path).is_ok_and(|about| about.len() < 4 << 20);
    let text = if is_small { fs::read(path).ok()? } else { return None };
    if !text.windows(PART.len()).any(|window| window == PART.as_bytes()) {
        return None;
    }
    let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let beside = [path, &real].into_iter().filter_map(Path::parent).map(Path::to_path_buf);
    let given = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let system = env::split_paths(&given).chain(FOLDERS.iter().map(PathBuf::from));
    let mut places = beside.chain(folders.iter().cloned()).chain(system);
    match places.find(|folder| folder.join("libcudnn_graph.so.9").is_file()) {
        Some(folder) => lacks(&folder.join(FILE), folders),
        None => Some("libcudnn_graph.so.9 isn't beside it, nor in the loader's path".to_string()),
    }
}

const PART: &str = "libcudnn_graph";

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own for a test.
    fn folder(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("keyfold-find-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn put(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"").unwrap();
    }

    #[test]
    fn packages_are_found_and_the_usable_one_is_first() {
        let site = folder("packages");
        let full = site.join("nvidia/cudnn/lib");
        let jit = site.join("nvidia/cudnn_jit/lib");
        for path in [
            full.join(FILE),
            full.join("libcudnn_graph.so.9"),
            full.join("libcudnn_engines_precompiled.so.9"),
            jit.join(FILE),
            jit.join("libcudnn_graph.so.9"),
        ] {
            put(&path);
        }
        let found: Vec<Candidate> = candidates(std::slice::from_ref(&site))
            .into_iter()
            .filter(|found| found.path.starts_with(&site))
            .collect();
        assert_eq!(found[0].path, jit.join(FILE));
        assert!(found[1].refusal.as_ref().unwrap().contains("cuBLAS"), "{found:?}");
        // With cuBLAS beside it, the full one is used.
        put(&site.join("nvidia/cublas/lib/libcublasLt.so.13"));
        let found = library(std::slice::from_ref(&site)).unwrap();
        assert_eq!(found.path, full.join(FILE));
        assert_eq!(companions(&found.folders), [site.join("nvidia/cublas/lib/libcublasLt.so.13")]);
        // Without its sub-libraries it isn't.
        fs::remove_file(full.join("libcudnn_graph.so.9")).unwrap();
        let found = library(std::slice::from_ref(&site)).unwrap();
        assert_eq!(found.path, jit.join(FILE));
        fs::remove_dir_all(site).unwrap();
    }
}
