//! The process's side: helpers that are started when they are needed, asked one question at a time, and killed
//! when they hang or nobody wants the answer.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use keyfold_core::{Error, ErrorKind, Result};
use keyfold_cudnn::locks::{Guard, lock, pause};
use keyfold_cudnn::{GraphSpec, Policy, Progress, Step};

use super::protocol::{Request, Response, frame, read};
use super::shim::ShimFolder;
use crate::planning::{PlanDocument, RankedEngine};
use crate::profile::Profile;

/// How helpers are started and bounded.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program, which calls [`serve`](super::server::serve) with its last argument.
    pub program: PathBuf,
    /// Its arguments before the file of libcudnn.
    pub arguments: Vec<OsString>,
    /// libcudnn's file.
    pub library: PathBuf,
    /// Folders in which the loader finds what libcudnn uses.
    pub folders: Vec<PathBuf>,
    /// How many helpers may run at once.
    pub processes: usize,
    /// How long a helper may say nothing while it is asked; the longest compilation that was seen took 15 s.
    pub patience: Duration,
}

impl Launch {
    /// How long a helper may say nothing, unless a launch says otherwise.
    pub const PATIENCE: Duration = Duration::from_secs(180);
}

/// A helper answers so many questions: what libcudnn doesn't free goes with it.
const QUESTIONS: usize = 200;

/// How many answers wait to be looked at: one that says more waits itself.
const WAITING: usize = 64;

/// How often the caller's progress is called while nothing happens, so that it can cancel.
const TICK: Duration = Duration::from_millis(50);

/// The helpers of a process.
#[derive(Debug)]
pub struct Helpers {
    launch: Launch,
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Helper>,
    /// How many are idle or asked.
    running: usize,
    /// The version of cuDNN, once a helper said it.
    version: Option<String>,
    /// The process that they belong to: a fork's are its parent's.
    owner: u32,
    started: u64,
}

/// A running helper.
#[derive(Debug)]
struct Helper {
    child: Child,
    /// Frames for a thread that writes them: one that is stopped and reads nothing must not stop whoever asks.
    questions: Option<Sender<Vec<u8>>>,
    answers: Receiver<Response>,
    /// The end of what it wrote to its standard error.
    words: Arc<Mutex<VecDeque<u8>>>,
    asked: usize,
    /// Whether it died before it said a word of the present question.
    was_dead: bool,
    version: String,
}

impl Helper {
    fn start(launch: &Launch, progress: Progress<'_>) -> Result<Helper> {
        let shim = ShimFolder::new().map_err(|error| {
            let folder = std::env::temp_dir();
            let message = format!(
                "the helper's shim of libcuda can't be written to {}: {error}",
                folder.display()
            );
            Error::new(ErrorKind::Library, message)
        })?;
        let given = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders = [shim.path().to_path_buf()].into_iter().chain(launch.folders.iter().cloned());
        let folders = folders
            .chain(std::env::split_paths(&given).filter(|path| !path.as_os_str().is_empty()));
        let path = std::env::join_paths(folders).map_err(|error| {
            Error::new(ErrorKind::Library, format!("the helper's loader path: {error}"))
        })?;
        let mut child = Command::new(&launch.program)
            .args(&launch.arguments)
            .arg(&launch.library)
            .env("LD_LIBRARY_PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                let message =
                    format!("the helper {} can't be started: {error}", launch.program.display());
                Error::new(ErrorKind::Library, message)
            })?;
        let (questions, frames) = mpsc::channel::<Vec<u8>>();
        if let Some(mut input) = child.stdin.take() {
            std::thread::spawn(move || {
                // Where one can't be sent, the helper's last answer or its end says why.
                while let Ok(frame) = frames.recv() {
                    if input.write_all(&frame).and_then(|()| input.flush()).is_err() {
                        break;
                    }
                }
            });
        }
        let (sender, answers) = mpsc::sync_channel(WAITING);
        if let Some(mut output) = child.stdout.take() {
            std::thread::spawn(move || {
                // Damaged messages end it: the process sees that the helper says no more.
                while let Ok(Some(answer)) = read::<Response>(&mut output) {
                    if sender.send(answer).is_err() {
                        break;
                    }
                }
            });
        }
        let words = Arc::new(Mutex::new(VecDeque::new()));
        if let Some(errors) = child.stderr.take() {
            let words = words.clone();
            std::thread::spawn(move || keep_end(errors, &words));
        }
        let version = String::new();
        let questions = Some(questions);
        let mut helper =
            Helper { child, questions, answers, words, asked: 0, was_dead: false, version };
        // The shim's folder is removed behind this: the helper has loaded the file before it answers.
        match helper.wait(launch, "load libcudnn", progress)? {
            Response::Ready { version } => {
                helper.version = version;
                Ok(helper)
            }
            Response::Failed(failure) => Err(failure.into_error()),
            other => Err(helper.nonsense(&other)),
        }
    }

    /// Waits for an answer that isn't a step.
    fn wait(&mut self, launch: &Launch, doing: &str, progress: Progress<'_>) -> Result<Response> {
        let mut doing = (0, 1, doing.to_string());
        let mut heard = Instant::now();
        let mut has_spoken = false;
        loop {
            let step = Step { done: doing.0, total: doing.1, what: &doing.2 };
            if let Err(error) = progress(step) {
                self.kill();
                return Err(error);
            }
            match self.answers.recv_timeout(TICK) {
                Ok(Response::Step { done, total, what }) => {
                    doing = (done, total, what);
                    heard = Instant::now();
                    has_spoken = true;
                }
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Timeout) if heard.elapsed() < launch.patience => {}
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    let seconds = launch.patience.as_secs_f32();
                    let message = format!(
                        "the helper process that plans with cuDNN said nothing for {seconds} s and was ended; it was \
                         doing this: {}",
                        doing.2
                    );
                    return Err(Error::new(ErrorKind::Library, message));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.was_dead = !has_spoken;
                    return Err(self.died(&doing.2));
                }
            }
        }
    }

    fn ask(
        &mut self,
        launch: &Launch,
        request: &Request,
        progress: Progress<'_>,
    ) -> Result<Response> {
        self.asked += 1;
        let frame = frame(request).map_err(|error| {
            let message =
                format!("the helper process that plans with cuDNN can't be asked: {error}");
            Error::new(ErrorKind::Library, message)
        })?;
        let sent = self.questions.as_ref().is_some_and(|questions| questions.send(frame).is_ok());
        let doing = if sent { "read the graph" } else { "wait for a graph" };
        self.wait(launch, doing, progress)
    }

    fn kill(&mut self) {
        // Both fail where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Makes the error of a helper that says no more.
    fn died(&mut self, doing: &str) -> Error {
        // Its output is closed; where it hasn't ended, it wrote what isn't a message.
        let deadline = Instant::now() + Duration::from_millis(500);
        let mut status = None;
        while status.is_none() && Instant::now() < deadline {
            status = self.child.try_wait().ok().flatten();
            std::thread::sleep(Duration::from_millis(5));
        }
        self.kill();
        let how =
            status.map_or("wrote what is no message, and was ended".to_string(), how_it_ended);
        let words: Vec<u8> = lock(&self.words).iter().copied().collect();
        let words = String::from_utf8_lossy(&words);
        let words = words.trim();
        let words =
            if words.is_empty() { String::new() } else { format!("; its last words: {words}") };
        let message = format!(
            "the helper process that plans with cuDNN {how} while it was doing this: {doing}{words}. This process is \
             unharmed, and the next plan starts another helper"
        );
        Error::new(ErrorKind::Library, message)
    }

    fn nonsense(&mut self, answer: &Response) -> Error {
        self.kill();
        let kind = format!("{answer:?}");
        let kind = kind.split([' ', '(']).next().unwrap_or("?").to_string();
        let message =
            format!("the helper process that plans with cuDNN answered {kind} to another question");
        Error::new(ErrorKind::Library, message)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // It ends itself when its input does, but not before a compilation is done.
        self.questions = None;
        self.kill();
    }
}

/// Says how a process ended.
fn how_it_ended(status: ExitStatus) -> String {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return format!("died by signal {signal}");
    }
    status.code().map_or("ended".to_string(), |code| format!("ended with code {code}"))
}

/// Reads to the end, and keeps the last bytes.
fn keep_end(mut from: impl Read, words: &Mutex<VecDeque<u8>>) {
    const KEPT: usize = 2000;
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut words = lock(words);
        words.extend(&buffer[..count]);
        let over = words.len().saturating_sub(KEPT);
        words.drain(..over);
    }
}

impl Helpers {
    /// Makes a pool without a helper: the first question starts one.
    pub fn new(launch: Launch) -> Helpers {
        Helpers { launch, state: Mutex::default(), freed: Condvar::new() }
    }

    /// Returns the version of cuDNN that they load.
    ///
    /// # Errors
    /// [`ErrorKind::Library`] where a helper can't be started, or libcudnn can't be loaded in it.
    pub fn version(&self, progress: Progress<'_>) -> Result<String> {
        if let Some(version) = &self.state().version {
            return Ok(version.clone());
        }
        let helper = self.take(progress)?;
        let version = helper.version.clone();
        self.give_back(helper);
        Ok(version)
    }

    /// Plans a graph for a card.
    ///
    /// # Errors
    /// Those of [`plan`](crate::plan); [`ErrorKind::Library`] where the helper dies, hangs or can't be started.
    pub fn plan(
        &self,
        graph: &GraphSpec,
        profile: &Profile,
        policy: &Policy,
        progress: Progress<'_>,
    ) -> Result<PlanDocument> {
        let request = Request::Plan {
            graph: graph.clone(),
            properties: profile.properties_json(),
            policy: policy.clone(),
        };
        self.ask(&request, progress, |answer| match answer {
            Response::Plan(document) => Ok(*document),
            other => Err(other),
        })
    }

    /// Proves that libcudnn takes a plan that was kept, for the card that it is of.
    ///
    /// # Errors
    /// Those of libcudnn, and as [`Helpers::plan`].
    pub fn reload(
        &self,
        document: &PlanDocument,
        profile: &Profile,
        progress: Progress<'_>,
    ) -> Result<()> {
        let texts = document.parts.iter().map(|part| part.json.clone()).collect();
        let request = Request::Reload { texts, properties: profile.properties_json() };
        self.ask(&request, progress, |answer| match answer {
            Response::Reloaded => Ok(()),
            other => Err(other),
        })
    }

    /// Ranks the engines of a graph for a card: at most `limit` for each part, compiled where that is asked for.
    ///
    /// # Errors
    /// As [`Helpers::plan`].
    pub fn rank(
        &self,
        graph: &GraphSpec,
        profile: &Profile,
        policy: &Policy,
        (limit, compile): (usize, bool),
        progress: Progress<'_>,
    ) -> Result<Vec<RankedEngine>> {
        let request = Request::Rank {
            graph: graph.clone(),
            properties: profile.properties_json(),
            policy: policy.clone(),
            limit,
            compile,
        };
        self.ask(&request, progress, |answer| match answer {
            Response::Ranked(engines) => Ok(engines),
            other => Err(other),
        })
    }

    /// Returns how many helpers were started, and the processes of those that are idle.
    pub fn processes(&self) -> (u64, Vec<u32>) {
        let state = self.state();
        (state.started, state.idle.iter().map(|helper| helper.child.id()).collect())
    }

    fn ask<T>(
        &self,
        request: &Request,
        progress: Progress<'_>,
        wanted: impl FnOnce(Response) -> Result<T, Response>,
    ) -> Result<T> {
        loop {
            let mut helper = self.take(progress)?;
            let was_used = helper.asked > 0;
            match helper.ask(&self.launch, request, progress) {
                Ok(answer) => {
                    let answer = match answer {
                        Response::Failed(failure) => Err(failure.into_error()),
                        answer => wanted(answer).map_err(|other| helper.nonsense(&other)),
                    };
                    self.give_back(helper);
                    return answer;
                }
                Err(error) => {
                    // It was killed or is dead. One that died while nobody asked it is replaced.
                    let again = was_used && helper.was_dead;
                    drop(helper);
                    self.forget();
                    if !again {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn state(&self) -> Guard<'_, State> {
        let mut state = lock(&self.state);
        let process = std::process::id();
        if state.owner != process {
            // In a fork: the helpers are the parent's, which goes on with them.
            let _parents = ManuallyDrop::new(std::mem::take(&mut state.idle));
            *state = State { owner: process, version: state.version.take(), ..State::default() };
        }
        state
    }

    /// Takes an idle helper, or starts one, or waits until one is free.
    fn take(&self, progress: Progress<'_>) -> Result<Helper> {
        let mut state = self.state();
        loop {
            while let Some(mut helper) = state.idle.pop() {
                // One that died while it was idle is replaced.
                match helper.child.try_wait() {
                    Ok(None) => return Ok(helper),
                    _ => state.running -= 1,
                }
            }
            if state.running < self.launch.processes.max(1) {
                state.running += 1;
                state.started += 1;
                drop(state);
                let started =
                    Helper::start(&self.launch, progress).inspect_err(|_| self.forget())?;
                self.state().version = Some(started.version.clone());
                return Ok(started);
            }
            drop(pause(&self.freed, &self.state, state));
            progress(Step { done: 0, total: 1, what: "wait for a helper that other threads ask" })?;
            state = self.state();
        }
    }

    fn give_back(&self, helper: Helper) {
        if helper.asked >= QUESTIONS {
            drop(helper);
            return self.forget();
        }
        self.state().idle.push(helper);
        self.freed.notify_one();
    }

    fn forget(&self) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        drop(state);
        self.freed.notify_one();
    }
}
