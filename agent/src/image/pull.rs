//! Brings an image onto the node.
//!
//! The one invariant: what is listed in the store is, byte for byte, what its digest names.

use std::{
    collections::HashMap,
    io::{self, Read},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::{Buf, Bytes};
use http_body_util::BodyExt;
use kube::Client;
use midflight_plan::storage::engine_image::Ranges;
use oci_spec::image::{Arch, Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType, Os};
use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};

use super::{
    Digest, Held, ImageName, Neighbours, Progress, Run, Store,
    pack::said,
    progress::{Board, Entry},
    remote::{Remote, RemoteError},
    store::{FILES, Unpacked},
    unpack::{Packing, unpack},
};

/// How many images a node pulls at once.
const AT_ONCE: usize = 3;
/// How many pieces of a layer wait to be unpacked.
const PIECES: usize = 8;
/// A registry that sends nothing for so long is given up, until the next try.
const SILENT_FOR: Duration = Duration::from_secs(60);

/// Why an image is not on the node.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("{what} is not what was asked for: its digest is {found}, not {wanted}")]
    WrongDigest { what: &'static str, wanted: Digest, found: Digest },
    #[error("{what} cannot be read")]
    Damaged { what: &'static str, source: serde_json::Error },
    #[error("{0}")]
    Unusable(String),
    #[error("the registry {host} has sent nothing for {} seconds", .after.as_secs())]
    Silent { host: String, after: Duration },
    #[error("unpack the image")]
    Unpack(#[source] io::Error),
    #[error("keep the image")]
    Keep(#[source] io::Error),
}

/// Pulls images into a store, a few at once, each only once at a time.
#[derive(Debug)]
pub(crate) struct Puller {
    pub(crate) store: Store,
    neighbours: Neighbours,
    places: Semaphore,
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    board: Board,
    patience: Duration,
}

impl Puller {
    pub(crate) fn new(store: Store, neighbours: Neighbours) -> Puller {
        Puller {
            store,
            neighbours,
            places: Semaphore::new(AT_ONCE),
            turns: Mutex::default(),
            board: Board::default(),
            patience: SILENT_FOR,
        }
    }

    /// How far the pull of an image is, if somebody pulls it.
    pub(crate) fn progress(&self, image: &ImageName) -> Option<Progress> {
        self.board.of(image)
    }

    /// The image, from the store if it may be and is there, else from its registry.
    pub(crate) async fn pull(
        &self,
        image: &ImageName,
        look_again: bool,
        cluster: &Client,
    ) -> Result<Held, PullError> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry(image.to_string()).or_default().clone()
        };
        let _turn = turn.lock().await;
        if let Some(held) = self.store.find(image).filter(|_| !look_again || image.digest().is_some()) {
            return Ok(held);
        }
        let told = self.board.begin(image);
        let _place = self.places.acquire().await.expect("nobody closes it");
        self.fetch(image, cluster, &told).await
    }

    async fn fetch(&self, image: &ImageName, cluster: &Client, told: &Entry<'_>) -> Result<Held, PullError> {
        told.tell(Progress::Asked);
        let mut remote = Remote::of(image, cluster)?;
        let heard = Heard { host: image.host(), within: self.patience };
        let (digest, manifest) = heard.of(resolve(&mut remote, image)).await?;
        if self.store.get(&digest).is_some() {
            return self.store.name(image, &digest).map_err(PullError::Keep);
        }
        told.tell(Progress::Awaited);
        let _turn = self.neighbours.turn(&digest).await.map_err(PullError::Keep)?;
        if let Some((folder, unpacked)) = self.neighbours.take(&digest, &self.store) {
            return self.store.add(folder, image, unpacked).map_err(PullError::Keep);
        }
        let config = digest_of(manifest.config())?;
        let of = manifest.layers().iter().map(Descriptor::size).sum();
        told.tell(Progress::Arrives { bytes: 0, of });
        let text = heard.of(async { Ok(remote.small(&config.to_string()).await?) }).await?;
        verify("the configuration", &config, &Digest::of(&text))?;
        let (run, engine) = how_to_run(&text)?;
        let folder = self.store.begin().map_err(PullError::Keep)?;
        let mut size = 0;
        for layer in manifest.layers() {
            let files = folder.path().join(FILES);
            size += fetch_layer(&mut remote, layer, &files, (&heard, told)).await?;
        }
        let unpacked = Unpacked { digest, size_bytes: size, run, engine };
        self.store.add(folder, image, unpacked).map_err(PullError::Keep)
    }
}

/// Gives up a registry that stays silent.
struct Heard<'a> {
    host: &'a str,
    within: Duration,
}

impl Heard<'_> {
    async fn of<T>(&self, answer: impl Future<Output = Result<T, PullError>>) -> Result<T, PullError> {
        let silent = |_| PullError::Silent { host: self.host.to_owned(), after: self.within };
        timeout(self.within, answer).await.map_err(silent)?
    }
}

/// The manifest for this machine that a name leads to, and its digest.
async fn resolve(remote: &mut Remote, image: &ImageName) -> Result<(Digest, ImageManifest), PullError> {
    let wanted = image.digest();
    let reference = match wanted {
        Some(digest) => digest.to_string(),
        None => image.tag().unwrap_or("latest").to_owned(),
    };
    let text = remote.manifest(&reference).await?;
    let digest = Digest::of(&text);
    if let Some(wanted) = &wanted {
        verify("the manifest", wanted, &digest)?;
    }
    let damaged = |source| PullError::Damaged { what: "the manifest", source };
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(damaged)?;
    if value.get("manifests").is_none() {
        return Ok((digest, serde_json::from_value(value).map_err(damaged)?));
    }
    let index: ImageIndex = serde_json::from_value(value).map_err(damaged)?;
    let fits = |entry: &&Descriptor| {
        entry.platform().as_ref().is_some_and(|platform| {
            *platform.os() == Os::Linux && *platform.architecture() == Arch::default()
        })
    };
    let entry = index.manifests().iter().find(fits);
    let entry = entry.ok_or_else(|| PullError::Unusable(format!("{image} is not made for this machine")))?;
    let digest = digest_of(entry)?;
    let text = remote.manifest(&digest.to_string()).await?;
    verify("the manifest", &digest, &Digest::of(&text))?;
    Ok((digest, serde_json::from_slice(&text).map_err(damaged)?))
}

fn digest_of(part: &Descriptor) -> Result<Digest, PullError> {
    part.digest()
        .to_string()
        .parse()
        .map_err(|error: super::digest::DigestError| PullError::Unusable(error.to_string()))
}

fn verify(what: &'static str, wanted: &Digest, found: &Digest) -> Result<(), PullError> {
    match wanted == found {
        true => Ok(()),
        false => Err(PullError::WrongDigest { what, wanted: wanted.clone(), found: found.clone() }),
    }
}

/// How its program is started, and what it speaks if it is an engine that says so.
fn how_to_run(text: &[u8]) -> Result<(Run, Option<Ranges>), PullError> {
    let damaged = |source| PullError::Damaged { what: "the configuration", source };
    let config: ImageConfiguration = serde_json::from_slice(text).map_err(damaged)?;
    let Some(config) = config.config() else { return Ok(Default::default()) };
    let run = Run {
        entrypoint: config.entrypoint().clone().unwrap_or_default(),
        arguments: config.cmd().clone().unwrap_or_default(),
        environment: config.env().clone().unwrap_or_default(),
        working_directory: config.working_dir().clone().unwrap_or_default(),
    };
    Ok((run, said(config)))
}

/// Unpacks a layer while it arrives; what turns out to be something else is not kept by the caller.
async fn fetch_layer(
    remote: &mut Remote,
    layer: &Descriptor,
    files: &Path,
    (heard, told): (&Heard<'_>, &Entry<'_>),
) -> Result<u64, PullError> {
    let media_type: &MediaType = layer.media_type();
    let packing = Packing::of(media_type.as_ref()).ok_or_else(|| {
        PullError::Unusable(format!("a layer is packed as {media_type}, which nothing here unpacks"))
    })?;
    let wanted = digest_of(layer)?;
    let asked = async { Ok(remote.blob(&wanted.to_string()).await?) };
    let mut body = heard.of(asked).await?.into_body();
    let (pieces, arriving) = mpsc::channel::<Bytes>(PIECES);
    let files = files.to_owned();
    let unpacking = tokio::task::spawn_blocking(move || {
        unpack(Arriving { pieces: arriving, rest: Bytes::new() }, packing, &files)
    });
    let arrives = async {
        while let Some(frame) = heard.of(async { Ok(body.frame().await) }).await? {
            let frame = frame.map_err(|error| PullError::Unpack(io::Error::other(error)))?;
            let Ok(piece) = frame.into_data() else { continue };
            told.arrived(piece.len());
            if pieces.send(piece).await.is_err() {
                break;
            }
        }
        Ok::<(), PullError>(())
    };
    let arrived = arrives.await;
    drop(pieces);
    let unpacked = unpacking.await.map_err(|error| PullError::Unpack(io::Error::other(error)))?;
    arrived?;
    let (found, size) = unpacked.map_err(PullError::Unpack)?;
    verify("a layer", &wanted, &found)?;
    Ok(size)
}

/// Reads what arrives on a channel.
struct Arriving {
    pieces: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl Read for Arriving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.rest = piece,
                None => return Ok(0),
            }
        }
        let count = self.rest.len().min(buffer.len());
        self.rest.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
