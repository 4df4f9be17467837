//! Where a database is, in one line that people type.
//!
//! The one invariant: a password in a URL is never shown again, neither by `Display` nor `Debug`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use secrecy::SecretString;

/// The key prefix used where a URL names none.
const DEFAULT_ROOT: &str = "midflight";

/// Names a database: `etcd://HOST:PORT[,HOST:PORT]/ROOT`, `redis://HOST:PORT/DB?root=ROOT`,
/// `embedded:PATH`; with `etcds://` and `rediss://` over TLS.
#[derive(Clone)]
pub enum Url {
    Etcd(Server),
    Redis(Server),
    Embedded { path: PathBuf },
}

/// A server behind a URL.
#[derive(Clone)]
pub struct Server {
    pub(crate) tls: bool,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<SecretString>,
    /// `HOST:PORT`, at least one.
    pub(crate) hosts: Vec<String>,
    /// Number of the logical database; zero for etcd, which has none.
    pub(crate) database: i64,
    /// What the tool's own keys, and all generations, are prefixed with.
    pub(crate) root: String,
}

/// Why a text is not the URL of a database. Never repeats the text: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    #[error("begins with none of etcd://, etcds://, redis://, rediss:// and embedded:")]
    Scheme,
    #[error("names no host")]
    NoHost,
    #[error("a host is not HOST:PORT (in a user name or password, write / as %2F, ? as %3F, @ as %40)")]
    Host,
    #[error("names no path after embedded:")]
    NoPath,
    #[error("what follows the host is not the number of a database")]
    Database,
    #[error("the root may hold only letters, digits, '-', '_' and '.', and '/' between them")]
    Root,
    #[error("the root on Redis may not hold a dot: {{A.B}} is how Dragonflow's rows begin")]
    DottedRoot,
    #[error("the user name or password is not valid %-encoding")]
    Encoding,
    #[error("what follows the ? is no option of it; Redis has root=NAME")]
    Option,
    #[error("several hosts are possible with etcd only")]
    Hosts,
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Url, UrlError> {
        if let Some(path) = text.strip_prefix("embedded:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() {
                Err(UrlError::NoPath)
            } else {
                Ok(Url::Embedded { path: path.into() })
            };
        }
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        match scheme {
            "etcd" | "etcds" => Ok(Url::Etcd(etcd(rest, scheme == "etcds")?)),
            "redis" | "rediss" => Ok(Url::Redis(redis(rest, scheme == "rediss")?)),
            _ => Err(UrlError::Scheme),
        }
    }
}

/// The parts both kinds of server share; the path and the options are left to the kind.
fn server(rest: &str, tls: bool, port: u16) -> Result<(Server, &str, &str), UrlError> {
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (Some(user), hosts),
        None => (None, authority),
    };
    let (username, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
        Some((name, word)) => (Some(decode(name)?), Some(decode(word)?)),
        None => (None, None),
    };
    let filled = |word: Option<String>| word.filter(|word| !word.is_empty());
    let server = Server {
        tls,
        username: filled(username),
        password: filled(password).map(SecretString::from),
        hosts: hosts.split(',').map(|host| with_port(host, port)).collect::<Result<_, _>>()?,
        database: 0,
        root: DEFAULT_ROOT.to_owned(),
    };
    Ok((server, path, options))
}

fn etcd(rest: &str, tls: bool) -> Result<Server, UrlError> {
    let (mut server, path, options) = server(rest, tls, 2379)?;
    if !options.is_empty() {
        return Err(UrlError::Option);
    }
    let path = path.trim_end_matches('/');
    if !path.is_empty() {
        server.root = root(path)?;
    }
    Ok(server)
}

fn redis(rest: &str, tls: bool) -> Result<Server, UrlError> {
    let (mut server, path, options) = server(rest, tls, 6379)?;
    if server.hosts.len() > 1 {
        return Err(UrlError::Hosts);
    }
    if !path.is_empty() {
        server.database = path.parse().map_err(|_| UrlError::Database)?;
    }
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let name = option.strip_prefix("root=").ok_or(UrlError::Option)?;
        if name.contains('.') {
            return Err(UrlError::DottedRoot);
        }
        server.root = root(name)?;
    }
    Ok(server)
}

fn root(text: &str) -> Result<String, UrlError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.split('/').all(|part| !part.is_empty() && part.chars().all(plain)) {
        Ok(text.to_owned())
    } else {
        Err(UrlError::Root)
    }
}

fn with_port(host: &str, default: u16) -> Result<String, UrlError> {
    if host.is_empty() {
        return Err(UrlError::NoHost);
    }
    let bracketed = host.ends_with(']');
    match host.rsplit_once(':') {
        Some((name, port)) if !bracketed => {
            if name.is_empty() || port.parse::<u16>().is_err() {
                return Err(UrlError::Host);
            }
            Ok(host.to_owned())
        }
        Some(_) | None => Ok(format!("{host}:{default}")),
    }
}

fn decode(text: &str) -> Result<String, UrlError> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let (high, low) = (digit(bytes.next()), digit(bytes.next()));
        let (Some(high), Some(low)) = (high, low) else { return Err(UrlError::Encoding) };
        plain.push((high * 16 + low) as u8);
    }
    String::from_utf8(plain).map_err(|_| UrlError::Encoding)
}

impl Url {
    /// The same database under another root.
    pub fn with_root(&self, root: &str) -> Url {
        let under = |server: &Server| Server { root: root.to_owned(), ..server.clone() };
        match self {
            Url::Etcd(server) => Url::Etcd(under(server)),
            Url::Redis(server) => Url::Redis(under(server)),
            Url::Embedded { path } => Url::Embedded { path: path.clone() },
        }
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        match self {
            Url::Etcd(server) | Url::Redis(server) => server.tls,
            Url::Embedded { .. } => false,
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Url::Etcd(server) => {
                let scheme = if server.tls { "etcds" } else { "etcd" };
                write!(f, "{scheme}://{server}/{}", server.root)
            }
            Url::Redis(server) => {
                let scheme = if server.tls { "rediss" } else { "redis" };
                write!(f, "{scheme}://{server}/{}?root={}", server.database, server.root)
            }
            Url::Embedded { path } => write!(f, "embedded:{}", path.display()),
        }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.username, &self.password) {
            (None, None) => {}
            (Some(name), None) => write!(f, "{name}@")?,
            (name, Some(_)) => write!(f, "{}:***@", name.as_deref().unwrap_or_default())?,
        }
        f.write_str(&self.hosts.join(","))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_urls_and_shows_them_without_secrets() {
        #[rustfmt::skip]
        let cases = [
            ("etcd://a:1,b:2/cloud/nb",              Ok("etcd://a:1,b:2/cloud/nb")),
            ("etcd://a",                             Ok("etcd://a:2379/midflight")),
            ("etcds://joe:s%3Acret@a:1",             Ok("etcds://joe:***@a:1/midflight")),
            ("redis://:hunter2@[::1]/3",             Ok("redis://:***@[::1]:6379/3?root=midflight")),
            ("rediss://joe@r:7000/0?root=x",         Ok("rediss://joe@r:7000/0?root=x")),
            ("embedded:/var/lib/nb.redb",            Ok("embedded:/var/lib/nb.redb")),
            ("embedded:",                            Err(UrlError::NoPath)),
            ("http://a",                             Err(UrlError::Scheme)),
            ("etcd://",                              Err(UrlError::NoHost)),
            ("etcd://a:b",                           Err(UrlError::Host)),
            ("etcd://a/cloud.nb",                    Ok("etcd://a:2379/cloud.nb")),
            ("redis://a?root=cloud.nb",              Err(UrlError::DottedRoot)),
            ("redis://a,b",                          Err(UrlError::Hosts)),
            ("redis://a/x",                          Err(UrlError::Database)),
            ("redis://a?db=1",                       Err(UrlError::Option)),
            ("etcd://a/ro ot",                       Err(UrlError::Root)),
            ("etcd://u:%zz@a",                       Err(UrlError::Encoding)),
        ];
        for (text, expected) in cases {
            let read = text.parse::<Url>();
            assert_eq!(read.map(|url| url.to_string()), expected.map(str::to_owned), "{text}");
        }
    }

    #[test]
    fn no_form_of_a_url_shows_its_password() {
        for text in ["etcd://u:hunter2@a", "redis://:hunter2@a", "rediss://u:hunter2@a/1"] {
            let url: Url = text.parse().unwrap();
            assert!(!format!("{url} {url:?} {url:#?}").contains("hunter2"), "{text}");
        }
    }

    /// A password that should have been encoded ends up in some other part.
    #[test]
    fn no_error_shows_a_part_of_the_text() {
        #[rustfmt::skip]
        let malformed = [
            "etcd://u:hunter2/x@h", "etcd://u:x/hunter2 @h", "redis://:hunter2?x@h", "redis://:x?hunter2@h",
            "redis://:hunter2/x@h", "redis://:x/hunter2@h", "redis://:hunter2#@h:port", "hunter2", "etcd:hunter2@h",
            "redis://u:hunter2@h:x", "redis://u:hunter2%zz@h", "rediss://u:x@h/0?root=hunter2 ",
        ];
        for text in malformed {
            let error = text.parse::<Url>().expect_err(text);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{text}: {error}");
        }
    }
}
