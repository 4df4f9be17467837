//! Takes an image from another node of the same machine, whose files can be shared, instead of pulling it again.
//!
//! The one invariant: what is taken was whole and verified where it was taken from, from the first file to the last.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use tempfile::TempDir;

use super::{
    Digest, Held, Store,
    store::{FILES, Unpacked},
};

/// How often one looks whether it is its turn.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The nodes of one machine, in one folder.
#[derive(Debug, Clone)]
pub struct Neighbours {
    nodes: PathBuf,
    turns: PathBuf,
}

impl Neighbours {
    /// Those below a folder; how they take turns is kept in another.
    pub fn below(nodes: PathBuf, turns: PathBuf) -> Neighbours {
        Neighbours { nodes, turns }
    }

    /// Waits while a neighbour pulls this image, and makes others wait until it is dropped.
    pub(super) async fn turn(&self, digest: &Digest) -> io::Result<File> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.turns)?;
        // A few files for all there will ever be; images that share one wait for each other without need.
        let path = self.turns.join(&digest.hex()[..2]);
        let lock = File::options().create(true).truncate(false).write(true).mode(0o600).open(path)?;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                Err(Errno::AGAIN) => tokio::time::sleep(LOOK_EVERY).await,
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The image, with links to the files of a neighbour that has it.
    pub(super) fn take(&self, digest: &Digest, store: &Store) -> Option<(TempDir, Unpacked)> {
        let nodes = fs::read_dir(&self.nodes).ok()?;
        nodes.flatten().find_map(|node| share(&node.path().join(Store::FOLDER), digest, store))
    }
}

/// `None` where it is not to be had, for whatever reason: there is still the registry.
fn share(images: &Path, digest: &Digest, store: &Store) -> Option<(TempDir, Unpacked)> {
    let place = images.join(digest.hex());
    store.read(&place)?;
    let folder = store.begin().ok()?;
    link(&place.join(FILES), &folder.path().join(FILES)).ok()?;
    // Whoever removes an image begins with what says that it is there.
    let held = store.read(&place)?;
    let Held { digest, size_bytes, run, engine, .. } = held;
    Some((folder, Unpacked { digest, size_bytes, run, engine }))
}

fn link(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            fs::create_dir(&target)?;
            link(&source, &target)?;
            fs::set_permissions(&target, entry.metadata()?.permissions())?;
        } else if kind.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
        } else {
            fs::hard_link(&source, &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use midflight_plan::storage::engine_image::{Range, Ranges};

    use super::*;
    use crate::image::Run;

    fn inode(path: &Path) -> u64 {
        fs::symlink_metadata(path).unwrap().ino()
    }

    #[tokio::test]
    async fn files_are_shared_and_stay_when_the_neighbour_gives_them_up() {
        let root = tempfile::tempdir().unwrap();
        let open =
            |node: &str| Store::open(&root.path().join("nodes").join(node).join(Store::FOLDER)).unwrap();
        let (one, two) = (open("node-1"), open("node-2"));
        let neighbours = Neighbours::below(root.path().join("nodes"), root.path().join("turns"));
        let (digest, name) = (Digest::of(b"image"), "engine:v1".parse().unwrap());
        assert!(neighbours.take(&digest, &two).is_none());

        let folder = one.begin().unwrap();
        let files = folder.path().join(FILES);
        fs::create_dir(files.join("bin")).unwrap();
        fs::write(files.join("bin/program"), "content").unwrap();
        symlink("bin/program", files.join("link")).unwrap();
        let run = Run { entrypoint: vec!["/bin/program".into()], ..Run::default() };
        let engine = Some(Ranges { api: Range { oldest: 1, newest: 2 }, ..Ranges::default() });
        let unpacked = Unpacked { digest: digest.clone(), size_bytes: 7, run: run.clone(), engine };
        one.add(folder, &name, unpacked).unwrap();

        let (folder, unpacked) = neighbours.take(&digest, &two).unwrap();
        let held = two.add(folder, &name, unpacked).unwrap();
        assert_eq!((held.run, held.size_bytes, held.engine), (run, 7, engine));
        let (theirs, ours) = (one.files(&digest), two.files(&digest));
        assert_eq!(inode(&theirs.join("bin/program")), inode(&ours.join("bin/program")));
        assert!(one.remove_unless_wanted_after(&digest, jiff::Timestamp::now()).unwrap());
        assert_eq!(fs::read_to_string(ours.join("link")).unwrap(), "content");

        fs::remove_file(two.files(&digest).with_file_name("image.json")).unwrap();
        assert!(neighbours.take(&digest, &one).is_none(), "what is not whole is not taken");
    }

    #[tokio::test]
    async fn one_pulls_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let neighbours = Neighbours::below(root.path().join("nodes"), root.path().join("turns"));
        let digest = Digest::of(b"image");
        let first = neighbours.turn(&digest).await.unwrap();
        let second = neighbours.turn(&digest);
        tokio::pin!(second);
        assert!(tokio::time::timeout(LOOK_EVERY * 3, &mut second).await.is_err());
        drop(first);
        second.await.unwrap();
    }
}
