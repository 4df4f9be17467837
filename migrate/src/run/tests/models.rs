//! Changes that follow from the models alone.

use super::*;

const MODELS: &str = r#"
release = "pike"
[table.unique_key]
counter = true
[table.lport.fields]
id = { type = "string", required = true }
chassis = { type = "string" }
[table.lrouter.fields]
id = { type = "string", required = true }
"#;

#[tokio::test(flavor = "multi_thread")]
async fn models_change_by_themselves_or_are_refused_with_the_reason() {
    for layout in LAYOUTS {
        let sandbox = Sandbox::new(layout).await;
        let declare = |text: &str| {
            let path = sandbox.path("models.toml");
            std::fs::write(&path, text).unwrap();
            *sandbox.models.lock().unwrap() = Some(path);
        };
        declare(MODELS);
        sandbox.apply(&[]).await.unwrap();
        sandbox.open(&[]).await.finalize(&|_| {}).await.unwrap();
        assert!(matches!(sandbox.apply(&[]).await.unwrap(), Changed::Nothing { .. }));
        declare(&format!("# why\n{MODELS}\n\n"));
        assert!(
            matches!(sandbox.apply(&[]).await.unwrap(), Changed::Nothing { .. }),
            "a comment is no change"
        );

        let added = "chassis = { type = \"string\" }\nenabled = { type = \"bool\", default = true }";
        let added = MODELS.replace("chassis = { type = \"string\" }", added).replace("pike", "queens");
        declare(&added);
        let plan = sandbox.open(&[]).await.plan(&|_| {}).await.unwrap();
        assert_eq!(plan.automatic.len(), 2, "{:?}", plan.automatic);
        sandbox.apply(&[]).await.unwrap();
        let port = sandbox.rows().await.get(&Table::new("lport"), &RowKey::new("t", "p0")).unwrap().clone();
        assert_eq!(port, Bytes::from_static(br#"{"chassis":"c0","enabled":true,"id":"p0"}"#));
        sandbox.open(&[]).await.rollback(&|_| {}).await.unwrap();

        declare(&MODELS.replace("chassis = { type = \"string\" }", "").replace("pike", "rocky"));
        let gone = sandbox.refused(&[]).await;
        assert!(gone.contains("lport.chassis: the field is gone from the models"), "{gone}");
        assert!(gone.contains("--allow-violations"), "{gone}");
        declare(&MODELS.split("[table.lrouter").next().unwrap().replace("pike", "rocky"));
        let gone = sandbox.refused(&[]).await;
        assert!(gone.contains("lrouter: the table is gone from the models"), "{gone}");

        // The migration renames the field, but the models do not know the new name.
        declare(MODELS);
        let broken = sandbox.refused(&[&RENAME]).await;
        assert!(broken.contains("host: the model has no such field"), "{broken}");
    }
}

/// The first models of a database: nobody knows what was before them.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_models_fill_in_their_defaults() {
    let sandbox = Sandbox::new(Layout::Generation).await;
    let path = sandbox.path("first.toml");
    let text = "release = 'first'\n[table.lport.fields]\nid = { type = 'string' }\nchassis = { type = 'string' }\n\
                enabled = { type = 'bool', default = true }\n[table.lrouter.fields]\nid = { type = 'string' }\n\
                [table.unique_key]\ncounter = true\n";
    std::fs::write(&path, text).unwrap();
    *sandbox.models.lock().unwrap() = Some(path);
    let applied = sandbox.apply(&[]).await.unwrap();
    let Changed::Applied { automatic, .. } = applied else { panic!("{applied:?}") };
    assert!(automatic[0].starts_with("lport: the models of before are not known"), "{automatic:?}");
    let rows = sandbox.rows().await;
    let filled = rows.rows(&Table::new("lport")).all(|(_, value)| {
        let port: serde_json::Value = serde_json::from_slice(value).unwrap();
        port["enabled"] == serde_json::Value::Bool(true)
    });
    assert!(filled);
}
