//! Every path a client of a registry asks for.

use std::{fs, io::Read, os::unix::fs::PermissionsExt};

use super::*;
use crate::image::{Program, Published, pack};

fn published() -> (tempfile::TempDir, Layout, Published) {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::at(folder.path().join("registry"));
    let binary = folder.path().join("binary");
    fs::write(&binary, "a program").unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    let images = ["engine:v1", "team/engine:v1"].map(|name| name.parse().unwrap());
    let engine = pack(&layout, &images, Program::any(&binary)).unwrap().remove(0);
    (folder, layout, engine)
}

fn json_of(answer: Answer) -> Value {
    match answer {
        Answer::Json(value) => value,
        other => panic!("{other:?}"),
    }
}

fn refusal_of(answer: Answer) -> Refusal {
    match answer {
        Answer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn says_what_there_is() {
    let (_folder, layout, _) = published();
    let ask = |path: &str| json_of(answer(&layout, true, path));
    assert_eq!(ask("/v2/"), json!({}));
    assert_eq!(ask("/v2/_catalog"), json!({ "repositories": ["engine", "team/engine"] }));
    assert_eq!(ask("/v2/team/engine/tags/list"), json!({ "name": "team/engine", "tags": ["v1"] }));
}

#[test]
fn gives_manifests_by_tag_and_digest_and_content_by_digest() {
    let (_folder, layout, engine) = published();
    for reference in ["v1", &engine.digest.to_string()] {
        let path = format!("/v2/engine/manifests/{reference}");
        let Answer::Content { media_type, digest, size_bytes, mut file } = answer(&layout, true, &path)
        else {
            panic!("{path}");
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!((media_type, size_bytes), (MediaType::ImageManifest, bytes.len() as u64));
        assert_eq!((Digest::of(&bytes), &digest), (engine.digest.clone(), &engine.digest));
        let manifest: Value = serde_json::from_slice(&bytes).unwrap();
        let layer = manifest["layers"][0]["digest"].as_str().unwrap();
        assert!(matches!(
            answer(&layout, true, &format!("/v2/engine/blobs/{layer}")),
            Answer::Content { .. }
        ));
    }
}

#[test]
fn refuses_in_words_that_clients_understand() {
    let (_folder, layout, engine) = published();
    let none = Digest::of(b"nothing").to_string();
    let layer_as_manifest = {
        let Answer::Content { mut file, .. } = answer(&layout, true, "/v2/engine/manifests/v1") else {
            panic!()
        };
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["layers"][0]["digest"].as_str().unwrap().to_owned()
    };
    #[rustfmt::skip]
    let cases = [
        ("/v2/engine/manifests/v2".to_owned(),                   404, "MANIFEST_UNKNOWN"),
        (format!("/v2/engine/manifests/{none}"),                 404, "MANIFEST_UNKNOWN"),
        (format!("/v2/engine/manifests/{layer_as_manifest}"),    404, "MANIFEST_UNKNOWN"),
        ("/v2/Engine/manifests/v1".to_owned(),                   400, "NAME_INVALID"),
        (format!("/v2/engine/blobs/{none}"),                     404, "BLOB_UNKNOWN"),
        ("/v2/engine/blobs/sha256:..".to_owned(),                404, "BLOB_UNKNOWN"),
        ("/v2/other/tags/list".to_owned(),                       404, "NAME_UNKNOWN"),
        ("/v2/engine".to_owned(),                                404, "UNSUPPORTED"),
        ("/v2/engine/blobs/../../index.json".to_owned(),         404, "UNSUPPORTED"),
    ];
    for (path, status, code) in cases {
        let refusal = refusal_of(answer(&layout, true, &path));
        assert_eq!(
            (refusal.status(), refusal.to_json()["errors"][0]["code"].as_str()),
            (status, Some(code)),
            "{path}"
        );
    }
    let write = refusal_of(answer(&layout, false, &format!("/v2/engine/manifests/{}", engine.digest)));
    assert_eq!((write.status(), write), (405, Refusal::ReadOnly));
}

#[test]
fn an_empty_folder_is_an_empty_registry() {
    let folder = tempfile::tempdir().unwrap();
    let layout = Layout::at(folder.path().join("registry"));
    assert_eq!(json_of(answer(&layout, true, "/v2/_catalog")), json!({ "repositories": [] }));
}
