//! The admission cases on a real API server: [`prepare`] stores what a case begins with, [`perform`] sends its request.
//!
//! Prepare all cases before the ValidatingWebhookConfiguration exists: some begin with objects that the rules refuse.
//! The conversion webhook must serve by then. Each case has a namespace of its own.

use http::{Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::admission_cases::{Act, Case, CaseError, Outcome};
use crate::error::{Doing, Error, Result};

/// What the API server answered.
struct Answer {
    status: u16,
    body: Value,
    warnings: Vec<String>,
}

impl Answer {
    const fn is_success(&self) -> bool {
        self.status < 300
    }

    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }
}

impl From<CaseError> for Error {
    fn from(error: CaseError) -> Self {
        Self::other(error.to_string())
    }
}

async fn call(
    client: &Client,
    method: Method,
    path: &str,
    content_type: &str,
    body: Option<&Value>,
) -> Result<Answer> {
    let doing = || format!("{method} {path}");
    let request = Request::builder()
        .method(method.clone())
        .uri(path)
        .header("content-type", content_type)
        .header("accept", "application/json")
        .body(Body::from(body.map(|b| b.to_string().into_bytes()).unwrap_or_default()))
        .map_err(|e| Error::other(format!("{}: {e}", doing())))?;
    let response = client.send(request).await.doing(doing)?;
    let status = response.status().as_u16();
    let warnings = response
        .headers()
        .get_all("warning")
        .iter()
        .filter_map(|w| w.to_str().ok())
        // `299 - "text"`, and possibly a date after it.
        .map(|w| w.split_once('"').map_or(w, |(_, text)| text.trim_end_matches('"')).replace("\\\"", "\""))
        .collect();
    let bytes = response.into_body().collect().await.doing(doing)?.to_bytes();
    Ok(Answer { status, body: serde_json::from_slice(&bytes).unwrap_or_default(), warnings })
}

async fn must(
    client: &Client,
    method: Method,
    path: &str,
    content_type: &str,
    body: Option<&Value>,
) -> Result<Value> {
    let answer = call(client, method.clone(), path, content_type, body).await?;
    if answer.is_success() {
        return Ok(answer.body);
    }
    Err(Error::other(format!("{method} {path}: {} {}", answer.status, answer.message())))
}

const JSON: &str = "application/json";

/// The namespace of a case.
pub fn namespace(case: &Case) -> String {
    let name: String = format!("adm-{}", case.name).chars().take(63).collect();
    name.trim_end_matches('-').to_owned()
}

/// Path of an object's collection, in the object's own version.
fn collection(namespace: &str, object: &Value) -> String {
    let resource = if object["kind"] == "GarageNode" { "garagenodes" } else { "garageclusters" };
    let version = object["apiVersion"].as_str().unwrap_or_default();
    format!("/apis/{version}/namespaces/{namespace}/{resource}")
}

fn path(namespace: &str, object: &Value) -> String {
    format!("{}/{}", collection(namespace, object), object["metadata"]["name"].as_str().unwrap_or_default())
}

/// Stores an object and its status.
async fn store(client: &Client, namespace: &str, object: &Value) -> Result<()> {
    let mut wanted = object.clone();
    wanted["metadata"]["namespace"] = json!(namespace);
    let mut stored = must(client, Method::POST, &collection(namespace, object), JSON, Some(&wanted)).await?;
    if object["status"].as_object().is_some_and(|s| !s.is_empty()) {
        stored["status"] = object["status"].clone();
        must(client, Method::PUT, &format!("{}/status", path(namespace, object)), JSON, Some(&stored))
            .await?;
    }
    Ok(())
}

/// Stores what a case begins with.
///
/// # Errors
/// The API server refused a part of it.
pub async fn prepare(client: &Client, case: &Case) -> Result<()> {
    let namespace = namespace(case);
    let manifest = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    must(client, Method::POST, "/api/v1/namespaces", JSON, Some(&manifest)).await?;
    let beside = case.parent_object()?.into_iter().chain(case.garage_nodes()?);
    for object in beside.chain(case.old_object()?) {
        store(client, &namespace, &object).await?;
    }
    if case.operation == Act::FinalizerRemoval {
        // The finalizer keeps it, with a deletionTimestamp.
        must(client, Method::DELETE, &path(&namespace, &case.new_object()?), JSON, None).await?;
    }
    Ok(())
}

/// Sends the request of a case.
///
/// # Errors
/// The API server could not be reached, or the stored object is gone.
pub async fn perform(client: &Client, case: &Case) -> Result<Outcome> {
    let namespace = namespace(case);
    let new = case.new_object()?;
    let at = path(&namespace, &new);
    let answer = match case.operation {
        Act::Create => {
            let mut wanted = new.clone();
            wanted["metadata"]["namespace"] = json!(namespace);
            call(client, Method::POST, &collection(&namespace, &new), JSON, Some(&wanted)).await?
        }
        Act::Update | Act::FinalizerRemoval | Act::DryRun | Act::Status => {
            let mut object = must(client, Method::GET, &at, JSON, None).await?;
            json_patch::merge(&mut object, &case.change());
            let at = match case.operation {
                Act::DryRun => format!("{at}?dryRun=All"),
                Act::Status => format!("{at}/status"),
                _ => at,
            };
            call(client, Method::PUT, &at, JSON, Some(&object)).await?
        }
        Act::Ssa => {
            let mut wanted = json!({
                "apiVersion": new["apiVersion"],
                "kind": new["kind"],
                "metadata": {"name": new["metadata"]["name"]},
            });
            json_patch::merge(&mut wanted, &case.change());
            let at = format!("{at}?fieldManager=admission-case&force=true");
            call(client, Method::PATCH, &at, "application/apply-patch+yaml", Some(&wanted)).await?
        }
        Act::Scale => {
            let at = format!("{at}/scale");
            call(client, Method::PATCH, &at, "application/merge-patch+json", Some(&case.change())).await?
        }
        Act::Delete => call(client, Method::DELETE, &at, JSON, None).await?,
    };
    Ok(outcome(&answer))
}

fn outcome(answer: &Answer) -> Outcome {
    let message = answer.message().to_owned();
    // "admission webhook \"…\" denied the request: V4 (…): …"
    let rule = message
        .split_once("denied the request: ")
        .and_then(|(_, ours)| ours.split_once(" ("))
        .map(|(rule, _)| rule.to_owned());
    Outcome { allowed: answer.is_success(), rule, message, warnings: answer.warnings.clone() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_rule_is_read_from_the_message_that_a_person_sees() {
        let body = json!({"message": "admission webhook \"a.b\" denied the request: V10 (a pin moves): GarageNode x"});
        let refused = outcome(&Answer { status: 403, body, warnings: Vec::new() });
        assert_eq!((refused.allowed, refused.rule.as_deref()), (false, Some("V10")));
        let other = outcome(&Answer {
            status: 422,
            body: json!({"message": "spec.x: invalid"}),
            warnings: Vec::new(),
        });
        assert_eq!((other.allowed, other.rule), (false, None));
    }

    #[test]
    fn every_case_has_a_namespace_of_its_own() {
        let cases = crate::admission_cases::load().unwrap();
        let names: std::collections::BTreeSet<String> = cases.iter().map(namespace).collect();
        assert_eq!(names.len(), cases.len());
        assert!(names.iter().all(|n| n.len() <= 63));
    }
}
