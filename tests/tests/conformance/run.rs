//! Tells a scenario to a server and writes down what it answers.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use http::Request;
use midflight_tests::endpoint::{Answer, Endpoint, Lines};
use midflight_tests::webhook::Webhook;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::normal::Normaliser;
use crate::report::Server;
use crate::scenario::{Call, Caller, Scenario, Step};

/// How long anything may take that is not immediate: collection, also of new kinds, publication, a watch event.
const PATIENCE: Duration = Duration::from_secs(150);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// A server with the callers that scenarios know.
pub(crate) struct Stage {
    pub(crate) admin: Endpoint,
    pub(crate) viewer: Endpoint,
    pub(crate) nobody: Endpoint,
    pub(crate) stranger: Endpoint,
    pub(crate) webhook: Webhook,
    pub(crate) server: Server,
}

/// One scenario under way.
struct Telling<'a> {
    stage: &'a Stage,
    namespace: String,
    saved: HashMap<&'static str, Value>,
    watches: HashMap<&'static str, Lines>,
    normal: Normaliser,
}

/// Runs the steps in a new namespace; the records are what the golden file holds.
pub(crate) async fn tell(stage: &Stage, scenario: &Scenario, namespace: &str) -> anyhow::Result<Vec<Value>> {
    let literal = [
        (namespace, "{ns}"),
        (stage.webhook.url.as_str(), "{webhook}"),
        (stage.webhook.ca_bundle.as_str(), "{ca}"),
    ];
    let mut telling = Telling {
        stage,
        namespace: namespace.to_owned(),
        saved: HashMap::new(),
        watches: HashMap::new(),
        normal: Normaliser::new(&literal),
    };
    telling.create_namespace().await?;
    let mut records = Vec::new();
    for (index, step) in scenario.steps.iter().enumerate() {
        let record = telling.step(step).await.with_context(|| format!("step {index}, {}", title(step)))?;
        records.push(record);
    }
    Ok(records)
}

fn title(step: &Step) -> String {
    match step {
        Step::Call(call) => format!("{} {}", call.method, call.path),
        Step::Watch { name, call } => format!("watch {name} of {}", call.path),
        Step::Events { watch, count, .. } => format!("{count} events of watch {watch}"),
        Step::Ends { watch } => format!("end of watch {watch}"),
    }
}

impl Telling<'_> {
    async fn create_namespace(&self) -> anyhow::Result<()> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        let request = Request::post("/api/v1/namespaces").header("Content-Type", "application/json");
        let answer = self.stage.admin.call(request.body(body.to_string().into_bytes())?).await?;
        ensure!(answer.status == 201, "create namespace: {}", answer.text);
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> anyhow::Result<Value> {
        match step {
            Step::Call(call) => self.call(call).await,
            Step::Watch { name, call } => {
                let (status, lines) = self.stage.admin.stream(self.request(call)?).await?;
                self.watches.insert(name, lines);
                ensure!(status == call.status, "wanted {}, got {status}", call.status);
                Ok(json!({"watch": call.path, "status": status.as_u16()}))
            }
            Step::Events { watch, count, bookmarks } => {
                let mut events = Vec::new();
                while events.len() < *count {
                    match self.event(watch).await {
                        Ok(Some(event)) if event["type"] == "BOOKMARK" && !bookmarks => {}
                        Ok(Some(event)) => events.push(self.normal_event(event)),
                        Ok(None) => bail!("the stream ended after {}", Value::from(events)),
                        Err(error) => return Err(error.context(format!("after {}", Value::from(events)))),
                    }
                }
                Ok(json!({"watch": watch, "events": events}))
            }
            Step::Ends { watch } => {
                let mut events = Vec::new();
                while let Some(event) = self.event(watch).await.context("it does not end")? {
                    if event["type"] != "BOOKMARK" {
                        events.push(self.normal_event(event));
                    }
                }
                Ok(json!({"watch": watch, "events": events, "ended": true}))
            }
        }
    }

    async fn event(&mut self, watch: &str) -> anyhow::Result<Option<Value>> {
        let lines = self.watches.get_mut(watch).context("no such watch")?;
        let Some(line) = timeout(PATIENCE, lines.next()).await.context("no event came")?? else {
            return Ok(None);
        };
        Ok(Some(serde_json::from_slice(&line)?))
    }

    fn normal_event(&mut self, mut event: Value) -> Value {
        self.normal.value(&mut event);
        event
    }

    async fn call(&mut self, call: &Call) -> anyhow::Result<Value> {
        let wanted = match call.differs {
            Some((status, _)) if self.stage.server == Server::Embedded => status,
            _ => call.status,
        };
        let answer = self.answer(call, wanted).await?;
        let body = answer.json();
        ensure!(answer.status == wanted, "wanted {wanted}, got {}: {}", answer.status, shorten(&answer.text));
        if let Some(name) = call.save {
            self.saved.insert(name, body.clone());
        }
        let mut body = body;
        self.normal.value(&mut body);
        for pointer in &call.without {
            remove(&mut body, pointer);
        }
        if !call.focus.is_empty() {
            body = call.focus.iter().map(|&at| (at.to_owned(), body.pointer(at).cloned())).collect();
        }
        let mut record = json!({
            "request": format!("{} {}", call.method, call.path), "status": answer.status.as_u16(), "body": body,
        });
        let warnings = answer.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok());
        let warnings = warnings.map(|text| Value::from(self.normal.text(text))).collect::<Vec<_>>();
        if !warnings.is_empty() {
            record["warnings"] = warnings.into();
        }
        Ok(record)
    }

    /// The answer; the first one that is as wanted where the call may be repeated.
    async fn answer(&self, call: &Call, wanted: u16) -> anyhow::Result<Answer> {
        let endpoint = match call.caller {
            Caller::Admin => &self.stage.admin,
            Caller::Viewer => &self.stage.viewer,
            Caller::Nobody => &self.stage.nobody,
            Caller::Stranger => &self.stage.stranger,
        };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer =
                timeout(PATIENCE, endpoint.call(self.request(call)?)).await.context("no answer came")??;
            let Some(until) = &call.until else { return Ok(answer) };
            let reached = answer.status == wanted
                && until.as_ref().is_none_or(|(pointer, value)| {
                    answer.json().pointer(pointer).unwrap_or(&Value::Null) == value
                });
            if reached {
                return Ok(answer);
            }
            ensure!(
                Instant::now() < deadline,
                "never as wanted, last {}: {}",
                answer.status,
                shorten(&answer.text)
            );
            sleep(BETWEEN_LOOKS).await;
        }
    }

    fn request(&self, call: &Call) -> anyhow::Result<Request<Vec<u8>>> {
        let mut request = Request::builder().method(call.method).uri(self.fill(&call.path)?);
        if let Some(media_type) = call.content_type {
            request = request.header("Content-Type", media_type);
        }
        request = request.header("Accept", call.accept.unwrap_or("application/json"));
        for (name, value) in &call.headers {
            request = request.header(*name, self.fill(value)?);
        }
        let body = match &call.body {
            // A string is sent as it is: what is no JSON can be told too.
            Some(Value::String(text)) => self.fill(text)?.into_bytes(),
            Some(body) => self.fill(&body.to_string())?.into_bytes(),
            None => Vec::new(),
        };
        Ok(request.body(body)?)
    }

    /// Puts the values of this run where `{ns}`, `{webhook}`, `{ca}` and `{saved:/pointer}` stand.
    fn fill(&self, text: &str) -> anyhow::Result<String> {
        let mut out = text
            .replace("{ns}", &self.namespace)
            .replace("{webhook}", &self.stage.webhook.url)
            .replace("{ca}", &self.stage.webhook.ca_bundle);
        for (name, body) in &self.saved {
            while let Some(start) = out.find(&format!("{{{name}:/")) {
                let end = start + out[start..].find('}').context("a placeholder without end")?;
                let pointer = &out[start + name.len() + 2..end];
                let value = body.pointer(pointer).with_context(|| format!("{name} has no {pointer}"))?;
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                out.replace_range(start..=end, &value);
            }
        }
        Ok(out)
    }
}

fn remove(body: &mut Value, pointer: &str) {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer has a slash");
    match body.pointer_mut(parent) {
        Some(Value::Object(map)) => {
            map.remove(key);
        }
        Some(Value::Array(items)) => {
            if let Ok(index) = key.parse::<usize>()
                && index < items.len()
            {
                items.remove(index);
            }
        }
        _ => {}
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(1500).collect()
}
