//! The bridge to CEL: parsing, values, evaluation and the wording of its errors.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use base64::Engine;
use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr};
use kube_cel::cel::objects::{Key, Map as CelMap, OptionalValue};
use kube_cel::cel::parser::{Expression, Parser};
use kube_cel::cel::{Context, ExecutionError, Value as Cel};
use serde_json::Value;

use super::format::FormatKind;
use super::node::{Additional, Node, Types};
use super::optional::spell_out;

thread_local! {
    /// All functions, registered once per thread.
    static FUNCTIONS: Context<'static> = {
        let mut context = Context::default().with_all();
        context.add_function("dyn", |value: Cel| Ok::<Cel, ExecutionError>(value));
        context
    };
}

/// Parses an expression; the error is what the parser says.
pub(crate) fn parse(source: &str, optional_old: bool) -> Result<Expression, String> {
    let parser = Parser::new().enable_optional_syntax(true);
    let parsed = parser.parse(source).map(|mut expression| {
        spell_out(&mut expression, optional_old);
        expression
    });
    parsed.map_err(|errors| errors.to_string().trim_end().replace("\n| ", "\n | "))
}

/// What a rule sees.
pub(crate) struct Scope {
    pub(crate) this: Cel,
    pub(crate) old: Option<Cel>,
}

impl Scope {
    /// Evaluates with `oldSelf` as the value itself, or wrapped for rules that want it optional.
    pub(crate) fn evaluate(&self, program: &Expression, optional_old: bool) -> Result<Cel, ExecutionError> {
        FUNCTIONS.with(|functions| {
            let mut context = functions.new_inner_scope();
            context.add_variable_from_value("self", self.this.clone());
            if optional_old {
                let old = self.old.clone().map_or_else(OptionalValue::none, OptionalValue::of);
                context.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(old)));
            } else if let Some(old) = &self.old {
                context.add_variable_from_value("oldSelf", old.clone());
            }
            context.resolve(program)
        })
    }
}

/// Whether an expression over the given variables is true; the error says why it cannot be told.
pub(crate) fn holds(source: &str, variables: &[(&str, &Value)]) -> Result<bool, String> {
    let program = parse(source, false)?;
    FUNCTIONS.with(|functions| {
        let mut context = functions.new_inner_scope();
        for (name, value) in variables {
            context.add_variable_from_value(*name, untyped(value));
        }
        match context.resolve(&program) {
            Ok(Cel::Bool(answer)) => Ok(answer),
            Ok(_) => Err("the expression does not give true or false".to_owned()),
            Err(error) => Err(show_error(&error)),
        }
    })
}

/// The fields of a variable that an expression reads, or all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reads {
    Fields(BTreeSet<String>),
    All,
}

impl Reads {
    pub(crate) fn nothing() -> Reads {
        Reads::Fields(BTreeSet::new())
    }

    /// What an expression reads of `self` and `oldSelf` taken together.
    pub(crate) fn of(expression: &IdedExpr) -> Reads {
        let mut reads = Reads::nothing();
        reads.visit(expression);
        reads
    }

    pub(crate) fn join(self, other: Reads) -> Reads {
        match (self, other) {
            (Reads::Fields(mut a), Reads::Fields(b)) => {
                a.extend(b);
                Reads::Fields(a)
            }
            _ => Reads::All,
        }
    }

    fn needs(&self, escaped: &str) -> bool {
        match self {
            Reads::Fields(fields) => fields.contains(escaped),
            Reads::All => true,
        }
    }

    fn visit(&mut self, expression: &IdedExpr) {
        match &expression.expr {
            Expr::Select(select) if is_variable(&select.operand) => self.add(&select.field),
            Expr::Ident(name) if name == "self" || name == "oldSelf" => *self = Reads::All,
            other => children(other).into_iter().for_each(|child| self.visit(child)),
        }
    }

    fn add(&mut self, field: &str) {
        if let Reads::Fields(fields) = self {
            fields.insert(field.to_owned());
        }
    }
}

fn is_variable(expression: &IdedExpr) -> bool {
    matches!(&expression.expr, Expr::Ident(name) if name == "self" || name == "oldSelf")
}

/// The direct parts of an expression.
pub(crate) fn children(expression: &Expr) -> Vec<&IdedExpr> {
    match expression {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Vec::new(),
        Expr::Call(call) => call.target.as_deref().into_iter().chain(&call.args).collect(),
        Expr::Select(select) => vec![&select.operand],
        Expr::List(list) => list.elements.iter().collect(),
        Expr::Map(map) => map.entries.iter().flat_map(parts).collect(),
        Expr::Struct(object) => object.entries.iter().flat_map(parts).collect(),
        Expr::Comprehension(c) => {
            vec![&c.iter_range, &c.accu_init, &c.loop_cond, &c.loop_step, &c.result]
        }
    }
}

fn parts(entry: &IdedEntryExpr) -> Vec<&IdedExpr> {
    match &entry.expr {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// A value as rules see it: typed by the schema, without undeclared fields.
/// Only what is read of the outermost object is brought over.
pub(crate) fn to_cel(value: &Value, node: &Node, is_resource: bool, reads: &Reads) -> Cel {
    let Value::Object(map) = value else { return convert(value, node) };
    let is_map = matches!(node.additional, Additional::Each(_) | Additional::Anything);
    let mut fields: HashMap<Key, Cel> = HashMap::with_capacity(map.len());
    for (name, child) in map {
        let meta =
            (is_resource || node.embedded) && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
        let key = if is_map { name.clone() } else { escape(name) };
        if !reads.needs(&key) {
            continue;
        }
        let converted = match (node.child(name), meta) {
            (_, true) if name == "metadata" => object_meta(child),
            (_, true) => untyped(child),
            (Some(schema), false) => convert(child, schema),
            (None, false) if is_map || node.properties.is_empty() => untyped(child),
            (None, false) => continue,
        };
        fields.insert(Key::String(Arc::new(key)), converted);
    }
    Cel::Map(CelMap { map: Arc::new(fields) })
}

fn convert(value: &Value, node: &Node) -> Cel {
    match value {
        Value::Object(_) => to_cel(value, node, false, &Reads::All),
        Value::Array(items) => {
            let item =
                |item| node.items.as_deref().map_or_else(|| untyped(item), |schema| convert(item, schema));
            Cel::List(Arc::new(items.iter().map(item).collect()))
        }
        Value::Number(number) if node.types == Types::NUMBER => {
            Cel::Float(number.as_f64().unwrap_or(f64::NAN))
        }
        Value::Number(number) if node.types == Types::INTEGER => {
            Cel::Int(number.as_i64().unwrap_or_else(|| number.as_f64().unwrap_or(0.0) as i64))
        }
        Value::String(text) => formatted(text, node),
        Value::Null | Value::Bool(_) | Value::Number(_) => untyped(value),
    }
}

fn formatted(text: &str, node: &Node) -> Cel {
    let parsed = match node.format.as_ref().map(|format| format.kind) {
        Some(FormatKind::DateTime) => parse_time(text),
        Some(FormatKind::Date) => parse_time(&format!("{text}T00:00:00Z")),
        Some(FormatKind::Duration) => parse_duration(text),
        Some(FormatKind::Byte) => base64::engine::general_purpose::STANDARD
            .decode(text)
            .ok()
            .map(|bytes| Cel::Bytes(Arc::new(bytes))),
        _ => None,
    };
    parsed.unwrap_or_else(|| Cel::String(Arc::new(text.to_owned())))
}

/// Times and durations are made by CEL itself, so that both sides agree on them.
fn parse_time(text: &str) -> Option<Cel> {
    call_on_text("timestamp", text)
}

fn parse_duration(text: &str) -> Option<Cel> {
    call_on_text("duration", text)
}

fn call_on_text(function: &str, text: &str) -> Option<Cel> {
    thread_local! {
        static TIMESTAMP: Option<Expression> = parse("timestamp(self)", false).ok();
        static DURATION: Option<Expression> = parse("duration(self)", false).ok();
    }
    let scope = Scope { this: Cel::String(Arc::new(text.to_owned())), old: None };
    let call = |program: &Option<Expression>| scope.evaluate(program.as_ref()?, false).ok();
    if function == "timestamp" { TIMESTAMP.with(call) } else { DURATION.with(call) }
}

/// Rules see the name of an object and nothing else of its metadata.
fn object_meta(metadata: &Value) -> Cel {
    let visible = ["name", "generateName"].into_iter().filter_map(|name| {
        let value = metadata.get(name)?;
        Some((Key::String(Arc::new(name.to_owned())), untyped(value)))
    });
    Cel::Map(CelMap { map: Arc::new(visible.collect()) })
}

fn untyped(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(flag) => Cel::Bool(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Cel::Int(whole),
            None => Cel::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(untyped).collect())),
        Value::Object(map) => {
            let fields =
                map.iter().map(|(name, child)| (Key::String(Arc::new(name.clone())), untyped(child)));
            Cel::Map(CelMap { map: Arc::new(fields.collect()) })
        }
    }
}

/// Words that cannot be field names in CEL.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// A field name as rules write it: `foo-bar` is `foo__dash__bar`.
pub(crate) fn escape(name: &str) -> String {
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    if !name.contains(['.', '-', '/']) && !name.contains("__") {
        return name.to_owned();
    }
    name.replace("__", "__underscores__")
        .replace('.', "__dot__")
        .replace('-', "__dash__")
        .replace('/', "__slash__")
}

/// An evaluation error in the words of the real server.
pub(crate) fn show_error(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedUnaryOperator(..)
        | ExecutionError::ValuesNotComparable(..) => "no such overload".into(),
        ExecutionError::DivisionByZero(_) => "division by zero".into(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".into(),
        ExecutionError::Overflow(..) => "integer overflow".into(),
        ExecutionError::IndexOutOfBounds(Cel::Int(index)) => format!("index out of bounds: {index}"),
        ExecutionError::FunctionError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}
