//! The areas of the suite. What an area is about stands in the header of its file.
//!
//! Scenarios are tables, one request to a line.

#[rustfmt::skip]
mod apply;
#[rustfmt::skip]
mod auth;
#[rustfmt::skip]
mod builtins;
#[rustfmt::skip]
mod collect;
#[rustfmt::skip]
mod conversion;
#[rustfmt::skip]
mod crud;
#[rustfmt::skip]
mod definitions;
#[rustfmt::skip]
mod delete;
#[rustfmt::skip]
mod discovery;
#[rustfmt::skip]
mod dry_run;
#[rustfmt::skip]
mod events;
#[rustfmt::skip]
mod namespaces;
#[rustfmt::skip]
mod paging;
#[rustfmt::skip]
mod patch;
#[rustfmt::skip]
mod schema;
#[rustfmt::skip]
mod select;
#[rustfmt::skip]
mod subresources;
#[rustfmt::skip]
mod views;
#[rustfmt::skip]
mod watch;
#[rustfmt::skip]
mod webhooks;

use crate::scenario::Scenario;

pub(crate) fn all() -> Vec<(&'static str, Vec<Scenario>)> {
    vec![
        ("crud", crud::scenarios()),
        ("subresources", subresources::scenarios()),
        ("delete", delete::scenarios()),
        ("patch", patch::scenarios()),
        ("apply", apply::scenarios()),
        ("schema", schema::scenarios()),
        ("select", select::scenarios()),
        ("paging", paging::scenarios()),
        ("watch", watch::scenarios()),
        ("views", views::scenarios()),
        ("discovery", discovery::scenarios()),
        ("dry_run", dry_run::scenarios()),
        ("definitions", definitions::scenarios()),
        ("builtins", builtins::scenarios()),
        ("events", events::scenarios()),
        ("namespaces", namespaces::scenarios()),
        ("collect", collect::scenarios()),
        ("webhooks", webhooks::scenarios()),
        ("conversion", conversion::scenarios()),
        ("auth", auth::scenarios()),
    ]
}
