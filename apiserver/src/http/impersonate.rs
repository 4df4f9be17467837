//! Lets an admin act as somebody else: what `kubectl --as` asks for.
//!
//! The one invariant: nobody gains rights by it, as only those who have them all may ask.

use std::sync::Arc;

use http::HeaderMap;

use crate::auth::{Identity, Role};
use crate::error::{ApiError, Reason};

/// What all its headers begin with; a uid and other attributes count for nothing here.
const ANY: &str = "impersonate-";
const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";

/// The one the headers name, or the one who asks if they name nobody.
pub(super) fn instead_of(asking: Arc<Identity>, headers: &HeaderMap) -> Result<Arc<Identity>, ApiError> {
    let named = |header: &str| headers.get_all(header).iter().filter_map(|value| value.to_str().ok());
    let Some(user) = named(USER).next() else {
        if !headers.keys().any(|name| name.as_str().starts_with(ANY)) {
            return Ok(asking);
        }
        let message = "requested to act as somebody else without impersonating a user name";
        return Err(ApiError::new(Reason::BadRequest, message));
    };
    if asking.role() != Role::Admin {
        let message = format!(
            "users {user:?} is forbidden: User {:?} cannot impersonate resource \"users\" in API group \"\" at the cluster scope",
            asking.user()
        );
        return Err(ApiError::new(Reason::Forbidden, message));
    }
    Ok(Arc::new(Identity::impersonated(user, &named(GROUP).collect::<Vec<_>>())))
}
