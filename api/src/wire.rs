//! How a Rust type becomes a field of a Kubernetes object.
//!
//! The invariant: an absent field, a `null` and the zero value are the same
//! thing, in both directions. Go programs write zero values and `null` where
//! others leave the field out, and upstream's objects are full of both. A zero
//! value is therefore never serialised; a patch that has to set one (`nodeID: ""`
//! detaches a volume) names the field in plain JSON.

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

/// Reads `null` as the zero value.
pub(crate) fn null_as_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Whether a value may be left out of an object.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// One rule of a schema: a CEL expression and the sentence a user reads when it is broken.
pub(crate) fn rule(expression: &str, message: &str) -> Value {
    json!({ "rule": expression, "message": message })
}

/// Defines a struct whose fields are all optional on the wire. The fields of a
/// struct named after `flatten` stand beside the others.
macro_rules! wire {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( flatten pub $flat:ident: $flat_type:ty, )?
            $( $(#[$field_meta:meta])* pub $field:ident: $type:ty ),* $(,)?
        }
    ) => {
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "camelCase")]
        $(#[$meta])*
        pub struct $name {
            $( #[serde(flatten)] pub $flat: $flat_type, )?
            $(
                $(#[$field_meta])*
                #[serde(
                    default,
                    skip_serializing_if = "crate::wire::is_default",
                    deserialize_with = "crate::wire::null_as_default"
                )]
                pub $field: $type,
            )*
        }
    };
}

/// Defines a kind: its spec, by [`wire!`], and the resource around it.
macro_rules! kind {
    ($(#[$meta:meta])* pub struct $name:ident $body:tt) => {
        crate::wire::wire! {
            #[derive(kube::CustomResource)]
            #[kube(derive = "PartialEq", derive = "Default", namespaced)]
            $(#[$meta])*
            pub struct $name $body
        }
    };
}

/// Defines an enum whose variants have the names that stand in objects. A
/// variant after `or` stands for every name that this version does not know;
/// it is read, never written, and no schema offers it.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $word:literal ),* $(,)?
        } $( or $other:ident )?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $( $(#[$variant_meta])* #[serde(rename = $word)] $variant, )*
            $(
                /// A word of a newer version, left alone.
                #[serde(other)]
                $other,
            )?
        }

        impl $name {
            /// Every variant that may stand in an object, in the order of their definition.
            pub const ALL: &'static [$name] = &[$( $name::$variant ),*];

            /// The word that stands in objects.
            pub fn as_str(self) -> &'static str {
                match self {
                    $( $name::$variant => $word, )*
                    $( $name::$other => "unrecognised", )?
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "enum": [$( $word ),*] })
            }
        }
    };
}

/// Defines a string with a meaning and a greatest length.
macro_rules! text {
    ($(#[$meta:meta])* $name:ident, max = $max:literal) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Longest value that the API accepts.
            pub const MAX_LENGTH: usize = $max;

            pub fn as_str(&self) -> &str {
                &self.0
            }

            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl<T: Into<String>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl PartialEq<str> for $name {
            fn eq(&self, other: &str) -> bool {
                self.0 == other
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, other: &&str) -> bool {
                self.0 == *other
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "maxLength": $max })
            }
        }
    };
}

pub(crate) use {kind, text, wire, words};
