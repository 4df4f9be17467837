//! Finds what is wrong with a rule before any object meets it: names and
//! fields that do not exist, and rules that are not true or false.
//!
//! Only what is certain is reported; whatever the schema leaves open passes.

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, operators};

use super::cel::{children, escape};
use super::error::FieldError;
use super::node::{Additional, Node, Types};
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
    visit(root, true, "openAPIV3Schema", faults);
}

fn visit(node: &Node, is_root: bool, path: &str, faults: &mut Vec<FieldError>) {
    if !node.below.rules {
        return;
    }
    for (place, rule) in node.rules.iter().enumerate() {
        check_rule(rule, node, is_root, &format!("{path}.x-kubernetes-validations[{place}]"), faults);
    }
    for (name, property) in &node.properties {
        visit(property, property.embedded, &format!("{path}.properties[{name}]"), faults);
    }
    if let Additional::Each(each) = &node.additional {
        visit(each, each.embedded, &format!("{path}.additionalProperties"), faults);
    }
    if let Some(items) = &node.items {
        visit(items, items.embedded, &format!("{path}.items"), faults);
    }
}

fn check_rule(rule: &Rule, node: &Node, is_root: bool, path: &str, faults: &mut Vec<FieldError>) {
    let mut report = |field: &str, fault: &str| {
        let detail = format!("compilation failed: {fault}");
        let shown = serde_json::Value::from(rule.source.as_str());
        faults.push(FieldError::invalid(format!("{path}.{field}"), &shown, detail));
    };
    match &rule.program {
        Err(fault) => report("rule", fault),
        Ok(program) => match Names::new(node, is_root, rule).type_of(program) {
            Err(fault) => report("rule", &fault),
            Ok(Type::Unknown | Type::Bool) => {}
            Ok(Type::Schema(node, _)) if node.types == Types::BOOLEAN || node.types.is_any() => {}
            Ok(_) => report("rule", "cel expression must evaluate to a bool"),
        },
    }
    match &rule.message_program {
        Some(Err(fault)) => report("messageExpression", fault),
        Some(Ok(program)) => {
            if let Err(fault) = Names::new(node, is_root, rule).type_of(program) {
                report("messageExpression", &fault);
            }
        }
        None => {}
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

    fn type_of(&mut self, expression: &IdedExpr) -> Result<Type<'a>, String> {
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

    fn variable(&self, name: &str) -> Result<Type<'a>, String> {
        match self.variables.get(name) {
            Some(known) => Ok(*known),
            None if NAMES.contains(&name) || name.starts_with('@') => Ok(Type::Unknown),
            None => Err(format!("undeclared reference to '{name}' (in container '')")),
        }
    }

    fn call(&mut self, call: &CallExpr) -> Result<Type<'a>, String> {
        let mut types = Vec::with_capacity(call.args.len());
        for argument in &call.args {
            types.push(self.type_of(argument)?);
        }
        match call.func_name.as_str() {
            operators::LOGICAL_AND
            | operators::LOGICAL_OR
            | operators::LOGICAL_NOT
            | operators::EQUALS
            | operators::NOT_EQUALS
            | operators::GREATER
            | operators::GREATER_EQUALS
            | operators::LESS
            | operators::LESS_EQUALS
            | operators::IN => return Ok(Type::Bool),
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
            Err(format!("undeclared reference to '{}' (in container '')", call.func_name))
        }
    }

    fn comprehension(&mut self, comprehension: &ComprehensionExpr) -> Result<Type<'a>, String> {
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

fn field_of<'a>(operand: Type<'a>, field: &str) -> Result<Type<'a>, String> {
    let undefined = || Err(format!("undefined field '{field}'"));
    match operand {
        Type::Unknown => Ok(Type::Unknown),
        Type::Metadata if matches!(field, "name" | "generateName") => Ok(Type::Other("string")),
        Type::Metadata => undefined(),
        Type::Bool => Err("type 'bool' does not support field selection".into()),
        Type::Other(name) => Err(format!("type '{name}' does not support field selection")),
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
                None => Err(format!("type '{}' does not support field selection", cel_name(node))),
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
