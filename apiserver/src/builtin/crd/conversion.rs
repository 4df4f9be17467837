//! Judges what a CustomResourceDefinition says of conversion between its versions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{is_established, text, texts};
use crate::{
    builtin::{
        client_config,
        faults::{forbidden, invalid, not_supported, required},
        names::dns1035_label,
    },
    error::Cause,
    hook::trusts_someone,
};

const CLIENT: &str = "spec.conversion.webhookClientConfig";
const REVIEWS: &str = "spec.conversion.conversionReviewVersions";
const BUNDLE: &str = "/spec/conversion/webhook/clientConfig/caBundle";
const UNDERSTOOD: [&str; 2] = ["v1", "v1beta1"];

pub(super) fn conversion(crd: &Value, old: Option<&Value>, faults: &mut Vec<Cause>) {
    let Some(conversion) = crd.pointer("/spec/conversion").filter(|conversion| !conversion.is_null()) else {
        return;
    };
    let strategy = text(conversion, "/strategy");
    if strategy != "None" && crd.pointer("/spec/preserveUnknownFields") == Some(&json!(true)) {
        let detail = "must be None if spec.preserveUnknownFields is true";
        faults.push(invalid("spec.conversion.strategy", strategy, detail));
    }
    match strategy {
        "None" | "Webhook" => {}
        "" => faults.push(required("spec.conversion.strategy", "")),
        other => faults.push(not_supported("spec.conversion.strategy", other, &["None", "Webhook"])),
    }
    let client = conversion.pointer("/webhook/clientConfig").filter(|client| !client.is_null());
    let reviews = texts(conversion.pointer("/webhook/conversionReviewVersions"));
    if strategy == "Webhook" {
        match client {
            None => faults.push(required(CLIENT, "required when strategy is set to Webhook")),
            Some(client) => {
                client_config::validate(client, CLIENT, faults);
                bundle(crd, old, faults);
            }
        }
        let known = old.is_none_or(|old| {
            let before = texts(old.pointer("/spec/conversion/webhook/conversionReviewVersions"));
            before.is_empty() || is_understood(&before)
        });
        review_versions(&reviews, known, faults);
        return;
    }
    let detail = "should not be set when strategy is not set to Webhook";
    if client.is_some() {
        faults.push(forbidden(CLIENT, detail));
    }
    if !reviews.is_empty() {
        faults.push(forbidden(REVIEWS, detail));
    }
}

fn is_understood(reviews: &[String]) -> bool {
    reviews.iter().any(|version| UNDERSTOOD.contains(&version.as_str()))
}

fn review_versions(reviews: &[String], one_must_be_known: bool, faults: &mut Vec<Cause>) {
    if reviews.is_empty() {
        return faults.push(required(REVIEWS, ""));
    }
    let mut seen = BTreeSet::new();
    for (index, version) in reviews.iter().enumerate() {
        let at = format!("{REVIEWS}[{index}]");
        if !seen.insert(version) {
            faults.push(invalid(at, version.as_str(), "duplicate version"));
            continue;
        }
        for wrong in dns1035_label(version) {
            faults.push(invalid(at.clone(), version.as_str(), &wrong));
        }
    }
    if one_must_be_known && !is_understood(reviews) {
        let detail = format!("must include at least one of {}", UNDERSTOOD.join(", "));
        faults.push(invalid(REVIEWS, json!(reviews), &detail));
    }
}

/// Certificates that cannot be used hold a new definition back; one that is in force must not get them.
fn bundle(crd: &Value, old: Option<&Value>, faults: &mut Vec<Cause>) {
    let in_force = old.filter(|old| is_established(old) && trusts_someone(text(old, BUNDLE)));
    if in_force.is_some() && !is_usable(crd) {
        let detail = "unable to load root certificates: unable to parse bytes as PEM block";
        faults.push(invalid(format!("{CLIENT}.caBundle"), text(crd, BUNDLE), detail));
    }
}

/// Whether the webhook of a definition, if it has one, can be trusted by the certificates given for it.
pub(super) fn is_usable(crd: &Value) -> bool {
    trusts_someone(text(crd, BUNDLE))
}
