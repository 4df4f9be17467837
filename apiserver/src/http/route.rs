//! Finds who asks for what, whether they may, and hands the request on.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{
    ACCEPT, ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, USER_AGENT, WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::body::{Body, Held};
use super::call::Call;
use super::negotiate;
use super::path::{ResourcePath, Route, name_fault, unescape};
use super::query::{ListOptions, Query};
use super::{
    annex, binding, decode, delete_collection, discovery, handlers, health, impersonate, list, log, patch,
    respond, scale, watch,
};
use crate::auth::{Attributes, Decision, Identity, Verb, review};
use crate::error::{ApiError, Reason};
use crate::lifecycle::Part;
use crate::metrics::Running;
use crate::schema::quote;
use crate::server::Shared;

/// How a request is counted and logged.
pub(super) struct Label {
    verb: &'static str,
    resource: String,
}

/// Answers one request. `identity` is given for requests made inside the
/// process; others say who they are by their token.
pub(crate) async fn answer<B>(
    server: &Arc<Shared>,
    identity: Option<Arc<Identity>>,
    request: Request<B>,
) -> Response<Body>
where
    B: http_body::Body + Send,
    B::Data: Send,
    B::Error: std::fmt::Display,
{
    let (parts, body) = request.into_parts();
    let is_watch =
        parts.method == Method::GET && parts.uri.query().is_some_and(|query| query.contains("watch="));
    let running = server.metrics.running(is_watch);
    let mut label = Label { verb: "other", resource: String::new() };
    // A mistake of ours must not take the connection, and others' requests on it, down.
    let guarded =
        AssertUnwindSafe(Box::pin(handle(server, identity, &parts, body, &mut label))).catch_unwind();
    let outcome = guarded.await.unwrap_or_else(|_| {
        let message = "Internal error occurred: the request ran into a defect of the server";
        Err(ApiError::new(Reason::InternalError, message))
    });
    let response = outcome.unwrap_or_else(|error| refused(server, &parts, &error));
    let response = finish(server, &parts, response, &label, &running);
    hold(response, running)
}

fn refused(server: &Shared, parts: &Parts, error: &ApiError) -> Response<Body> {
    if error.reason == Reason::TooManyRequests {
        server.metrics.rejected.inc();
    }
    let (method, path, code) = (&parts.method, parts.uri.path(), error.reason.code());
    if code >= 500 {
        tracing::warn!(%method, path, code, reason = error.reason.as_str(), message = error.message, "request failed");
    } else {
        tracing::debug!(%method, path, code, reason = error.reason.as_str(), message = error.message, "request refused");
    }
    let mut response = respond::failure(error);
    if error.reason == Reason::Unauthorized {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn finish(
    server: &Shared,
    parts: &Parts,
    response: Response<Body>,
    label: &Label,
    running: &Running,
) -> Response<Body> {
    server.metrics.answered(label.verb, &label.resource, response.status().as_u16(), running.elapsed());
    if parts.method == Method::HEAD {
        return response.map(|_| Body::empty());
    }
    response
}

fn hold(mut response: Response<Body>, running: Running) -> Response<Body> {
    let pass = response.extensions_mut().remove::<crate::limits::HeldPass>().map(|held| held.0);
    response.map(|body| body.holding(Held { _pass: pass, _running: Some(running) }))
}

async fn handle<B>(
    server: &Arc<Shared>,
    identity: Option<Arc<Identity>>,
    parts: &Parts,
    body: B,
    label: &mut Label,
) -> Result<Response<Body>, ApiError>
where
    B: http_body::Body,
    B::Error: std::fmt::Display,
{
    if parts.uri.path_and_query().is_some_and(|uri| uri.as_str().len() > server.limits.uri_bytes) {
        return Err(ApiError::new(
            Reason::RequestEntityTooLarge,
            "the path and query of the request are too long",
        ));
    }
    let Some(path) = unescape(parts.uri.path()) else {
        return Ok(respond::text(StatusCode::BAD_REQUEST, "400 Bad Request"));
    };
    let identity = match identity {
        Some(identity) => identity,
        None => impersonate::instead_of(identify(server, &parts.headers, &path)?, &parts.headers)?,
    };
    if let Some(annex) = annex::find(server, &path) {
        return annex::visit(server, &identity, annex, (&parts.method, &path)).await;
    }
    let route = Route::parse(&path).ok_or_else(nothing_here)?;
    match route {
        Route::Resource(path) => resource(server, identity, (parts, body), path, label).await,
        other => {
            let method = if parts.method == Method::HEAD { &Method::GET } else { &parts.method };
            label.verb = if method == Method::GET { "get" } else { "other" };
            let verb = method.as_str().to_lowercase();
            if !server.authorizer.may_visit(&identity, &verb, &path) {
                let message = format!("forbidden: User {:?} cannot {verb} path {path:?}", identity.user());
                return Err(ApiError::new(Reason::Forbidden, message));
            }
            if method != Method::GET {
                return Err(ApiError::new(
                    Reason::MethodNotAllowed,
                    "the server does not allow this method on the requested resource",
                ));
            }
            let _pass = server.gate.request()?;
            match other {
                Route::Other(path) => health::answer(server, path, parts.uri.query()),
                route => discovery::answer(server, &route, &parts.headers),
            }
        }
    }
}

/// Who asks. Without a token one may ask how the server is, and nothing else.
fn identify(server: &Shared, headers: &HeaderMap, path: &str) -> Result<Arc<Identity>, ApiError> {
    let unknown = || ApiError::new(Reason::Unauthorized, "Unauthorized");
    let Some(header) = headers.get(AUTHORIZATION) else {
        let open = ["/livez", "/readyz", "/healthz", "/version"].iter().any(|open| path.starts_with(open));
        return if open { Ok(Arc::new(Identity::anonymous())) } else { Err(unknown()) };
    };
    let token = header.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let known = token.and_then(|token| server.tokens.identify(token));
    known.ok_or_else(unknown)
}

/// 404 for a path that names nothing.
pub(super) fn nothing_here() -> ApiError {
    ApiError::new(Reason::NotFound, "the server could not find the requested resource")
}

fn verb_of(method: &Method, named: bool, options: &Query) -> Option<Verb> {
    match *method {
        Method::GET | Method::HEAD if named => Some(Verb::Get),
        Method::GET if options.flag("watch") => Some(Verb::Watch),
        Method::GET | Method::HEAD => Some(Verb::List),
        Method::POST => Some(Verb::Create),
        Method::PUT if named => Some(Verb::Update),
        Method::PATCH if named => Some(Verb::Patch),
        Method::DELETE if named => Some(Verb::Delete),
        Method::DELETE => Some(Verb::DeleteCollection),
        _ => None,
    }
}

async fn resource<B>(
    server: &Arc<Shared>,
    identity: Arc<Identity>,
    (parts, body): (&Parts, B),
    path: ResourcePath<'_>,
    label: &mut Label,
) -> Result<Response<Body>, ApiError>
where
    B: http_body::Body,
    B::Error: std::fmt::Display,
{
    let query = Query::parse(parts.uri.query());
    if parts.method == Method::OPTIONS {
        return Ok(options());
    }
    let verb = match verb_of(&parts.method, path.name.is_some(), &query).ok_or_else(not_allowed)? {
        Verb::Get | Verb::List if path.watch => Verb::Watch,
        verb => verb,
    };
    label.verb = verb.as_str();
    // Only names that exist are counted by: clients could send any number of others.
    let served = server.registry.find(path.group, path.version, path.plural);
    if served.is_some() {
        label.resource.push_str(path.plural);
    }
    let allowed = authorize(server, &identity, &path, verb, &query)?;
    let pass = match verb {
        Verb::Watch => server.gate.watch(identity.user())?,
        // A log that is followed goes on like a watch.
        Verb::Get if path.subresource == Some("log") && query.flag("follow") => {
            server.gate.watch(identity.user())?
        }
        _ => server.gate.request()?,
    };
    let mut share = server.gate.body();
    let header = |name: HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
    if path.version == "v1" && path.name.is_none() && verb == Verb::Create && is_review_group(path.group) {
        let bytes = decode::read(body, &server.limits, &mut share).await?;
        let question = decode::object(&bytes, decode::media_type(header(CONTENT_TYPE)), &server.limits)?;
        let kinds = server.registry.load();
        let resource = (path.group, path.plural);
        let answered = review(&server.authorizer, &identity, resource, question, kinds.kinds());
        let answer = answered.ok_or_else(nothing_here)?;
        label.resource.push_str(path.plural);
        let answer = answer?;
        return Ok(respond::json_value(StatusCode::CREATED, &answer));
    }
    let served = served.ok_or_else(nothing_here)?;
    let namespace = path.namespace.map(str::to_owned);
    if namespace.is_some() && !served.is_namespaced() {
        return Err(nothing_here());
    }
    let one_object = path.name.is_some() || verb == Verb::Create;
    let across = verb == Verb::DeleteCollection;
    if namespace.is_none() && served.is_namespaced() && (one_object || across) {
        return Err(nothing_here());
    }
    if let Some((name, fault)) = path.name.and_then(|name| Some((name, name_fault(name)?))) {
        let message = format!("Name parameter invalid: {}: {fault}", quote(name));
        return Err(ApiError::new(Reason::BadRequest, message));
    }
    let user_agent = header(USER_AGENT).unwrap_or_default();
    let call = Call {
        server: server.clone(),
        identity,
        served,
        verb,
        namespace,
        name: path.name.map(str::to_owned),
        subresource: path.subresource.map(str::to_owned),
        accept: negotiate::accept(header(ACCEPT))?,
        content_type: decode::media_type(header(CONTENT_TYPE)).to_owned(),
        user_agent: user_agent.to_owned(),
        pretty: pretty(&query, header(ACCEPT), user_agent),
        query,
        check: allowed,
    };
    let bytes = match verb.is_read() {
        true => bytes::Bytes::new(),
        false => decode::read(body, &server.limits, &mut share).await?,
    };
    let deprecated = call.served.version().deprecation_warning.clone().filter(|_| verb.is_read());
    let handled: BoxFuture<'_, _> = Box::pin(dispatch(call, bytes));
    let mut response = respond::with_warnings(handled.await?, deprecated.as_slice());
    response.extensions_mut().insert(crate::limits::HeldPass::new(pass));
    Ok(response)
}

fn is_review_group(group: &str) -> bool {
    matches!(group, "authentication.k8s.io" | "authorization.k8s.io")
}

/// People with a browser or curl get indented JSON, as from the real server.
fn pretty(query: &Query, accept: Option<&str>, user_agent: &str) -> bool {
    match query.get("pretty") {
        Some(_) => query.flag("pretty"),
        None => {
            accept.is_none_or(|accept| accept == "*/*")
                && (user_agent.starts_with("curl") || user_agent.starts_with("Mozilla"))
        }
    }
}

fn authorize(
    server: &Shared,
    identity: &Identity,
    path: &ResourcePath<'_>,
    verb: Verb,
    query: &Query,
) -> Result<Option<crate::auth::ObjectCheck>, ApiError> {
    let only_node = query.get("fieldSelector").and_then(|fields| {
        fields
            .split(',')
            .find_map(|term| term.strip_prefix("spec.nodeName=").map(|node| node.trim_start_matches('=')))
    });
    let wanted = Attributes {
        verb: verb.as_str(),
        group: path.group,
        resource: path.plural,
        subresource: path.subresource,
        namespace: path.namespace,
        name: path.name,
        only_node,
    };
    match server.authorizer.decide(identity, &wanted) {
        Decision::Allow => Ok(None),
        Decision::AllowIf(check) => Ok(Some(check)),
        Decision::Deny => Err(wanted.forbidden(identity.user())),
    }
}

async fn dispatch(call: Call, body: bytes::Bytes) -> Result<Response<Body>, ApiError> {
    match (call.subresource.as_deref(), call.verb) {
        (None, Verb::Get) => handlers::get(&call).await,
        (None, Verb::List) => list::list(&call, &ListOptions::parse(&call.query)?).await,
        (None, Verb::Watch) => {
            let mut options = ListOptions::parse_watch(&call.query)?;
            if let Some(name) = &call.name {
                options.field_selector = watch::selector_of(name, &options, &call.served)?;
            }
            watch::watch(call, &options)
        }
        (None, Verb::Create) if call.name.is_none() => handlers::create(&call, &body).await,
        (None, Verb::Update) => handlers::update(&call, &body, Part::Main).await,
        (None, Verb::Patch) => patch::patch(&call, &body, Part::Main).await,
        (None, Verb::Delete) => handlers::delete(&call, &body).await,
        (None, Verb::DeleteCollection) => delete_collection::delete_collection(call, &body).await,
        (None, Verb::Create) => Err(unsupported(&call)),
        (Some("status"), verb) if call.served.version().status_subresource => match verb {
            Verb::Get => handlers::get(&call).await,
            Verb::Update => handlers::update(&call, &body, Part::Status).await,
            Verb::Patch => patch::patch(&call, &body, Part::Status).await,
            _ => Err(unsupported(&call)),
        },
        (Some("finalize"), Verb::Update) if call.served.is("", "namespaces") => {
            handlers::update(&call, &body, Part::Finalize).await
        }
        (Some("log"), Verb::Get) if call.served.is("", "pods") => log::log(&call).await,
        (Some("binding"), Verb::Create) if call.served.is("", "pods") => binding::bind(&call, &body).await,
        (Some("scale"), verb) if call.served.version().scale_subresource.is_some() => match verb {
            Verb::Get => scale::get(&call).await,
            Verb::Update => scale::update(&call, &body).await,
            Verb::Patch => scale::patch(&call, &body).await,
            _ => Err(unsupported(&call)),
        },
        (Some(_), _) if call.served.kind().built_in => Err(nothing_here()),
        (Some(_), _) => Err(call.served.not_found(call.name())),
    }
}

/// 405 on a kind that has no such verb.
fn unsupported(call: &Call) -> ApiError {
    let message =
        format!("{} is not supported on resources of kind {:?}", call.verb, call.served.qualified());
    ApiError::new(Reason::MethodNotAllowed, message).about(call.served.subject(""))
}

fn not_allowed() -> ApiError {
    ApiError::new(Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
}

fn options() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
    response
}
