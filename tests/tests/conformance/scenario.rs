//! How a scenario is written down: a list of requests with the status each must get.
//!
//! A step says what is sent and which status comes back; what the body must be
//! stands in the golden file of the area, as the real server answered it.
//! `{ns}` in a path or body is the scenario's own namespace, and
//! `{saved:/json/pointer}` a value of an earlier answer.

use serde_json::Value;

/// One story, told to a server in a namespace of its own.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) steps: Vec<Step>,
}

pub(crate) fn scenario(name: &'static str, steps: Vec<Step>) -> Scenario {
    Scenario { name, steps }
}

pub(crate) enum Step {
    Call(Call),
    /// Opens a watch that later steps read.
    Watch {
        name: &'static str,
        call: Call,
    },
    /// Takes that many events from a watch. Bookmarks count only where asked for.
    Events {
        watch: &'static str,
        count: usize,
        bookmarks: bool,
    },
    /// The server must close the watch; what it still sends is recorded.
    Ends {
        watch: &'static str,
    },
}

/// Who sends a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Admin,
    Viewer,
    /// Without a token.
    Nobody,
    /// With a token that the server does not know.
    Stranger,
}

/// One request and what is expected of its answer.
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) path: String,
    pub(crate) content_type: Option<&'static str>,
    pub(crate) accept: Option<&'static str>,
    /// Headers besides those two.
    pub(crate) headers: Vec<(&'static str, &'static str)>,
    pub(crate) body: Option<Value>,
    pub(crate) status: u16,
    pub(crate) caller: Caller,
    /// Name under which later steps find this answer.
    pub(crate) save: Option<&'static str>,
    /// JSON pointers that alone are compared; all when empty.
    pub(crate) focus: Vec<&'static str>,
    /// JSON pointers that are not compared.
    pub(crate) without: Vec<&'static str>,
    /// Asked again until the status is right and, if given, the pointer has the value.
    pub(crate) until: Option<Option<(&'static str, Value)>>,
    /// The status of the embedded server where it answers in its own way, and why; then nothing else is compared.
    pub(crate) differs: Option<(u16, &'static str)>,
}

impl Call {
    fn new(method: &'static str, path: impl Into<String>, status: u16) -> Self {
        Call {
            method,
            path: path.into(),
            content_type: None,
            accept: None,
            headers: Vec::new(),
            body: None,
            status,
            caller: Caller::Admin,
            save: None,
            focus: Vec::new(),
            without: Vec::new(),
            until: None,
            differs: None,
        }
    }

    pub(crate) fn is(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn save(mut self, name: &'static str) -> Self {
        self.save = Some(name);
        self
    }

    pub(crate) fn by(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    pub(crate) fn accept(mut self, media_type: &'static str) -> Self {
        self.accept = Some(media_type);
        self
    }

    pub(crate) fn content_type(mut self, media_type: &'static str) -> Self {
        self.content_type = Some(media_type);
        self
    }

    /// One more header; the same may stand several times.
    pub(crate) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Only these parts of the body are compared.
    pub(crate) fn focus(mut self, pointers: &[&'static str]) -> Self {
        self.focus = pointers.to_vec();
        self
    }

    /// Only the status is compared.
    pub(crate) fn status_only(self) -> Self {
        self.focus(&["/kind"])
    }

    /// These parts of the body are not compared.
    pub(crate) fn without(mut self, pointers: &[&'static str]) -> Self {
        self.without = pointers.to_vec();
        self
    }

    /// Repeats the request until it gets its status.
    pub(crate) fn eventually(mut self) -> Self {
        self.until = Some(None);
        self
    }

    /// Repeats the request until the pointer has that value.
    pub(crate) fn until(mut self, pointer: &'static str, value: impl Into<Value>) -> Self {
        self.until = Some(Some((pointer, value.into())));
        self
    }

    /// The embedded server answers this in its own way, for that reason.
    pub(crate) fn embedded(mut self, status: u16, why: &'static str) -> Self {
        self.differs = Some((status, why));
        self
    }
}

impl From<Call> for Step {
    fn from(call: Call) -> Step {
        Step::Call(call)
    }
}

pub(crate) fn get(path: impl Into<String>) -> Call {
    Call::new("GET", path, 200)
}

pub(crate) fn post(path: impl Into<String>, body: Value) -> Call {
    with_body(Call::new("POST", path, 201), "application/json", body)
}

pub(crate) fn put(path: impl Into<String>, body: Value) -> Call {
    with_body(Call::new("PUT", path, 200), "application/json", body)
}

pub(crate) fn delete(path: impl Into<String>) -> Call {
    Call::new("DELETE", path, 200)
}

/// DELETE with DeleteOptions.
pub(crate) fn delete_with(path: impl Into<String>, options: Value) -> Call {
    with_body(delete(path), "application/json", options)
}

pub(crate) fn merge(path: impl Into<String>, body: Value) -> Call {
    with_body(Call::new("PATCH", path, 200), "application/merge-patch+json", body)
}

pub(crate) fn json_patch(path: impl Into<String>, body: Value) -> Call {
    with_body(Call::new("PATCH", path, 200), "application/json-patch+json", body)
}

pub(crate) fn strategic(path: impl Into<String>, body: Value) -> Call {
    with_body(Call::new("PATCH", path, 200), "application/strategic-merge-patch+json", body)
}

/// Server-side apply.
pub(crate) fn apply(path: impl Into<String>, body: Value) -> Call {
    with_body(Call::new("PATCH", path, 200), "application/apply-patch+yaml", body)
}

fn with_body(mut call: Call, content_type: &'static str, body: Value) -> Call {
    call.content_type = Some(content_type);
    call.body = Some(body);
    call
}

pub(crate) fn watch(name: &'static str, path: impl Into<String>) -> Step {
    Step::Watch { name, call: get(path) }
}

/// A watch with an Accept header of its own.
pub(crate) fn watch_as(name: &'static str, path: impl Into<String>, accept: &'static str) -> Step {
    Step::Watch { name, call: get(path).accept(accept) }
}

pub(crate) fn events(watch: &'static str, count: usize) -> Step {
    Step::Events { watch, count, bookmarks: false }
}

/// Events of which bookmarks are a part.
pub(crate) fn events_with_bookmarks(watch: &'static str, count: usize) -> Step {
    Step::Events { watch, count, bookmarks: true }
}

pub(crate) fn ends(watch: &'static str) -> Step {
    Step::Ends { watch }
}

/// Steps of different types as one list.
macro_rules! steps {
    ($($step:expr),* $(,)?) => { vec![$(crate::scenario::Step::from($step)),*] };
}
pub(crate) use steps;
