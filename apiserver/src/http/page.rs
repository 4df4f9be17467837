//! The token with which a client asks for the next page of a list.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::error::{ApiError, Reason};
use crate::store::Version;

/// The version that is listed, and the last object of the page before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) version: Version,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

#[derive(Serialize, Deserialize)]
struct Written {
    rv: u64,
    ns: Option<String>,
    after: String,
}

impl Token {
    pub(crate) fn encode(self) -> String {
        let written = Written { rv: self.version.get(), ns: self.namespace, after: self.name };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&written).expect("plain fields"))
    }

    pub(crate) fn decode(text: &str) -> Result<Token, ApiError> {
        let refused = |reason: &str| {
            let message = format!("invalid continue token: continue key is not valid: {reason}");
            ApiError::new(Reason::BadRequest, message)
        };
        let bytes =
            URL_SAFE_NO_PAD.decode(text).map_err(|_| refused("illegal base64 data at input byte 0"))?;
        let Written { rv, ns, after } =
            serde_json::from_slice(&bytes).map_err(|_| refused("it was not made by this server"))?;
        Ok(Token { version: Version::new(rv), namespace: ns, name: after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_tokens_are_taken() {
        let token = Token { version: Version::new(7), namespace: Some("a".into()), name: "b".into() };
        assert_eq!(Token::decode(&token.clone().encode()), Ok(token));
        for foreign in ["", "x", "e30", "%%%"] {
            assert_eq!(Token::decode(foreign).unwrap_err().reason, Reason::BadRequest, "{foreign}");
        }
    }
}
