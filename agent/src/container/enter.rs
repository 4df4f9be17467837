//! Runs a program beside a container's own, with the same view of files and the same environment.

use std::{
    fs, io,
    os::fd::AsFd,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use rustix::{
    process::{chdir, geteuid},
    thread::{ThreadNameSpaceType, move_into_thread_name_spaces},
};

use super::{MARK, Room, RoomError, State};
use crate::process::Alive;

/// Why a program was not run in the container.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    #[error("read the room of the container")]
    Room(#[from] RoomError),
    #[error("the container does not run")]
    NotRunning,
    #[error("enter the container")]
    Enter(#[source] io::Error),
    #[error("run {program}")]
    Run { program: String, source: io::Error },
}

/// The container's own process, once it has the container's files. Before, its view is that of the node, or half of its own.
fn entered(room: &Room) -> Result<Alive, EnterError> {
    const WITHIN: Duration = Duration::from_secs(10);
    const LOOK_EVERY: Duration = Duration::from_millis(5);
    let until = Instant::now() + WITHIN;
    loop {
        let State::Running { main, .. } = room.state()? else { return Err(EnterError::NotRunning) };
        let has_entered = fs::metadata(room.entered()).is_ok_and(|seen| seen.len() > 0);
        match main {
            // A container of a version that did not tell is there since long.
            Some(main) if has_entered || Instant::now() > until => return Ok(main),
            None if Instant::now() > until => return Err(EnterError::NotRunning),
            Some(_) | None => std::thread::sleep(LOOK_EVERY),
        }
    }
}

/// Becomes the program. Must be called before there is a second thread.
pub fn enter(folder: &Path, command: &[String]) -> Result<std::convert::Infallible, EnterError> {
    let room = Room::at(folder);
    let (Some(blueprint), Some(program)) = (room.blueprint()?, command.first()) else {
        return Err(EnterError::NotRunning);
    };
    let main = entered(&room)?;
    let mut spaces = ThreadNameSpaceType::MOUNT;
    if !geteuid().is_root() {
        spaces |= ThreadNameSpaceType::USER;
    }
    move_into_thread_name_spaces(main.pidfd().as_fd(), spaces)
        .map_err(|errno| EnterError::Enter(errno.into()))?;
    chdir(&blueprint.working_directory).map_err(|errno| EnterError::Enter(errno.into()))?;
    let failed = Command::new(program)
        .args(&command[1..])
        .env_clear()
        .envs(blueprint.environment)
        .env(MARK, folder)
        .exec();
    Err(EnterError::Run { program: program.clone(), source: failed })
}
