//! Takes a request's path apart, as the real server's URL scheme has it.
//!
//! Pure: whether a resource exists is not asked here.

use std::borrow::Cow;

/// What a path speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route<'a> {
    /// `/api`
    CoreVersions,
    /// `/apis`
    Groups,
    /// `/apis/GROUP`
    Group(&'a str),
    /// `/api/v1` or `/apis/GROUP/VERSION`
    Resources {
        group: &'a str,
        version: &'a str,
    },
    Resource(ResourcePath<'a>),
    /// `/openapi/v3`, and below it `api/v1` or `apis/GROUP/VERSION`
    OpenApi(Option<&'a str>),
    /// Everything else, such as `/version`.
    Other(&'a str),
}

/// A collection, an object or a subresource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResourcePath<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) namespace: Option<&'a str>,
    pub(crate) plural: &'a str,
    pub(crate) name: Option<&'a str>,
    pub(crate) subresource: Option<&'a str>,
    /// The old form of a watch: `/watch/` before the resource.
    pub(crate) watch: bool,
}

impl<'a> Route<'a> {
    /// From a path without escapes. `None` if it cannot name anything the server has.
    pub(crate) fn parse(path: &'a str) -> Option<Route<'a>> {
        let trimmed = path.strip_prefix('/')?.trim_end_matches('/');
        let (first, rest) = trimmed.split_once('/').unwrap_or((trimmed, ""));
        match (first, rest) {
            ("api", "") => Some(Route::CoreVersions),
            ("apis", "") => Some(Route::Groups),
            ("api", rest) => {
                let (version, rest) = split(rest);
                below_version("", version, rest)
            }
            ("apis", rest) => {
                let (group, rest) = split(rest);
                if rest.is_empty() {
                    return Some(Route::Group(group));
                }
                let (version, rest) = split(rest);
                below_version(group, version, rest)
            }
            ("openapi", "v3") => Some(Route::OpenApi(None)),
            ("openapi", rest) => match rest.strip_prefix("v3/") {
                Some(group_version) => Some(Route::OpenApi(Some(group_version))),
                None => Some(Route::Other(path)),
            },
            _ => Some(Route::Other(path)),
        }
    }
}

fn split(rest: &str) -> (&str, &str) {
    rest.split_once('/').unwrap_or((rest, ""))
}

fn below_version<'a>(group: &'a str, version: &'a str, rest: &'a str) -> Option<Route<'a>> {
    if rest.is_empty() {
        return Some(Route::Resources { group, version });
    }
    let parts: Vec<&str> = rest.split('/').collect();
    if parts.iter().any(|part| part.is_empty()) {
        return None;
    }
    let in_core = group.is_empty();
    let (watch, parts) = match &parts[..] {
        ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
        all => (false, all),
    };
    let (namespace, parts) = match *parts {
        // A namespace's own subresources are not resources inside it.
        ["namespaces", _, "status" | "finalize"] if in_core => (None, parts),
        ["namespaces", namespace, _, ..] => (Some(namespace), &parts[2..]),
        _ => (None, parts),
    };
    let path = |plural, name, subresource| ResourcePath {
        group,
        version,
        namespace,
        plural,
        name,
        subresource,
        watch,
    };
    Some(Route::Resource(match *parts {
        [plural] => path(plural, None, None),
        [plural, name] => path(plural, Some(name), None),
        [plural, name, subresource] => path(plural, Some(name), Some(subresource)),
        _ => return None,
    }))
}

/// The path without percent escapes; `None` if one of them is none.
pub(crate) fn unescape(path: &str) -> Option<Cow<'_, str>> {
    if !path.contains('%') {
        return Some(path.into());
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            bytes.push((digit(rest.next())? * 16 + digit(rest.next())?) as u8);
        } else {
            bytes.push(byte);
        }
    }
    Some(String::from_utf8_lossy(&bytes).into_owned().into())
}

/// What is wrong with a name that stands in a path, if anything.
pub(crate) fn name_fault(name: &str) -> Option<String> {
    match name {
        "." | ".." => Some(format!("may not be '{name}'")),
        _ => ["/", "%"]
            .into_iter()
            .find(|one| name.contains(one))
            .map(|one| format!("may not contain '{one}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource<'a>(
        group_version: (&'a str, &'a str),
        namespace: Option<&'a str>,
        parts: (&'a str, Option<&'a str>, Option<&'a str>),
    ) -> Option<Route<'a>> {
        let ((group, version), (plural, name, subresource)) = (group_version, parts);
        Some(Route::Resource(ResourcePath {
            group,
            version,
            namespace,
            plural,
            name,
            subresource,
            watch: false,
        }))
    }

    #[test]
    fn paths_name_what_the_real_server_has_there() {
        let core = ("", "v1");
        let acme = ("acme.org", "v1beta1");
        #[rustfmt::skip]
        let cases = [
            ("/api",                                        Some(Route::CoreVersions)),
            ("/apis/",                                      Some(Route::Groups)),
            ("/apis/acme.org",                              Some(Route::Group("acme.org"))),
            ("/api/v1",                                     Some(Route::Resources { group: "", version: "v1" })),
            ("/apis/acme.org/v1beta1",                      Some(Route::Resources { group: "acme.org", version: "v1beta1" })),
            ("/api/v1/pods",                                resource(core, None, ("pods", None, None))),
            ("/api/v1/namespaces",                          resource(core, None, ("namespaces", None, None))),
            ("/api/v1/namespaces/a",                        resource(core, None, ("namespaces", Some("a"), None))),
            ("/api/v1/namespaces/a/status",                 resource(core, None, ("namespaces", Some("a"), Some("status")))),
            ("/api/v1/namespaces/a/finalize",               resource(core, None, ("namespaces", Some("a"), Some("finalize")))),
            ("/api/v1/namespaces/a/pods",                   resource(core, Some("a"), ("pods", None, None))),
            ("/api/v1/namespaces/a/pods/p/log",             resource(core, Some("a"), ("pods", Some("p"), Some("log")))),
            ("/apis/acme.org/v1beta1/namespaces/a/toys/t",  resource(acme, Some("a"), ("toys", Some("t"), None))),
            ("/apis/acme.org/v1beta1/toys//x",              None),
            ("/apis/acme.org/v1beta1/toys/a/b/c",           None),
            ("/openapi/v3",                                 Some(Route::OpenApi(None))),
            ("/openapi/v3/apis/acme.org/v1beta1",           Some(Route::OpenApi(Some("apis/acme.org/v1beta1")))),
            ("/openapi/v2",                                 Some(Route::Other("/openapi/v2"))),
            ("/version",                                    Some(Route::Other("/version"))),
            ("/",                                           Some(Route::Other("/"))),
        ];
        for (path, expected) in cases {
            assert_eq!(Route::parse(path), expected, "{path}");
        }
    }

    #[test]
    fn escapes_are_undone_before_a_path_is_taken_apart() {
        #[rustfmt::skip]
        let cases = [
            ("/toys/t%2Du",     Some("/toys/t-u")),
            ("/toys/a%2Fb",     Some("/toys/a/b")),
            ("/toys/a%00b",     Some("/toys/a\0b")),
            ("/toys/%zz",       None),
            ("/toys/%4",        None),
        ];
        for (path, expected) in cases {
            assert_eq!(unescape(path).as_deref(), expected, "{path}");
        }
    }
}
