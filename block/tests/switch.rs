//! Real processes: a volume under load moves from engine to engine, and nothing
//! that was acknowledged is lost.

use std::path::PathBuf;

use midflight_block::tour::{Layout, switch_under_load};

fn layout(folder: &tempfile::TempDir) -> Layout {
    Layout {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_midflight-block")),
        folder: folder.path().to_owned(),
        volume: "vol-1".into(),
        size: 8 << 20,
        replicas: 3,
    }
}

#[test]
fn nothing_is_lost_over_switches_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let told = switch_under_load(layout(&folder), 10).unwrap();
    assert_eq!(told.client.complaints, Vec::<String>::new());
    assert_eq!(told.client.errors, 0);
    assert!(told.replicas_equal);
    assert_eq!(told.switches.len(), 10);
    assert!(told.client.writes > 100, "{told:?}");
    assert!(told.switches.windows(2).all(|pair| pair[0].epoch < pair[1].epoch));
}
