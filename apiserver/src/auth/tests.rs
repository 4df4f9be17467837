//! Tables: who may do what, and that only hashes are kept.

use serde_json::json;

use super::identity::Identity;
use super::rules::{Authorizer, Decision, NodeRule, Reach};
use super::tokens::Tokens;
use super::{Attributes, review};
use crate::builtin::builtin_kinds;

fn wants<'a>(verb: &'a str, resource: &'a str, name: Option<&'a str>) -> Attributes<'a> {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, sub)) => (resource, Some(sub)),
        None => (resource, None),
    };
    let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
    Attributes { verb, group, resource, subresource, namespace: Some("default"), name, only_node: None }
}

fn authorizer() -> Authorizer {
    let records = Reach::Naming(vec!["/spec/engine/node".into(), "/spec/members/*/node".into()]);
    Authorizer::new(vec![NodeRule::new("example.com", &["records"], &["get", "update"], records)])
}

#[test]
fn roles_may_do_what_their_table_says() {
    let (admin, viewer, node, nobody) =
        (Identity::admin("root"), Identity::viewer("eve"), Identity::node("n1"), Identity::anonymous());
    #[rustfmt::skip]
    let cases = [
        (&admin,  "delete", "namespaces",        Some("x"),  true),
        (&viewer, "get",    "pods",              Some("x"),  true),
        (&viewer, "watch",  "gadgets.acme.org",  None,       true),
        (&viewer, "get",    "secrets",           Some("x"),  false),
        (&viewer, "create", "pods",              None,       false),
        (&viewer, "patch",  "pods/status",       Some("x"),  false),
        (&node,   "patch",  "nodes/status",      Some("n1"), true),
        (&node,   "patch",  "nodes/status",      Some("n2"), false),
        (&node,   "update", "leases.coordination.k8s.io", Some("n1"), true),
        (&node,   "update", "leases.coordination.k8s.io", Some("n2"), false),
        (&node,   "list",   "pods",              None,       false),
        (&node,   "get",    "configmaps",        Some("c"),  true),
        (&node,   "list",   "secrets",           None,       false),
        (&node,   "create", "events.events.k8s.io", None,    true),
        (&node,   "delete", "records.example.com", Some("r"), false),
        (&nobody, "get",    "pods",              Some("x"),  false),
        (&nobody, "create", "selfsubjectreviews.authentication.k8s.io", None, false),
        (&viewer, "create", "selfsubjectreviews.authentication.k8s.io", None, true),
    ];
    for (identity, verb, resource, name, allowed) in cases {
        let decision = authorizer().decide(identity, &wants(verb, resource, name));
        let expected = if allowed { Decision::Allow } else { Decision::Deny };
        assert_eq!(decision, expected, "{} {verb} {resource} {name:?}", identity.user());
    }
}

#[test]
fn a_node_lists_only_the_pods_bound_to_it() {
    let node = Identity::node("n1");
    for (selected, expected) in
        [(Some("n1"), Decision::Allow), (Some("n2"), Decision::Deny), (None, Decision::Deny)]
    {
        let list = Attributes { only_node: selected, ..wants("list", "pods", None) };
        assert_eq!(authorizer().decide(&node, &list), expected, "{selected:?}");
    }
}

#[test]
fn a_node_changes_only_objects_that_name_it() {
    let node = Identity::node("n1");
    let decide = |attributes| match authorizer().decide(&node, &attributes) {
        Decision::AllowIf(check) => check,
        other => panic!("expected a check, got {other:?}"),
    };
    let record = decide(wants("update", "records.example.com", Some("r")));
    assert!(record.passes(&json!({"spec": {"engine": {"node": "n1"}}})));
    assert!(record.passes(&json!({"spec": {"members": [{"node": "n2"}, {"node": "n1"}]}})));
    assert!(!record.passes(&json!({"spec": {"members": [{"node": "n2"}], "engine": {"node": "n3"}}})));

    let pod = decide(wants("patch", "pods/status", Some("p")));
    assert!(pod.passes(&json!({"spec": {"nodeName": "n1"}})));
    assert!(!pod.passes(&json!({"spec": {}})));

    let own_node = decide(wants("create", "nodes", None));
    assert!(own_node.passes(&json!({"metadata": {"name": "n1"}})));
    assert!(!own_node.passes(&json!({"metadata": {"name": "n2"}})));
}

#[test]
fn refusals_read_like_the_real_ones() {
    let pod = wants("get", "pods", Some("p"));
    assert_eq!(
        pod.forbidden("eve").message,
        r#"pods "p" is forbidden: User "eve" cannot get resource "pods" in API group "" in the namespace "default""#
    );
    let cluster = Attributes { namespace: None, ..wants("list", "gadgets.acme.org", None) };
    assert_eq!(
        cluster.forbidden("eve").message,
        r#"gadgets.acme.org is forbidden: User "eve" cannot list resource "gadgets" in API group "acme.org" at the cluster scope"#
    );
}

/// The names in a listed rule that speaks of a resource.
fn speaks_of(rule: &NodeRule, resource: &str) -> bool {
    rule.resources.iter().any(|name| name == resource || name == "*")
}

#[test]
fn what_is_listed_for_a_viewer_is_what_it_may_do() {
    let (authorizer, eve) = (authorizer(), Identity::viewer("eve"));
    let kinds = builtin_kinds();
    let rules = authorizer.rules_of(&eve, kinds.iter());
    for kind in &kinds {
        let (group, resource) = (&*kind.resource.group, &*kind.resource.plural);
        let listed =
            rules.iter().any(|rule| (rule.group == group || rule.group == "*") && speaks_of(rule, resource));
        let wanted = Attributes { group, ..wants("get", resource, None) };
        let may = authorizer.decide(&eve, &wanted) == Decision::Allow;
        assert_eq!(listed, may, "{group}/{resource}");
    }
    assert!(rules.iter().any(|rule| rule.group.is_empty() && speaks_of(rule, "pods/log")));
    assert!(rules.iter().all(|rule| rule.verbs == ["get", "list", "watch"]));
}

#[test]
fn tokens_survive_a_restart_as_hashes_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens.json");
    let tokens = Tokens::open(path.clone()).unwrap();
    let secret = tokens.issue(Identity::viewer("eve")).unwrap();
    let other = tokens.issue(Identity::admin("root")).unwrap();

    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(&secret) && !text.contains(&other));

    let reopened = Tokens::open(path.clone()).unwrap();
    assert_eq!(reopened.identify(&secret).as_deref(), Some(&Identity::viewer("eve")));
    assert_eq!(reopened.identify("guess"), None);
    reopened.revoke("eve").unwrap();
    assert_eq!(reopened.identify(&secret), None);
    assert!(reopened.identify(&other).is_some());

    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn answers_who_am_i_and_may_i() {
    let eve = Identity::viewer("eve");
    let ask = |plural: &str, question| {
        let group =
            if plural == "selfsubjectreviews" { "authentication.k8s.io" } else { "authorization.k8s.io" };
        review(&authorizer(), &eve, (group, plural), question, [].into_iter()).unwrap()
    };
    let me = ask("selfsubjectreviews", json!({})).unwrap();
    assert_eq!(me["status"]["userInfo"]["username"], "eve");

    let may = |verb| {
        let spec = json!({"spec": {"resourceAttributes": {"verb": verb, "resource": "pods", "namespace": "default"}}});
        ask("selfsubjectaccessreviews", spec).unwrap()["status"]["allowed"].clone()
    };
    assert_eq!(may("list"), json!(true));
    assert_eq!(may("delete"), json!(false));
    assert!(ask("selfsubjectaccessreviews", json!({"spec": {}})).is_err());
    assert!(review(&authorizer(), &eve, ("", "pods"), json!({}), [].into_iter()).is_none());
}
