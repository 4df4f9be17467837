//! `x-kubernetes-validations`: rules in CEL that stand beside the schema.
//!
//! Rules are compiled with the schema and evaluated only where there are any.
//! A transition rule (one that reads `oldSelf`) runs only where the old value
//! is known. What did not change is not held against an update.

use kube_cel::cel::Value as Cel;
use kube_cel::cel::parser::Expression;
use serde_json::{Map, Value};

use super::cel::{Reads, Scope, parse, show_error, to_cel};
use super::error::{Fault, FieldError, to_html_safe_json};
use super::node::{Additional, Node, Types};
use super::path::Path;
use super::validate::correlate;

/// The longest message that a `messageExpression` may make.
const MAX_MESSAGE: usize = 5 * 1024;

#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) source: String,
    /// The rule as the real server shows it when it cannot be compiled.
    pub(crate) shown: String,
    message: String,
    reason: Fault,
    /// Relative to the node, without the leading dot.
    pub(crate) field_path: String,
    optional_old_self: bool,
    uses_old_self: bool,
    pub(crate) program: Result<Expression, String>,
    pub(crate) message_program: Option<Result<Expression, String>>,
    pub(crate) message_source: String,
    reads: Reads,
}

impl Rule {
    pub(crate) fn compile_all(schema: &Map<String, Value>) -> Vec<Rule> {
        let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
        rules.into_iter().flatten().map(Rule::compile).collect()
    }

    fn compile(raw: &Value) -> Rule {
        let text = |name: &str| raw.get(name).and_then(Value::as_str).unwrap_or("").trim().to_owned();
        let source = text("rule");
        let optional_old_self = raw.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or(false);
        let program = parse(&source, optional_old_self);
        let message_program =
            Some(text("messageExpression")).filter(|m| !m.is_empty()).map(|m| parse(&m, optional_old_self));
        let programs = [Some(&program), message_program.as_ref()];
        let parsed: Vec<&Expression> = programs.into_iter().flatten().flatten().collect();
        let reads = parsed.iter().fold(Reads::nothing(), |all, program| all.join(Reads::of(program)));
        let uses_old_self =
            program.as_ref().is_ok_and(|program| program.references().has_variable("oldSelf"));
        Rule {
            shown: show(raw),
            source,
            message: text("message"),
            reason: match text("reason").as_str() {
                "FieldValueForbidden" => Fault::Forbidden,
                "FieldValueRequired" => Fault::Required,
                "FieldValueDuplicate" => Fault::Duplicate,
                _ => Fault::Invalid,
            },
            field_path: text("fieldPath").trim_start_matches('.').to_owned(),
            optional_old_self,
            uses_old_self,
            program,
            message_program,
            message_source: text("messageExpression"),
            reads,
        }
    }

    pub(crate) fn wants_optional_old(&self) -> bool {
        self.optional_old_self
    }

    pub(crate) fn uses_old_self(&self) -> bool {
        self.uses_old_self
    }

    /// What to call the rule in a message about it.
    fn name(&self) -> &str {
        if self.message.is_empty() { &self.source } else { &self.message }
    }

    /// Why a value breaks this rule, in words.
    fn explain(&self, scope: &Scope) -> String {
        let made = match &self.message_program {
            Some(Ok(program)) => scope.evaluate(program, self.optional_old_self).ok(),
            Some(Err(_)) | None => None,
        };
        if let Some(Cel::String(text)) = made {
            let text = text.trim();
            if !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n') {
                return text.to_owned();
            }
        }
        if self.message.is_empty() { format!("failed rule: {}", self.source) } else { self.message.clone() }
    }
}

fn show(raw: &Value) -> String {
    let text = |name: &str| Value::from(raw.get(name).and_then(Value::as_str).unwrap_or(""));
    let plain = |name: &str| raw.get(name).cloned().unwrap_or_default();
    let fields = [
        ("Rule", text("rule")),
        ("Message", text("message")),
        ("MessageExpression", text("messageExpression")),
        ("Reason", plain("reason")),
        ("FieldPath", text("fieldPath")),
        ("OptionalOldSelf", plain("optionalOldSelf")),
    ];
    let fields: Vec<String> =
        fields.iter().map(|(name, value)| format!("\"{name}\":{}", to_html_safe_json(value))).collect();
    format!("{{{}}}", fields.join(","))
}

/// Runs every rule that applies to an object.
pub(crate) fn check(new: &Value, old: Option<&Value>, root: &Node, errors: &mut Vec<FieldError>) {
    let same = old.map(|old| (new, old));
    walk(Place { node: root, is_root: true, value: new, old, same, parent: None }, &Path::Root, errors);
}

/// Where the walk stands: the value, what it replaces for `oldSelf`, and what
/// tells whether it changed.
#[derive(Clone, Copy)]
struct Place<'v> {
    node: &'v Node,
    is_root: bool,
    value: &'v Value,
    old: Option<&'v Value>,
    /// The value with its old self, where they can be matched.
    same: Option<(&'v Value, &'v Value)>,
    /// The same of the nearest ancestor that can be matched.
    parent: Option<(&'v Value, &'v Value)>,
}

impl<'v> Place<'v> {
    fn unchanged(&self) -> bool {
        self.same.or(self.parent).is_some_and(|(new, old)| new == old)
    }

    fn child(&self, node: &'v Node, value: &'v Value, old: Option<&'v Value>) -> Place<'v> {
        let same = old.filter(|_| self.same.is_some()).map(|old| (value, old));
        Place { node, is_root: false, value, old, same, parent: self.same.or(self.parent) }
    }
}

fn walk(place: Place<'_>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Place { node, value, .. } = place;
    if !node.below.rules || value.is_null() {
        return;
    }
    run(place, &node.rules, path, errors);
    for branch in &node.all_of {
        run(Place { same: None, ..place }, &branch.rules, path, errors);
    }
    match value {
        Value::Object(map) => {
            let old = place.old.and_then(Value::as_object);
            for (name, value) in map {
                let old = old.and_then(|old| old.get(name));
                let (schema, at) = match (node.properties.get(name), &node.additional) {
                    (Some(property), _) => (property, path.field(name)),
                    (None, Additional::Each(each)) => (&**each, path.key(name)),
                    (None, _) => continue,
                };
                let mut child = place.child(schema, value, old);
                if place.is_root && matches!(name.as_str(), "apiVersion" | "kind") {
                    (child.same, child.parent) = (None, None);
                }
                walk(child, &at, errors);
            }
        }
        Value::Array(items) => {
            let Some(schema) = node.items.as_deref() else { return };
            for (index, item) in items.iter().enumerate() {
                let old = correlate(item, place.old, node);
                walk(place.child(schema, item, old), &path.index(index), errors);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn run(place: Place<'_>, rules: &[Rule], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if rules.is_empty() {
        return;
    }
    let Place { node, is_root, value, .. } = place;
    let old = place.old.filter(|old| !old.is_null());
    let reads = rules.iter().fold(Reads::nothing(), |all, rule| all.join(rule.reads.clone()));
    let needs_old = rules.iter().any(|rule| rule.uses_old_self);
    let scope = Scope {
        this: to_cel(value, node, is_root, &reads),
        old: old.filter(|_| needs_old).map(|old| to_cel(old, node, is_root, &reads)),
    };
    for rule in rules {
        if rule.uses_old_self && old.is_none() && !rule.optional_old_self {
            continue;
        }
        match judge(rule, &scope) {
            Verdict::Holds => {}
            Verdict::Broken if !rule.uses_old_self && place.unchanged() => {}
            Verdict::Broken => errors.push(failure(rule, &scope, place, path)),
            Verdict::Unclear(detail) => {
                let type_name = Value::from(node.types.names());
                errors.push(FieldError::invalid(path.bracketed(), &type_name, detail));
            }
        }
    }
}

enum Verdict {
    Holds,
    Broken,
    /// The rule could not be evaluated.
    Unclear(String),
}

fn judge(rule: &Rule, scope: &Scope) -> Verdict {
    let program = match &rule.program {
        Ok(program) => program,
        Err(fault) => return Verdict::Unclear(format!("rule compile error: {fault}")),
    };
    match scope.evaluate(program, rule.optional_old_self) {
        Ok(Cel::Bool(true)) => Verdict::Holds,
        Ok(_) => Verdict::Broken,
        Err(error) => {
            let (text, name) = (show_error(&error), rule.name());
            Verdict::Unclear(if text == "no such overload" {
                format!(
                    "'{text}': call arguments did not match a supported operator, function or macro \
                     signature for rule: {name}"
                )
            } else {
                format!("{text} evaluating rule: {name}")
            })
        }
    }
}

fn failure(rule: &Rule, scope: &Scope, place: Place<'_>, path: &Path<'_>) -> FieldError {
    let Place { node, value, .. } = place;
    let field = match (rule.field_path.as_str(), path.is_root()) {
        ("", _) => path.bracketed(),
        (below, true) => below.to_owned(),
        (below, false) => format!("{}.{below}", path.bracketed()),
    };
    let detail = rule.explain(scope);
    let shown = !(node.types == Types::OBJECT || node.types == Types::ARRAY);
    match rule.reason {
        Fault::Forbidden => FieldError::forbidden(field, detail),
        Fault::Required => FieldError::required(field, detail),
        Fault::Duplicate if shown => FieldError::duplicate(field, value),
        Fault::Duplicate => FieldError { field, fault: Fault::Duplicate, value: None, detail: String::new() },
        _ if shown => FieldError::invalid(field, value, detail),
        _ => FieldError::invalid_whole(field, detail),
    }
}
