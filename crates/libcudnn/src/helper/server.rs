//! The helper's side: it loads libcudnn, and answers one question after the other.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_cudnn::{GraphSpec, Step, ValidGraph};

use super::protocol::{Failure, Request, Response, read, write};
use crate::engine::{Target, properties, reload};
use crate::library::{Library, loader_says};
use crate::planning::{plan, rank};

/// Serves the process that started this one, until its side of the pipe is closed. `library` is libcudnn's file.
///
/// It never returns where the other side went away in the middle of an answer: the process ends.
pub fn serve(library: &Path) -> i32 {
    bound_memory();
    let output = match own_output() {
        Ok(output) => Mutex::new(output),
        Err(_) => return 1,
    };
    let say = |what: &Response| -> Result<()> {
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        write(&mut *output, what).map_err(|error| {
            Error::new(ErrorKind::Library, format!("the pipe to the process is closed: {error}"))
        })
    };
    let library = match load_shim().and_then(|()| Library::load(library)) {
        Ok(library) => library,
        Err(error) => {
            // Where nobody listens there is nothing to say.
            let _ = say(&Response::Failed(Failure::of(&error)));
            return 1;
        }
    };
    if say(&Response::Ready { version: library.version().to_string() }).is_err() {
        return 1;
    }
    let requests = requests();
    while let Ok(request) = requests.recv() {
        let progress = |step: Step<'_>| {
            say(&Response::Step { done: step.done, total: step.total, what: step.what.to_string() })
        };
        let answer = answer(&library, request, &progress)
            .unwrap_or_else(|error| Response::Failed(Failure::of(&error)));
        if say(&answer).is_err() {
            return 1;
        }
    }
    0
}

/// Takes the pipe to whoever asks, and gives others the standard error in its place: libcudnn's log, too, is printed.
fn own_output() -> io::Result<std::fs::File> {
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    // SAFETY: both are descriptors of this process, and nobody else uses the standard output's yet.
    if unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(own.into())
}

/// Loads the shim, which the loader gives to whoever asks for libcuda from then on: its file may go.
fn load_shim() -> Result<()> {
    // SAFETY: the shim has no initialisers; the loader's path that the helper is started with has its folder first.
    let shim = unsafe { libloading::Library::new("libcuda.so.1") }.map_err(|error| {
        let reason = loader_says(&error);
        Error::new(ErrorKind::Library, format!("the shim of libcuda can't be loaded: {reason}"))
    })?;
    // It stays until the process ends.
    let _stays = std::mem::ManuallyDrop::new(shim);
    Ok(())
}

fn answer(
    library: &Arc<Library>,
    request: Request,
    progress: keyfold_cudnn::Progress<'_>,
) -> Result<Response> {
    match request {
        Request::Plan { graph, properties: document, policy } => {
            let (graph, properties) = (proven(graph)?, properties(library, &document)?);
            let planned = plan(library, &graph, &Target::Profile(&properties), &policy, progress)?;
            Ok(Response::Plan(Box::new(planned.document)))
        }
        Request::Reload { texts, properties: document } => {
            let properties = properties(library, &document)?;
            let target = Target::Profile(&properties);
            texts.iter().try_for_each(|text| reload(library, text, &target).map(drop))?;
            Ok(Response::Reloaded)
        }
        Request::Rank { graph, properties: document, policy, limit, compile } => {
            let (graph, properties) = (proven(graph)?, properties(library, &document)?);
            let target = Target::Profile(&properties);
            rank(library, &graph, &target, &policy, (limit, compile), progress)
                .map(Response::Ranked)
        }
    }
}

fn proven(graph: GraphSpec) -> Result<ValidGraph> {
    graph.validate()
}

/// Reads the requests on a thread of its own, which ends the process when the input ends: whoever asked is gone, and
/// a kernel that is being compiled can't be stopped otherwise.
#[expect(clippy::disallowed_methods, reason = "the process is the helper's own")]
fn requests() -> std::sync::mpsc::Receiver<Request> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            match read::<Request>(&mut input) {
                Ok(Some(request)) => {
                    if sender.send(request).is_err() {
                        return;
                    }
                }
                Ok(None) => std::process::exit(0),
                Err(_) => std::process::exit(2),
            }
        }
    });
    receiver
}

/// The most memory of its own that the helper may have, in bytes: a compilation takes some hundred MB.
const MEMORY: u64 = 8 << 30;

/// Has the system refuse the helper more memory than that, so that a compilation that grows ends it alone.
fn bound_memory() {
    #[cfg(target_os = "linux")]
    {
        let limit = libc::rlimit { rlim_cur: MEMORY, rlim_max: MEMORY };
        // SAFETY: it reads the struct. Where the user's own limit is lower it fails, and that one stays.
        unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) };
    }
}
