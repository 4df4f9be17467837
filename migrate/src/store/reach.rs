//! Words for a server that could not be reached, and what to do about it.
//!
//! Nothing here connects, so every mistake can be tested as a table.

/// Why a connection failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unreached {
    pub(super) words: String,
    /// Trying again with the same settings cannot help.
    pub(super) for_good: bool,
}

/// Part of the words of an error, and what it means. None of these passes by itself.
const CERTIFICATES: [(&str, &str); 6] = [
    (
        "UnknownIssuer",
        "its certificate is signed by nobody who is trusted here; name the authority with --ca",
    ),
    ("NotValidForName", "its certificate is for another name than this address has"),
    ("Expired", "its certificate has expired"),
    ("BadCertificate", "it wants a client certificate that it trusts; give --cert and --key"),
    ("CertificateRequired", "it wants a client certificate; give --cert and --key"),
    ("UnknownCA", "it does not trust the client certificate; give another with --cert and --key"),
];

/// What `words` mean to whoever gave the address; `scheme` is that of the address without its last s.
pub(super) fn explained(words: &str, scheme: &str, tls: bool) -> Unreached {
    let with = |hint: &str, for_good| Unreached { words: format!("{words} ({hint})"), for_good };
    if tls {
        if let Some((_, hint)) = CERTIFICATES.iter().find(|(sign, _)| words.contains(sign)) {
            return with(hint, true);
        }
        let no_tls = ["InvalidContentType", "corrupt message", "HandshakeFailure", "wrong version"];
        if no_tls.iter().any(|sign| words.contains(sign)) {
            return with(&format!("it does not speak TLS; use {scheme}://"), true);
        }
        if words.contains("within") || words.contains("eof") || words.contains("close_notify") {
            return with(&format!("if it does not speak TLS, use {scheme}://"), false);
        }
    } else if ["broken pipe", "reset by peer", "eof", "closed"].iter().any(|sign| words.contains(sign)) {
        return with(&format!("if it speaks TLS, use {scheme}s://"), false);
    }
    Unreached { words: words.to_owned(), for_good: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_with_tls_are_explained() {
        #[rustfmt::skip]
        let cases = [
            ("invalid peer certificate: UnknownIssuer",              true,  "--ca",           true),
            ("received fatal alert: BadCertificate",                 true,  "--cert",         true),
            ("received corrupt message of type InvalidContentType",  true,  "use etcd://",    true),
            ("no answer within 10 s",                                true,  "use etcd://",    false),
            ("stream closed because of a broken pipe",               false, "use etcds://",   false),
            ("Connection reset by peer (os error 104)",              false, "use etcds://",   false),
            ("Connection refused (os error 111)",                    false, "refused",        false),
            ("Connection refused (os error 111)",                    true,  "refused",        false),
        ];
        for (words, tls, expected, for_good) in cases {
            let found = explained(words, "etcd", tls);
            assert!(found.words.starts_with(words) && found.words.contains(expected), "{found:?}");
            assert_eq!(found.for_good, for_good, "{words}");
        }
    }
}
