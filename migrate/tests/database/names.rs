//! Rows for which a layout has no place.

use midflight_migrate::commit::CommitError;
use midflight_migrate::record::RowKey;
use midflight_migrate::store::{Layout, Note, StoreError};

use crate::world::{Kind, Open, new, old, put, worlds};

#[tokio::test]
async fn a_row_that_would_not_read_back_is_refused_before_anything_is_written() {
    #[rustfmt::skip]
    let rows = [
        // table, topic, id, and where it has no place
        ("lport",     "t",  "x",   vec![Kind::Etcd]),
        ("lport",     "a}", "x",   vec![Kind::Etcd, Kind::Redis]),
        ("lport",     "",   "",    vec![Kind::Etcd, Kind::Redis]),
        ("a/b",       "",   "x",   vec![Kind::Etcd]),
        ("a.b",       "",   "x",   vec![Kind::Redis]),
        ("midflight", "",   "x",   vec![Kind::Etcd]),
        ("lport",     "",   "a}b", vec![]),
        ("lport",     "",   "a/b", vec![]),
    ];
    for world in worlds() {
        let open = Open::holding(&world, &old(&world)).await;
        for (table, topic, id, nowhere) in &rows {
            let note = open.store.note(Note::Run).await.unwrap();
            let mut after = new(&world);
            put(&mut after, table, RowKey::new(topic, id), "{}");
            let what = format!("{world:?}: {table} {id:?} of topic {topic:?}");
            if world.layout == Layout::Dragonflow && nowhere.contains(&world.kind) {
                let error = open.apply(&after).await.unwrap_err();
                assert!(
                    matches!(error, CommitError::Store(StoreError::Unnameable { .. })),
                    "{what}: {error}"
                );
                assert_eq!(open.store.note(Note::Run).await.unwrap(), note, "{what}");
            } else {
                open.apply(&after).await.unwrap();
                assert_eq!(open.rows().await, after, "{what}");
                open.session().rollback().await.unwrap();
            }
            assert_eq!(open.rows().await, old(&world), "{what}");
        }
    }
}
