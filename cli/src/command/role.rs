//! What every role does besides its work: takes its place in the folder, says
//! when it is ready or why it failed, and ends cleanly when asked to.

use anyhow::Context;
use tracing::info;

use crate::{
    cluster::{Announcement, Interrupts, announce},
    failure::{Failure, Report},
    folder::Folder,
    process::{Recorded, Role, leave_parent},
    rest,
};

/// What the work of a role may ask for while it goes on.
#[derive(Debug)]
pub(crate) struct Stage {
    place: Recorded,
    announced: bool,
    interrupts: Interrupts,
}

impl Stage {
    /// Tells whoever waits for us: by the record all who look, by a word the one that started us.
    pub(crate) fn ready(&mut self) -> anyhow::Result<()> {
        self.place.ready()?;
        info!("ready");
        if self.announced { announce(&Announcement::Ready) } else { Ok(()) }
    }

    /// Returns when someone wants the role to end.
    pub(crate) async fn asked_to_end(&mut self) {
        self.interrupts.next().await;
        info!("asked to end");
    }
}

/// Plays a role until its work ends.
pub(crate) async fn play(
    folder: &Folder,
    role: Role,
    announced: bool,
    work: impl AsyncFnOnce(&mut Stage) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let played = async {
        let place = take_place(folder, role)?;
        let interrupts = Interrupts::listen().context("listen for signals")?;
        let mut stage = Stage { place, announced, interrupts };
        rest::give_back_at_rest();
        work(&mut stage).await
    };
    let played = played.await;
    if let (true, Err(error)) = (announced, &played) {
        announce(&Announcement::Failed(Report::of(error)))?;
    }
    played
}

fn take_place(folder: &Folder, role: Role) -> anyhow::Result<Recorded> {
    let name = role.to_string();
    if folder.marker()?.is_none() {
        return Err(Failure::usage(
            format!("{} is not the folder of a cluster", folder.root().display()),
            "roles are started by `midflight up`",
        ));
    }
    let place = Recorded::take(&folder.run(), role)?.ok_or_else(|| {
        Failure::usage(
            format!("{name} already runs in {}", folder.root().display()),
            "`midflight status` shows what runs",
        )
    })?;
    leave_parent().context("become independent of the parent process")?;
    Ok(place)
}
