//! Makes an image of one binary.
//!
//! The one invariant: the same binary that says the same of itself makes the same image, byte for byte; nothing of when,
//! where or by whom it was packed is in it.

use std::{
    fmt,
    fs::{self, File, Metadata},
    io::{self, Read},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use oci_spec::image::{
    Config, ConfigBuilder, Descriptor, ImageConfiguration, ImageConfigurationBuilder, ImageManifest,
    ImageManifestBuilder, MediaType, RootFsBuilder, SCHEMA_VERSION,
};

use midflight_plan::storage::engine_image::{LABEL, Ranges};

use super::digest::Digesting;
use super::layout::to_bytes;
use super::{Digest, ImageName, Layout, LayoutError, Published};

/// Where the binary is in the image: beside no folder of the machine, all of which it may need.
const BINARY: &str = "midflight";
/// Tar files are made of blocks of this size.
const BLOCK: u64 = 512;

/// Why a binary could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error("read {path}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is not a program: {reason}", path = path.display())]
    NotAProgram { path: PathBuf, reason: &'static str },
    #[error("{path} changed while it was packed", path = path.display())]
    Changed { path: PathBuf },
    #[error("publish {path}", path = path.display())]
    Publish { path: PathBuf, source: LayoutError },
}

/// Tells one state of a file from every other, without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    size_bytes: u64,
    device: u64,
    inode: u64,
    /// Of the last change to content or permissions, in nanoseconds; nobody can set it back.
    changed: (i64, i64),
    /// The boot of the machine in which it was packed, if what was packed is good for no other.
    boot: Option<String>,
}

/// For how long what is packed must last.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Keep {
    /// It is on disk before it is published.
    Always,
    /// A loss of power may tear it, so it is packed again in the next boot.
    ThisBoot(String),
}

impl Source {
    fn of(metadata: &Metadata) -> Source {
        Source {
            size_bytes: metadata.len(),
            device: metadata.dev(),
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            boot: None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Source { size_bytes, device, inode, changed: (seconds, nanoseconds), boot } = self;
        write!(f, "{device}:{inode}:{size_bytes}:{seconds}.{nanoseconds:09}")?;
        boot.iter().try_for_each(|boot| write!(f, ":{boot}"))
    }
}

/// What is packed.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    pub binary: &'a Path,
    /// What it said of itself, if it is an engine that was asked. Who has the image knows it before the program is started.
    pub engine: Option<Ranges>,
}

impl<'a> Program<'a> {
    /// One that nothing is asked of.
    pub fn any(binary: &'a Path) -> Program<'a> {
        Program { binary, engine: None }
    }
}

/// Packs a binary and publishes it under each of the names. One that was packed before, and has not been touched
/// since, is not packed again.
pub fn pack(
    layout: &Layout,
    images: &[ImageName],
    program: Program<'_>,
) -> Result<Vec<Published>, PackError> {
    pack_to(layout, images, program, &Keep::Always)
}

/// The same for what can be packed again at any time: it does not wait for the disk.
pub fn pack_for_this_boot(
    layout: &Layout,
    images: &[ImageName],
    program: Program<'_>,
) -> Result<Vec<Published>, PackError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let boot = fs::read_to_string(path);
    let boot = boot.map_err(|source| PackError::Read { path: path.to_owned(), source })?;
    pack_to(layout, images, program, &Keep::ThisBoot(boot.trim().to_owned()))
}

/// Those of the names that lead to a whole image of another binary, or of an earlier state of this one. A binary that was only
/// copied or built again makes the same image, and so is no other.
pub fn of_another(
    layout: &Layout,
    images: &[ImageName],
    program: Program<'_>,
) -> Result<Vec<ImageName>, PackError> {
    let binary = program.binary;
    let (file, source) = open(binary)?;
    let looking = |source| PackError::Publish { path: binary.to_owned(), source };
    let mut others = Vec::new();
    for image in images {
        if layout.leads_elsewhere(image, &source).map_err(looking)? {
            others.push(image.clone());
        }
    }
    if others.is_empty() {
        return Ok(others);
    }
    let own = digest(file, &source, program)?;
    let mut found = Vec::new();
    for image in others {
        if layout.leads_to_another(&image, &own).map_err(looking)? {
            found.push(image);
        }
    }
    Ok(found)
}

/// What the image of a binary would be called by its content.
fn digest(file: File, source: &Source, program: Program<'_>) -> Result<Digest, PackError> {
    let mut content = Digesting::new(layer(file, source.size_bytes));
    let read = io::copy(&mut content, &mut io::sink());
    read.map_err(|source| PackError::Read { path: program.binary.to_owned(), source })?;
    let (layer, layer_size) = content.finish();
    let config = config(&layer, program.engine);
    let manifest = manifest(
        part(MediaType::ImageConfig, &Digest::of(&config), config.len() as u64),
        part(MediaType::ImageLayer, &layer, layer_size),
    );
    Ok(Digest::of(&to_bytes(&manifest)))
}

fn pack_to(
    layout: &Layout,
    images: &[ImageName],
    Program { binary, engine }: Program<'_>,
    keep: &Keep,
) -> Result<Vec<Published>, PackError> {
    let (file, mut source) = open(binary)?;
    let sync = match keep {
        Keep::Always => true,
        Keep::ThisBoot(boot) => {
            source.boot = Some(boot.clone());
            false
        }
    };
    let publishing = |source| PackError::Publish { path: binary.to_owned(), source };
    let change = layout.change().map_err(publishing)?;
    if let Some(published) = change.published_from(images, &source).map_err(publishing)? {
        return Ok(published);
    }
    let size = source.size_bytes;
    let (layer, layer_size) = change.put(layer(file, size), sync).map_err(publishing)?;
    if layer_size != layer_bytes(size) {
        return Err(PackError::Changed { path: binary.to_owned() });
    }
    let (config, config_size) = change.put(&config(&layer, engine)[..], sync).map_err(publishing)?;
    let manifest = manifest(
        part(MediaType::ImageConfig, &config, config_size),
        part(MediaType::ImageLayer, &layer, layer_size),
    );
    change.publish(images, &manifest, &source, Timestamp::now()).map_err(publishing)
}

fn open(path: &Path) -> Result<(File, Source), PackError> {
    let reading = |source| PackError::Read { path: path.to_owned(), source };
    let refuse = |reason| Err(PackError::NotAProgram { path: path.to_owned(), reason });
    let file = File::open(path).map_err(reading)?;
    let metadata = file.metadata().map_err(reading)?;
    match () {
        () if !metadata.is_file() => refuse("it is not a file"),
        () if metadata.permissions().mode() & 0o111 == 0 => refuse("nobody may execute it"),
        () if metadata.len() == 0 => refuse("it is empty"),
        () => Ok((file, Source::of(&metadata))),
    }
}

/// A tar file of one entry, made while it is read. No compression: images go from one process to the next on one
/// machine, where it would cost more than it saves.
fn layer(binary: File, size: u64) -> impl Read {
    let mut header = tar::Header::new_ustar();
    header.set_path(BINARY).expect("it is short");
    header.set_mode(0o755);
    header.set_size(size);
    header.set_mtime(0);
    header.set_cksum();
    let padding = layer_bytes(size) - BLOCK - size;
    let header = io::Cursor::new(header.as_bytes().to_vec());
    header.chain(binary.take(size)).chain(io::repeat(0).take(padding))
}

/// Header, content up to a whole block, and two empty blocks that end a tar file.
fn layer_bytes(content: u64) -> u64 {
    BLOCK + content.next_multiple_of(BLOCK) + 2 * BLOCK
}

/// What the program of an image speaks, if its labels say so.
pub(super) fn said(config: &Config) -> Option<Ranges> {
    let said = config.labels().as_ref().and_then(|labels| labels.get(LABEL))?;
    serde_json::from_str(said).ok()
}

fn config(layer: &Digest, engine: Option<Ranges>) -> Vec<u8> {
    let said = engine.map(|engine| serde_json::to_string(&engine).expect("versions are JSON"));
    let build = || -> oci_spec::Result<ImageConfiguration> {
        let mut config = ConfigBuilder::default().entrypoint([format!("/{BINARY}")]).build()?;
        config.set_labels(said.map(|said| [(LABEL.to_owned(), said)].into()));
        ImageConfigurationBuilder::default()
            .config(config)
            .rootfs(RootFsBuilder::default().diff_ids([layer.to_string()]).build()?)
            .build()
    };
    let config = build().expect("nothing that must be there is missing");
    serde_json::to_vec(&config).expect("a configuration is JSON")
}

fn manifest(config: Descriptor, layer: Descriptor) -> ImageManifest {
    let manifest = ImageManifestBuilder::default()
        .schema_version(SCHEMA_VERSION)
        .media_type(MediaType::ImageManifest)
        .config(config)
        .layers([layer])
        .build();
    manifest.expect("nothing that must be there is missing")
}

fn part(media_type: MediaType, digest: &Digest, size: u64) -> Descriptor {
    Descriptor::new(media_type, size, digest.to_spec())
}
