//! What clients see: tables, metadata-only objects, discovery and OpenAPI.
//!
//! Pure functions from kinds and objects to the JSON to send.

mod age;
mod discovery;
mod jsonpath;
mod metadata;
mod openapi;
mod rows;
mod table;

pub use discovery::{
    AGGREGATED_CONTENT_TYPE, aggregated_discovery, api_group, api_group_list, api_resource_list, api_versions,
};
pub use jsonpath::JsonPath;
pub use metadata::{ListMeta, bookmark, list_envelope, partial_metadata, partial_metadata_list_envelope};
pub use openapi::{OPENAPI_V2, openapi_document, openapi_hash, openapi_index};
pub use table::{IncludeObject, Table};
