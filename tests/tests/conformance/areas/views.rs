//! The same objects as a Table or as metadata alone.

use serde_json::json;

use crate::fixtures::{beacon, beacons, config_map, core, gadget, gadget_with, gadgets};
use crate::scenario::{Scenario, delete, get, merge, post, scenario, steps};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

pub(crate) fn scenarios() -> Vec<Scenario> {
    vec![
        scenario("a table has the columns of the definition", steps![
            post(gadgets(""), gadget("a", json!({"size": 3, "color": "red", "ports": [{"port": 1}, {"port": 2}]}))),
            merge(gadgets("a/status"), json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}})),
            post(gadgets(""), gadget("b", json!({}))),
            get(gadgets("")).accept(TABLE),
            get(gadgets("a")).accept(TABLE),
        ]),
        scenario("an empty table", steps![get(gadgets("")).accept(TABLE)]),
        scenario("a table with whole objects or none", steps![
            post(gadgets(""), gadget("a", json!({}))),
            get(gadgets("?includeObject=None")).accept(TABLE).focus(&["/rows"]),
            get(gadgets("?includeObject=Object")).accept(TABLE).focus(&["/rows"]),
            get(gadgets("?includeObject=Half")).accept(TABLE).is(400),
        ]),
        scenario("a table of a kind without columns", steps![
            post(beacons(""), beacon("{ns}", json!({}))),
            get(beacons("{ns}")).accept(TABLE),
            delete(beacons("{ns}")),
        ]),
        scenario("a page as a table", steps![
            post(gadgets(""), gadget("a", json!({}))),
            post(gadgets(""), gadget("b", json!({}))),
            get(gadgets("?limit=1")).accept(TABLE),
        ]),
        scenario("an error is no table", steps![get(gadgets("none")).accept(TABLE).is(404)]),
        scenario("what a write answers may be a table", steps![
            post(gadgets(""), gadget("a", json!({"size": 3}))).accept(TABLE),
        ]),
        scenario("config maps as a table", steps![
            post(core("configmaps", ""), config_map("c1", json!({"a": "1", "b": "2"}))),
            get(core("configmaps", "c1")).accept(TABLE).focus(&["/columnDefinitions/0/name", "/columnDefinitions/1/name", "/rows/0/cells/0", "/rows/0/cells/1"]),
        ]),
        scenario("metadata of one object", steps![
            post(gadgets(""), gadget_with(json!({"name": "a", "labels": {"x": "y"}}), json!({"size": 3}))),
            get(gadgets("a")).accept(PARTIAL),
            get(core("configmaps", "none")).accept(PARTIAL).is(404),
        ]),
        scenario("metadata of a list", steps![
            post(gadgets(""), gadget("a", json!({}))),
            get(gadgets("")).accept(PARTIAL_LIST),
        ]),
        scenario("metadata of a patched object", steps![
            post(gadgets(""), gadget("a", json!({}))),
            merge(gadgets("a"), json!({"metadata": {"labels": {"x": "y"}}})).accept(PARTIAL),
        ]),
        scenario("a view that is not there", steps![
            post(gadgets(""), gadget("a", json!({}))),
            get(gadgets("a")).accept("application/json;as=Chart;v=v1;g=meta.k8s.io").is(406),
            get(gadgets("a")).accept("application/json;as=Chart;v=v1;g=meta.k8s.io,application/json").focus(&["/kind"]),
            get(gadgets("a")).accept("*/*").focus(&["/kind"]),
            get(gadgets("a")).accept("application/*").focus(&["/kind"]),
        ]),
    ]
}
