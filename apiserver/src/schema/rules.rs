//! `x-kubernetes-validations`.
use serde_json::{Map, Value};

use super::error::FieldError;
use super::node::Node;

#[derive(Debug)]
pub(crate) struct Rule {}

impl Rule {
    pub(crate) fn compile_all(_schema: &Map<String, Value>) -> Vec<Rule> {
        Vec::new()
    }
}

pub(crate) fn faults(_root: &Node, _faults: &mut [FieldError]) {}

pub(crate) fn check(_new: &Value, _old: Option<&Value>, _root: &Node, _errors: &mut [FieldError]) {}
