//! Keeps what an upgrade has done, so that the next start knows it.
//!
//! One line of JSON per entry, appended and synced before the world moves on. The first line holds the
//! stages, so that the way back is known even if the upgrade file is gone.
//!
//! The one invariant: what is in the journal happened or was about to; a line that was cut off by a crash
//! never happened.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use super::{
    script::Script,
    stage::{Stage, Way},
};
use crate::folders;

const FORMAT: u32 = 1;
/// How long a lock that is held is asked for again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where one task stands.
///
/// ```text
/// Untouched ──▶ Applying ──▶ Applied ─┐
///     │             └──────▶ Failed ──┼──▶ Undoing ──▶ Undone ──▶ (as Untouched)
///     └──▶ WasSo  (found done; never undone)  │  └───▶ UndoFailed
///                                     └──▶ Left  (has no undo)
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TaskState {
    #[default]
    Untouched,
    /// Found done before we began.
    WasSo,
    /// Begun and, after a crash, perhaps done.
    Applying {
        attempt: String,
    },
    Applied,
    Failed {
        why: String,
    },
    Undoing {
        attempt: String,
    },
    Undone,
    UndoFailed {
        why: String,
    },
    /// Could not be undone, because there is no command for it.
    Left,
}

/// Whether the upgrade goes on or back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "direction")]
pub enum Direction {
    Forward,
    Back { why: String },
}

/// What is written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "entry")]
pub enum Entry {
    Began {
        task: TaskId,
        way: Way,
        attempt: String,
    },
    WasSo {
        task: TaskId,
    },
    Ended {
        task: TaskId,
        way: Way,
    },
    Failed {
        task: TaskId,
        way: Way,
        why: String,
    },
    Left {
        task: TaskId,
    },
    Turned(Direction),
    /// The upgrade file was mended: the same steps, with other commands.
    Mended(Script),
    /// The last stage was done, or the first undone.
    Closed,
}

/// A task by its place among the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskId {
    pub stage: usize,
    pub task: usize,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    format: u32,
    /// Tells this upgrade from every other.
    id: String,
    began_at: Timestamp,
    #[serde(flatten)]
    script: Script,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    at: Timestamp,
    #[serde(flatten)]
    entry: Entry,
}

/// What the entries add up to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Per stage and task.
    pub tasks: Vec<Vec<TaskState>>,
    pub direction: Direction,
    pub closed: bool,
}

impl Progress {
    pub fn new(stages: &[Stage]) -> Progress {
        let tasks = stages.iter().map(|stage| vec![TaskState::Untouched; stage.tasks.len()]).collect();
        Progress { tasks, direction: Direction::Forward, closed: false }
    }

    pub fn of(&self, task: TaskId) -> &TaskState {
        &self.tasks[task.stage][task.task]
    }

    pub fn take(&mut self, entry: &Entry) {
        match entry {
            Entry::Began { task, way: Way::Apply, attempt } => {
                self.set(*task, TaskState::Applying { attempt: attempt.clone() });
            }
            Entry::Began { task, way: Way::Undo, attempt } => {
                self.set(*task, TaskState::Undoing { attempt: attempt.clone() });
            }
            Entry::WasSo { task } => self.set(*task, TaskState::WasSo),
            Entry::Ended { task, way: Way::Apply } => self.set(*task, TaskState::Applied),
            Entry::Ended { task, way: Way::Undo } => self.set(*task, TaskState::Undone),
            Entry::Failed { task, way: Way::Apply, why } => {
                self.set(*task, TaskState::Failed { why: why.clone() });
            }
            Entry::Failed { task, way: Way::Undo, why } => {
                self.set(*task, TaskState::UndoFailed { why: why.clone() });
            }
            Entry::Left { task } => self.set(*task, TaskState::Left),
            Entry::Turned(direction) => {
                self.direction = direction.clone();
                self.closed = false;
            }
            Entry::Mended(_) => {}
            Entry::Closed => self.closed = true,
        }
    }

    fn set(&mut self, task: TaskId, state: TaskState) {
        self.tasks[task.stage][task.task] = state;
    }
}

/// What can go wrong with the journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("open the journal {}", path.display())]
    Open { path: PathBuf, source: io::Error },

    #[error("another `midflight migrate run` works with the journal {}", path.display())]
    Busy { path: PathBuf },

    #[error("write to the journal {}", path.display())]
    Write { path: PathBuf, source: io::Error },

    #[error("the journal {} is damaged in line {line}: {problem}", path.display())]
    Damaged { path: PathBuf, line: usize, problem: String },
}

/// The open journal of one upgrade. Only one process has it at a time.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    head: Head,
    progress: Progress,
}

impl Journal {
    /// The journal at `path`, if one was begun.
    pub fn open(path: &Path) -> Result<Option<Journal>, JournalError> {
        let Some(mut file) = open(path, false)? else { return Ok(None) };
        lock(&file, path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)
            .map_err(|source| JournalError::Open { path: path.to_owned(), source })?;
        // As bytes: the last line may end within a character.
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        if whole == 0 {
            // The very first line was cut off: nothing was done yet.
            return Ok(None);
        }
        truncate(&mut file, whole, path)?;
        let (head, progress) = read(text(&bytes[..whole], path)?, path)?;
        Ok(Some(Journal { path: path.to_owned(), file, head, progress }))
    }

    /// Begins the journal of an upgrade that was not begun, or is closed.
    pub fn begin(path: &Path, script: Script) -> Result<Journal, JournalError> {
        let file = open(path, true)?.expect("a file that is created if absent is there");
        lock(&file, path)?;
        file.set_len(0).map_err(|source| JournalError::Write { path: path.to_owned(), source })?;
        let id = uuid::Uuid::new_v4().to_string();
        let head = Head { format: FORMAT, id, began_at: Timestamp::now(), script };
        let progress = Progress::new(&head.script.stages);
        let mut journal = Journal { path: path.to_owned(), file, head, progress };
        let line = serde_json::to_string(&journal.head).expect("stages always encode");
        journal.append(&line)?;
        folders::sync_parent(path).map_err(|source| JournalError::Write { path: path.to_owned(), source })?;
        Ok(journal)
    }

    pub fn write(&mut self, entry: &Entry) -> Result<(), JournalError> {
        let line = Line { at: Timestamp::now(), entry: entry.clone() };
        self.append(&serde_json::to_string(&line).expect("entries always encode"))?;
        self.progress.take(entry);
        self.head.take(entry);
        Ok(())
    }

    /// What the run does, as it was begun or mended since.
    pub fn script(&self) -> &Script {
        &self.head.script
    }

    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    pub fn stages(&self) -> &[Stage] {
        &self.head.script.stages
    }

    pub fn upgrade(&self) -> &str {
        &self.head.script.upgrade
    }

    pub fn at_once(&self) -> usize {
        self.head.script.at_once
    }

    pub fn id(&self) -> &str {
        &self.head.id
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn append(&mut self, line: &str) -> Result<(), JournalError> {
        let written =
            self.file.write_all(format!("{line}\n").as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|source| JournalError::Write { path: self.path.clone(), source })
    }
}

fn open(path: &Path, create: bool) -> Result<Option<File>, JournalError> {
    let file = OpenOptions::new().read(true).append(true).create(create).mode(0o600).open(path);
    match file {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !create => Ok(None),
        Err(source) => Err(JournalError::Open { path: path.to_owned(), source }),
    }
}

/// A process that is just being started shares our open files for a moment, so one refusal says little.
fn lock(file: &File, path: &Path) -> Result<(), JournalError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(PATIENCE / 50),
            Err(Errno::WOULDBLOCK) => return Err(JournalError::Busy { path: path.to_owned() }),
            Err(errno) => return Err(JournalError::Open { path: path.to_owned(), source: errno.into() }),
        }
    }
}

fn truncate(file: &mut File, whole: usize, path: &Path) -> Result<(), JournalError> {
    let cut = file.set_len(whole as u64).and_then(|()| file.seek(SeekFrom::End(0)));
    cut.map(drop).map_err(|source| JournalError::Write { path: path.to_owned(), source })
}

fn text<'b>(bytes: &'b [u8], path: &Path) -> Result<&'b str, JournalError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count() + 1;
        JournalError::Damaged { path: path.to_owned(), line, problem: "it is not text".to_owned() }
    })
}

fn read(text: &str, path: &Path) -> Result<(Head, Progress), JournalError> {
    let damaged =
        |line: usize, problem: String| JournalError::Damaged { path: path.to_owned(), line, problem };
    let mut lines = text.lines().enumerate();
    let (_, first) = lines.next().ok_or_else(|| damaged(1, "it is empty".to_owned()))?;
    let mut head: Head = serde_json::from_str(first).map_err(|error| damaged(1, error.to_string()))?;
    if head.format != FORMAT {
        return Err(damaged(1, format!("it has format {}, this tool knows {FORMAT}", head.format)));
    }
    let mut progress = Progress::new(&head.script.stages);
    for (number, text) in lines {
        let line: Line =
            serde_json::from_str(text).map_err(|error| damaged(number + 1, error.to_string()))?;
        if let Some(task) = line.entry.task()
            && progress.tasks.get(task.stage).and_then(|stage| stage.get(task.task)).is_none()
        {
            return Err(damaged(number + 1, "it names a task that is not in the first line".to_owned()));
        }
        if let Entry::Mended(script) = &line.entry
            && Progress::new(&script.stages)
                .tasks
                .iter()
                .map(Vec::len)
                .ne(progress.tasks.iter().map(Vec::len))
        {
            return Err(damaged(number + 1, "it mends other steps than the first line has".to_owned()));
        }
        progress.take(&line.entry);
        head.take(&line.entry);
    }
    Ok((head, progress))
}

impl Head {
    fn take(&mut self, entry: &Entry) {
        if let Entry::Mended(script) = entry {
            self.script = script.clone();
        }
    }
}

impl Entry {
    fn task(&self) -> Option<TaskId> {
        match self {
            Entry::Began { task, .. }
            | Entry::WasSo { task }
            | Entry::Ended { task, .. }
            | Entry::Failed { task, .. }
            | Entry::Left { task } => Some(*task),
            Entry::Turned(_) | Entry::Mended(_) | Entry::Closed => None,
        }
    }
}
