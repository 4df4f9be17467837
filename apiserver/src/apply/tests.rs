//! Ownership as stories told step by step, each checked against a real
//! server, and as properties.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::element::Element;
use super::managed::Managed;
use super::set::FieldSet;
use super::*;

const VERSION: &str = "example.com/v1";

fn schema() -> Schema {
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
    let keyed = |keys: Value, required: Value, fields: Value| {
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys,
            "items": {"type": "object", "required": required, "properties": fields}})
    };
    Schema::compile(&json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "size": number, "name": text, "mode": {"type": "string", "default": "auto"},
            "labels": {"type": "object", "additionalProperties": text},
            "atom": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": number, "b": number}},
            "list": {"type": "array", "items": text},
            "set": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
            "kv": keyed(json!(["k"]), json!(["k"]), json!({"k": text, "v": number})),
            "ports": keyed(json!(["port", "proto"]), json!(["port"]),
                json!({"port": number, "proto": {"type": "string", "default": "TCP"}, "name": text})),
            "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        }},
        "status": {"type": "object", "properties": {"phase": text}},
    }}))
    .unwrap()
}

/// One object and everything that is done to it.
struct Story {
    schema: Schema,
    live: Option<Value>,
    clock: u32,
}

fn story() -> Story {
    Story { schema: schema(), live: None, clock: 0 }
}

impl Story {
    fn attempt(&mut self, manager: &str, spec: &Value, force: bool) -> Result<Value, ApplyError> {
        self.clock += 1;
        let config =
            json!({"apiVersion": VERSION, "kind": "Gadget", "metadata": {"name": "g"}, "spec": spec});
        let now = format!("2030-01-01T00:00:{:02}Z", self.clock);
        let writer =
            Writer { manager, subresource: "", api_version: VERSION, now: Some(&now), resets: RESETS_STATUS };
        let (live, schema, versions) = (self.live.as_ref(), &self.schema, &Versions::default());
        let mut object = apply(ApplyRequest { live, config: &config, writer, force, schema, versions })?;
        self.schema.default(&mut object);
        if let Some(live) = &self.live {
            keep_times(live, &mut object);
        }
        Ok(object)
    }

    fn applies(mut self, manager: &str, spec: &Value) -> Story {
        self.live = Some(self.attempt(manager, spec, false).unwrap());
        self
    }

    fn forces(mut self, manager: &str, spec: &Value) -> Story {
        self.live = Some(self.attempt(manager, spec, true).unwrap());
        self
    }

    fn updates(mut self, manager: &str, patch: &Value) -> Story {
        self.clock += 1;
        let base = json!({"apiVersion": VERSION, "kind": "Gadget", "metadata": {"name": "g"}});
        let mut new = crate::patch::merge_patch(self.live.as_ref().unwrap_or(&base), patch);
        self.schema.default(&mut new);
        let now = format!("2030-01-01T00:00:{:02}Z", self.clock);
        let writer =
            Writer { manager, subresource: "", api_version: VERSION, now: Some(&now), resets: RESETS_STATUS };
        let (live, schema, versions) = (self.live.as_ref(), &self.schema, &Versions::default());
        let request = TrackRequest { live, blank: json!({}), new: &new, writer, schema, versions };
        self.live = Some(track(request).unwrap());
        self
    }

    fn spec(&self) -> &Value {
        &self.live.as_ref().unwrap()["spec"]
    }

    /// Who owns what: `manager/Operation` with its fields.
    fn owners(&self) -> Value {
        let entries = self.live.as_ref().unwrap()["metadata"]["managedFields"].as_array();
        let pairs = entries.into_iter().flatten().map(|entry| {
            let name =
                format!("{}/{}", entry["manager"].as_str().unwrap(), entry["operation"].as_str().unwrap());
            (name, entry["fieldsV1"].clone())
        });
        pairs.collect()
    }
}

#[test]
fn what_is_applied_is_owned_in_the_form_kubernetes_writes() {
    let story = story().applies(
        "m",
        &json!({
            "size": 3, "labels": {"a": "1"}, "list": ["x"], "set": ["a"], "atom": {"a": 1},
            "ports": [{"port": 80}], "any": {"z": [1], "w": {"e": 1}},
        }),
    );
    assert_eq!(
        story.owners(),
        json!({"m/Apply": {"f:spec": {
            "f:size": {}, "f:labels": {"f:a": {}}, "f:list": {}, "f:set": {"v:\"a\"": {}}, "f:atom": {},
            "f:ports": {"k:{\"port\":80,\"proto\":\"TCP\"}": {".": {}, "f:port": {}}},
            "f:any": {"f:w": {".": {}, "f:e": {}}, "f:z": {}},
        }}})
    );
    let entry = &story.live.unwrap()["metadata"]["managedFields"][0];
    assert_eq!(entry["apiVersion"], VERSION);
    assert_eq!(entry["fieldsType"], "FieldsV1");
    assert_eq!(entry["time"], "2030-01-01T00:00:01Z");
}

#[test]
fn a_create_owns_also_the_containers_it_made() {
    let story = story().updates("c", &json!({"spec": {"size": 1, "labels": {"a": "1"}}}));
    assert_eq!(
        story.owners(),
        json!({"c/Update": {"f:spec": {
            ".": {}, "f:size": {}, "f:mode": {}, "f:labels": {".": {}, "f:a": {}},
        }}})
    );
}

#[test]
fn what_is_no_longer_applied_goes_unless_another_owns_it() {
    let alone = story().applies("m", &json!({"size": 3, "name": "a"})).applies("m", &json!({"size": 3}));
    assert_eq!(alone.spec(), &json!({"size": 3, "mode": "auto"}));

    let shared = story().applies("m1", &json!({"size": 3, "name": "a"})).applies("m2", &json!({"size": 3}));
    let shared = shared.applies("m1", &json!({"name": "a"}));
    assert_eq!(shared.spec(), &json!({"size": 3, "name": "a", "mode": "auto"}));
    let shared = shared.applies("m2", &json!({}));
    assert_eq!(shared.spec(), &json!({"name": "a", "mode": "auto"}));
}

#[test]
fn a_conflict_names_who_and_what() {
    let mut story = story().updates("kubectl-edit", &json!({"spec": {"size": 3, "labels": {"a": "1"}}}));
    let error = story.attempt("m", &json!({"size": 4}), false).unwrap_err();
    let message =
        r#"Apply failed with 1 conflict: conflict with "kubectl-edit" using example.com/v1: .spec.size"#;
    assert_eq!(error.to_string(), message);
    let status = ApiError::from(error).to_status();
    assert_eq!(status["code"], 409);
    assert_eq!(
        status["details"]["causes"],
        json!([{
            "reason": "FieldManagerConflict", "field": ".spec.size",
            "message": r#"conflict with "kubectl-edit" using example.com/v1"#,
        }])
    );

    let error = story.attempt("m", &json!({"size": 4, "labels": {"a": "x"}}), false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"kubectl-edit\" using example.com/v1:\n\
         - .spec.size\n- .spec.labels.a"
    );
    let story = story.forces("m", &json!({"size": 4, "labels": {"a": "x"}}));
    assert_eq!(story.spec()["size"], 4);
    assert_eq!(
        story.owners()["kubectl-edit/Update"],
        json!({"f:spec": {".": {}, "f:mode": {}, "f:labels": {}}})
    );
}

#[test]
fn an_update_takes_what_it_changes() {
    let story = story()
        .applies("m", &json!({"size": 3, "set": ["a", "b"], "kv": [{"k": "a", "v": 1}, {"k": "b"}]}))
        .updates("e", &json!({"spec": {"size": 7, "set": ["b", "c"], "kv": [{"k": "a", "v": 5}]}}));
    assert_eq!(
        story.owners(),
        json!({
            "m/Apply": {"f:spec": {"f:set": {"v:\"b\"": {}}, "f:kv": {"k:{\"k\":\"a\"}": {".": {}, "f:k": {}}}}},
            "e/Update": {"f:spec": {"f:size": {}, "f:set": {"v:\"c\"": {}}, "f:kv": {"k:{\"k\":\"a\"}": {"f:v": {}}}}},
        })
    );
}

#[test]
fn keyed_lists_keep_their_order_except_where_the_configuration_has_another() {
    let story = story()
        .applies("m1", &json!({"set": ["a", "b", "c"]}))
        .applies("m2", &json!({"set": ["d", "c", "a"]}));
    assert_eq!(story.spec()["set"], json!(["b", "d", "c", "a"]));
}

#[test]
fn atomic_values_change_hands_whole() {
    let mut story = story().applies("m1", &json!({"atom": {"a": 1}, "list": ["a"]}));
    let error = story.attempt("m2", &json!({"atom": {"b": 1}, "list": ["a", "b"]}), false).unwrap_err();
    assert!(matches!(&error, ApplyError::Conflicts(conflicts) if conflicts.len() == 2), "{error}");
    let story = story.forces("m2", &json!({"atom": {"b": 1}, "list": ["b"]}));
    assert_eq!(story.spec(), &json!({"atom": {"b": 1}, "list": ["b"], "mode": "auto"}));
    assert_eq!(story.owners(), json!({"m2/Apply": {"f:spec": {"f:atom": {}, "f:list": {}}}}));
}

#[test]
fn applying_the_same_again_changes_nothing_not_even_a_time() {
    let first = story().applies("m", &json!({"size": 3, "set": ["a"]}));
    let before = first.live.clone();
    let second = first.applies("m", &json!({"size": 3, "set": ["a"]}));
    assert_eq!(second.live, before);
}

#[test]
fn ownership_can_be_reset_and_starts_again_with_the_first_apply() {
    let story = story().updates("c", &json!({"spec": {"size": 1}}));
    let story = story.updates("c", &json!({"metadata": {"managedFields": [{}]}}));
    assert_eq!(story.owners(), json!({}));
    let story = story.updates("d", &json!({"spec": {"size": 2}}));
    assert_eq!(story.owners(), json!({}), "nobody is tracked before the first apply");
    let story = story.applies("m", &json!({"size": 2, "name": "x"}));
    assert_eq!(
        story.owners(),
        json!({
            "m/Apply": {"f:spec": {"f:size": {}, "f:name": {}}},
            "before-first-apply/Update": {"f:spec": {".": {}, "f:size": {}, "f:mode": {}}},
        })
    );
}

#[test]
fn what_an_endpoint_does_not_write_cannot_be_owned_through_it() {
    let story = story().updates("c", &json!({"spec": {"size": 1}, "status": {"phase": "x"}}));
    assert_eq!(story.owners(), json!({"c/Update": {"f:spec": {".": {}, "f:size": {}, "f:mode": {}}}}));
    let mut new = story.live.clone().unwrap();
    new["status"] = json!({"phase": "y"});
    new["metadata"]["labels"] = json!({"a": "b"});
    let writer = Writer {
        manager: "s",
        subresource: "status",
        api_version: VERSION,
        now: Some("2030-01-01T00:01:00Z"),
        resets: RESETS_ALL_BUT_STATUS,
    };
    let tracked = track(TrackRequest {
        live: story.live.as_ref(),
        blank: json!({}),
        new: &new,
        writer,
        schema: &story.schema,
        versions: &Versions::default(),
    })
    .unwrap();
    let entry = &tracked["metadata"]["managedFields"][1];
    assert_eq!(entry["subresource"], "status");
    assert_eq!(entry["fieldsV1"], json!({"f:status": {"f:phase": {}}}));
}

#[test]
fn a_configuration_that_does_not_fit_is_refused() {
    #[rustfmt::skip]
    let cases = [
        (json!({"siz": 3}),                         ".spec.siz: field not declared in schema"),
        (json!({"size": "x"}),                      ".spec.size: expected numeric (int or float), got string"),
        (json!({"name": 5}),                        ".spec.name: expected string, got &value.valueUnstructured{Value:5}"),
        (json!({"set": ["a", "a"]}),                r#".spec.set: duplicate entries for key [="a"]"#),
        (json!({"kv": [{"k": "a"}, {"k": "a"}]}),   r#".spec.kv: duplicate entries for key [k="a"]"#),
        (json!({"labels": []}),                     ".spec.labels: expected map, got &{[]}"),
    ];
    for (spec, expected) in cases {
        let error = story().attempt("m", &spec, false).unwrap_err();
        let prefix = "failed to create typed patch object (/g; example.com/v1, Kind=Gadget): ";
        assert_eq!(error.to_string(), format!("{prefix}{expected}"));
    }
}

#[test]
fn the_oldest_updates_are_merged_when_there_are_too_many() {
    let start = story().updates("u0", &json!({"spec": {"size": 0}}));
    let story = (1..13).fold(start, |story, n| {
        story.updates(&format!("u{n}"), &json!({"spec": {"labels": {(format!("k{n}")): "v"}}}))
    });
    let owners = story.owners();
    assert_eq!(owners.as_object().unwrap().len(), 10);
    assert!(owners.get("ancient-changes/Update").is_some());
    assert!(owners.get("u12/Update").is_some());
    assert!(owners.get("u0/Update").is_none());
}

#[test]
fn client_side_apply_hands_over_without_conflict() {
    let last =
        json!({"apiVersion": VERSION, "kind": "Gadget", "metadata": {"name": "g"}, "spec": {"size": 1}});
    let story = story().updates(
        "kubectl-client-side-apply",
        &json!({
            "metadata": {"annotations": {(LAST_APPLIED): last.to_string()}}, "spec": {"size": 1, "name": "n"},
        }),
    );
    let mut story = story.applies("kubectl", &json!({"size": 2}));
    assert_eq!(story.spec()["size"], 2);
    let annotation = &story.live.as_ref().unwrap()["metadata"]["annotations"][LAST_APPLIED];
    assert!(annotation.as_str().unwrap().contains(r#""size":2"#));
    assert!(
        story.attempt("kubectl", &json!({"size": 2, "name": "q"}), false).is_err(),
        "not what it applied"
    );
}

/// Configurations over a few fields of every shape.
fn config() -> impl Strategy<Value = Value> {
    let items = prop::sample::subsequence(vec!["a", "b", "c", "d"], 0..4).prop_shuffle();
    let keyed =
        items.clone().prop_map(|keys| keys.iter().map(|k| json!({"k": k, "v": 1})).collect::<Value>());
    let labels = prop::collection::btree_map("[a-c]", "[x-z]", 0..3);
    let any = prop_oneof![Just(json!({"x": {"y": 1}})), Just(json!({"x": 2, "l": [1]})), Just(json!({}))];
    (
        prop::option::of(0..3i64),
        prop::option::of(items),
        prop::option::of(keyed),
        prop::option::of(labels),
        prop::option::of(any),
    )
        .prop_map(|(size, set, kv, labels, any)| {
            let fields = [
                ("size", size.map(|v| json!(v))),
                ("set", set.map(|v| json!(v))),
                ("kv", kv),
                ("labels", labels.map(|v| json!(v))),
                ("any", any),
            ];
            fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
        })
}

/// Whether every path of a set leads to something in the object.
fn exists(set: &FieldSet, value: &Value) -> bool {
    set.paths_with_elements().iter().all(|path| {
        path.iter()
            .try_fold(value, |value, element| match element {
                Element::Field(name) => value.get(name),
                Element::Value(item) => value.as_array()?.iter().find(|other| *other == item),
                Element::Key(keys) => value.as_array()?.iter().find(|item| {
                    keys.iter().all(|(name, key)| item.get(name).is_none_or(|other| other == key))
                }),
                Element::Index(_) => None,
            })
            .is_some()
    })
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once(first in config(), second in config()) {
        let story = story().applies("m1", &first).forces("m2", &second);
        let before = story.live.clone();
        prop_assert_eq!(story.applies("m2", &second).live, before);
    }

    #[test]
    fn every_owned_field_exists(steps in prop::collection::vec((0..3usize, any::<bool>(), config()), 1..6)) {
        let story = steps.into_iter().fold(story(), |story, (who, update, spec)| {
            let manager = ["m1", "m2", "m3"][who];
            if update { story.updates(manager, &json!({"spec": spec})) } else { story.forces(manager, &spec) }
        });
        let live = story.live.unwrap();
        for owned in Managed::decode(&live).unwrap().entries.values() {
            prop_assert!(exists(&owned.fields, &live), "{:?} in {}", owned.fields.paths(), live);
        }
    }

    #[test]
    fn managers_of_different_fields_may_come_in_any_order(size in 0..5i64, label in "[a-c]", item in "[a-c]") {
        let (a, b) = (json!({"size": size, "labels": {("x".to_owned() + &label): "1"}}), json!({"name": "n", "set": [item]}));
        let one = story().applies("a", &a).applies("b", &b);
        let other = story().applies("b", &b).applies("a", &a);
        prop_assert_eq!(one.spec(), other.spec());
        prop_assert_eq!(one.owners(), other.owners());
    }

    #[test]
    fn field_sets_read_back_as_they_were_written(spec in config()) {
        let fields = compare::fields_of(&json!({"spec": spec}), Type::Object(schema().root()));
        prop_assert_eq!(FieldSet::from_fields(&fields.to_fields()), Ok(fields));
    }
}
