//! Which form of an answer a client asks for in its `Accept` header.

use crate::error::{ApiError, Reason};

/// The form of the objects in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The objects themselves.
    Whole,
    /// `PartialObjectMetadata(List)`.
    Metadata,
    /// A `Table` of printer columns.
    Table,
}

/// How the answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Yaml,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accept {
    pub(crate) form: Form,
    pub(crate) encoding: Encoding,
}

/// One media type of an `Accept` header with its parameters.
pub(crate) struct MediaRange<'a> {
    pub(crate) media: &'a str,
    parameters: &'a str,
}

impl<'a> MediaRange<'a> {
    pub(crate) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters
            .split(';')
            .filter_map(|pair| pair.split_once('='))
            .find_map(|(key, value)| (key.trim().eq_ignore_ascii_case(name)).then(|| value.trim()))
    }
}

/// The media ranges of a header, best first as the client wrote them.
pub(crate) fn ranges(header: &str) -> impl Iterator<Item = MediaRange<'_>> {
    header.split(',').map(|range| {
        let (media, parameters) = range.split_once(';').unwrap_or((range, ""));
        MediaRange { media: media.trim(), parameters }
    })
}

/// The first range that the server can answer with. Protobuf is never chosen.
pub(crate) fn accept(header: Option<&str>) -> Result<Accept, ApiError> {
    let Some(header) = header.filter(|text| !text.trim().is_empty()) else {
        return Ok(Accept { form: Form::Whole, encoding: Encoding::Json });
    };
    ranges(header).find_map(|range| acceptable(&range)).ok_or_else(|| {
        let message = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
        ApiError::new(Reason::NotAcceptable, message)
    })
}

fn acceptable(range: &MediaRange<'_>) -> Option<Accept> {
    let encoding = match range.media {
        "application/json" | "application/*" | "*/*" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        _ => return None,
    };
    let meta = range.parameter("g").is_none_or(|g| g == "meta.k8s.io")
        && range.parameter("v").is_none_or(|v| v == "v1");
    let form = match range.parameter("as") {
        None | Some("") => Form::Whole,
        Some("Table") if meta => Form::Table,
        Some("PartialObjectMetadata" | "PartialObjectMetadataList") if meta => Form::Metadata,
        Some(_) => return None,
    };
    Some(Accept { form, encoding })
}

/// Whether aggregated discovery (`apidiscovery.k8s.io/v2`) is asked for before plain JSON.
pub(crate) fn wants_aggregated(header: Option<&str>) -> bool {
    for range in ranges(header.unwrap_or_default()) {
        match (range.media, range.parameter("g"), range.parameter("v"), range.parameter("as")) {
            ("application/json", Some("apidiscovery.k8s.io"), Some("v2"), Some("APIGroupDiscoveryList")) => {
                return true;
            }
            ("application/json" | "*/*", None, None, None) => return false,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_with_the_first_form_it_can_make() {
        let json = |form| Some(Accept { form, encoding: Encoding::Json });
        #[rustfmt::skip]
        let cases = [
            ("",                                                                        json(Form::Whole)),
            ("*/*",                                                                     json(Form::Whole)),
            ("application/json",                                                        json(Form::Whole)),
            ("application/vnd.kubernetes.protobuf, application/json",                   json(Form::Whole)),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json",           json(Form::Table)),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",      json(Form::Whole)),
            ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",        json(Form::Metadata)),
            ("application/yaml",              Some(Accept { form: Form::Whole, encoding: Encoding::Yaml })),
            ("application/vnd.kubernetes.protobuf",                                     None),
            ("text/html",                                                               None),
        ];
        for (header, expected) in cases {
            assert_eq!(accept(Some(header)).ok(), expected, "{header}");
        }
    }

    #[test]
    fn aggregated_discovery_is_given_to_those_who_ask_for_it_first() {
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert!(wants_aggregated(Some(kubectl)));
        assert!(!wants_aggregated(Some("application/json")));
        assert!(!wants_aggregated(None));
    }
}
