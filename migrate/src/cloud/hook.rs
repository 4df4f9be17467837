//! Runs one command of the operator.
//!
//! The one invariant: when this returns, nothing of the command that stayed in its process group runs on,
//! except after success (a start command may leave a service behind).

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    os::unix::{fs::OpenOptionsExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::Command;

/// Names the attempt in the environment of everything it starts.
const ATTEMPT: &str = "MIDFLIGHT_ATTEMPT";
/// How much of a failed command's output is shown.
const TAIL: u64 = 2048;

/// A command and what surrounds it.
#[derive(Debug)]
pub(super) struct Hook<'a> {
    pub(super) command: &'a str,
    pub(super) environment: BTreeMap<&'a str, &'a str>,
    pub(super) attempt: &'a str,
    pub(super) timeout: Duration,
    /// Where stdout and stderr are appended.
    pub(super) log: PathBuf,
}

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    #[error("keep the output in {}", path.display())]
    Log { path: PathBuf, source: io::Error },

    #[error("start `{command}`")]
    Start { command: String, source: io::Error },

    #[error("wait for `{command}`")]
    Wait { command: String, source: io::Error },

    #[error("`{command}` ended with {ending}{said}")]
    Failed { command: String, ending: String, said: String },

    #[error("`{command}` did not end within {}s and was stopped{said}", timeout.as_secs())]
    TimedOut { command: String, timeout: Duration, said: String },
}

impl Hook<'_> {
    pub(super) async fn run(&self) -> Result<(), HookError> {
        let keeping = |source| HookError::Log { path: self.log.clone(), source };
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .mode(0o600)
            .open(&self.log)
            .map_err(keeping)?;
        let from = log.seek(SeekFrom::End(0)).map_err(keeping)?;
        let output = log.try_clone().map_err(keeping)?;
        let errors = log.try_clone().map_err(keeping)?;
        let mut child = Command::new("/bin/sh")
            .args(["-c", self.command])
            .envs(&self.environment)
            .env(ATTEMPT, self.attempt)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .map_err(|source| HookError::Start { command: self.command.to_owned(), source })?;
        let group = Group(child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)));
        let status = match tokio::time::timeout(self.timeout, child.wait()).await {
            Ok(status) => {
                status.map_err(|source| HookError::Wait { command: self.command.to_owned(), source })?
            }
            Err(_) => {
                drop(group);
                let _ = child.wait().await;
                return Err(HookError::TimedOut {
                    command: self.command.to_owned(),
                    timeout: self.timeout,
                    said: tail(&mut log, from),
                });
            }
        };
        if status.success() {
            group.let_live();
            return Ok(());
        }
        Err(HookError::Failed {
            command: self.command.to_owned(),
            ending: ending(status),
            said: tail(&mut log, from),
        })
    }
}

/// Ends the whole group when dropped, also when the run is interrupted.
struct Group(Option<Pid>);

impl Group {
    fn let_live(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // It has ended by itself if this fails.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

fn tail(log: &mut File, from: u64) -> String {
    let read = |log: &mut File| -> io::Result<String> {
        let end = log.seek(SeekFrom::End(0))?;
        log.seek(SeekFrom::Start(from.max(end.saturating_sub(TAIL))))?;
        let mut bytes = Vec::new();
        log.take(TAIL).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    };
    match read(log) {
        Ok(text) if !text.is_empty() => format!(": {text}"),
        _ => String::new(),
    }
}

/// Ends what a killed run left running of an attempt: every process of ours that carries its name in the
/// environment. Pids are looked at anew, so none that was given to another is touched.
pub(super) fn end_leftovers(attempt: &str) -> io::Result<usize> {
    let wanted = format!("{ATTEMPT}={attempt}");
    let mut ended = 0;
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { continue };
        if carries(&entry.path(), &wanted) {
            // It may have ended since.
            let _ = kill_process(pid, Signal::KILL);
            ended += 1;
        }
    }
    Ok(ended)
}

fn carries(process: &Path, wanted: &str) -> bool {
    let environment = fs::read(process.join("environ")).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
}
