//! Prepares a cluster: installs our kinds, makes the namespace and every setting with its default.
//!
//! The one invariant: what someone else made or changed stays as it is; a
//! definition is only ever changed if it carries our label.

use futures::future::try_join_all;
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use midflight_api::{
    MANAGED_BY, MANAGER,
    longhorn::{NAMESPACE, Setting},
    settings::{Definition, TABLE},
};
use tracing::info;

/// What could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("install the kind {name}")]
    Kind { name: String, source: Box<kube::Error> },
    #[error("make the namespace {NAMESPACE}")]
    Namespace { source: Box<kube::Error> },
    #[error("make the setting {name}")]
    Setting { name: &'static str, source: Box<kube::Error> },
}

/// Safe to repeat, and to be cut short at any point.
pub async fn bootstrap(client: &Client) -> Result<(), BootstrapError> {
    let crds = midflight_api::crds();
    try_join_all(crds.iter().map(|crd| install(client, crd))).await?;
    make_namespace(client).await?;
    try_join_all(TABLE.iter().map(|setting| make_setting(client, setting))).await?;
    info!(kinds = crds.len(), settings = TABLE.len(), "the cluster is prepared");
    Ok(())
}

async fn install(client: &Client, crd: &CustomResourceDefinition) -> Result<(), BootstrapError> {
    let name = crd.name_any();
    let failed = |source| BootstrapError::Kind { name: name.clone(), source: Box::new(source) };
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    if let Some(found) = definitions.get_opt(&name).await.map_err(failed)?
        && found.labels().get(MANAGED_BY).map(String::as_str) != Some(MANAGER)
    {
        info!(kind = name, "belongs to someone else and is left alone");
        return Ok(());
    }
    let how = PatchParams::apply(MANAGER).force();
    definitions.patch(&name, &how, &Patch::Apply(crd)).await.map_err(failed)?;
    Ok(())
}

async fn make_namespace(client: &Client) -> Result<(), BootstrapError> {
    let name = Some(NAMESPACE.to_owned());
    let namespace = Namespace { metadata: ObjectMeta { name, ..Default::default() }, ..Default::default() };
    let made = Api::all(client.clone()).create(&PostParams::default(), &namespace).await;
    made_or_there(made).map_err(|source| BootstrapError::Namespace { source })
}

async fn make_setting(client: &Client, setting: &Definition) -> Result<(), BootstrapError> {
    let object = Setting::new(setting.name, setting.default);
    let settings: Api<Setting> = Api::namespaced(client.clone(), NAMESPACE);
    let made = settings.create(&PostParams::default(), &object).await;
    made_or_there(made).map_err(|source| BootstrapError::Setting { name: setting.name, source })
}

fn made_or_there<K>(made: Result<K, kube::Error>) -> Result<(), Box<kube::Error>> {
    match made {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(Box::new(error)),
    }
}
