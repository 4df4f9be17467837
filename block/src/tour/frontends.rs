//! The frontend of a plane and its keeper, replaced and killed.
//!
//! Invariant: at any moment at most one frontend serves the plane's clients.

use std::{io, path::PathBuf, thread, time::Duration};

use rustix::process::Signal;

use super::{
    Layout, Plane, TourError, log,
    process::{Process, StartError},
};
use crate::{
    caller::{ControlError, FrontendControl},
    frontend::control::{Answer, Command},
    net::address::Address,
};

/// A frontend leaves everything with its keeper in much less.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

fn keeper_path(layout: &Layout) -> String {
    layout.folder.join("keeper.sock").display().to_string()
}

pub(super) fn start_keeper(layout: &Layout) -> Result<Process, StartError> {
    Process::start(&layout.binary, "keeper", ["--listen", &keeper_path(layout)], &log(layout))
}

pub(super) fn start_frontend(layout: &Layout) -> Result<Process, StartError> {
    let control = Address::Unix(layout.folder.join("frontend.sock")).to_string();
    let arguments = ["--control", &control, "--keeper", &keeper_path(layout)];
    Process::start(&layout.binary, "frontend", arguments, &log(layout))
}

impl Plane {
    pub fn keeper(&mut self) -> &mut Process {
        &mut self.keeper
    }

    /// Puts another frontend process in the place of this one. Clients only wait.
    pub fn replace_frontend(&mut self) -> Result<(), TourError> {
        let layout = self.layout.clone();
        let successor = thread::spawn(move || start_frontend(&layout));
        let ended = |source: io::Error| TourError::Frontend { source };
        self.frontend.signal(Signal::TERM).map_err(ended)?;
        let status = self.frontend.wait_for_end(ENDS_WITHIN).map_err(ended)?;
        if !status.success() {
            return Err(TourError::Frontend { source: io::Error::other(status.to_string()) });
        }
        self.frontend = successor.join().map_err(|_| TourError::NoReport)??;
        self.reach_frontend()
    }

    /// Starts the frontend anew after it was killed. Clients have to connect again.
    pub fn restart_frontend(&mut self) -> Result<(), TourError> {
        self.frontend.kill();
        self.frontend = start_frontend(&self.layout)?;
        self.reach_frontend()
    }

    /// Starts a keeper or a frontend that has ended anew.
    pub(super) fn tend_frontend(&mut self) -> Result<(), TourError> {
        let ended = |source: io::Error| TourError::Frontend { source };
        if self.keeper.has_ended().map_err(ended)? {
            self.replace_keeper()?;
        }
        if self.frontend.has_ended().map_err(ended)? {
            self.restart_frontend()?;
        }
        Ok(())
    }

    /// Puts another keeper in the place of this one; the frontend finds it by itself.
    pub fn replace_keeper(&mut self) -> Result<(), TourError> {
        self.keeper.kill();
        self.keeper = start_keeper(&self.layout)?;
        Ok(())
    }

    /// Makes the volume a block device; gives its path. Needs root.
    pub fn expose(&mut self) -> Result<PathBuf, TourError> {
        let mount = self.layout.folder.join("fuse");
        match self.control.call(&Command::Expose { volume: self.layout.volume.clone(), mount })? {
            Answer::Exposed(device) => Ok(device),
            other => Err(ControlError::Refused(format!("{other:?}")).into()),
        }
    }

    /// Takes the block device away.
    pub fn withdraw(&mut self) -> Result<(), TourError> {
        self.control.call(&Command::Withdraw { volume: self.layout.volume.clone() })?;
        Ok(())
    }

    /// A frontend whose predecessor left nothing, because the keeper died too, is told again what to offer.
    pub(super) fn reach_frontend(&mut self) -> Result<(), TourError> {
        self.control = FrontendControl::connect(self.frontend.address())?;
        self.control.wait_at_most(self.switch_within).map_err(ControlError::from)?;
        self.control.call(&Command::AttachAs {
            attachment: self.attachment,
            volume: self.layout.volume.clone(),
            size: self.layout.size,
            socket: self.socket(),
            engine: self.engine.address().to_string(),
        })?;
        Ok(())
    }
}
