//! A user with groups, as `kubectl auth whoami` shows it.

use serde::{Deserialize, Serialize};

const MASTERS: &str = "system:masters";
const VIEWERS: &str = "system:viewers";
const NODES: &str = "system:nodes";
const ANONYMOUS: &str = "system:anonymous";
const NODE_USER: &str = "system:node:";

/// Who a request comes from. The role follows from user and groups alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub(crate) user: String,
    pub(crate) groups: Vec<String>,
}

/// What an identity amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role<'a> {
    Admin,
    Viewer,
    Node(&'a str),
    Nobody,
}

impl Identity {
    /// May do everything.
    pub fn admin(user: &str) -> Self {
        Identity::with_groups(user, &[MASTERS])
    }

    /// May read everything but secrets.
    pub fn viewer(user: &str) -> Self {
        Identity::with_groups(user, &[VIEWERS])
    }

    /// The agent of one node.
    pub fn node(name: &str) -> Self {
        Identity::with_groups(&format!("{NODE_USER}{name}"), &[NODES])
    }

    /// A request that carried no token.
    pub(crate) fn anonymous() -> Self {
        Identity { user: ANONYMOUS.into(), groups: vec!["system:unauthenticated".into()] }
    }

    /// Whoever an admin wants to act as.
    pub(crate) fn impersonated(user: &str, groups: &[&str]) -> Self {
        match user {
            ANONYMOUS => Identity::anonymous(),
            user => Identity::with_groups(user, groups),
        }
    }

    fn with_groups(user: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().copied().chain(["system:authenticated"]).map(str::to_owned).collect();
        Identity { user: user.into(), groups }
    }

    pub fn user(&self) -> &str {
        &self.user
    }

    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    pub(crate) fn role(&self) -> Role<'_> {
        let in_group = |name: &str| self.groups.iter().any(|group| group == name);
        if in_group(MASTERS) {
            return Role::Admin;
        }
        if in_group(VIEWERS) {
            return Role::Viewer;
        }
        match self.user.strip_prefix(NODE_USER) {
            Some(node) if in_group(NODES) => Role::Node(node),
            _ => Role::Nobody,
        }
    }
}
