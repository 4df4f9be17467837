//! Optional field selection (`self.?a.?b`), spelt out in terms that the
//! evaluator gets right: a field that is not there is none, not an error.

use kube_cel::cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};

/// Rewrites every chain of optional selections in an expression. Where
/// `oldSelf` is itself optional, a chain from it starts with its value.
pub(crate) fn spell_out(expression: &mut IdedExpr, optional_old: bool) {
    for child in children_mut(&mut expression.expr) {
        spell_out(child, optional_old);
    }
    if let Some((base, field)) = optional_select(&expression.expr) {
        let (condition, base) = start(base, optional_old);
        let value = select(base.clone(), &field, false);
        let exists = select(base, &field, true);
        let condition = match condition {
            Some(condition) => call(operators::LOGICAL_AND, vec![condition, exists]),
            None => exists,
        };
        expression.expr = either(condition, value).expr;
    }
}

/// What a chain goes on from: under which condition, and the plain value then.
fn start(base: IdedExpr, optional_old: bool) -> (Option<IdedExpr>, IdedExpr) {
    match base.expr {
        // The part of the chain before this was spelt out already.
        Expr::Call(ref outer) if outer.func_name == operators::CONDITIONAL && outer.args.len() == 3 => {
            match &outer.args[1].expr {
                Expr::Call(of) if is_optional_of(of) => (Some(outer.args[0].clone()), of.args[0].clone()),
                _ => (None, base),
            }
        }
        Expr::Ident(ref name) if name == "oldSelf" && optional_old => {
            (Some(method(base.clone(), "hasValue")), method(base, "value"))
        }
        _ => (None, base),
    }
}

fn optional_select(expression: &Expr) -> Option<(IdedExpr, String)> {
    let Expr::Call(call) = expression else { return None };
    match (call.func_name.as_str(), call.args.as_slice()) {
        (
            operators::OPT_SELECT,
            [base, IdedExpr { expr: Expr::Literal(LiteralValue::String(field)), .. }],
        ) => Some((base.clone(), field.inner().to_owned())),
        _ => None,
    }
}

fn node(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

fn select(operand: IdedExpr, field: &str, test: bool) -> IdedExpr {
    node(Expr::Select(SelectExpr { operand: Box::new(operand), field: field.to_owned(), test }))
}

fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

fn method(target: IdedExpr, name: &str) -> IdedExpr {
    node(Expr::Call(CallExpr {
        func_name: name.to_owned(),
        target: Some(Box::new(target)),
        args: Vec::new(),
    }))
}

fn optional(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    let target = Some(Box::new(node(Expr::Ident("optional".into()))));
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target, args }))
}

fn is_optional_of(call: &CallExpr) -> bool {
    call.func_name == "of"
        && call.args.len() == 1
        && matches!(call.target.as_deref(), Some(IdedExpr { expr: Expr::Ident(name), .. }) if name == "optional")
}

fn either(condition: IdedExpr, value: IdedExpr) -> IdedExpr {
    let some = optional("of", vec![value]);
    call(operators::CONDITIONAL, vec![condition, some, optional("none", Vec::new())])
}

fn children_mut(expression: &mut Expr) -> Vec<&mut IdedExpr> {
    match expression {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => Vec::new(),
        Expr::Call(call) => call.target.as_deref_mut().into_iter().chain(&mut call.args).collect(),
        Expr::Select(select) => vec![&mut *select.operand],
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Map(map) => map
            .entries
            .iter_mut()
            .flat_map(|entry| match &mut entry.expr {
                EntryExpr::StructField(field) => vec![&mut field.value],
                EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
            })
            .collect(),
        Expr::Comprehension(c) => {
            let c = &mut **c;
            vec![&mut c.iter_range, &mut c.accu_init, &mut c.loop_cond, &mut c.loop_step, &mut c.result]
        }
    }
}
