//! Starts a run of a container: writes down what to run, and lets a shim run it.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret};
use kube::{Api, Client, ResourceExt};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::timeout,
};

use super::{
    claim::{ClaimError, Claims},
    environment::{Place, Source, Sources, environment, expand},
    observe,
    volume::{Node, VolumeError, mounts},
};
use crate::{
    Config,
    container::{Blueprint, COMMAND, Room, RoomError},
    image::{Held, ImageName},
};

/// How long a shim may take to start its container.
const STARTED_WITHIN: Duration = Duration::from_secs(30);

/// Why a container was not started.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("{0}")]
    Configuration(String),
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error("read {what}")]
    Source { what: String, source: Box<kube::Error> },
    #[error(transparent)]
    Room(#[from] RoomError),
    #[error("start the parent process of the container")]
    Shim(#[source] io::Error),
}

/// One run to be.
pub(super) struct Start<'a> {
    pub(super) config: &'a Config,
    pub(super) claims: &'a Claims,
    /// The pod's folder.
    pub(super) folder: &'a Path,
    pub(super) pod: &'a Pod,
    pub(super) container: &'a Container,
    pub(super) image: (&'a ImageName, &'a Held, PathBuf),
    pub(super) attempt: u32,
    pub(super) failures: u32,
}

impl Start<'_> {
    /// Returns when the container's process runs, or has failed to.
    pub(super) async fn run(&self, client: &Client) -> Result<(), StartError> {
        let sources = self.sources(client).await?;
        self.claims.publish(self.config, self.pod, client).await?;
        let blueprint = self.blueprint(&sources)?;
        let room = observe::room(self.folder, &self.container.name, self.attempt);
        room.plan(&blueprint)?;
        observe::forget_before(self.folder, &self.container.name, self.attempt.saturating_sub(1))?;
        run_shim(&room).await.map_err(StartError::Shim)
    }

    fn blueprint(&self, sources: &Sources) -> Result<Blueprint, StartError> {
        let (name, held, files) = &self.image;
        let config = self.config;
        let place = Place {
            node_name: &config.name,
            address: config.address.to_string(),
            folder: config.data.display().to_string(),
            run: config.run.display().to_string(),
        };
        let environment = environment(self.pod, self.container, &held.run.environment, sources, &place)
            .map_err(StartError::Configuration)?;
        let command = self.command(held, &environment.iter().cloned().collect())?;
        let node = Node { data: &config.data, run: &config.run, backups: &config.backups };
        let own = self.container.working_dir.as_ref();
        let working = own.unwrap_or(&held.run.working_directory).clone();
        let (namespace, pod) = (self.pod.namespace().unwrap_or_default(), self.pod.name_any());
        Ok(Blueprint {
            id: uuid::Uuid::new_v4().simple().to_string(),
            of: format!("{namespace}/{pod}/{}", self.container.name),
            attempt: self.attempt,
            failures: self.failures,
            image_id: held.id(name),
            files: files.clone(),
            command,
            environment,
            working_directory: if working.is_empty() { "/".to_owned() } else { working },
            mounts: mounts(self.pod, self.container, self.folder, &node)?,
        })
    }

    /// The container's own command and arguments go before those of its image, as Kubernetes has it.
    fn command(
        &self,
        held: &Held,
        environment: &std::collections::BTreeMap<String, String>,
    ) -> Result<Vec<String>, StartError> {
        let own = |words: &Option<Vec<String>>| {
            let words = words.as_ref().filter(|words| !words.is_empty())?;
            Some(words.iter().map(|word| expand(word, environment)).collect::<Vec<_>>())
        };
        let (command, arguments) = (own(&self.container.command), own(&self.container.args));
        let all = match (command, arguments) {
            (Some(command), arguments) => [command, arguments.unwrap_or_default()].concat(),
            (None, Some(arguments)) => [held.run.entrypoint.clone(), arguments].concat(),
            (None, None) => [held.run.entrypoint.clone(), held.run.arguments.clone()].concat(),
        };
        match all.is_empty() {
            true => Err(StartError::Configuration("neither the pod nor its image says what to run".into())),
            false => Ok(all),
        }
    }

    async fn sources(&self, client: &Client) -> Result<Sources, StartError> {
        let namespace = self.pod.namespace().unwrap_or_default();
        let mut sources = Sources::default();
        for source in Sources::wanted(self.container) {
            let failed = |error| StartError::Source { what: format!("{source:?}"), source: Box::new(error) };
            match &source {
                Source::ConfigMap(name) => {
                    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
                    if let Some(map) = api.get_opt(name).await.map_err(failed)? {
                        sources.add(&source, map.data.unwrap_or_default());
                    }
                }
                Source::Secret(name) => {
                    let api: Api<Secret> = Api::namespaced(client.clone(), &namespace);
                    if let Some(secret) = api.get_opt(name).await.map_err(failed)? {
                        let data = secret.data.unwrap_or_default().into_iter();
                        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                        sources.add(&source, data.map(|(key, value)| (key, text(value.0))).collect());
                    }
                }
            }
        }
        Ok(sources)
    }
}

/// Starts a shim for the room, and waits until it has started the container. A room that was taken up already is left
/// alone.
pub(super) async fn run_shim(room: &Room) -> io::Result<()> {
    let errors = File::options().create(true).append(true).open(room.path().join("shim.log"))?;
    let mut command = Command::new("/proc/self/exe");
    command.args([COMMAND, "shim"]).arg(room.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
    let mut shim = command.spawn()?;
    let stdout = shim.stdout.take().map(BufReader::new);
    // Reaped when it ends; it lives on without us.
    tokio::spawn(async move { shim.wait().await });
    let Some(mut stdout) = stdout else { return Ok(()) };
    let mut word = String::new();
    match timeout(STARTED_WITHIN, stdout.read_line(&mut word)).await {
        Ok(read) => read.map(drop),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it has not started in time")),
    }
}
