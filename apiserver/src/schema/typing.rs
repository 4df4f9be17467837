//! Finds what is wrong with a rule before any object meets it: names and
//! fields that do not exist, and rules that are not true or false.
//!
//! Only what is certain is reported; whatever the schema leaves open passes.

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, operators};

use super::cel::{children, escape};
use super::error::{Fault, FieldError, quote};
use super::node::{Additional, ListType, Node, Types};
use super::rules::Rule;

/// What is known of an expression.
#[derive(Clone, Copy)]
enum Type<'a> {
    Unknown,
    /// A value of this schema; whether it is a whole object with metadata.
    Schema(&'a Node, bool),
    /// The metadata that rules may see.
    Metadata,
    Bool,
    Other(&'static str),
}

/// Functions that rules may call by name.
const FUNCTIONS: &str = include_str!("functions.txt");

/// Names that stand for types or lead function names.
const NAMES: [&str; 20] = [
    "int",
    "uint",
    "double",
    "bool",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "dyn",
    "optional",
    "math",
    "sets",
    "lists",
    "strings",
    "format",
    "base64",
    "ip",
    "jsonpatch",
];

/// Checks the rules of a schema and of everything under it.
pub(crate) fn faults(root: &Node, faults: &mut Vec<FieldError>) {
    visit(root, &Place { path: "openAPIV3Schema", is_resource: true, unmatched: None }, faults);
}

/// Where in the schema the walk stands.
struct Place<'p> {
    path: &'p str,
    is_resource: bool,
    /// The list above whose items cannot be matched with old ones.
    unmatched: Option<&'p str>,
}

fn visit(node: &Node, place: &Place<'_>, faults: &mut Vec<FieldError>) {
    if !node.below.rules {
        return;
    }
    let path = place.path;
    for (index, rule) in node.rules.iter().enumerate() {
        let at = format!("{path}.x-kubernetes-validations[{index}]");
        check_rule(rule, node, &Place { path: &at, ..*place }, faults);
    }
    let mut below = |child: &Node, path: &str, unmatched| {
        visit(child, &Place { path, is_resource: child.embedded, unmatched }, faults);
    };
    for (name, property) in &node.properties {
        below(property, &format!("{path}.properties[{name}]"), place.unmatched);
    }
    if let Additional::Each(each) = &node.additional {
        below(each, &format!("{path}.additionalProperties"), place.unmatched);
    }
    if let Some(items) = &node.items {
        let matched = matches!(node.list, ListType::Map(_));
        below(items, &format!("{path}.items"), if matched { place.unmatched } else { Some(path) });
    }
}

fn check_rule(rule: &Rule, node: &Node, place: &Place<'_>, faults: &mut Vec<FieldError>) {
    let mut report = |field: &str, value: Option<String>, detail: String| {
        let field = format!("{}.{field}", place.path);
        faults.push(FieldError { field, fault: Fault::Invalid, value, detail });
    };
    let shown = || Some(rule.shown.clone());
    match &rule.program {
        Err(fault) => report("rule", shown(), format!("compilation failed: {fault}")),
        Ok(program) => match Names::new(node, place.is_resource, rule).type_of(program) {
            Err(fault) => {
                report("rule", shown(), format!("compilation failed: {}", fault.point_at(&rule.source)));
            }
            Ok(Type::Unknown | Type::Bool) => {}
            Ok(Type::Schema(node, _)) if node.types == Types::BOOLEAN || node.types.is_any() => {}
            Ok(_) => report("rule", shown(), "cel expression must evaluate to a bool".into()),
        },
    }
    let failed = "messageExpression compilation failed";
    match &rule.message_program {
        Some(Err(fault)) => report("messageExpression", shown(), format!("{failed}: {fault}")),
        Some(Ok(program)) => {
            if let Err(fault) = Names::new(node, place.is_resource, rule).type_of(program) {
                let text = fault.point_at(&rule.message_source);
                report("messageExpression", shown(), format!("{failed}: {text}"));
            }
        }
        None => {}
    }
    if !rule.field_path.is_empty() && !names_a_field(&rule.field_path, node) {
        let path = quote(&format!(".{}", rule.field_path));
        report("fieldPath", Some(path), "must be a valid path".into());
    }
    if let Some(list) = place.unmatched.filter(|_| rule.uses_old_self()) {
        let detail = format!(
            "oldSelf cannot be used on the uncorrelatable portion of the schema within spec.validation.{list}"
        );
        report("rule", Some(quote(&rule.source)), detail);
    }
    if rule.wants_optional_old() && !rule.uses_old_self() {
        report(
            "optionalOldSelf",
            Some("true".into()),
            "may not be set if oldSelf is not used in rule".into(),
        );
    }
}

/// Whether a path of plain names leads to something the schema knows.
fn names_a_field(path: &str, node: &Node) -> bool {
    path.contains('[') || path.split('.').try_fold(node, |node, name| node.child(name)).is_some()
}

/// Why an expression cannot be right, and what to point at.
struct Wrong {
    text: String,
    /// Where in the source it is: what stands there, and how far into it.
    token: String,
    offset: usize,
}

impl Wrong {
    fn field(name: &str) -> Wrong {
        Wrong { text: format!("undefined field '{name}'"), token: format!(".{name}"), offset: 0 }
    }

    fn variable(name: &str) -> Wrong {
        let text = format!("undeclared reference to '{name}' (in container '')");
        Wrong { text, token: name.to_owned(), offset: 0 }
    }

    fn function(name: &str) -> Wrong {
        let text = format!("undeclared reference to '{name}' (in container '')");
        Wrong { text, token: format!("{name}("), offset: name.len() }
    }

    fn selection(kind: &str, field: &str) -> Wrong {
        let text = format!("type '{kind}' does not support field selection");
        Wrong { text, token: format!(".{field}"), offset: 0 }
    }

    /// The fault with the place it is at, as the compiler of the real server shows it.
    fn point_at(&self, source: &str) -> String {
        let at = source.find(&self.token).map_or(0, |at| at + self.offset);
        let line_start = source[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let line_number = source[..at].matches('\n').count() + 1;
        let line = source[line_start..].lines().next().unwrap_or("");
        let column = source[line_start..at].chars().count();
        format!(
            "ERROR: <input>:{line_number}:{}: {}\n | {line}\n | {}^",
            column + 1,
            self.text,
            ".".repeat(column)
        )
    }
}

/// The variables in scope.
struct Names<'a> {
    variables: BTreeMap<String, Type<'a>>,
}

impl<'a> Names<'a> {
    fn new(node: &'a Node, is_root: bool, rule: &Rule) -> Names<'a> {
        let this = Type::Schema(node, is_root);
        let old = if rule.wants_optional_old() { Type::Unknown } else { this };
        Names { variables: [("self".to_owned(), this), ("oldSelf".to_owned(), old)].into() }
    }

    fn type_of(&mut self, expression: &IdedExpr) -> Result<Type<'a>, Wrong> {
        match &expression.expr {
            Expr::Literal(LiteralValue::Boolean(_)) => Ok(Type::Bool),
            Expr::Literal(LiteralValue::String(_)) => Ok(Type::Other("string")),
            Expr::Literal(LiteralValue::Int(_)) => Ok(Type::Other("int")),
            Expr::Literal(_) | Expr::Unspecified => Ok(Type::Unknown),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => {
                if let Some(path) = qualified(&select.operand)
                    && !self.variables.contains_key(path.split('.').next().unwrap_or(""))
                {
                    return self.variable(path.split('.').next().unwrap_or("")).map(|_| Type::Unknown);
                }
                let operand = self.type_of(&select.operand)?;
                let field = field_of(operand, &select.field)?;
                Ok(if select.test { Type::Bool } else { field })
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            other @ (Expr::List(_) | Expr::Map(_) | Expr::Struct(_)) => {
                for child in children(other) {
                    self.type_of(child)?;
                }
                Ok(Type::Unknown)
            }
        }
    }

    fn variable(&self, name: &str) -> Result<Type<'a>, Wrong> {
        match self.variables.get(name) {
            Some(known) => Ok(*known),
            None if NAMES.contains(&name) || name.starts_with('@') => Ok(Type::Unknown),
            None => Err(Wrong::variable(name)),
        }
    }

    fn call(&mut self, call: &CallExpr) -> Result<Type<'a>, Wrong> {
        let mut types = Vec::with_capacity(call.args.len());
        for argument in &call.args {
            types.push(self.type_of(argument)?);
        }
        match call.func_name.as_str() {
            operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT => return Ok(Type::Bool),
            operators::EQUALS
            | operators::NOT_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS => {
                return compare(&call.func_name, &types).map_or(Ok(Type::Bool), Err);
            }
            operators::IN => return Ok(Type::Bool),
            operators::INDEX => return Ok(item_of(types.first().copied().unwrap_or(Type::Unknown))),
            name if name.starts_with(['_', '@', '-', '!']) => return Ok(Type::Unknown),
            _ => {}
        }
        let namespace = call.target.as_deref().and_then(qualified);
        match (&call.target, namespace) {
            (Some(target), None) => {
                self.type_of(target)?;
            }
            (_, Some(path)) if self.variables.contains_key(path.split('.').next().unwrap_or("")) => {
                self.type_of(call.target.as_deref().expect("a namespace is a target"))?;
            }
            (_, Some(_)) | (None, None) => {}
        }
        if FUNCTIONS.split_whitespace().any(|known| known == call.func_name) {
            Ok(Type::Unknown)
        } else {
            Err(Wrong::function(&call.func_name))
        }
    }

    fn comprehension(&mut self, comprehension: &ComprehensionExpr) -> Result<Type<'a>, Wrong> {
        let range = self.type_of(&comprehension.iter_range)?;
        let item = match range {
            Type::Schema(node, _) if node.types == Types::ARRAY => item_of(range),
            _ => Type::Unknown,
        };
        let outer = self.variables.clone();
        let mut names = vec![(comprehension.iter_var.clone(), item)];
        names.extend(comprehension.iter_var2.clone().map(|name| (name, Type::Unknown)));
        names.push((comprehension.accu_var.clone(), Type::Unknown));
        self.variables.extend(names);
        for part in [&comprehension.accu_init, &comprehension.loop_cond, &comprehension.loop_step] {
            self.type_of(part)?;
        }
        let result = self.type_of(&comprehension.result);
        self.variables = outer;
        result.map(|_| Type::Unknown)
    }
}

/// What is wrong with comparing values of these types, if that is certain.
fn compare(operator: &str, types: &[Type<'_>]) -> Option<Wrong> {
    let [left, right] = types else { return None };
    let (left, right) = (scalar_name(*left)?, scalar_name(*right)?);
    let is_number = |name| matches!(name, "int" | "double");
    if left == right || (is_number(left) && is_number(right)) {
        return None;
    }
    let text = format!("found no matching overload for '{operator}' applied to '({left}, {right})'");
    Some(Wrong { text, token: format!(" {} ", operator.trim_matches('_')), offset: 1 })
}

fn scalar_name(known: Type<'_>) -> Option<&'static str> {
    match known {
        Type::Bool => Some("bool"),
        Type::Other(name) => Some(name),
        Type::Schema(node, _) if !node.has_format() && !node.int_or_string => {
            Some(cel_name(node)).filter(|name| matches!(*name, "string" | "int" | "double" | "bool"))
        }
        Type::Schema(..) | Type::Unknown | Type::Metadata => None,
    }
}

/// `a.b.c` where it is nothing but names.
fn qualified(expression: &IdedExpr) -> Option<String> {
    match &expression.expr {
        Expr::Ident(name) => Some(name.clone()),
        Expr::Select(select) if !select.test => {
            Some(format!("{}.{}", qualified(&select.operand)?, select.field))
        }
        _ => None,
    }
}

fn field_of<'a>(operand: Type<'a>, field: &str) -> Result<Type<'a>, Wrong> {
    let undefined = || Err(Wrong::field(field));
    match operand {
        Type::Unknown => Ok(Type::Unknown),
        Type::Metadata if matches!(field, "name" | "generateName") => Ok(Type::Other("string")),
        Type::Metadata => undefined(),
        Type::Bool => Err(Wrong::selection("bool", field)),
        Type::Other(name) => Err(Wrong::selection(name, field)),
        Type::Schema(node, is_resource) => {
            if is_resource || node.embedded {
                match field {
                    "metadata" => return Ok(Type::Metadata),
                    "apiVersion" | "kind" => return Ok(Type::Other("string")),
                    _ => {}
                }
            }
            match &node.additional {
                Additional::Each(each) => return Ok(Type::Schema(each, each.embedded)),
                Additional::Anything => return Ok(Type::Unknown),
                Additional::Unsaid | Additional::Forbidden => {}
            }
            let declared = node.properties.iter().find(|(name, _)| escape(name) == field);
            match declared {
                Some((_, property)) => Ok(Type::Schema(property, property.embedded)),
                None if node.types == Types::OBJECT => undefined(),
                None if node.types.is_any() || node.int_or_string => Ok(Type::Unknown),
                None if node.types == Types::STRING && node.has_format() => Ok(Type::Unknown),
                None => Err(Wrong::selection(cel_name(node), field)),
            }
        }
    }
}

fn cel_name(node: &Node) -> &'static str {
    match node.types {
        Types::STRING => "string",
        Types::INTEGER => "int",
        Types::NUMBER => "double",
        Types::BOOLEAN => "bool",
        Types::ARRAY => "list",
        _ => "dyn",
    }
}

fn item_of(container: Type<'_>) -> Type<'_> {
    let Type::Schema(node, _) = container else { return Type::Unknown };
    match (&node.items, &node.additional) {
        (Some(items), _) => Type::Schema(items, items.embedded),
        (None, Additional::Each(each)) => Type::Schema(each, each.embedded),
        (None, _) => Type::Unknown,
    }
}
