//! How images are called.
//!
//! The one invariant: a name spells out its host, so that two names are the same image if and only if they are equal.

use std::{fmt, str::FromStr};

pub use midflight_api::LOCAL_REGISTRY as LOCAL;
use midflight_api::split_registry;

use super::{Digest, digest::DigestError};

const DOCKER_HUB: &str = "docker.io";
/// Where Docker Hub keeps what has no owner.
const DOCKER_LIBRARY: &str = "library";
const LONGEST_REPOSITORY: usize = 255;
const LONGEST_TAG: usize = 128;

/// `HOST/REPOSITORY:TAG`, or `HOST/REPOSITORY@DIGEST`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageName {
    host: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Why a text is not the name of an image.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not the name of an image, such as engine:v1 or {LOCAL}/engine:v1")]
pub struct NameError {
    text: String,
    source: Flaw,
}

/// What is wrong with it.
#[derive(Debug, thiserror::Error)]
enum Flaw {
    #[error("{0:?} is not a host, such as registry.example.com:5000")]
    Host(String),
    #[error(
        "{0:?} is not a repository: lower-case letters and digits, with single dots, one or two underscores or dashes \
         between them, in parts that slashes separate, and at most {LONGEST_REPOSITORY} characters"
    )]
    Repository(String),
    #[error(
        "{0:?} is not a tag: at most {LONGEST_TAG} letters, digits, underscores, dots and dashes, of which neither a \
         dot nor a dash comes first"
    )]
    Tag(String),
    #[error(transparent)]
    Digest(#[from] DigestError),
}

impl ImageName {
    /// The image in the registry of the cluster.
    pub fn local(repository: &str, tag: &str) -> ImageName {
        ImageName {
            host: LOCAL.to_owned(),
            repository: repository.to_owned(),
            tag: Some(tag.to_owned()),
            digest: None,
        }
    }

    pub fn is_local(&self) -> bool {
        self.host == LOCAL
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// The digest that it names, if it names one.
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    pub fn repository(&self) -> &str {
        &self.repository
    }

    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }
}

impl FromStr for ImageName {
    type Err = NameError;

    /// A name without a host is one of the cluster's own, one without a tag is the `latest`.
    fn from_str(text: &str) -> Result<ImageName, NameError> {
        parse(text).map_err(|source| NameError { text: text.to_owned(), source })
    }
}

/// Read by hand: as a regular expression the grammar takes megabytes of every process that knows an image.
fn parse(text: &str) -> Result<ImageName, Flaw> {
    let (host, rest) = split_registry(text).unwrap_or((LOCAL, text));
    let (rest, digest) = match rest.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest.parse()?)),
        None => (rest, None),
    };
    let (repository, tag) = match rest.split_once(':') {
        Some((repository, tag)) => (repository, Some(tag)),
        None => (rest, digest.is_none().then_some("latest")),
    };
    if !is_host(host) {
        return Err(Flaw::Host(host.to_owned()));
    }
    if repository.len() > LONGEST_REPOSITORY || !repository.split('/').all(is_part_of_repository) {
        return Err(Flaw::Repository(repository.to_owned()));
    }
    if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
        return Err(Flaw::Tag(tag.to_owned()));
    }
    let repository = match (host, repository.contains('/')) {
        (DOCKER_HUB, false) => format!("{DOCKER_LIBRARY}/{repository}"),
        _ => repository.to_owned(),
    };
    Ok(ImageName { host: host.to_owned(), repository, tag: tag.map(str::to_owned), digest })
}

/// A domain or an address, and maybe a port.
fn is_host(host: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        !label.is_empty() && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    if let Some((address, port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let port_follows = port.strip_prefix(':').is_some_and(digits);
        return address.parse::<std::net::Ipv6Addr>().is_ok() && (port.is_empty() || port_follows);
    }
    let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    name.split('.').all(label) && port.is_none_or(digits)
}

/// Letters and digits, with separators between them but not around them.
fn is_part_of_repository(part: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let separator = |bytes: &[u8]| match bytes {
        b"." | b"_" | b"__" => true,
        other => other.iter().all(|&byte| byte == b'-'),
    };
    let runs: Vec<&[u8]> = part.as_bytes().chunk_by(|a, b| plain(a) == plain(b)).collect();
    let at_ends = [runs.first(), runs.last()].into_iter().all(|run| run.is_some_and(|run| plain(&run[0])));
    at_ends && runs.into_iter().all(|run| plain(&run[0]) || separator(run))
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= LONGEST_TAG
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_means_the_cluster() {
        let digest = format!("sha256:{}", "a".repeat(64));
        #[rustfmt::skip]
        let cases = [
            ("engine:v1",                 "midflight.local/engine:v1".to_owned(),           true),
            ("engine",                    "midflight.local/engine:latest".to_owned(),       true),
            ("team/engine:v1",            "midflight.local/team/engine:v1".to_owned(),      true),
            ("midflight.local/engine:v1", "midflight.local/engine:v1".to_owned(),           true),
            ("localhost/engine:v1",       "localhost/engine:v1".to_owned(),                 false),
            ("127.0.0.1:5000/a/b:c",      "127.0.0.1:5000/a/b:c".to_owned(),                false),
            (&format!("engine@{digest}"), format!("midflight.local/engine@{digest}"),       true),
            (&format!("a:b@{digest}"),    format!("midflight.local/a:b@{digest}"),          true),
            ("[::1]:5000/a:c",            "[::1]:5000/a:c".to_owned(),                      false),
            ("docker.io/nginx",           "docker.io/library/nginx:latest".to_owned(),      false),
            ("docker.io/team/nginx",      "docker.io/team/nginx:latest".to_owned(),         false),
            ("b_c__d---e/f.0:V_1.2-3",    "midflight.local/b_c__d---e/f.0:V_1.2-3".to_owned(), true),
        ];
        for (text, expected, local) in cases {
            let name: ImageName = text.parse().unwrap();
            assert_eq!((name.to_string(), name.is_local()), (expected, local), "{text}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused_and_says_what_is_wrong() {
        let (long_tag, long_name) = (format!("a:{}", "b".repeat(129)), "a".repeat(256));
        #[rustfmt::skip]
        let cases = [
            ("",                  "not a repository"),
            ("Engine:v1",         "not a repository"),
            ("a//b",              "not a repository"),
            ("a/",                "not a repository"),
            ("-a",                "not a repository"),
            ("a..b",              "not a repository"),
            ("a___b",             "not a repository"),
            ("a._b",              "not a repository"),
            (&long_name,          "not a repository"),
            ("engine:v 1",        "not a tag"),
            ("engine:v1; rm",     "not a tag"),
            ("engine:",           "not a tag"),
            ("engine:.v1",        "not a tag"),
            ("engine:a:b",        "not a tag"),
            (&long_tag,           "not a tag"),
            ("engine@sha256:0",   "not a digest"),
            ("a.-b/engine",       "not a host"),
            ("a.b:port/engine",   "not a host"),
            ("[::g]:1/engine",    "not a host"),
            (".:/engine",         "not a host"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<ImageName>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
            assert!(error.source.to_string().contains(expected), "{text}: {}", error.source);
        }
    }
}
