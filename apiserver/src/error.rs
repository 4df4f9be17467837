//! The one error a request can end in: a Kubernetes `Status`, ready to be sent.
//!
//! Reasons, codes and message shapes are those of the real server, because
//! kubectl and kube-rs branch on them.

use serde_json::{Map, Value, json};

/// Why a request failed, in the words of Kubernetes. The variants are the
/// values of `Status.reason`; each has one HTTP code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    AlreadyExists,
    Conflict,
    Gone,
    Expired,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    Invalid,
    TooManyRequests,
    InternalError,
    /// A failure of which the real server names no reason.
    Unknown,
    /// A webhook's refusal, which names no reason.
    Denied,
    ServiceUnavailable,
    Timeout,
}

impl Reason {
    pub fn code(self) -> u16 {
        match self {
            Self::BadRequest | Self::Denied => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Gone | Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            Self::InternalError | Self::Unknown => 500,
            Self::ServiceUnavailable => 503,
            Self::Timeout => 504,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::BadRequest => "BadRequest",
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Gone => "Gone",
            Self::Expired => "Expired",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::Invalid => "Invalid",
            Self::TooManyRequests => "TooManyRequests",
            Self::InternalError => "InternalError",
            Self::Unknown | Self::Denied => "",
            Self::ServiceUnavailable => "ServiceUnavailable",
            Self::Timeout => "Timeout",
        }
    }
}

/// One entry of `Status.details.causes`: what is wrong with which field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueInvalid`, `FieldValueRequired`, `FieldManagerConflict`, ...
    pub reason: &'static str,
    pub message: String,
    pub field: String,
}

/// What the failed request spoke of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    pub group: String,
    /// The plural for most errors, the kind for `Invalid`, as the real server has it.
    pub kind: String,
    pub name: String,
    pub uid: String,
}

/// A request that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub reason: Reason,
    pub message: String,
    pub subject: Option<Box<Subject>>,
    pub causes: Vec<Cause>,
    /// Seconds after which the client should try again.
    pub retry_after: Option<u32>,
}

impl ApiError {
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        ApiError { reason, message: message.into(), subject: None, causes: Vec::new(), retry_after: None }
    }

    pub fn about(mut self, subject: Subject) -> Self {
        self.subject = Some(Box::new(subject));
        self
    }

    pub fn because(mut self, causes: Vec<Cause>) -> Self {
        self.causes = causes;
        self
    }

    /// The body to send: `kind: Status`.
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason.as_str(), "code": self.reason.code(),
        });
        if self.reason.as_str().is_empty()
            && let Some(status) = status.as_object_mut()
        {
            status.remove("reason");
        }
        let details = self.details();
        if details.as_object().is_some_and(|map| !map.is_empty()) {
            status["details"] = details;
        }
        status
    }

    fn details(&self) -> Value {
        let mut details = json!({});
        if let Some(subject) = &self.subject {
            for (field, value) in [
                ("name", &subject.name),
                ("group", &subject.group),
                ("kind", &subject.kind),
                ("uid", &subject.uid),
            ] {
                if !value.is_empty() {
                    details[field] = json!(value);
                }
            }
        }
        if !self.causes.is_empty() {
            let cause = |c: &Cause| {
                let all = [("reason", c.reason), ("message", &c.message), ("field", &c.field)];
                let given = all.into_iter().filter(|(_, text)| !text.is_empty());
                given.map(|(name, text)| (name.to_owned(), Value::from(text))).collect::<Map<_, _>>()
            };
            details["causes"] = self.causes.iter().map(|one| Value::Object(cause(one))).collect();
        }
        if let Some(seconds) = self.retry_after {
            details["retryAfterSeconds"] = json!(seconds);
        }
        details
    }
}
