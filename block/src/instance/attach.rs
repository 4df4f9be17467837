//! Offers volumes to the clients of this node, through its frontend.
//!
//! Invariant: an order that was carried out may be given again: it is answered the same.

use std::{fs, io, path::PathBuf};

use super::{names::Name, refused::Refused, registry::Registry};
use crate::{
    caller::{ControlError, FrontendControl},
    epoch::Epoch,
    frontend::control::{Answer, Command},
    net::address::Address,
    record::Attachment,
};

/// What `losetup` says of a device that is on no file.
const NO_DEVICE: &str = "No such device or address";

/// A volume that is to be offered.
#[derive(Debug, Clone)]
pub(super) struct Attach {
    pub(super) volume: Name,
    pub(super) epoch: Epoch,
    pub(super) attachment: Attachment,
    pub(super) size: u64,
    pub(super) engine: Address,
    /// As a block device too.
    pub(super) device: bool,
}

/// The folder in which the frontend offers volumes, as it sees it and as clients see it.
struct Doors {
    control: Address,
    inside: PathBuf,
    outside: PathBuf,
}

impl Registry {
    /// Offers a volume; says where clients find it.
    pub(super) fn attach(&self, order: &Attach) -> Result<String, Refused> {
        self.admit(&order.volume, order.epoch)?;
        let doors = self.doors()?;
        let mut control = FrontendControl::connect(&doors.control)?;
        let (volume, file) = (order.volume.to_string(), format!("{}.nbd", order.volume));
        let attach = Command::AttachAs {
            attachment: order.attachment,
            volume: volume.clone(),
            size: order.size,
            socket: doors.inside.join(&file),
            engine: order.engine.to_string(),
        };
        let mut answer = control.call(&attach);
        if let Ok(Answer::AttachedAsAnother) = answer {
            end_former(&mut control, &volume)?;
            answer = control.call(&attach);
        }
        match answer {
            Ok(Answer::Attached) => {}
            other => return Err(refused("attach the volume", other)),
        }
        if !order.device {
            return Ok(format!("nbd+unix:///{volume}?socket={}", doors.outside.join(&file).display()));
        }
        let mount = doors.inside.join(format!("{volume}.fuse"));
        fs::create_dir_all(&mount).map_err(Refused::failed("make the folder of the device"))?;
        match control.call(&Command::Expose { volume, mount }) {
            Ok(Answer::Exposed(device)) => Ok(device.display().to_string()),
            other => Err(refused("make the volume a device", other)),
        }
    }

    /// Stops offering a volume. One that is not offered is detached already.
    pub(super) fn detach(&self, volume: &Name, epoch: Epoch) -> Result<(), Refused> {
        self.admit(volume, epoch)?;
        let doors = self.doors()?;
        let mut control = FrontendControl::connect(&doors.control)?;
        let mount = doors.inside.join(format!("{volume}.fuse"));
        if mount.exists() {
            match control.call(&Command::Withdraw { volume: volume.to_string() }) {
                // Also where it is no device (any more). One that is in use is refused, and its folder stays.
                Ok(Answer::Withdrawn) => {}
                // A frontend of an earlier build is asked for a device that has gone with its last user.
                Err(ControlError::Refused(why)) if why.contains(NO_DEVICE) => {}
                other => return Err(refused("take the device away", other)),
            }
        }
        match control.call(&Command::Detach { volume: volume.to_string() }) {
            Ok(Answer::Detached) => {}
            other => return Err(refused("detach the volume", other)),
        }
        match fs::remove_dir(&mount) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Refused::failed("remove the folder of the device")(error))
            }
            _ => Ok(()),
        }
    }

    fn doors(&self) -> Result<Doors, Refused> {
        let world = self.world();
        let control = world.frontend.clone();
        let Some(Address::Unix(path)) = &control else {
            return Err(Refused::Invalid("this instance manager was not told where its frontend is".into()));
        };
        let inside = path.parent().map(PathBuf::from).unwrap_or_default();
        let outside = world.endpoints.clone().unwrap_or_else(|| inside.clone());
        Ok(Doors { control: Address::Unix(path.clone()), inside, outside })
    }
}

/// Ends what the frontend still offers for an attachment that is over, because nobody was there to tell it. No engine listens to
/// that one any more: whoever still uses its device gets errors instead of waiting for ever.
fn end_former(control: &mut FrontendControl, volume: &str) -> Result<(), Refused> {
    tracing::warn!(volume, "the frontend still has it for an attachment that is over");
    if let Err(error) = control.call(&Command::Withdraw { volume: volume.to_owned() }) {
        tracing::warn!(volume, %error, "its device goes when its last user does");
    }
    match control.call(&Command::Detach { volume: volume.to_owned() }) {
        Ok(Answer::Detached) => Ok(()),
        other => Err(refused("end the former attachment", other)),
    }
}

fn refused(doing: &str, answer: Result<Answer, ControlError>) -> Refused {
    match answer {
        Ok(other) => Refused::Failed { doing: doing.into(), why: format!("the frontend answered {other:?}") },
        Err(ControlError::Refused(why)) => Refused::Failed { doing: doing.into(), why },
        Err(error) => error.into(),
    }
}
