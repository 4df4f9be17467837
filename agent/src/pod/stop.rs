//! Ends the pods of a node whose agent does not run, as when the whole cluster is taken down.
//!
//! The one invariant: only processes that the node's folder names are touched.

use std::{path::Path, time::Duration};

use futures::future::join_all;
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use super::{
    claim,
    observe::{self, Newest},
};
use crate::{
    container::{Room, RoomError, State},
    process::Alive,
};

/// How long a container may take to end by itself.
const GRACE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A container that was ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// NAMESPACE/POD/CONTAINER
    pub name: String,
    pub pid: i32,
    pub killed: bool,
}

/// Asks every container of the node to end, and makes it end if it does not.
pub async fn stop_all(data: &Path) -> Result<Vec<Stopped>, RoomError> {
    // First those that use volumes: what serves a volume ends when nobody has it.
    let (users, others) = running(data)?.into_iter().partition(|newest| claim::has_any(data, &newest.room));
    let mut stopped = stop_each(users).await;
    claim::let_go(data);
    stopped.extend(stop_each(others).await);
    claim::let_go(data);
    forgive_all(data);
    Ok(stopped)
}

/// Lets every container begin anew when the node is taken up again, however often it has ended before. One of which that cannot be
/// noted, as on a full disk, waits for its time.
fn forgive_all(data: &Path) {
    let root = data.join(super::PODS);
    for uid in observe::pods(&root).unwrap_or_default() {
        let pod = root.join(uid);
        for container in observe::containers(&pod) {
            let forgiven = match observe::newest(&pod, &container) {
                Ok(Some(newest)) => newest.room.forgive(),
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = forgiven {
                tracing::warn!(container, %error, "its failures are not forgotten");
            }
        }
    }
}

async fn stop_each(containers: Vec<Newest>) -> Vec<Stopped> {
    let ending = containers.into_iter().map(async |newest| {
        let State::Running { shim, main, .. } = newest.state else { return None };
        let main = match main {
            Some(main) => Some(main),
            None => timeout(GRACE, started(&newest.room)).await.ok().flatten(),
        };
        let pid = main.as_ref().map_or(shim.pid, |main| main.pid);
        if let Some(main) = &main {
            // One that is gone already is what we want.
            let _ = main.signal(Signal::TERM);
        }
        let ended = timeout(GRACE, shim.ended()).await;
        if ended.is_err() {
            let _ = main.as_ref().map_or_else(|| shim.signal(Signal::KILL), |main| main.signal(Signal::KILL));
            if timeout(GRACE, shim.ended()).await.is_err() {
                let _ = shim.signal(Signal::KILL);
                let room = newest.room;
                // It may have to wait, and others are ended meanwhile.
                let _ = tokio::task::spawn_blocking(move || room.bury(jiff::Timestamp::now())).await;
            }
        }
        Some(Stopped { name: newest.blueprint.of, pid, killed: ended.is_err() })
    });
    join_all(ending).await.into_iter().flatten().collect()
}

/// The process of a container that its shim is about to start, unless it ends before.
async fn started(room: &Room) -> Option<Alive> {
    loop {
        match room.state() {
            Ok(State::Running { main: None, .. }) => sleep(LOOK_EVERY).await,
            Ok(State::Running { main, .. }) => return main,
            Ok(State::Planned | State::Ended(_) | State::Lost) | Err(_) => return None,
        }
    }
}

/// Kills every container of the node at once; their shims write it down.
pub fn kill_all(data: &Path) -> Result<(), RoomError> {
    for newest in running(data)? {
        if let State::Running { main: Some(main), .. } = newest.state {
            let _ = main.signal(Signal::KILL);
        }
    }
    forgive_all(data);
    Ok(())
}

fn running(data: &Path) -> Result<Vec<Newest>, RoomError> {
    let root = data.join(super::PODS);
    let mut all = Vec::new();
    // A node that never had a pod has no folder for them.
    for uid in observe::pods(&root).unwrap_or_default() {
        let pod = root.join(uid);
        for container in observe::containers(&pod) {
            let mut newest = observe::newest(&pod, &container)?;
            // A shim may be on its way: it comes too late, or what it has begun is seen now.
            if let Some(Newest { state: State::Planned, room, .. }) = &newest
                && !room.call_off()?
            {
                newest = observe::newest(&pod, &container)?;
            }
            all.extend(newest.filter(|newest| matches!(newest.state, State::Running { .. })));
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::Blueprint;
    use crate::process::Identity;

    #[tokio::test]
    async fn who_is_taken_down_begins_anew_when_it_is_taken_up_again() {
        let data = tempfile::tempdir().unwrap();
        let pod = data.path().join(super::super::PODS).join("uid-1");
        let room = observe::room(&pod, "web", 7);
        let blueprint = Blueprint {
            id: "a".into(),
            of: "shop/web/web".into(),
            attempt: 7,
            failures: 6,
            image_id: String::new(),
            files: data.path().into(),
            command: vec!["true".into()],
            environment: Vec::new(),
            working_directory: "/".into(),
            mounts: Vec::new(),
        };
        room.plan(&blueprint).unwrap();
        let shim = serde_json::to_vec(&Identity::own().unwrap()).unwrap();
        std::fs::write(room.path().join("shim.json"), shim).unwrap();
        room.bury(jiff::Timestamp::now()).unwrap();
        let failures = || observe::newest(&pod, "web").unwrap().unwrap().blueprint.failures;
        assert_eq!(failures(), 6);
        assert_eq!(stop_all(data.path()).await.unwrap(), []);
        assert_eq!(failures(), 0);
    }
}
