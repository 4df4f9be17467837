//! Runs a program beside a container's own, with the same view of files and the same environment.

use std::{io, os::fd::AsFd, os::unix::process::CommandExt, path::Path, process::Command};

use rustix::{
    process::{chdir, geteuid},
    thread::{ThreadNameSpaceType, move_into_thread_name_spaces},
};

use super::{MARK, Room, RoomError, State};

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

/// Becomes the program. Must be called before there is a second thread.
pub fn enter(folder: &Path, command: &[String]) -> Result<std::convert::Infallible, EnterError> {
    let room = Room::at(folder);
    let (Some(blueprint), Some(program)) = (room.blueprint()?, command.first()) else {
        return Err(EnterError::NotRunning);
    };
    let State::Running { main: Some(main), .. } = room.state()? else { return Err(EnterError::NotRunning) };
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
