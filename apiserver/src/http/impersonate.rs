//! Lets an admin act as somebody else: what `kubectl --as` asks for.
//!
//! The one invariant: nobody gains rights by it, as only those who have them all may ask.

use std::sync::Arc;

use http::HeaderMap;

use crate::auth::{Identity, Role};
use crate::error::{ApiError, Reason};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";

/// The one the headers name, or the one who asks if they name nobody.
pub(super) fn instead_of(asking: Arc<Identity>, headers: &HeaderMap) -> Result<Arc<Identity>, ApiError> {
    let named = |header: &str| headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    let groups: Vec<&str> = named(GROUP).collect();
    let Some(user) = named(USER).next() else {
        if groups.is_empty() {
            return Ok(asking);
        }
        let message = "Internal error occurred: requested groups without impersonating a user";
        return Err(ApiError::new(Reason::InternalError, message));
    };
    if asking.role() != Role::Admin {
        let message = format!(
            "users {user:?} is forbidden: User {:?} cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
            asking.user()
        );
        return Err(ApiError::new(Reason::Forbidden, message));
    }
    Ok(Arc::new(Identity::impersonated(user, &groups)))
}
