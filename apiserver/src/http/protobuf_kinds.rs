//! The protobuf messages that are read, with their public field numbers.

/// Number, JSON name and type of each field.
pub(super) struct Message(pub(super) &'static [(u32, &'static str, Field)]);

pub(super) enum Field {
    Text,
    Bool,
    Integer,
    /// Seconds and nanoseconds.
    Time,
    Message(&'static Message),
    Texts,
    Messages(&'static Message),
    TextMap,
    BytesMap,
}

use Field::{Bool, BytesMap, Integer, Message as Inner, Messages, Text, TextMap, Texts, Time};

/// The message of a kind.
pub(super) fn message_of(kind: &str) -> Option<&'static Message> {
    match kind {
        "Namespace" => Some(&NAMESPACE),
        "ConfigMap" => Some(&CONFIG_MAP),
        "Secret" => Some(&SECRET),
        "ServiceAccount" => Some(&SERVICE_ACCOUNT),
        "Lease" => Some(&LEASE),
        "Event" => Some(&EVENT),
        "Binding" => Some(&BINDING),
        "DeleteOptions" => Some(&DELETE_OPTIONS),
        "SelfSubjectReview" => Some(&REVIEW),
        "SelfSubjectAccessReview" => Some(&ACCESS_REVIEW),
        "SelfSubjectRulesReview" => Some(&RULES_REVIEW),
        _ => None,
    }
}

#[rustfmt::skip]
static METADATA: Message = Message(&[
    (1, "name", Text), (2, "generateName", Text), (3, "namespace", Text), (5, "uid", Text),
    (6, "resourceVersion", Text), (7, "generation", Integer), (8, "creationTimestamp", Time),
    (9, "deletionTimestamp", Time), (10, "deletionGracePeriodSeconds", Integer), (11, "labels", TextMap),
    (12, "annotations", TextMap), (13, "ownerReferences", Messages(&OWNER)), (14, "finalizers", Texts),
]);
#[rustfmt::skip]
static OWNER: Message = Message(&[
    (1, "kind", Text), (3, "name", Text), (4, "uid", Text), (5, "apiVersion", Text),
    (6, "controller", Bool), (7, "blockOwnerDeletion", Bool),
]);
static NAMESPACE: Message =
    Message(&[(1, "metadata", Inner(&METADATA)), (2, "spec", Inner(&NAMESPACE_SPEC))]);
static NAMESPACE_SPEC: Message = Message(&[(1, "finalizers", Texts)]);
static CONFIG_MAP: Message = Message(&[
    (1, "metadata", Inner(&METADATA)),
    (2, "data", TextMap),
    (3, "binaryData", BytesMap),
    (4, "immutable", Bool),
]);
#[rustfmt::skip]
static SECRET: Message = Message(&[
    (1, "metadata", Inner(&METADATA)), (2, "data", BytesMap), (3, "type", Text), (4, "stringData", TextMap),
    (5, "immutable", Bool),
]);
static SERVICE_ACCOUNT: Message =
    Message(&[(1, "metadata", Inner(&METADATA)), (4, "automountServiceAccountToken", Bool)]);
static LEASE: Message = Message(&[(1, "metadata", Inner(&METADATA)), (2, "spec", Inner(&LEASE_SPEC))]);
#[rustfmt::skip]
static LEASE_SPEC: Message = Message(&[
    (1, "holderIdentity", Text), (2, "leaseDurationSeconds", Integer), (3, "acquireTime", Time),
    (4, "renewTime", Time), (5, "leaseTransitions", Integer), (6, "strategy", Text), (7, "preferredHolder", Text),
]);
#[rustfmt::skip]
static REFERENCE: Message = Message(&[
    (1, "kind", Text), (2, "namespace", Text), (3, "name", Text), (4, "uid", Text), (5, "apiVersion", Text),
    (6, "resourceVersion", Text), (7, "fieldPath", Text),
]);
#[rustfmt::skip]
static EVENT: Message = Message(&[
    (1, "metadata", Inner(&METADATA)), (2, "involvedObject", Inner(&REFERENCE)), (3, "reason", Text),
    (4, "message", Text), (5, "source", Inner(&EVENT_SOURCE)), (6, "firstTimestamp", Time),
    (7, "lastTimestamp", Time), (8, "count", Integer), (9, "type", Text), (10, "eventTime", Time),
    (11, "series", Inner(&EVENT_SERIES)), (12, "action", Text), (13, "related", Inner(&REFERENCE)),
    (14, "reportingComponent", Text), (15, "reportingInstance", Text),
]);
static EVENT_SOURCE: Message = Message(&[(1, "component", Text), (2, "host", Text)]);
static EVENT_SERIES: Message = Message(&[(1, "count", Integer), (2, "lastObservedTime", Time)]);
static BINDING: Message = Message(&[(1, "metadata", Inner(&METADATA)), (2, "target", Inner(&REFERENCE))]);
#[rustfmt::skip]
static DELETE_OPTIONS: Message = Message(&[
    (1, "gracePeriodSeconds", Integer), (2, "preconditions", Inner(&PRECONDITIONS)), (3, "orphanDependents", Bool),
    (4, "propagationPolicy", Text), (5, "dryRun", Texts),
]);
static PRECONDITIONS: Message = Message(&[(1, "uid", Text), (2, "resourceVersion", Text)]);
static REVIEW: Message = Message(&[(1, "metadata", Inner(&METADATA))]);
static ACCESS_REVIEW: Message =
    Message(&[(1, "metadata", Inner(&METADATA)), (2, "spec", Inner(&ACCESS_SPEC))]);
static ACCESS_SPEC: Message = Message(&[
    (1, "resourceAttributes", Inner(&RESOURCE)),
    (2, "nonResourceAttributes", Inner(&NON_RESOURCE)),
]);
#[rustfmt::skip]
static RESOURCE: Message = Message(&[
    (1, "namespace", Text), (2, "verb", Text), (3, "group", Text), (4, "version", Text), (5, "resource", Text),
    (6, "subresource", Text), (7, "name", Text),
]);
static NON_RESOURCE: Message = Message(&[(1, "path", Text), (2, "verb", Text)]);
static RULES_REVIEW: Message = Message(&[(1, "metadata", Inner(&METADATA)), (2, "spec", Inner(&RULES_SPEC))]);
static RULES_SPEC: Message = Message(&[(1, "namespace", Text)]);
