//! Decides whether somebody may ask a volume for another engine image.
//!
//! The invariant: going back to the image that runs is always allowed, and whatever an automatic
//! upgrade would begin is allowed, too.

use midflight_api::ImageRef;
use midflight_api::longhorn::{DataEngine, VolumeState};
use midflight_api::settings::ENGINE_UPGRADE_LIMIT;

use super::facts::{Volume, World};
use super::judge;
use super::reason::{Incompatible, Reason};

/// Why an image is refused. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "{setting} is {limit}: while it is above 0, volumes are upgraded to the \
         default engine image {default} and no other can be chosen; set it to 0 to choose another",
        setting = ENGINE_UPGRADE_LIMIT
    )]
    NotTheDefault { limit: usize, default: ImageRef },
    #[error("a v2 volume has no engine image of its own; upgrade the data engine of its nodes instead")]
    DataEngineV2,
    #[error(transparent)]
    Short(#[from] Short),
    #[error("there is no EngineImage for {0}; create one first")]
    Unknown(ImageRef),
    #[error(transparent)]
    Incompatible(Incompatible),
    #[error("{reason}; {}", .reason.way_out())]
    Unfit { reason: Reason },
}

/// An image that does not name its registry. One image would have two names, and nodes would be asked for both.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{image} does not say in which registry it is; write {whole} for an image of this cluster's own", whole = .image.whole())]
pub struct Short {
    image: ImageRef,
}

/// Whether somebody may write this name of an engine image: the whole one, or that of an EngineImage which is there.
pub fn may_be_named<'a>(
    image: &ImageRef,
    mut known: impl Iterator<Item = &'a ImageRef>,
) -> Result<(), Short> {
    match image.is_short() && !image.is_empty() && !known.any(|there| there == image) {
        true => Err(Short { image: image.clone() }),
        false => Ok(()),
    }
}

/// Whether the volume, as it is, may be asked for the image.
pub fn admit(volume: &Volume, image: &ImageRef, world: &World) -> Result<(), Refusal> {
    if *image == volume.wanted || *image == volume.current {
        return Ok(());
    }
    may_be_named(image, world.images.keys())?;
    if volume.current.is_empty() {
        return Ok(());
    }
    if volume.engine != DataEngine::V1 {
        return Err(Refusal::DataEngineV2);
    }
    if world.policy.per_node > 0 && *image != world.target {
        return Err(Refusal::NotTheDefault { limit: world.policy.per_node, default: world.target.clone() });
    }
    let Some(new) = world.images.get(image) else {
        return Err(Refusal::Unknown(image.clone()));
    };
    if new.incompatible {
        return Err(Refusal::Incompatible(world.misfit(image, new)));
    }
    match judge::on_every_node(volume, new) {
        // Nothing of it is anywhere yet, so nothing can be missing.
        Ok(()) | Err(Reason::NotPlaced) => {}
        Err(reason) => return Err(Refusal::Unfit { reason }),
    }
    if volume.state == VolumeState::Attached {
        match judge::live(volume, new, world) {
            // It changes nothing, but harms nothing either.
            Ok(()) | Err(Reason::SameCommit { .. }) => {}
            Err(reason) => return Err(Refusal::Unfit { reason }),
        }
    }
    judge::readable(volume, new, world).map_err(|reason| Refusal::Unfit { reason })
}
