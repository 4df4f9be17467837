//! Prepares a cluster: installs our kinds, makes the namespace and every
//! setting with its default.
//!
//! The invariant: what somebody else made or changed stays as it is. Each
//! write may be the last one; whoever comes next completes the rest.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceConversion, CustomResourceDefinition, CustomResourceDefinitionSpec,
};
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::CustomResourceExt;
use kube::runtime::wait::{self, await_condition, conditions};
use kube::{Client, ResourceExt};
use midflight_api::longhorn::{BackupTarget, BackupTargetSpec, NAMESPACE, Setting};
use midflight_api::settings::{Definition, TABLE};
use midflight_api::{MANAGED_BY, MANAGER};
use midflight_plan::install::{self, Action, Owner, Seen, StandDown};
use midflight_plan::storage::backup::DEFAULT_TARGET;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::write::{WriteError, Writer};

/// How long a kind may take until the API serves it.
const SERVED_WITHIN: Duration = Duration::from_secs(30);
/// How long to wait before a kind that is not served yet is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How often a definition that changes under our hands is looked at again.
const LOOKS: usize = 5;

/// What Midflight may do in a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Kinds that are ours and served.
    pub installed: Vec<String>,
    /// Kinds that are not, and why.
    pub left_alone: Vec<StandDown>,
}

/// Why a cluster could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("look at {name}")]
    Look { name: String, source: Box<kube::Error> },
    #[error("install the definition {name}")]
    Install { name: String, source: Box<WriteError> },
    #[error("install the definition {name}: it changed each of {LOOKS} times it was looked at")]
    Restless { name: String },
    #[error("wait until the kind {name} is served")]
    Watch { name: String, source: Box<wait::Error> },
    #[error("the kind {name} was not served within {} s; its definition says why", SERVED_WITHIN.as_secs())]
    NotServed { name: String },
    #[error("make the namespace {NAMESPACE}")]
    Namespace { source: Box<WriteError> },
    #[error(
        "the namespace {NAMESPACE} is being deleted, and nothing can be made in it before it is gone{}",
        in_words(remaining)
    )]
    NamespaceEnds {
        /// What the API says is still in it.
        remaining: String,
        /// What may run meanwhile, to let go of it.
        standing: Standing,
    },
    #[error("make the backup target {DEFAULT_TARGET}")]
    BackupTarget { source: Box<WriteError> },
    #[error("make the setting {name}")]
    Setting { name: &'static str, source: Box<WriteError> },
}

/// Prepares a cluster. Safe to repeat, and to be cut short at any point.
pub async fn bootstrap(client: &Client) -> Result<Standing, BootstrapError> {
    bootstrap_with(&Writer::new(client.clone())).await
}

/// Prepares a cluster through a writer of the caller's.
pub async fn bootstrap_with(writer: &Writer) -> Result<Standing, BootstrapError> {
    let standing = install_kinds(writer).await?;
    make_namespace(writer, &standing).await?;
    if standing.installed.iter().any(|name| name == Setting::crd_name()) {
        try_join_all(TABLE.iter().map(|setting| make_setting(writer, setting))).await?;
    }
    for reason in &standing.left_alone {
        warn!(%reason, "a kind is left alone");
    }
    info!(kinds = standing.installed.len(), "the cluster is prepared");
    Ok(standing)
}

async fn install_kinds(writer: &Writer) -> Result<Standing, BootstrapError> {
    let crds = midflight_api::crds();
    let mut undecided: Vec<&CustomResourceDefinition> = crds.iter().collect();
    let mut standing = Standing::default();
    for _ in 0..LOOKS {
        let seen = try_join_all(crds.iter().map(|crd| look(writer.client(), crd))).await?;
        let all: Vec<Seen> = seen.iter().map(|(seen, _)| seen.clone()).collect();
        let mut again = Vec::new();
        for crd in undecided {
            let name = crd.name_any();
            let (kind, found) = seen.iter().find(|(seen, _)| seen.name == name).expect("all were looked at");
            match install::decide(kind, &all) {
                Err(reason) => standing.left_alone.push(reason),
                Ok(action) => match apply(writer, crd, action, found.as_ref()).await {
                    Ok(()) => standing.installed.push(name),
                    Err(error) if error.is_conflict() => again.push(crd),
                    Err(error) => return Err(BootstrapError::Install { name, source: Box::new(error) }),
                },
            }
        }
        undecided = again;
        let Some(restless) = undecided.first() else {
            try_join_all(standing.installed.iter().map(|name| await_served(writer.client(), name))).await?;
            return Ok(standing);
        };
        warn!(kind = restless.name_any(), "changed while it was looked at");
    }
    Err(BootstrapError::Restless { name: undecided.first().map(|crd| crd.name_any()).unwrap_or_default() })
}

/// Whose definition of that name there is, and what it is.
async fn look(
    client: &Client,
    crd: &CustomResourceDefinition,
) -> Result<(Seen, Option<CustomResourceDefinition>), BootstrapError> {
    let name = crd.name_any();
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let found = find(&definitions, &name).await?;
    let owner = found.as_ref().map(|found| match found.labels().get(MANAGED_BY).map(String::as_str) {
        Some(MANAGER) => Owner::Midflight,
        _ => Owner::SomebodyElse,
    });
    Ok((Seen { name, owner }, found))
}

async fn find<K>(all: &Api<K>, name: &str) -> Result<Option<K>, BootstrapError>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    all.get_opt(name)
        .await
        .map_err(|source| BootstrapError::Look { name: name.into(), source: Box::new(source) })
}

/// Applies a definition as ours. One that was not there is applied without
/// force, so that whoever made it meanwhile keeps it; ours is forced, but only as it was seen.
async fn apply(
    writer: &Writer,
    crd: &CustomResourceDefinition,
    action: Action,
    found: Option<&CustomResourceDefinition>,
) -> Result<(), WriteError> {
    let name = crd.name_any();
    let definitions: Api<CustomResourceDefinition> = Api::all(writer.client().clone());
    let mut wanted = crd.clone();
    let how = match action {
        Action::Create => PatchParams::apply(MANAGER),
        Action::Update if found.is_some_and(|found| is_as_wanted(found, crd)) => return Ok(()),
        Action::Update => {
            wanted.metadata.resource_version =
                found.and_then(|found| found.metadata.resource_version.clone());
            PatchParams::apply(MANAGER).force()
        }
    };
    writer.send("apply", &name, definitions.patch(&name, &how, &Patch::Apply(&wanted))).await?;
    Ok(())
}

/// Whether a definition would stay as it is if ours were applied.
fn is_as_wanted(found: &CustomResourceDefinition, wanted: &CustomResourceDefinition) -> bool {
    let has_all = |found: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>| {
        wanted.iter().all(|(name, value)| found.get(name) == Some(value))
    };
    completed(&found.spec) == completed(&wanted.spec)
        && has_all(found.labels(), wanted.labels())
        && has_all(found.annotations(), wanted.annotations())
}

/// A definition with what the API fills in, and without what says nothing.
fn completed(spec: &CustomResourceDefinitionSpec) -> CustomResourceDefinitionSpec {
    let mut spec = spec.clone();
    let none = || CustomResourceConversion { strategy: "None".into(), webhook: None };
    spec.conversion.get_or_insert_with(none);
    let names = &mut spec.names;
    names.singular.get_or_insert_with(|| names.kind.to_lowercase());
    names.list_kind.get_or_insert_with(|| format!("{}List", names.kind));
    for list in [&mut names.categories, &mut names.short_names] {
        list.take_if(|list| list.is_empty());
    }
    spec
}

async fn await_served(client: &Client, name: &str) -> Result<(), BootstrapError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let established = await_condition(definitions, name, conditions::is_crd_established());
    match timeout(SERVED_WITHIN, established).await {
        Err(_) => Err(BootstrapError::NotServed { name: name.into() }),
        Ok(Err(source)) => Err(BootstrapError::Watch { name: name.into(), source: Box::new(source) }),
        Ok(Ok(_)) => Ok(()),
    }
}

async fn make_namespace(writer: &Writer, standing: &Standing) -> Result<(), BootstrapError> {
    let namespaces: Api<Namespace> = Api::all(writer.client().clone());
    match find(&namespaces, NAMESPACE).await? {
        Some(found) if found.metadata.deletion_timestamp.is_some() => {
            let (remaining, standing) = (remaining(&found), standing.clone());
            return Err(BootstrapError::NamespaceEnds { remaining, standing });
        }
        Some(_) => return Ok(()),
        None => {}
    }
    let metadata = ObjectMeta { name: Some(NAMESPACE.into()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    let made = writer.send("create", NAMESPACE, namespaces.create(&ours(), &namespace)).await;
    made_or_there(made).map_err(|source| BootstrapError::Namespace { source: Box::new(source) })
}

/// What a namespace that is being deleted still waits for.
fn remaining(namespace: &Namespace) -> String {
    let conditions = namespace.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let told = conditions
        .filter(|condition| condition.status == "True")
        .filter_map(|condition| condition.message.clone());
    told.collect::<Vec<_>>().join("; ")
}

fn in_words(remaining: &str) -> String {
    if remaining.is_empty() { String::new() } else { format!(" ({remaining})") }
}

/// Makes a setting unless it is there, whatever its value. A real API server
/// serves a new kind some moments after it is established.
async fn make_setting(writer: &Writer, setting: &'static Definition) -> Result<(), BootstrapError> {
    let settings: Api<Setting> = Api::namespaced(writer.client().clone(), NAMESPACE);
    if find(&settings, setting.name).await?.is_some() {
        return Ok(());
    }
    let (params, object) = (ours(), Setting::new(setting.name, setting.default));
    let deadline = Instant::now() + SERVED_WITHIN;
    loop {
        let made = writer.send("create", setting.name, settings.create(&params, &object)).await;
        match made_or_there(made) {
            Err(error) if error.is_not_found() && Instant::now() < deadline => sleep(ASK_AGAIN).await,
            made => {
                return made.map_err(|source| BootstrapError::Setting {
                    name: setting.name,
                    source: Box::new(source),
                });
            }
        }
    }
}

/// Makes the backup target of volumes that name none, unless somebody has made it before.
pub async fn make_backup_target(writer: &Writer, url: &str) -> Result<(), BootstrapError> {
    let targets: Api<BackupTarget> = Api::namespaced(writer.client().clone(), NAMESPACE);
    if find(&targets, DEFAULT_TARGET).await?.is_some() {
        return Ok(());
    }
    let spec = BackupTargetSpec { backup_target_url: url.into(), ..BackupTargetSpec::default() };
    let object = BackupTarget::new(DEFAULT_TARGET, spec);
    let made = writer.send("create", DEFAULT_TARGET, targets.create(&ours(), &object)).await;
    made_or_there(made).map_err(|source| BootstrapError::BackupTarget { source: Box::new(source) })
}

fn made_or_there<K>(made: Result<K, WriteError>) -> Result<(), WriteError> {
    match made {
        Err(error) if !error.is_already_there() => Err(error),
        _ => Ok(()),
    }
}

fn ours() -> PostParams {
    PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() }
}
