//! Answers for a registry: the reading half of OCI distribution, over a layout.
//!
//! Nothing here knows HTTP beyond methods, paths and status codes; whoever serves it brings the connection.
//!
//! The one invariant: what is answered under a digest is the content of that name.

use std::fs::File;

use oci_spec::image::MediaType;
use serde_json::{Value, json};

use super::{Digest, ImageName, LOCAL, Layout, LayoutError};

/// Where a registry's paths begin.
pub const PREFIX: &str = "/v2/";

/// Content of which a registry knows no more than the bytes.
const OCTETS: &str = "application/octet-stream";

/// What a registry says.
#[derive(Debug)]
pub enum Answer {
    Json(Value),
    Content { media_type: MediaType, digest: Digest, size_bytes: u64, file: File },
    Refused(Refusal),
}

/// Why a request is not answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Only reading is served.
    ReadOnly,
    NoSuchPath,
    NameInvalid(String),
    NameUnknown(String),
    ManifestUnknown(String),
    BlobUnknown(String),
    /// The folder could not be read.
    Broken(String),
}

impl Refusal {
    pub fn status(&self) -> u16 {
        match self {
            Refusal::ReadOnly => 405,
            Refusal::NameInvalid(_) => 400,
            Refusal::NoSuchPath
            | Refusal::NameUnknown(_)
            | Refusal::ManifestUnknown(_)
            | Refusal::BlobUnknown(_) => 404,
            Refusal::Broken(_) => 500,
        }
    }

    /// The body that clients of registries understand.
    pub fn to_json(&self) -> Value {
        let (code, message) = match self {
            Refusal::ReadOnly => {
                ("UNSUPPORTED", "this registry is read-only; publish with `midflight image pack`".to_owned())
            }
            Refusal::NoSuchPath => ("UNSUPPORTED", "there is nothing at this path".to_owned()),
            Refusal::NameInvalid(name) => ("NAME_INVALID", format!("{name:?} is not the name of an image")),
            Refusal::NameUnknown(name) => ("NAME_UNKNOWN", format!("no image {name} is published")),
            Refusal::ManifestUnknown(name) => ("MANIFEST_UNKNOWN", format!("{name} is not published")),
            Refusal::BlobUnknown(digest) => ("BLOB_UNKNOWN", format!("there is no content {digest}")),
            Refusal::Broken(why) => ("UNKNOWN", why.clone()),
        };
        json!({ "errors": [{ "code": code, "message": message }] })
    }
}

/// Answers a request for a path below [`PREFIX`].
pub fn answer(layout: &Layout, reads: bool, path: &str) -> Answer {
    if !reads {
        return Answer::Refused(Refusal::ReadOnly);
    }
    let parts: Vec<&str> = path.strip_prefix(PREFIX).unwrap_or_default().split('/').collect();
    let found = match parts.as_slice() {
        [""] => Ok(Answer::Json(json!({}))),
        ["_catalog"] => catalog(layout),
        [name @ .., "tags", "list"] => tags(layout, &name.join("/")),
        [name @ .., "manifests", reference] => manifest(layout, &name.join("/"), reference),
        [_, .., "blobs", digest] => content(layout, digest, MediaType::Other(OCTETS.to_owned())),
        _ => return Answer::Refused(Refusal::NoSuchPath),
    };
    match found {
        Ok(answer) => answer,
        Err(error) => {
            tracing::warn!(path, error = crate::chain(&error), "the registry could not answer");
            Answer::Refused(Refusal::Broken(error.to_string()))
        }
    }
}

fn catalog(layout: &Layout) -> Result<Answer, LayoutError> {
    let mut repositories: Vec<String> =
        local(layout)?.into_iter().map(|image| image.repository().to_owned()).collect();
    repositories.dedup();
    Ok(Answer::Json(json!({ "repositories": repositories })))
}

fn tags(layout: &Layout, repository: &str) -> Result<Answer, LayoutError> {
    let images = local(layout)?.into_iter().filter(|image| image.repository() == repository);
    let tags: Vec<String> = images.filter_map(|image| image.tag().map(str::to_owned)).collect();
    if tags.is_empty() {
        return Ok(Answer::Refused(Refusal::NameUnknown(repository.to_owned())));
    }
    Ok(Answer::Json(json!({ "name": repository, "tags": tags })))
}

fn manifest(layout: &Layout, repository: &str, reference: &str) -> Result<Answer, LayoutError> {
    let unknown = |name: String| Ok(Answer::Refused(Refusal::ManifestUnknown(name)));
    if let Ok(digest) = reference.parse::<Digest>() {
        let published = layout.images()?.into_iter().any(|image| image.digest == digest);
        return if published {
            content(layout, reference, MediaType::ImageManifest)
        } else {
            unknown(reference.to_owned())
        };
    }
    let text = format!("{LOCAL}/{repository}:{reference}");
    let Ok(image) = text.parse::<ImageName>() else {
        return Ok(Answer::Refused(Refusal::NameInvalid(text)));
    };
    match layout.resolve(&image)? {
        Some(digest) => content(layout, &digest.to_string(), MediaType::ImageManifest),
        None => unknown(text),
    }
}

fn content(layout: &Layout, digest: &str, media_type: MediaType) -> Result<Answer, LayoutError> {
    let unknown = || Ok(Answer::Refused(Refusal::BlobUnknown(digest.to_owned())));
    let Ok(digest) = digest.parse::<Digest>() else { return unknown() };
    let Some(file) = layout.blob(&digest)? else { return unknown() };
    let size_bytes = layout.size(&digest, &file)?;
    Ok(Answer::Content { media_type, digest, size_bytes, file })
}

/// The images of the cluster's own host, by name.
fn local(layout: &Layout) -> Result<Vec<ImageName>, LayoutError> {
    Ok(layout.images()?.into_iter().map(|published| published.image).filter(ImageName::is_local).collect())
}

#[cfg(test)]
mod tests;
