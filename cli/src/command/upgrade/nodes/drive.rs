//! What every upgrade of nodes begins and ends with, whoever asks for it: people, the tour or a measurement.

use std::time::Duration;

use anyhow::Context;
use kube::Client;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use midflight_api::longhorn::{
    DataEngineUpgradeManager, DataEngineUpgradeManagerSpec, DataEngineUpgradeManagerStatus, Image,
    ImageState, NAMESPACE, NodeDataEngineUpgrade, UpgradeState,
};
use tokio::time::{Instant, sleep};

use crate::lookout::Lookout;
use crate::target;

const LOOK_EVERY: Duration = Duration::from_millis(50);
/// An image that is to be brought to the nodes has its object by then.
const APPEARS_WITHIN: Duration = Duration::from_secs(20);

/// An upgrade that is over, with what became of each node.
pub(crate) struct Over {
    pub(crate) status: DataEngineUpgradeManagerStatus,
    pub(crate) nodes: Vec<NodeDataEngineUpgrade>,
}

/// Whether every node has an image, or nobody brings it to them. What is missing then the upgrade says itself.
pub(crate) async fn is_settled(client: &Client, image: &str) -> anyhow::Result<bool> {
    Ok(match state(client, image).await? {
        Some(ImageState::Deployed | ImageState::Error | ImageState::Unknown | ImageState::Unrecognised) => {
            true
        }
        Some(ImageState::Undefined | ImageState::Deploying) | None => false,
    })
}

/// Waits until that is so, but no longer than this.
pub(crate) async fn until_settled(client: &Client, image: &str, within: Duration) -> anyhow::Result<()> {
    let (mut lookout, appears_by) =
        (Lookout::until(Instant::now() + within), Instant::now() + APPEARS_WITHIN);
    while !lookout.look(async || is_settled(client, image).await).await? {
        let is_none = lookout.look(async || state(client, image).await).await?.is_none();
        if lookout.is_over() || (is_none && Instant::now() > appears_by) {
            return Ok(());
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(())
}

async fn state(client: &Client, image: &str) -> anyhow::Result<Option<ImageState>> {
    let images: Api<Image> = Api::namespaced(client.clone(), NAMESPACE);
    let all =
        images.list(&ListParams::default()).await.map_err(target::refusal).context("look at the images")?;
    let one = all.into_iter().find(|one| one.spec.image() == image);
    Ok(one.map(|one| one.status.unwrap_or_default().state))
}

/// Makes the upgrade; says whether, as somebody else may have made one of that name a moment ago.
pub(crate) async fn begin(
    client: &Client,
    name: &str,
    spec: DataEngineUpgradeManagerSpec,
) -> anyhow::Result<bool> {
    let made = match create(client, name, spec, false).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(false),
        made => made.map(|()| true),
    };
    made.map_err(target::refusal).with_context(|| format!("create the DataEngineUpgradeManager {name}"))
}

/// Whether the API would take such an upgrade, if there were none of that name. Nothing is changed.
pub(crate) async fn may_begin(
    client: &Client,
    name: &str,
    spec: DataEngineUpgradeManagerSpec,
) -> anyhow::Result<()> {
    let made = match create(client, name, spec, true).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        made => made,
    };
    made.map_err(target::refusal)
        .with_context(|| format!("ask for the DataEngineUpgradeManager {name}; nothing was changed"))
}

async fn create(
    client: &Client,
    name: &str,
    spec: DataEngineUpgradeManagerSpec,
    dry_run: bool,
) -> Result<(), kube::Error> {
    let upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(client.clone(), NAMESPACE);
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let upgrade = DataEngineUpgradeManager { metadata, spec, status: None };
    upgrades.create(&PostParams { dry_run, ..PostParams::default() }, &upgrade).await.map(drop)
}

/// Waits until the upgrade is completed. One that fails, or is not over in time, is an error.
pub(crate) async fn until_completed(client: &Client, name: &str, within: Duration) -> anyhow::Result<Over> {
    let upgrades: Api<DataEngineUpgradeManager> = Api::namespaced(client.clone(), NAMESPACE);
    let nodes: Api<NodeDataEngineUpgrade> = Api::namespaced(client.clone(), NAMESPACE);
    let deadline = Instant::now() + within;
    loop {
        let upgrade = upgrades.get(name).await.map_err(target::refusal).context("look at the upgrade")?;
        let status = upgrade.status.unwrap_or_default();
        match status.state {
            UpgradeState::Completed => {
                let of = nodes.list(&ListParams::default()).await.map_err(target::refusal)?;
                let is_ours = |one: &NodeDataEngineUpgrade| one.spec.data_engine_upgrade_manager == *name;
                return Ok(Over { status, nodes: of.into_iter().filter(is_ours).collect() });
            }
            UpgradeState::Error => anyhow::bail!("the upgrade has failed: {}", status.message),
            UpgradeState::Undefined | UpgradeState::Initializing | UpgradeState::Upgrading => {}
        }
        if Instant::now() > deadline {
            let under_way = status.upgrade_nodes.iter().map(|(node, at)| format!("{node} {}", at.state));
            let under_way = under_way.collect::<Vec<_>>().join(", ");
            anyhow::bail!("the upgrade was not over within {within:?}: {} ({under_way})", status.message);
        }
        sleep(LOOK_EVERY).await;
    }
}
