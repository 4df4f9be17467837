//! Names lead to whole content, whoever publishes, removes or dies.

use std::os::unix::fs::PermissionsExt;

use midflight_plan::storage::engine_image::Range;

use super::*;
use crate::image::{PackError, Program, pack};

struct Fixture {
    folder: tempfile::TempDir,
    layout: Layout,
}

impl Fixture {
    fn new() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::at(folder.path().join("registry"));
        Fixture { folder, layout }
    }

    fn binary(&self, content: &[u8], mode: u32) -> PathBuf {
        let path = self.folder.path().join("binary");
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn pack(&self, name: &str, content: &[u8]) -> Published {
        let packed =
            pack(&self.layout, &[name.parse().unwrap()], Program::any(&self.binary(content, 0o755))).unwrap();
        packed.into_iter().next().expect("one name, one image")
    }

    fn blobs(&self) -> usize {
        fs::read_dir(self.layout.blobs()).unwrap().count()
    }

    fn names(&self) -> Vec<String> {
        self.layout.images().unwrap().into_iter().map(|published| published.image.to_string()).collect()
    }
}

#[test]
fn the_same_binary_makes_the_same_image_and_is_kept_once() {
    let fixture = Fixture::new();
    let engine = fixture.pack("engine:v1", b"a program");
    let manager = fixture.pack("manager:v1", b"a program");
    assert_eq!(engine.digest, manager.digest);
    assert_eq!(fixture.blobs(), 3, "layer, configuration, manifest");
    assert_ne!(fixture.pack("engine:v2", b"another").digest, engine.digest);
    assert_eq!(
        fixture.names(),
        ["engine:v1", "engine:v2", "manager:v1"].map(|n| format!("midflight.local/{n}"))
    );
}

#[test]
fn what_is_published_says_what_its_program_speaks() {
    let fixture = Fixture::new();
    let binary = fixture.binary(b"an engine", 0o755);
    let all = Range { oldest: 3, newest: 5 };
    let engine = Some(Ranges { api: all, wire: all, disk: all });
    let name: ImageName = "engine:v1".parse().unwrap();
    pack(&fixture.layout, std::slice::from_ref(&name), Program { binary: &binary, engine }).unwrap();
    assert_eq!(fixture.layout.speaks(&name).unwrap(), engine);
    let digest = fixture.layout.resolve(&name).unwrap().unwrap();
    let by_digest: ImageName = format!("midflight.local/engine@{digest}").parse().unwrap();
    assert_eq!(fixture.layout.speaks(&by_digest).unwrap(), engine);
    fixture.pack("tool:v1", b"a program");
    for silent in ["tool:v1", "nobody:v1"] {
        assert_eq!(fixture.layout.speaks(&silent.parse().unwrap()).unwrap(), None, "{silent}");
    }
}

#[test]
fn a_layer_is_a_tar_file_with_the_binary_in_it() {
    for size in [1, 511, 512, 513, 100_000] {
        let fixture = Fixture::new();
        let content = vec![b'x'; size];
        let published = fixture.pack("engine:v1", &content);
        let manifest = fixture.layout.manifest(&published.digest).unwrap();
        let layer =
            fixture.layout.blob(&digest_of(&manifest.layers()[0]).unwrap()).unwrap().expect("it is there");
        assert_eq!(layer.metadata().unwrap().len(), manifest.layers()[0].size());
        let mut archive = tar::Archive::new(layer);
        let mut entries = archive.entries().unwrap();
        let mut entry = entries.next().expect("one entry").unwrap();
        assert_eq!(entry.path().unwrap().to_str(), Some("midflight"));
        assert_eq!(entry.header().mode().unwrap(), 0o755);
        let mut unpacked = Vec::new();
        entry.read_to_end(&mut unpacked).unwrap();
        assert_eq!(unpacked, content);
        assert!(entries.next().is_none());
    }
}

#[test]
fn a_binary_that_nobody_touched_is_not_packed_again() {
    let fixture = Fixture::new();
    let images = [ImageName::local("engine", "v1"), ImageName::local("manager", "v1")];
    let binary = fixture.binary(b"a program", 0o755);
    let first = pack(&fixture.layout, &images, Program::any(&binary)).unwrap();
    assert_eq!(first.len(), 2);
    let layers = || fs::metadata(fixture.layout.blob_path(&first[0].digest)).unwrap().modified().unwrap();
    let before = layers();
    assert_eq!(pack(&fixture.layout, &images, Program::any(&binary)).unwrap()[1].digest, first[1].digest);
    assert_eq!(layers(), before, "nothing was written");

    fs::write(&binary, "A program").unwrap();
    assert_ne!(
        pack(&fixture.layout, &images, Program::any(&binary)).unwrap()[0].digest,
        first[0].digest,
        "same size, other bytes"
    );
    let one_more = [ImageName::local("frontend", "v1"), images[0].clone()];
    assert_eq!(pack(&fixture.layout, &one_more, Program::any(&binary)).unwrap().len(), 2);
    assert_eq!(fixture.names().len(), 3);
}

#[test]
fn what_no_name_leads_to_goes_and_what_is_shared_stays() {
    let fixture = Fixture::new();
    fixture.pack("engine:v1", b"a program");
    fixture.pack("manager:v1", b"a program");
    assert!(fixture.layout.remove(&"engine:v1".parse().unwrap()).unwrap());
    assert_eq!(fixture.blobs(), 3, "the manager still needs it");
    assert!(!fixture.layout.remove(&"engine:v1".parse().unwrap()).unwrap(), "it is gone already");
    assert!(fixture.layout.remove(&"manager:v1".parse().unwrap()).unwrap());
    assert_eq!((fixture.blobs(), fixture.names().len()), (0, 0));
}

#[test]
fn a_name_moves_to_new_content() {
    let fixture = Fixture::new();
    let old = fixture.pack("engine:v1", b"old");
    let new = fixture.pack("engine:v1", b"new");
    assert_eq!(fixture.layout.resolve(&new.image).unwrap(), Some(new.digest));
    assert!(fixture.layout.blob(&old.digest).unwrap().is_none());
    assert_eq!(fixture.blobs(), 3);
}

#[test]
fn what_a_dead_publisher_left_is_torn_or_half_written_and_does_not_matter() {
    let fixture = Fixture::new();
    let published = fixture.pack("engine:v1", b"a program");
    let manifest = fixture.layout.manifest(&published.digest).unwrap();
    let layer = fixture.layout.blob_path(&digest_of(&manifest.layers()[0]).unwrap());
    fs::write(&layer, "torn").unwrap();
    fs::write(fixture.layout.blobs().join(".tmpX"), "half").unwrap();
    let again = fixture.pack("engine:v1", b"a program");
    assert_eq!(again.digest, published.digest);
    let bytes = fs::read(&layer).unwrap();
    assert_eq!(Digest::of(&bytes).hex(), layer.file_name().unwrap().to_str().unwrap());
    assert_eq!(fixture.blobs(), 3);
}

#[test]
fn publishers_take_turns() {
    let fixture = Fixture::new();
    std::thread::scope(|scope| {
        for publisher in 0..4 {
            let layout = fixture.layout.clone();
            let binary = fixture.folder.path().join(format!("binary-{publisher}"));
            fs::write(&binary, format!("program {publisher}")).unwrap();
            fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
            scope.spawn(move || {
                for round in 0..5 {
                    let image = ImageName::local(&format!("p{publisher}"), &format!("v{round}"));
                    pack(&layout, &[image], Program::any(&binary)).unwrap();
                }
            });
        }
    });
    assert_eq!(fixture.names().len(), 20);
    assert_eq!(fixture.blobs(), 4 * 3);
}

#[test]
fn what_is_no_program_is_refused_and_nothing_is_published() {
    let fixture = Fixture::new();
    let images = [ImageName::local("engine", "v1")];
    let refused = |path: &Path| pack(&fixture.layout, &images, Program::any(path)).unwrap_err().to_string();
    assert!(refused(&fixture.folder.path().join("absent")).starts_with("read "));
    assert!(refused(fixture.folder.path()).ends_with("it is not a file"));
    assert!(refused(&fixture.binary(b"text", 0o644)).ends_with("nobody may execute it"));
    assert!(refused(&fixture.binary(b"", 0o755)).ends_with("it is empty"));
    assert!(fixture.names().is_empty());
}

#[test]
fn a_damaged_index_is_named_and_left_alone() {
    let fixture = Fixture::new();
    fixture.pack("engine:v1", b"a program");
    let index = fixture.layout.root.join(INDEX);
    fs::write(&index, "nonsense").unwrap();
    let binary = fixture.binary(b"a program", 0o755);
    let refused =
        pack(&fixture.layout, &[ImageName::local("engine", "v2")], Program::any(&binary)).unwrap_err();
    assert!(matches!(refused, PackError::Publish { source: LayoutError::Damaged { .. }, .. }), "{refused:?}");
    assert_eq!(fs::read_to_string(index).unwrap(), "nonsense");
}
