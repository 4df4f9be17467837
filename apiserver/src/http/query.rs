//! The query parameters of a request, each parsed once into what it means.

use std::num::IntErrorKind;
use std::time::Duration;

use crate::error::{ApiError, Reason};
use crate::schema::{FieldError, invalid};
use crate::store::Version;

/// Pairs of a query string; empty ones, as kube-rs sends them, are left out.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Query {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        Query(
            pairs
                .filter(|(name, _)| !name.is_empty())
                .map(|(n, v)| (n.into_owned(), v.into_owned()))
                .collect(),
        )
    }

    /// The value of a parameter, be it empty.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// The value of a parameter; an empty one counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(given, _)| given == name)
            .map(|(_, value)| value.as_str())
            .filter(|v| !v.is_empty())
    }

    /// `1`, `t` and `true` in their usual spellings; a bare parameter counts as true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        let given = self.0.iter().find(|(given, _)| given == name);
        given.is_some_and(|(_, value)| {
            !matches!(value.as_str(), "0" | "f" | "F" | "false" | "False" | "FALSE")
        })
    }

    /// A number as the real server reads it, with the words of its library where it is none.
    fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let parse = |text: &str| {
            text.parse::<i64>().map_err(|error| {
                let fault = match error.kind() {
                    IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                    _ => "invalid syntax",
                };
                ApiError::new(Reason::BadRequest, format!("strconv.ParseInt: parsing {text:?}: {fault}"))
            })
        };
        self.get(name).map(parse).transpose()
    }
}

/// Which state a list or watch may start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// The newest state.
    Newest,
    /// Any state; ours is always the newest.
    Any,
    /// This version or a newer one.
    NotOlderThan(Version),
    /// Exactly this version.
    Exact(Version),
}

/// Parameters of list and watch.
#[derive(Debug)]
pub(crate) struct ListOptions {
    pub(crate) label_selector: String,
    pub(crate) field_selector: String,
    pub(crate) limit: Option<usize>,
    pub(crate) continue_from: Option<String>,
    pub(crate) start: Start,
    pub(crate) bookmarks: bool,
    pub(crate) initial_events: bool,
    pub(crate) timeout: Option<Duration>,
}

impl ListOptions {
    pub(crate) fn parse(query: &Query) -> Result<ListOptions, ApiError> {
        ListOptions::of(query, query.flag("watch"))
    }

    pub(crate) fn parse_watch(query: &Query) -> Result<ListOptions, ApiError> {
        ListOptions::of(query, true)
    }

    fn of(query: &Query, watch: bool) -> Result<ListOptions, ApiError> {
        let limit = query.number("limit")?.unwrap_or(0);
        if limit < 0 {
            let error = FieldError::invalid("limit", &limit.into(), "must be greater than or equal to 0");
            return Err(invalid("ListOptions", "meta.k8s.io", "", &[error]));
        }
        let options = ListOptions {
            label_selector: query.get("labelSelector").unwrap_or_default().to_owned(),
            field_selector: query.get("fieldSelector").unwrap_or_default().to_owned(),
            limit: (limit > 0).then_some(limit as usize),
            continue_from: query.get("continue").map(str::to_owned),
            start: start(query, watch)?,
            bookmarks: query.flag("allowWatchBookmarks"),
            initial_events: query.flag("sendInitialEvents"),
            timeout: timeout(query)?,
        };
        if options.continue_from.is_some() && !matches!(options.start, Start::Newest | Start::Any) {
            let message = "specifying resource version is not allowed when using continue";
            return Err(ApiError::new(Reason::BadRequest, message));
        }
        Ok(options)
    }
}

fn timeout(query: &Query) -> Result<Option<Duration>, ApiError> {
    let Some(seconds) = query.number("timeoutSeconds")? else { return Ok(None) };
    let seconds = u64::try_from(seconds)
        .map_err(|_| ApiError::new(Reason::BadRequest, "timeoutSeconds must not be negative"))?;
    Ok(Some(Duration::from_secs(seconds)).filter(|time| !time.is_zero()))
}

fn start(query: &Query, watch: bool) -> Result<Start, ApiError> {
    let given = query.get("resourceVersion");
    let version = match given {
        None => None,
        Some(text) => Some(text.parse::<u64>().map_err(|_| {
            let error = FieldError::invalid(
                "resourceVersion",
                &text.into(),
                format!("strconv.ParseUint: parsing {text:?}: invalid syntax"),
            );
            match watch {
                true => invalid("ListOptions", "meta.k8s.io", "", &[error]),
                false => ApiError::new(Reason::BadRequest, format!("invalid resource version: {error}")),
            }
        })?),
    };
    let wanted = query.get("resourceVersionMatch");
    if watch {
        check_watch_match(query, wanted)?;
    } else if query.get("sendInitialEvents").is_some() {
        return Err(forbidden_option("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if !watch && wanted.is_some() && given.is_none() {
        return Err(forbidden_option(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ));
    }
    match (wanted, version) {
        (_, None) => Ok(Start::Newest),
        (Some("Exact"), Some(0)) => Err(forbidden_option(
            "resourceVersionMatch",
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        )),
        (Some("Exact"), Some(version)) => Ok(Start::Exact(Version::new(version))),
        (_, Some(0)) => Ok(Start::Any),
        (Some("NotOlderThan"), Some(version)) => Ok(Start::NotOlderThan(Version::new(version))),
        (None, Some(version)) => {
            // An old quirk of lists: with a limit the version is exact.
            let exact = !watch && query.get("limit").is_some_and(|limit| limit != "0");
            Ok(if exact {
                Start::Exact(Version::new(version))
            } else {
                Start::NotOlderThan(Version::new(version))
            })
        }
        (Some(other), Some(_)) => {
            let supported = ["Exact", "NotOlderThan", ""].map(str::to_owned);
            let error = FieldError::not_supported("resourceVersionMatch", &other.into(), &supported);
            Err(invalid("ListOptions", "meta.k8s.io", "", &[error]))
        }
    }
}

fn check_watch_match(query: &Query, wanted: Option<&str>) -> Result<(), ApiError> {
    let initial = query.get("sendInitialEvents");
    match (initial, wanted) {
        (None, Some(_)) => Err(forbidden_option(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        )),
        (Some(_), wanted) if wanted != Some("NotOlderThan") => {
            let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            let mut errors = vec![FieldError::forbidden("resourceVersionMatch", detail)];
            if let Some(other) = wanted {
                let supported = ["NotOlderThan".to_owned()];
                errors.push(FieldError::not_supported("resourceVersionMatch", &other.into(), &supported));
            }
            Err(invalid("ListOptions", "meta.k8s.io", "", &errors))
        }
        _ => Ok(()),
    }
}

fn forbidden_option(field: &str, detail: &str) -> ApiError {
    invalid("ListOptions", "meta.k8s.io", "", &[FieldError::forbidden(field, detail)])
}

/// What happens to fields that the schema does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Parameters of create, update, patch and apply.
#[derive(Debug)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) force: bool,
    pub(crate) field_manager: Option<String>,
    pub(crate) field_validation: FieldValidation,
}

impl WriteOptions {
    /// `kind` names the options in error messages: `CreateOptions` and so on.
    pub(crate) fn parse(query: &Query, kind: &str) -> Result<WriteOptions, ApiError> {
        let mut errors = Vec::new();
        let dry_run = dry_run(query.given("dryRun"), &mut errors);
        let field_validation = match query.get("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let supported = ["", "Ignore", "Strict", "Warn"].map(str::to_owned);
                errors.push(FieldError::not_supported("fieldValidation", &other.into(), &supported));
                FieldValidation::Warn
            }
        };
        let field_manager = query.get("fieldManager").map(str::to_owned);
        if let Some(manager) = &field_manager {
            if manager.len() > 128 {
                errors.push(FieldError::too_long("fieldManager", 128));
            }
            if let Some((position, c)) = manager.char_indices().find(|(_, c)| c.is_control()) {
                let detail = format!("invalid character {} (at position {position})", code_point(c));
                errors.push(FieldError::invalid("fieldManager", &manager.as_str().into(), detail));
            }
        }
        if !errors.is_empty() {
            return Err(invalid(kind, "meta.k8s.io", "", &errors));
        }
        Ok(WriteOptions { dry_run, force: query.flag("force"), field_manager, field_validation })
    }
}

/// `All` or nothing.
pub(crate) fn dry_run(given: Option<&str>, errors: &mut Vec<FieldError>) -> bool {
    match given {
        None => false,
        Some("All") => true,
        Some(other) => {
            errors.push(FieldError::not_supported("dryRun", &vec![other].into(), &["All".to_owned()]));
            false
        }
    }
}

fn code_point(c: char) -> String {
    format!("U+{:04X}", c as u32)
}
