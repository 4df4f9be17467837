//! Webhooks behind real HTTPS on loopback.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::testing::{Api, GADGETS, Webhook, gadget};
use crate::tls::Certificates;

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// A webhook that answers with what `judge` makes of the request.
struct Judge(Webhook);

impl Judge {
    async fn start(judge: impl Fn(&Value) -> Option<Value> + Send + Sync + 'static) -> Judge {
        let answer = move |review: &Value| {
            let mut response = judge(&review["request"])?;
            response["uid"] = review["request"]["uid"].clone();
            Some(
                json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}),
            )
        };
        Judge(Webhook::start(answer).await)
    }

    #[allow(clippy::needless_pass_by_value, reason = "callers give a literal")]
    fn configuration(&self, changes: Value) -> Value {
        let mut webhook = json!({
            "name": "judge.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": self.0.url, "caBundle": self.0.ca_bundle},
            "rules": [{"operations": ["*"], "apiGroups": ["example.com"], "apiVersions": ["*"], "resources": ["gadgets"]}],
        });
        for (field, value) in changes.as_object().into_iter().flatten() {
            webhook[field] = value.clone();
        }
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
               "metadata": {"name": "judge"}, "webhooks": [webhook]})
    }
}

fn refuses_sevens(request: &Value) -> Option<Value> {
    let size = &request["object"]["spec"]["size"];
    Some(match size == &json!(7) {
        true => json!({"allowed": false, "status": {"message": "no sevens", "code": 0}}),
        false => json!({"allowed": true, "warnings": ["looked at"]}),
    })
}

#[tokio::test]
async fn a_webhook_may_refuse_and_warn() {
    let api = Api::with_gadgets().await;
    let webhook = Judge::start(refuses_sevens).await;
    api.post(CONFIGURATIONS, webhook.configuration(json!({}))).await.ok();

    let refused = api.post(GADGETS, gadget("g1", 7)).await;
    assert_eq!(refused.code, 400);
    assert_eq!(refused.message(), r#"admission webhook "judge.example.com" denied the request: no sevens"#);
    let passed = api.post(GADGETS, gadget("g1", 3)).await;
    assert_eq!(passed.headers["warning"], r#"299 - "looked at""#);
    passed.ok();
    assert_eq!(api.merge(&format!("{GADGETS}/g1"), json!({"spec": {"size": 7}})).await.code, 400);
    assert_eq!(api.merge(&format!("{GADGETS}/g1/status"), json!({"status": {"phase": "x"}})).await.code, 200);
    assert_eq!(api.get(&format!("{GADGETS}/g1")).await.ok()["spec"]["size"], 3);
    // What is registered counts from the next write on.
    api.merge(&format!("{CONFIGURATIONS}/judge"), json!({"webhooks": []})).await.ok();
    api.merge(&format!("{GADGETS}/g1"), json!({"spec": {"size": 7}})).await.ok();
}

#[tokio::test]
async fn selectors_and_operations_narrow_what_is_asked() {
    let api = Api::with_gadgets().await;
    let webhook = Judge::start(|_| Some(json!({"allowed": false}))).await;
    let only_marked = json!({
        "objectSelector": {"matchLabels": {"judged": "yes"}},
        "rules": [{"operations": ["CREATE"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}],
    });
    api.post(CONFIGURATIONS, webhook.configuration(only_marked)).await.ok();
    api.post(GADGETS, gadget("free", 1)).await.ok();
    let mut marked = gadget("marked", 1);
    marked["metadata"]["labels"] = json!({"judged": "yes"});
    let refused = api.post(GADGETS, marked).await;
    assert_eq!(
        refused.message(),
        r#"admission webhook "judge.example.com" denied the request without explanation"#
    );
    api.merge(&format!("{GADGETS}/free"), json!({"metadata": {"labels": {"judged": "yes"}}})).await.ok();

    let elsewhere = webhook.configuration(
        json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}),
    );
    api.delete(&format!("{CONFIGURATIONS}/judge"), Value::Null).await.ok();
    api.post(CONFIGURATIONS, elsewhere).await.ok();
    api.post(GADGETS, gadget("here", 1)).await.ok();
    let there = GADGETS.replace("default", "kube-system");
    assert_eq!(api.post(&there, gadget("there", 1)).await.code, 400);
}

#[tokio::test]
async fn one_that_cannot_be_asked_refuses_unless_it_says_ignore() {
    let api = Api::with_gadgets().await;
    let hangs = Judge::start(|_| None).await;
    api.post(CONFIGURATIONS, hangs.configuration(json!({"timeoutSeconds": 1}))).await.ok();
    let late = api.post(GADGETS, gadget("g1", 1)).await;
    assert_eq!((late.code, late.reason()), (500, "InternalError"));
    assert!(late.message().contains("failed calling webhook \"judge.example.com\""), "{}", late.message());
    assert!(late.message().contains("context deadline exceeded"), "{}", late.message());

    let path = format!("{CONFIGURATIONS}/judge");
    api.delete(&path, Value::Null).await.ok();
    let untrusted =
        hangs.configuration(json!({"clientConfig": {"url": hangs.0.url, "caBundle": other_ca()}}));
    api.post(CONFIGURATIONS, untrusted).await.ok();
    assert_eq!(api.post(GADGETS, gadget("g1", 1)).await.code, 500);

    api.delete(&path, Value::Null).await.ok();
    let lenient = hangs.configuration(json!({"timeoutSeconds": 1, "failurePolicy": "Ignore"}));
    api.post(CONFIGURATIONS, lenient).await.ok();
    api.post(GADGETS, gadget("g1", 1)).await.ok();

    api.delete(&path, Value::Null).await.ok();
    let service = hangs.configuration(json!({"clientConfig": {"service": {"name": "a", "namespace": "b"}}}));
    api.post(CONFIGURATIONS, service).await.ok();
    let refused = api.post(GADGETS, gadget("g2", 1)).await;
    assert!(refused.message().contains("use clientConfig.url"), "{}", refused.message());
}

fn other_ca() -> String {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::open(folder.path(), &[], std::time::SystemTime::now()).unwrap();
    base64::engine::general_purpose::STANDARD.encode(certificates.ca_pem())
}
