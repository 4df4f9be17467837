//! Puts the files of an image's layers into a folder.
//!
//! The one invariant: nothing outside of the folder is touched, whatever a layer says.

use std::{
    fs,
    io::{self, Read},
    path::{Component, Path, PathBuf},
};

use flate2::read::MultiGzDecoder;
use tar::{Archive, EntryType};

use super::{Digest, digest::Digesting};

/// A file of this name removes what is in the folder from lower layers.
const OPAQUE: &str = ".wh..wh..opq";
/// A file whose name begins so removes one of lower layers.
const REMOVED: &str = ".wh.";

/// How a layer is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Plain,
    Gzip,
}

impl Packing {
    /// `None` where nothing here can unpack it.
    pub(super) fn of(media_type: &str) -> Option<Packing> {
        match media_type {
            "application/vnd.oci.image.layer.v1.tar" | "application/vnd.docker.image.rootfs.diff.tar" => {
                Some(Packing::Plain)
            }
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip" => Some(Packing::Gzip),
            _ => None,
        }
    }
}

/// Adds a layer to a folder, and says what was read.
pub(super) fn unpack(content: impl Read, packing: Packing, folder: &Path) -> io::Result<(Digest, u64)> {
    let mut content = Digesting::new(content);
    match packing {
        Packing::Plain => put(&mut content, folder)?,
        Packing::Gzip => put(MultiGzDecoder::new(&mut content), folder)?,
    }
    // What follows the archive belongs to the layer too.
    io::copy(&mut content, &mut io::sink())?;
    Ok(content.finish())
}

fn put(content: impl Read, folder: &Path) -> io::Result<()> {
    let mut archive = Archive::new(content);
    archive.set_preserve_permissions(true);
    archive.set_preserve_mtime(false);
    archive.set_overwrite(true);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name == OPAQUE {
            clear(&inside(folder, path.parent().unwrap_or(Path::new("")))?)?;
        } else if let Some(removed) = name.strip_prefix(REMOVED) {
            remove(&inside(folder, &path.with_file_name(removed))?)?;
        } else if is_file(entry.header().entry_type()) && !entry.unpack_in(folder)? {
            return Err(io::Error::other(format!("{} leads out of the image", path.display())));
        }
    }
    Ok(())
}

/// Devices and the like are the machine's.
fn is_file(kind: EntryType) -> bool {
    matches!(
        kind,
        EntryType::Regular
            | EntryType::Continuous
            | EntryType::GNUSparse
            | EntryType::Directory
            | EntryType::Symlink
            | EntryType::Link
    )
}

/// Where a path of the image is, if no part of it is a link to elsewhere.
fn inside(folder: &Path, path: &Path) -> io::Result<PathBuf> {
    let refused = || io::Error::other(format!("{} leads out of the image", path.display()));
    let mut place = folder.to_owned();
    for part in path.components() {
        match part {
            Component::CurDir => continue,
            Component::Normal(name) => place.push(name),
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(refused()),
        }
        let parent = place.parent().unwrap_or(folder);
        if fs::symlink_metadata(parent).is_ok_and(|parent| parent.is_symlink()) {
            return Err(refused());
        }
    }
    Ok(place)
}

fn clear(folder: &Path) -> io::Result<()> {
    match fs::symlink_metadata(folder) {
        Ok(metadata) if metadata.is_dir() => {
            fs::read_dir(folder)?.try_for_each(|entry| remove(&entry?.path()))
        }
        _ => Ok(()),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn layer(files: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in files {
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_size(content.len() as u64);
            header.set_mode(0o640);
            header.set_cksum();
            builder.append(&header, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn layers_add_and_remove_files() {
        let folder = tempfile::tempdir().unwrap();
        let put = |files: &[(&str, &str)]| {
            let bytes = layer(files);
            let read = unpack(&bytes[..], Packing::Plain, folder.path()).unwrap();
            assert_eq!(read, (Digest::of(&bytes), bytes.len() as u64));
        };
        put(&[("a", "1"), ("d/b", "2"), ("e/c", "3"), ("e/d", "4")]);
        put(&[(".wh.a", ""), ("e/.wh..wh..opq", ""), ("d/b", "5")]);
        let read = |path: &str| fs::read_to_string(folder.path().join(path)).ok();
        assert_eq!([read("a"), read("d/b"), read("e/c"), read("e/d")], [None, Some("5".into()), None, None]);
    }

    #[test]
    fn compressed_layers_are_named_by_their_compressed_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&layer(&[("a", "1")])).unwrap();
        let bytes = encoder.finish().unwrap();
        let (digest, size) = unpack(&bytes[..], Packing::Gzip, folder.path()).unwrap();
        assert_eq!((digest, size), (Digest::of(&bytes), bytes.len() as u64));
        assert_eq!(fs::read_to_string(folder.path().join("a")).unwrap(), "1");
    }

    #[test]
    fn nothing_leads_out_of_the_folder() {
        let outer = tempfile::tempdir().unwrap();
        let folder = outer.path().join("image");
        fs::create_dir(&folder).unwrap();
        fs::write(outer.path().join("kept"), "").unwrap();
        std::os::unix::fs::symlink("..", folder.join("up")).unwrap();
        for path in ["../kept", ".wh.../kept", "../.wh.kept", "up/.wh.kept", "up/kept"] {
            let _ = unpack(&layer(&[(path, "changed")])[..], Packing::Plain, &folder);
            assert_eq!(fs::read_to_string(outer.path().join("kept")).unwrap(), "", "{path}");
        }
    }
}
