//! Who may ask for which image, and the words of a refusal.

use midflight_api::longhorn::{DataEngine, DataLocality, EngineImageStatus, Robustness};

use super::super::admit::{Refusal, admit};
use super::super::facts::{Volume, World};
use super::super::reason::{Reason, Span};
use super::{NEW, OLD, attached, detached, image, world};

const OTHER: &str = "engine:other";
const LOST: &str = "midflight.local/engine:lost";

/// The new image is the default; a third one is known, too.
fn cluster(limit: usize) -> World {
    let mut world = world(limit);
    world.images.insert(OTHER.into(), image("three"));
    world
}

#[test]
fn every_guard_has_its_row() {
    let live = || attached("v", "node-1");
    let going = |volume: Volume| Volume { wanted: NEW.into(), ..volume };
    let not_default = || Err(Refusal::NotTheDefault { limit: 3, default: NEW.into() });
    #[rustfmt::skip]
    let cases = [
        ("the default, on",           3, live(),                                                        NEW,    Ok(())),
        ("another, on",               3, live(),                                                        OTHER,  not_default()),
        ("another, on, detached",     3, detached("v", "node-1"),                                       OTHER,  not_default()),
        ("another, on, DR",           3, Volume { standby: true, ..live() },                            OTHER,  not_default()),
        ("another, off",              0, live(),                                                        OTHER,  Ok(())),
        ("another, off, DR",          0, Volume { standby: true, ..live() },                            OTHER,  Ok(())),
        ("back, on",                  3, going(live()),                                                 OLD,    Ok(())),
        ("back, degraded",            3, going(Volume { robustness: Robustness::Degraded, ..live() }),  OLD,    Ok(())),
        ("the same",                  3, Volume { wanted: OTHER.into(), ..live() },                     OTHER,  Ok(())),
        ("nothing runs yet",          3, Volume { current: "".into(), ..live() },                       OTHER,  Ok(())),
        ("v2",                        0, Volume { engine: DataEngine::V2, ..live() },                   NEW,    Err(Refusal::DataEngineV2)),
        ("nobody knows it",           0, live(),                                                        LOST,   Err(Refusal::Unknown(LOST.into()))),
        ("degraded",                  0, Volume { robustness: Robustness::Degraded, ..live() },         NEW,    Err(Refusal::Unfit { reason: Reason::Degraded })),
        ("strict-local",              0, Volume { locality: DataLocality::StrictLocal, ..live() },      NEW,    Err(Refusal::Unfit { reason: Reason::StrictLocal })),
        ("strict-local, detached",    0, Volume { locality: DataLocality::StrictLocal, ..detached("v", "node-1") }, NEW, Ok(())),
        ("not where it is attached",  0, attached("v", "node-9"),                                       NEW,    Err(Refusal::Unfit { reason: Reason::NotOnNodes { nodes: vec!["node-9".into()] } })),
    ];
    for (case, limit, volume, image, expected) in cases {
        assert_eq!(admit(&volume, &image.into(), &cluster(limit)), expected, "{case}");
    }
}

#[test]
fn a_name_without_its_registry_is_refused_with_the_whole_one() {
    let young = Volume { current: "".into(), ..detached("v", "node-1") };
    for (limit, volume) in [(0, attached("v", "node-1")), (3, attached("v", "node-1")), (0, young)] {
        let refused = admit(&volume, &"engine:lost".into(), &cluster(limit)).unwrap_err().to_string();
        assert!(refused.contains("write midflight.local/engine:lost "), "{refused}");
    }
}

#[test]
fn images_that_cannot_serve_are_refused() {
    let with = |image: EngineImageStatus| {
        let mut world = cluster(0);
        world.images.insert(NEW.into(), image);
        world
    };
    let incompatible = with(EngineImageStatus { incompatible: true, ..image("two") });
    let refused = admit(&attached("v", "node-1"), &NEW.into(), &incompatible);
    assert!(matches!(&refused, Err(Refusal::Incompatible(misfit)) if misfit.image == NEW), "{refused:?}");
    let newer =
        with(EngineImageStatus { controller_api_version: 9, controller_api_min_version: 8, ..image("two") });
    let versions =
        Reason::ApiVersions { runs: Span { oldest: 3, newest: 5 }, takes: Span { oldest: 8, newest: 9 } };
    assert_eq!(
        admit(&attached("v", "node-1"), &NEW.into(), &newer),
        Err(Refusal::Unfit { reason: versions })
    );
    assert_eq!(admit(&detached("v", "node-1"), &NEW.into(), &newer), Ok(()));
    assert_eq!(admit(&attached("v", "node-1"), &NEW.into(), &with(image("one"))), Ok(()), "one commit");
    let unheard =
        with(EngineImageStatus { controller_api_version: 0, controller_api_min_version: 0, ..image("two") });
    for volume in [attached("v", "node-1"), detached("v", "node-1")] {
        let refused = admit(&volume, &NEW.into(), &unheard);
        assert_eq!(refused, Err(Refusal::Unfit { reason: Reason::VersionsUnknown }), "{:?}", volume.state);
    }
    let nowhere = admit(&attached("v", "node-1"), &NEW.into(), &with(EngineImageStatus::default()));
    assert!(matches!(nowhere, Err(Refusal::Unfit { reason: Reason::NotOnNodes { .. } })), "{nowhere:?}");
}
