//! Holds an upgrade of nodes, lets it go on, or gives it up.
//!
//! The invariant: what becomes of the nodes that are under way is told in the words of the controllers, which bring it about.

use std::time::Duration;

use anyhow::Context;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{DataEngineUpgradeManager, UpgradeState};
use midflight_plan::node_upgrade::{ABORTED, in_service, still_default};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::LOOK_EVERY;
use super::follow::is_told;
use crate::command::plan::node_upgrade::cluster;
use crate::failure::{Exit, Failure};
use crate::lookout::Lookout;
use crate::session::Session;
use crate::target;

/// The controllers have seen a change by then.
const SEEN_WITHIN: Duration = Duration::from_secs(60);

/// An upgrade, by its name.
pub(super) struct Halt<'a> {
    pub(super) session: &'a Session,
    pub(super) client: &'a Client,
    pub(super) upgrades: &'a Api<DataEngineUpgradeManager>,
    pub(super) name: &'a str,
}

impl Halt<'_> {
    /// Begins no further node, and says what becomes of the others.
    pub(super) async fn pause(&self) -> anyhow::Result<()> {
        self.known().await?;
        self.set_paused(true).await?;
        let upgrade = self.seen(|upgrade| held(upgrade).is_some()).await?;
        let words = upgrade.as_ref().and_then(held);
        self.session.say(words.unwrap_or_else(|| format!("no further node of `{}` begins", self.name)));
        Ok(())
    }

    /// An upgrade that has failed goes on when its spec changes.
    pub(super) async fn resume(&self) -> anyhow::Result<()> {
        let upgrade = self.known().await?;
        let has_failed = upgrade.status.is_some_and(|status| status.state == UpgradeState::Error);
        if has_failed && !upgrade.spec.paused {
            self.set_paused(true).await?;
        }
        self.set_paused(false).await?;
        // What it said before is of the pause, or of its failure.
        self.seen(is_told).await.map(drop)
    }

    /// Brings every node back, and waits for that until then, if somebody does.
    pub(super) async fn abort(&self, deadline: Option<Instant>) -> anyhow::Result<()> {
        let upgrade = self.known().await?;
        let deleted = delete(self.upgrades, &upgrade).await;
        deleted.with_context(|| format!("abort the node upgrade `{}`", self.name))?;
        if let Some(deadline) = deadline {
            until_gone(self.upgrades, &upgrade, deadline, |words| self.session.say(words)).await?;
            return self.say_gone().await;
        }
        let is_aborted = |upgrade: &DataEngineUpgradeManager| {
            let words = upgrade.status.as_ref().map(|status| status.message.as_str());
            words.is_some_and(|words| words.starts_with(ABORTED))
        };
        let Some(upgrade) = self.seen(is_aborted).await? else { return self.say_gone().await };
        self.session.say(upgrade.status.unwrap_or_default().message);
        self.session.say("`kubectl get lhnu -n longhorn-system -w` shows how far they are");
        Ok(())
    }

    async fn say_gone(&self) -> anyhow::Result<()> {
        if self.look().await?.is_some() {
            self.session
                .say("its nodes go back; `kubectl get lhnu -n longhorn-system -w` shows how far they are");
            return Ok(());
        }
        let (seen, _) = cluster(self.client, None).await?;
        let next = still_default(&seen.default_image, &seen.nodes).map(|next| format!("; {next}"));
        let nodes = in_service(&seen.nodes);
        self.session.say(format_args!("it is gone, and {nodes}{}", next.unwrap_or_default()));
        Ok(())
    }

    /// Waits until the nodes of one that somebody has given up are back: what is planned meanwhile finds them in the way.
    pub(super) async fn let_go_of_one_given_up(&self, deadline: Instant) -> anyhow::Result<()> {
        let is_given_up = |there: &DataEngineUpgradeManager| there.metadata.deletion_timestamp.is_some();
        if let Some(there) = self.look().await?.filter(is_given_up) {
            until_gone(self.upgrades, &there, deadline, |words| self.session.say(words)).await?;
        }
        Ok(())
    }

    pub(super) async fn look(&self) -> anyhow::Result<Option<DataEngineUpgradeManager>> {
        let there = self.upgrades.get_opt(self.name).await.map_err(target::refusal);
        there.context("look for the node upgrade")
    }

    /// The upgrade that is to be held, gone on with or given up; or advice.
    async fn known(&self) -> anyhow::Result<DataEngineUpgradeManager> {
        self.look().await?.ok_or_else(|| {
            Failure::error(
                format!("there is no node upgrade `{}`", self.name),
                "`midflight upgrade nodes --wait` begins one; `kubectl get lhum -n longhorn-system` lists those there are",
            )
        })
    }

    /// The upgrade once this holds of it; nothing if it is gone by then, or takes longer than controllers do.
    async fn seen(
        &self,
        holds: impl Fn(&DataEngineUpgradeManager) -> bool,
    ) -> anyhow::Result<Option<DataEngineUpgradeManager>> {
        let mut lookout = Lookout::until(Instant::now() + SEEN_WITHIN);
        while let Some(upgrade) = lookout.look(async || self.look().await).await? {
            if holds(&upgrade) {
                return Ok(Some(upgrade));
            }
            if lookout.is_over() {
                break;
            }
            sleep(LOOK_EVERY).await;
        }
        Ok(None)
    }

    async fn set_paused(&self, paused: bool) -> anyhow::Result<()> {
        let change = Patch::Merge(json!({ "spec": { "paused": paused } }));
        let set = self.upgrades.patch(self.name, &PatchParams::default(), &change).await;
        let doing = || format!("set spec.paused of the node upgrade `{}` to {paused}", self.name);
        set.map(drop).map_err(target::refusal).with_context(doing)
    }
}

/// What comes of an upgrade that was paused; nothing while its controller has not said it.
fn held(upgrade: &DataEngineUpgradeManager) -> Option<String> {
    let status = upgrade.status.as_ref().filter(|_| is_told(upgrade))?;
    match status.state {
        UpgradeState::Completed => Some("nothing is left to be paused: every node is upgraded".to_owned()),
        UpgradeState::Error => Some(format!(
            "nothing is under way: the upgrade has failed, and `midflight upgrade nodes --name {} --resume` tries it again",
            upgrade.name_any()
        )),
        UpgradeState::Undefined | UpgradeState::Initializing | UpgradeState::Upgrading => {
            let words = status.message.to_string();
            (!words.is_empty()).then_some(words)
        }
    }
}

/// Deletes this upgrade, and none of the same name that somebody has made since.
pub(super) async fn delete(
    upgrades: &Api<DataEngineUpgradeManager>,
    upgrade: &DataEngineUpgradeManager,
) -> anyhow::Result<()> {
    let preconditions = Preconditions { uid: upgrade.uid(), resource_version: None };
    let this = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match upgrades.delete(&upgrade.name_any(), &this).await {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        deleted => deleted.map(drop).map_err(target::refusal),
    }
}

/// Waits until an upgrade that was deleted is gone, and tells what it says meanwhile. Another of the same name may come at once.
pub(super) async fn until_gone(
    upgrades: &Api<DataEngineUpgradeManager>,
    deleted: &DataEngineUpgradeManager,
    deadline: Instant,
    tell: impl Fn(&str),
) -> anyhow::Result<()> {
    let (name, mut lookout) = (&deleted.name_any(), Lookout::until(deadline));
    let mut told = String::new();
    let look = async || upgrades.get_opt(name).await.map_err(target::refusal);
    let is_same = |there: &DataEngineUpgradeManager| there.uid() == deleted.uid();
    while let Some(there) = lookout.look(&look).await?.filter(is_same) {
        let words = there.status.map(|status| status.message.to_string()).unwrap_or_default();
        if lookout.is_over() {
            return Err(Failure::with(
                Exit::TimedOut,
                format!("not every node of the node upgrade `{name}` was back in time: {words}"),
                "they go back by themselves; `kubectl get lhnu -n longhorn-system -o yaml` tells what they wait for",
            ));
        }
        if words.starts_with(ABORTED) && words != told {
            tell(&words);
            told = words;
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two people begin at once: what one of them has made is not waited for by the other until it is gone.
    #[tokio::test]
    async fn an_upgrade_is_gone_when_another_has_its_name() {
        let upgrade = |uid: &str| {
            let mut upgrade = DataEngineUpgradeManager::new("upgrade", Default::default());
            upgrade.metadata.uid = Some(uid.to_owned());
            upgrade
        };
        let there = serde_json::to_vec(&upgrade("new")).unwrap();
        let answer = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let there = there.clone();
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::from(there))) }
        });
        let upgrades = Api::namespaced(Client::new(answer, "default"), "longhorn-system");
        let soon = || Instant::now() + Duration::from_millis(1);
        until_gone(&upgrades, &upgrade("old"), soon(), |_| {}).await.unwrap();
        until_gone(&upgrades, &upgrade("new"), soon(), |_| {}).await.expect_err("that one is still there");
    }

    /// One that has just begun has nothing to say yet, and an empty line would be told.
    #[test]
    fn who_pauses_is_told_what_comes_of_it_and_never_nothing() {
        let paused = "paused: no node is under way, and none begins";
        #[rustfmt::skip]
        let cases = [
            // state,                    of spec,  says,    told
            (UpgradeState::Undefined,    2,        "",      None),
            (UpgradeState::Initializing, 2,        "",      None),
            (UpgradeState::Initializing, 1,        "waits", None),
            (UpgradeState::Initializing, 2,        paused,  Some(paused)),
            (UpgradeState::Upgrading,    2,        paused,  Some(paused)),
            (UpgradeState::Completed,    2,        "",      Some("nothing is left to be paused: every node is upgraded")),
            (UpgradeState::Error,        2,        "why",   Some("nothing is under way: the upgrade has failed, and `midflight upgrade nodes --name upgrade --resume` tries it again")),
        ];
        for (state, observed, message, expected) in cases {
            let mut upgrade = DataEngineUpgradeManager::new("upgrade", Default::default());
            upgrade.metadata.generation = Some(2);
            let status = upgrade.status.get_or_insert_default();
            (status.state, status.observed_generation, status.message) = (state, observed, message.into());
            assert_eq!(held(&upgrade).as_deref(), expected, "{state} {observed} {message:?}");
        }
        assert_eq!(
            held(&DataEngineUpgradeManager::new("upgrade", Default::default())),
            None,
            "no status yet"
        );
    }
}
